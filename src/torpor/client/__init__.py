"""A client for the HTTP API."""
