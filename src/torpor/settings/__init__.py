"""Where things are kept, and how the server is to behave.

``Settings`` and ``load_settings`` are imported when they are first asked for: pydantic-settings
takes a third of the time in which a command's help is printed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torpor.settings.places import Places, default_places, extra_authorities

if TYPE_CHECKING:
    from torpor.settings.errors import SettingsError
    from torpor.settings.loading import load_settings
    from torpor.settings.model import Settings

__all__ = [
    "Places",
    "Settings",
    "SettingsError",
    "default_places",
    "extra_authorities",
    "load_settings",
]
_LATER = {
    "Settings": "torpor.settings.model",
    "SettingsError": "torpor.settings.errors",
    "load_settings": "torpor.settings.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
