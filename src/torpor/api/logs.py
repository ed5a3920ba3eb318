"""The log: a line for each thing, as words and `key=value`, on standard error."""

import json
import logging
import sys
import time
from typing import IO


class Lines(logging.Formatter):
    """Writes a record as one line. A value that could be mistaken for more is quoted, so that no
    request can write lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; an exception's lines follow it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        words = [
            f"{at}.{int(record.msecs):03d}Z",
            record.levelname,
            record.name,
            _plain(record.getMessage()),
        ]
        fields = getattr(record, "fields", {})
        words += [f"{name}={_value(value)}" for name, value in fields.items() if value is not None]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: object) -> str:
    text = str(value)
    simple = text.isprintable() and text and not set(text) & set(' "=\\')
    return text if simple else json.dumps(text)


def configure_logs(stream: IO[str] | None = None) -> None:
    """Have everything that is logged from now on written to ``stream``, standard error if None; of
    libraries warnings alone."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("torpor").setLevel(logging.INFO)
