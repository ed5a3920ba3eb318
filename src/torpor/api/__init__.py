"""The HTTP API: sessions for whoever has a token, and the server that offers them.

await serve(load_settings({}), default_places())
"""

from torpor.api.app import create_app
from torpor.api.server import ADMIN_TOKEN, ListenError, serve
from torpor.api.tls import TlsError

__all__ = ["ADMIN_TOKEN", "ListenError", "TlsError", "create_app", "serve"]
