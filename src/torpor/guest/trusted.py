"""What commands are told of the authorities that the machine trusts besides the usual ones."""

import os

OWN = "etc/torpor"
ALONE, WHOLE, MARK = f"{OWN}/wall.pem", f"{OWN}/ca-bundle.pem", f"{OWN}/wall.mark"
NAMES = f"{OWN}/wall.hashed"
"""The names of what was put into the directory in which OpenSSL looks."""

ADDED = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
"""Variables that name authorities to trust besides the runtime's own."""
REPLACED = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
)  # fmt: skip
"""Variables that name all authorities that are trusted."""


def environment(root: str = "/") -> dict[str, str]:
    """Return what a command's environment has so that runtimes with lists of their own trust what
    the machine does; nothing where the host has had nothing trusted."""
    if not os.path.exists(os.path.join(root, MARK)):
        return {}
    alone = dict.fromkeys(ADDED, f"/{ALONE}")
    return alone | dict.fromkeys(REPLACED, f"/{WHOLE}")
