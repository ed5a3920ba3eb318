"""What the host is told of an error."""

import errno
import os


def describe(error: Exception) -> dict[str, str]:
    """Return an error document: ``code`` is the errno's name or the exception's."""
    if isinstance(error, OSError) and error.errno is not None:
        code = errno.errorcode.get(error.errno, "EIO")
        where = f": {error.filename}" if error.filename else ""
        return {"code": code, "message": f"{os.strerror(error.errno)}{where}"}
    return {"code": type(error).__name__, "message": str(error)}
