"""A server double for the commands that speak to one."""

from tests.client.conftest import double  # noqa: F401 (a fixture)
