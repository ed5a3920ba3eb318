"""Bindings: for which requests a secret is used, and how.

A binding is written as plain data, of which all but ``host`` may be left out:

    {"host": "api.example.com", "port": 443, "schemes": ["https", "wss"], "methods": ["GET"],
     "path": "/v1/**", "header": "authorization", "template": "Bearer {}"}

Instead of ``header`` it has ``basic`` (the user), ``query`` (the parameter) or ``placeholder``
(what stands for the secret in the machine).
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import unquote

from torpor.network.errors import PolicyError

Scheme = Literal["https", "wss"]
"""``wss`` is the request with which a WebSocket begins. There is none without TLS."""

ANY_PATH = "/**"
SHORTEST, LONGEST = 8, 8192
"""Characters of a value: what is shorter would be found by chance in what has nothing to do with it
when echoes are redacted."""

_SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()+,;=:@*-]*)+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PLACEHOLDER = re.compile(r"[A-Za-z0-9_-]{16,128}")
_TARGET = re.compile(r"[!-~]+")
_DOTS = re.compile(r"/\.{1,2}(?=[/;?]|$)")
"""Segments that are one dot or two, also with parameters: some servers go up by them."""

FRAMING = frozenset(
    (
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
        "expect", "grpc-accept-encoding", "host", "http2-settings", "keep-alive", "range", "te",
        "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers that say how a request is to be read, and so cannot be a secret's."""
_KEYS = {
    "host", "port", "schemes", "methods", "path", "header", "template", "basic", "query",
    "placeholder", "variable", "in_body",
}  # fmt: skip


@dataclass(frozen=True)
class HeaderUse:
    """A header that is set: to ``template``, in which ``{}`` is the value."""

    name: str
    template: str = "{}"


@dataclass(frozen=True)
class BasicUse:
    """The password of a ``user``, as HTTP's Basic credentials."""

    user: str


@dataclass(frozen=True)
class QueryUse:
    """A parameter of the query that is set."""

    name: str


@dataclass(frozen=True)
class PlaceholderUse:
    """A ``text`` that the machine has in the ``variable`` of its environment, and that is swapped
    for the value where it stands in headers, and with ``in_body`` in small bodies too."""

    text: str
    variable: str
    in_body: bool = False


Use = HeaderUse | BasicUse | QueryUse | PlaceholderUse


@dataclass(frozen=True)
class Binding:
    """What requests the secret ``secret`` is used for, and how. ``host`` is a name, or ``*.`` and
    a name for all below it; ``methods`` empty: all. In ``path``, ``*`` stands for any one segment
    (or a part of it), ``**`` for any number of segments."""

    secret: str
    host: str
    use: Use
    port: int = 443
    schemes: tuple[Scheme, ...] = _SCHEMES
    methods: tuple[str, ...] = ()
    path: str = ANY_PATH

    def concerns(self, host: str, port: int) -> bool:
        """Say whether requests to a host and port may be among those it is for."""
        if port != self.port:
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and len(host) > len(self.host) - 1
        return host == self.host


@dataclass(frozen=True)
class Asked:
    """A request, as far as bindings ask: ``scheme`` None is cleartext. ``host`` is the name that
    the wall has connected to, lower case and without the last dot; ``target`` has path and
    query."""

    scheme: Scheme | None
    host: str
    port: int
    method: str
    target: str


@dataclass(frozen=True)
class Choice:
    """The one binding that a request matches. If there is none, ``why`` says so for people;
    ``among`` are the secrets of those that match, if they are more than one."""

    binding: Binding | None
    why: str = ""
    among: tuple[str, ...] = ()


def choose(bindings: Iterable[Binding], asked: Asked) -> Choice:
    """Return the binding that a request matches, if it is exactly one."""
    here = [each for each in bindings if each.concerns(asked.host, asked.port)]
    if asked.scheme is None:
        why = "Secrets are not used without TLS." if here else ""
        return Choice(None, why)
    found = [each for each in here if _matches(each, asked)]
    if len(found) == 1:
        return Choice(found[0])
    if found:
        names = tuple(sorted({each.secret for each in found}))
        return Choice(
            None,
            f"{len(found)} bindings match this request, of {', '.join(names)}; a secret is used"
            " only where exactly one does.",
            names,
        )
    if not here:
        return Choice(None)
    return Choice(None, "No secret is bound to this method and path.")


def _matches(binding: Binding, asked: Asked) -> bool:
    if asked.scheme not in binding.schemes:
        return False
    if binding.methods and asked.method not in binding.methods:
        return False
    if binding.path == ANY_PATH:
        return True
    path = plain_path(asked.target)
    return path is not None and _pattern(binding.path).fullmatch(path) is not None


def plain_path(target: str) -> str | None:
    """Return the path of a request's target without percent signs; None if servers could take it
    for another path than it seems to be."""
    path = target.partition("?")[0]
    if not path.startswith("/") or not _TARGET.fullmatch(path) or "#" in path:
        return None
    if re.search(r"%(?![0-9A-Fa-f]{2})|%(2[fF]|5[cC]|25|00)", path):
        return None  # a slash, a backslash, a percent sign or a NUL that each server reads its way
    try:
        plain = unquote(path, errors="strict")
    except UnicodeDecodeError:
        return None
    if "\\" in plain or "//" in plain or _DOTS.search(plain) or not plain.isprintable():
        return None
    return plain


