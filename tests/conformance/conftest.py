"""The option that rewrites the page."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write",
        action="store_true",
        help="write docs/compatibility.md anew, of what the client does with this server",
    )
