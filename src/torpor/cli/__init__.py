"""The command line: arguments, tables, exit statuses.

What it imports, each start waits for: commands import the packages below when they run.
"""


def main() -> None:
    """Run ``torpor``; this is the program's entry point."""
    from torpor.cli.app import app
    from torpor.cli.hang_up import heard

    with heard():
        app()