def _pattern(path: str) -> re.Pattern[str]:
    parts = []
    for segment in path.split("/")[1:]:
        if segment == "**":
            parts.append("(?:/[^/]*)*")
        else:
            parts.append("/" + "[^/]*".join(map(re.escape, segment.split("*"))))
    return re.compile("".join(parts))


# What is written


def parse(
    said: object, secret: str, where: str = "binding", placeholder: str | None = None
) -> Binding:
    """Read a binding of a secret. ``placeholder`` is the text that it gets if it is one and says
    none; a new one if that is None.

    Raises :exc:`PolicyError` for what is not a binding, or would not do anything.
    """
    if not isinstance(said, Mapping):
        raise PolicyError(where, "a binding is an object.")
    if unknown := [str(key) for key in said if key not in _KEYS]:
        raise PolicyError(f"{where}.{unknown[0]}", "this key is not known.")
    return Binding(
        secret=check_name(secret),
        host=_host(_text(said, "host", where, None), f"{where}.host"),
        use=_use(said, secret, where, placeholder),
        port=_port(said.get("port", 443), f"{where}.port"),
        schemes=_schemes(said.get("schemes"), f"{where}.schemes"),
        methods=_methods(said.get("methods"), f"{where}.methods"),
        path=_path(_text(said, "path", where, ANY_PATH), f"{where}.path"),
    )


def plain(binding: Binding) -> dict[str, Any]:
    """Return a binding as :func:`parse` reads it."""
    use: dict[str, Any]
    match binding.use:
        case HeaderUse(name, template):
            use = {"header": name, "template": template}
        case BasicUse(user):
            use = {"basic": user}
        case QueryUse(name):
            use = {"query": name}
        case PlaceholderUse(text, variable, in_body):
            use = {"placeholder": text, "variable": variable, "in_body": in_body}
    return {
        "host": binding.host,
        "port": binding.port,
        "schemes": list(binding.schemes),
        "methods": list(binding.methods),
        "path": binding.path,
        **use,
    }


def check_name(name: str) -> str:
    """Return the name of a secret. Raises :exc:`PolicyError` if none can be called so."""
    if not _NAME.fullmatch(name):
        raise PolicyError(
            "name",
            f"a secret cannot be called {name!r}.",
            todo="Use a letter, then letters, digits, '_', '-' and '.', 64 at most.",
        )
    return name


def check_value(value: str) -> str:
    """Return the value of a secret. Raises :exc:`PolicyError` if it cannot be one; what it is, is
    not in the error."""
    if not SHORTEST <= len(value) <= LONGEST:
        raise PolicyError(
            "value", f"a value has {SHORTEST} to {LONGEST} characters, this one {len(value)}."
        )
    if not all(" " <= char <= "~" for char in value) or value != value.strip():
        raise PolicyError(
            "value",
            "it has characters that cannot stand in a header, or a space or an end of line around"
            " it.",
            todo="Encode it, as with base64, if it has to have them.",
        )
    return value


def check_open(is_open: bool, *, although_open: bool) -> None:
    """Raise :exc:`PolicyError` if a session is to get a secret that may talk to everybody, unless
    that was said: it could fetch with it and hand on what it got to anybody."""
    if is_open and not although_open:
        raise PolicyError(
            "egress",
            "this session may talk to every public host: what it fetches with a secret, it can hand"
            " on to any of them.",
            todo="Give it a list of hosts first; or say that it is to have the secret although its"
            " policy is open.",
        )


def new_placeholder() -> str:
    """Return a text that is worth nothing, and that nobody else has."""
    return f"torpor-secret-{secrets.token_hex(16)}"


def environment(bindings: Iterable[Binding]) -> dict[str, str]:
    """Return what a machine has in its environment for its secrets."""
    uses = [each.use for each in bindings]
    return {each.variable: each.text for each in uses if isinstance(each, PlaceholderUse)}


def _use(said: Mapping[str, Any], secret: str, where: str, placeholder: str | None) -> Use:
    kinds = [each for each in ("header", "basic", "query", "placeholder") if each in said]
    if len(kinds) > 1:
        raise PolicyError(where, f"it is used in one way, and not as {' and as '.join(kinds)}.")
    kind = kinds[0] if kinds else "header"
    for key, of in (
        ("template", "header"),
        ("variable", "placeholder"),
        ("in_body", "placeholder"),
    ):
        if key in said and kind != of:
            raise PolicyError(f"{where}.{key}", f"this belongs to {of!r}, which is not there.")
    if kind == "basic":
        user = _text(said, "basic", where, None)
        if ":" in user or not all(" " <= char <= "~" for char in user):
            raise PolicyError(f"{where}.basic", "a user is ASCII without ':'.")
        return BasicUse(user)
    if kind == "query":
        name = _text(said, "query", where, None)
        if not re.fullmatch(r"[A-Za-z0-9_.~\[\]-]{1,128}", name):
            raise PolicyError(f"{where}.query", f"{name!r} is no name of a parameter.")
        return QueryUse(name)
    if kind == "placeholder":
        return _placeholder(said, secret, where, placeholder)
    return _header(said, where)


