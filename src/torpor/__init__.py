"""Torpor runs agents in microVMs that can be frozen, thawed and forked.

``torpor.__version__`` is read from the installed package when it is asked for: the guest imports
``torpor.guest`` from a disk on which no package is installed.
"""


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("torpor")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
