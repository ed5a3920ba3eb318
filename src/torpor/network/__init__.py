"""The wall: what a machine may talk to, decided outside of it, whoever is root inside."""