def _header(said: Mapping[str, Any], where: str) -> HeaderUse:
    default = "Bearer {}" if "header" not in said else "{}"
    name = _text(said, "header", where, "authorization").lower()
    if not _TOKEN.fullmatch(name):
        raise PolicyError(f"{where}.header", f"{name!r} is no name of a header.")
    if name in FRAMING or name.startswith(("proxy-", "sec-")):
        raise PolicyError(f"{where}.header", f"{name!r} says how a request is to be read.")
    template = _text(said, "template", where, default)
    if len(template) > 1024 or not all(" " <= char <= "~" for char in template):
        raise PolicyError(f"{where}.template", "a template is at most 1024 characters of ASCII.")
    if template.count("{}") != 1 or template != template.strip():
        raise PolicyError(
            f"{where}.template",
            "a template has '{}' once, where the value is, and no space around it.",
        )
    return HeaderUse(name, template)


def _placeholder(
    said: Mapping[str, Any], secret: str, where: str, given: str | None
) -> PlaceholderUse:
    named = said["placeholder"]
    text = (given or new_placeholder()) if named is True else named
    if not isinstance(text, str) or not _PLACEHOLDER.fullmatch(text):
        raise PolicyError(
            f"{where}.placeholder",
            "it is true, or 16 to 128 letters, digits, '_' and '-', which stand for nothing else.",
        )
    default = "".join(each if each.isalnum() else "_" for each in secret).upper()
    variable = _text(said, "variable", where, default)
    if not _VARIABLE.fullmatch(variable):
        raise PolicyError(f"{where}.variable", f"{variable!r} is no name of a variable.")
    in_body = said.get("in_body", False)
    if not isinstance(in_body, bool):
        raise PolicyError(f"{where}.in_body", "this is true or false.")
    return PlaceholderUse(text, variable, in_body)


def _host(written: str, where: str) -> str:
    host = written.lower().removesuffix(".")
    name = host.removeprefix("*.")
    if "*" in name:
        raise PolicyError(where, f"in {written!r}, '*' is only for a whole first part: '*.host'.")
    if not name.isascii():
        raise PolicyError(where, f"{written!r} is not ASCII.", todo="Write it as 'xn--...'.")
    if re.search(r"[/:@?#\s]", name):
        raise PolicyError(
            where, f"{written!r} is more than a host.", todo="Port and path are said on their own."
        )
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(each) for each in labels):
        raise PolicyError(where, f"{written!r} is no name of a host.")
    if labels[-1].isdigit():
        raise PolicyError(
            where, f"{written!r} is an address; secrets are for names, which TLS proves."
        )
    if len(labels) == 1 and host != name:
        raise PolicyError(where, f"{written!r} is too wide.")
    return host


def _port(said: object, where: str) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or not 1 <= said <= 65535:
        raise PolicyError(where, "a port is a number from 1 to 65535.")
    return said


def _schemes(said: object, where: str) -> tuple[Scheme, ...]:
    if said is None:
        return _SCHEMES
    if not isinstance(said, Sequence) or isinstance(said, str) or not said:
        raise PolicyError(where, "this is a list of 'https' and 'wss'.")
    if wrong := [each for each in said if each not in _SCHEMES]:
        raise PolicyError(where, f"{wrong[0]!r} is neither 'https' nor 'wss'; others have no TLS.")
    return tuple(each for each in _SCHEMES if each in said)


def _methods(said: object, where: str) -> tuple[str, ...]:
    if said is None:
        return ()
    if not isinstance(said, Sequence) or isinstance(said, str):
        raise PolicyError(where, "this is a list of methods.")
    for each in said:
        if not isinstance(each, str) or not _METHOD.fullmatch(each):
            raise PolicyError(where, f"{each!r} is no method; they are in capitals.")
    return tuple(sorted(set(said)))


def _path(path: str, where: str) -> str:
    if not _PATH.fullmatch(path) or len(path) > 1024:
        raise PolicyError(
            where, f"{path!r} is no pattern of a path.", todo="Write '/v1/*' or '/v1/**'."
        )
    if any("**" in each and each != "**" for each in path.split("/")):
        raise PolicyError(where, "'**' is a segment of its own.")
    if path.count("**") > 1:
        raise PolicyError(where, "'**' is there once at most.")
    if "//" in path or _DOTS.search(path):
        raise PolicyError(where, f"no request's path is like {path!r}.")
    return path


def _text(said: Mapping[str, Any], key: str, where: str, default: str | None) -> str:
    found = said.get(key, default)
    if found is None:
        raise PolicyError(f"{where}.{key}", "this is missing.")
    if not isinstance(found, str) or not found:
        raise PolicyError(f"{where}.{key}", "this is a text.")
    return found
