"""What can be set of the server: names, values that are allowed, defaults, and what each does."""

import re
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from torpor.settings.places import Places

REGISTRY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.-]+)(:[0-9]{1,5})?")
PREFIX = "TORPOR_"
"""What the names of environment variables begin with."""


def _no_truth(value: Any) -> Any:
    # To Python true is 1.
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


def _registries(value: Any) -> Any:
    """Take `a,b` for a list of two."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    return value


Whole = Annotated[int, BeforeValidator(_no_truth)]


class Settings(BaseSettings):
    """The settings of one server. Made by itself it looks nowhere: ``load_settings`` does."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, case_sensitive=True, extra="forbid", frozen=True
    )

    listen: str = Field(
        "127.0.0.1:8470",
        description="The address and the port at which the server is reached. Port 0: any that is "
        "free.",
        json_schema_extra={"allowed": "an address and a port, as 127.0.0.1:8470 or [::1]:8470"},
    )
    preview_listen: str | None = Field(
        None,
        description="The address and the port at which previews of sessions are reached; `off`: "
        "there are none. Without it: 127.0.0.1, and the port after that of `listen`.",
        json_schema_extra={"allowed": 'an address and a port, as 127.0.0.1:8471, or "off"'},
    )
    preview_url: str | None = Field(
        None,
        description="The URL at which previews are reached from outside; each has a name below its "
        "host. Without it: localhost, and the port of `preview_listen`.",
        json_schema_extra={"allowed": "a URL without a path, as https://previews.example.com"},
    )
    tls_certificate: str | None = Field(
        None,
        min_length=1,
        description="The file with the certificate that the server shows, and those between it and "
        "its authority, in PEM. With it the server speaks TLS and nothing else. Read again when it "
        "has changed.",
        json_schema_extra={"allowed": "a path"},
    )
    tls_key: str | None = Field(
        None,
        min_length=1,
        description="The file with the key of that certificate, in PEM, without a password.",
        json_schema_extra={"allowed": "a path"},
    )
    database: str | None = Field(
        None,
        description="Where the database is. Without it: `database/torpor.db` below Torpor's home.",
        json_schema_extra={
            "allowed": "a URL, as sqlite:////path/of/the/file or postgresql://user@host/database"
        },
    )
    lease_seconds: Whole = Field(
        15,
        ge=6,
        le=300,
        description="For how long at a time the server holds its host, in seconds. A server that "
        "does not reach its database for that long ends, and another one may take the host.",
    )
    authentication: Literal["tokens", "none"] = Field(
        "tokens",
        description="Whether whoever asks must show a token. With `none` everybody who reaches the "
        "server may do everything, so it listens on an address of this computer alone.",
    )
    memory_reserve_mib: Whole = Field(
        512,
        ge=0,
        description="Memory of the host, in MiB, that is left free when a machine is started.",
    )
    memory_limit_mib: Annotated[int, Field(ge=1), BeforeValidator(_no_truth)] | None = Field(
        None,
        description="The most memory, in MiB, that running machines may be promised in all. "
        "Without it: what the host has free decides.",
    )
    idle_timeout_seconds: Whole = Field(
        900,
        ge=0,
        description="How long a session may be idle before it is paused, in seconds, if it has no "
        "such time of its own. 0: for ever.",
    )
    default_image: str = Field(
        "default",
        min_length=1,
        description="The image of a session that asks for none.",
        json_schema_extra={"allowed": "the name of an image"},
    )
    default_size: str = Field(
        "mars-2vcpu-1gb",
        min_length=1,
        description="The size of a session that asks for none.",
        json_schema_extra={"allowed": "the name of a size"},
    )
    sample_seconds: Whole = Field(
        5,
        ge=1,
        description="How often it is noted what each session uses, in seconds.",
    )
    samples_keep_days: Whole = Field(
        30,
        ge=1,
        description="How long it is kept what sessions used, in days.",
    )
    events_keep_days: Whole = Field(
        90,
        ge=1,
        description="How long events are kept, in days.",
    )
    egress_log_keep_days: Whole = Field(
        30,
        ge=1,
        description="How long it is kept what was decided about connections of sessions, and how "
        "many bytes went to each host, in days.",
    )
    flows_keep_days: Whole = Field(
        365,
        ge=1,
        description="How long it is kept, after the last that was heard of a host, that data of a "
        "session went there, in days.",
    )
    rate_limit_per_second: Whole = Field(
        50,
        ge=1,
        description="How many requests a second each token may make in the long run.",
    )
    rate_limit_burst: Whole = Field(
        200,
        ge=1,
        description="How many requests each token may make at once.",
    )
    on_stop: Literal["leave", "freeze"] = Field(
        "leave",
        description="What becomes of running machines when the server is stopped: they run on, and "
        "the next server adopts them, or they are frozen.",
    )
    max_sessions: Whole = Field(
        10_000,
        ge=1,
        description="How many sessions there may be, those that are destroyed not counted.",
    )
    exec_output_limit_mib: Whole = Field(
        1,
        ge=1,
        le=64,
        description="How much of a command's output, and of its errors, is returned by an exec "
        "that waits for its end, in MiB each. (A streamed exec has no such limit.)",
    )

    template_insecure_registries: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_registries)
    ] = Field(
        (),
        description="Registries that templates may be built from without proving who they are: by"
        " plain HTTP, or with a certificate that nobody vouches for.",
        json_schema_extra={
            "allowed": "a list of hosts, each with its port if that is not the usual one, as"
            ' ["127.0.0.1:5000"]; in the environment and as a flag with commas between them'
        },
    )
    public_url: str | None = Field(
        None,
        description="What the URLs begin with that the server gives out. Without it: with the "
        "address to which the request was sent, which is not right behind a proxy that changes it.",
        json_schema_extra={"allowed": "a URL, as https://torpor.example.com"},
    )
    transfer_limit_gib: Whole = Field(
        50,
        ge=1,
        le=50,
        description="How large one transfer may be, in GiB.",
    )
    transfer_keep_hours: Whole = Field(
        24,
        ge=1,
        le=24 * 30,
        description="How long an upload may stand still before it is given up, and how long what "
        "was made ready to be fetched is kept, in hours.",
    )

    workspace_limit_gib: Whole = Field(
        100,
        ge=1,
        le=100,
        description="How large one workspace may be, in GiB.",
    )
    workspace_default_gib: Whole = Field(
        10,
        ge=1,
        le=100,
        description="How large a workspace is that is made for a session, in GiB; never more than "
        "`workspace_limit_gib`.",
    )
    max_workspaces: Whole = Field(
        100,
        ge=1,
        description="How many workspaces there may be.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what is given, and nothing that happens to be in the environment."""
        return (init_settings,)

    @field_validator("listen")
    @classmethod
    def _has_address_and_port(cls, value: str) -> str:
        parsed_address(value)
        return value

    @field_validator("template_insecure_registries")
    @classmethod
    def _are_registries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not REGISTRY.fullmatch(each):
                raise ValueError(f"{each!r} is not a host with or without a port")
        return value

    @field_validator("public_url")
    @classmethod
    def _begins_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parsed = urlsplit(value)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise ValueError("it does not begin with http:// or https:// and a name")
        if parsed.query or parsed.fragment or parsed.username or not value.isascii():
            raise ValueError("only a scheme, a host, a port and a path can be in it")
        return value.rstrip("/")

    @field_validator("preview_listen")
    @classmethod
    def _has_both_or_is_off(cls, value: str | None) -> str | None:
        if value not in (None, "off"):
            parsed_address(value)
        return value

    @field_validator("preview_url")
    @classmethod
    def _is_an_origin(cls, value: str | None) -> str | None:
        if value is not None:
            parsed_origin(value)
        return value

    @model_validator(mode="after")
    def _open_to_this_computer_only(self) -> Self:
        if self.authentication == "none" and not is_loopback(self.address[0]):
            raise ValueError(
                f'With authentication = "none" listen may not be "{self.listen}": allowed is an '
                "address that only this computer reaches (127.0.0.1, [::1] or localhost)"
            )
        previews = self.preview_address
        if self.authentication == "none" and previews and not is_loopback(previews[0]):
            raise ValueError(
                f'With authentication = "none" preview_listen may not be "{self.preview_listen}": '
                "allowed is an address that only this computer reaches"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> Self:
        if (self.tls_certificate is None) is not (self.tls_key is None):
            there, missing = "tls_certificate", "tls_key"
            if self.tls_certificate is None:
                there, missing = missing, there
            raise ValueError(f"{there} is set, and {missing} is not: TLS needs both")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The host, without brackets, and the port of ``listen``."""
        return parsed_address(self.listen)

    @property
    def preview_address(self) -> tuple[str, int] | None:
        """The host and the port of ``preview_listen``, 0 for any port that is free; None if it is
        off."""
        if self.preview_listen == "off":
            return None
        if self.preview_listen is not None:
            return parsed_address(self.preview_listen)
        port = self.address[1]
        return "127.0.0.1", port + 1 if 0 < port < (1 << 16) - 1 else 0

    def told(self) -> dict[str, Any]:
        """Return what is not a default, without the password of the database, to be shown and kept
        elsewhere."""
        named = self.model_dump(exclude_defaults=True)
        if self.database is not None and not self.database.startswith("sqlite"):
            before, at, rest = self.database.rpartition("@")
            scheme, slashes, user = before.partition("://")
            named["database"] = f"{scheme}{slashes}{user.partition(':')[0]}{at}{rest}"
        return named

    def database_url(self, places: Places) -> str:
        """Return the URL of the database of an installation."""
        return self.database or f"sqlite:///{quote(str(places.home))}/database/torpor.db"


def parsed_address(listen: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port`` or ``[address]:port``.

    Raises :exc:`ValueError`.
    """
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = str(ip_address(host[1:-1]))
    if not colon or not host or (":" in host) is not bracketed:
        raise ValueError("it has no address, or no port")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError("a port is a number up to 65535")
    return host, int(port)


def parsed_origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, the host in small letters, and the port of a URL without a path.

    Raises :exc:`ValueError`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it does not begin with http:// or https:// and a name")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("it has more than a name and a port")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Return whether only this computer reaches ``host``. A name other than localhost may be
    anybody's."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
