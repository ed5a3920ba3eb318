"""Which agent this is."""

DIGEST = ""
"""A SHA-256 over the agent's files, as hex digits, written here when they are put on a tools
disk."""
