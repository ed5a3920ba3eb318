"""The HTTP API: sessions for whoever has a token, and the server that offers them.

await serve(load_settings({}), default_places())
"""

from torpor.api.app import create_app
from torpor.api.listening import ListenError
from torpor.api.opened_bearers import ADMIN_TOKEN
from torpor.api.server import serve
from torpor.api.stopping import HostLostError
from torpor.api.tls import TlsError

__all__ = ["ADMIN_TOKEN", "HostLostError", "ListenError", "TlsError", "create_app", "serve"]
