"""TLS that is ended at the wall, so that requests are judged one by one and get their secrets."""
