"""What sessions may reach, what was decided about it, and where their data went."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from torpor.api.schemas.body import Answered, Asked, Time
from torpor.sessions.egress_policy import MOST_CHANGED, normal, policy_of, shown
from torpor.sessions.errors import InvalidError
from torpor.store.records import EgressEntry, Flow, Session


def _policy(said: object) -> str | dict[str, Any]:
    """Take a policy in whichever way it is written, in its normal form."""
    if said is None:  # a key with nothing behind it is no policy that lets everything through
        raise ValueError("it is empty; leave the key out, or write unrestricted, or none")
    try:
        return shown(normal(said))
    except InvalidError as error:
        happened = error.happened.removeprefix("egress: ")
        raise ValueError(" ".join(filter(None, (happened, error.todo)))) from None


_EXAMPLE = {"allow": [{"host": "api.example.com"}]}
Policy = Annotated[
    Any,
    BeforeValidator(_policy),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": ["unrestricted", "none"]},
                {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                {"type": "object"},
            ],
            "examples": [_EXAMPLE],
        }
    ),
]
EGRESS = (
    "What its machine may reach: `unrestricted` (all that is public, as if this is left out),"
    " `none`, a list of rules, or an object with `allow` (rules), `presets`, `deny` and more. With"
    " one rule, nothing else is reached. A rule is a host, `*.host`, `host:port`, `tls://host:port`,"
    " `tcp://host:port`, `udp://host:port` or `network:port`; as an object it may ask for"
    " `inspect`."
)


class EgressBody(Answered):
    """What a session may reach."""

    session_id: str
    policy: str | dict[str, Any] = Field(
        description="The policy in its normal form, in which it can be sent back.",
        examples=[_EXAMPLE],
    )
    mode: Literal["open", "list", "none"] = Field(
        description="What that comes to: all that is public, what is listed, or nothing."
    )
    notes: list[str] = Field(
        description="What should be known of it: what may not be meant, and what its host makes of"
        " it."
    )
    connections_cut: int | None = Field(
        None, description="After a change: how many connections that has cut."
    )

    @classmethod
    def of(cls, record: Session, notes: tuple[str, ...], cut: int | None = None) -> "EgressBody":
        """Return it as it is shown."""
        return cls(
            session_id=record.id,
            policy=shown(record.egress),
            mode=policy_of(record.egress).mode,
            notes=list(notes),
            connections_cut=cut,
        )


class EgressAnswer(Answered):
    """What a session may reach."""

    egress: EgressBody


Rules = Annotated[list[Any], Field(min_length=1, max_length=MOST_CHANGED)]


class EgressChanges(Asked):
    """What a session may reach from now on: another policy, or rules more and fewer."""

    policy: Policy = Field(None, description="Torpor: the policy in place of the one before.")
    add: Rules | None = Field(
        None,
        description="Rules to be added, each a text, or an object with `host` and `inspect`.",
        examples=[["api.example.com"]],
    )
    remove: Annotated[list[str], Field(min_length=1, max_length=MOST_CHANGED)] | None = Field(
        None, description="Rules, and presets, to be removed.", examples=[["old.example.com"]]
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        rules = self.add is not None or self.remove is not None
        if (self.policy is not None) is rules:
            raise ValueError("write 'policy', or 'add' and 'remove'")
        return self


class DecisionBody(Answered):
    """What the wall decided once, or `count` times alike between `at` and `until`."""

    decision_id: str = Field(
        description="A ULID: the order of ids is that of the log.",
        examples=["01JT9Q0M7V3WZ2K4N8XG5B6C1D"],
    )
    session_id: str
    at: Time
    until: Time
    count: int = Field(examples=[1])
    host: str = Field(
        description="The name that the machine wanted, or the address that it dialled by itself."
        " Empty for many that came at one moment, and are counted together.",
        examples=["api.example.com"],
    )
    port: int = Field(examples=[443])
    transport: str = Field(description="tcp or udp.", examples=["tcp"])
    address: str | None = Field(
        None, description="The address that was connected to, of several the first."
    )
    spoken: str | None = Field(
        None, description="What the machine spoke: tls, http, or raw.", examples=["tls"]
    )
    allowed: bool
    rule: str = Field(description="The rule that decided, or the mode of the policy.")
    why: str = Field(description="Why it was denied; empty if it was not.")
    add: str = Field(
        description="The rule that would allow it, to be added; empty if none would.",
        examples=["api.example.com:443"],
    )
    ended: bool = Field(
        description="False where an allowed connection has begun; true where it has ended, with"
        " all of its bytes."
    )
    seconds: float = Field(description="How long it lasted, in all.")
    sent_bytes: int = Field(description="Bytes that went out.")
    received_bytes: int = Field(description="Bytes that came in.")
    inspected: bool = Field(description="Whether TLS was ended at the wall.")
    secrets: list[str] = Field(description="The names of secrets that were put in.")

    @classmethod
    def of(cls, entry: EgressEntry) -> "DecisionBody":
        """Return a line as it is shown."""
        return cls(
            decision_id=entry.id,
            session_id=entry.session,
            at=entry.at,
            until=entry.until,
            count=entry.count,
            host=entry.host,
            port=entry.port,
            transport=entry.transport,
            address=entry.address,
            spoken=entry.spoken,
            allowed=entry.allowed,
            rule=entry.rule,
            why=entry.why,
            add=entry.add,
            ended=entry.ended,
            seconds=entry.seconds,
            sent_bytes=entry.sent_bytes,
            received_bytes=entry.received_bytes,
            inspected=entry.inspected,
            secrets=list(entry.secrets),
        )


class DecisionPage(Answered):
    """Some decisions, the newest first."""

    decisions: list[DecisionBody]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class FlowBody(Answered):
    """What went from a session to one place, and back."""

    kind: str = Field(description="What kind of place it is.", examples=["host"])
    name: str = Field(
        description="Its name. Empty: the places beyond those that are kept apart, together.",
        examples=["api.example.com"],
    )
    first_at: Time
    last_at: Time
    connections: int = Field(examples=[3])
    denied: int = Field(description="How often something was denied about it.")
    sent_bytes: int = Field(description="Bytes that it received from the session.")
    received_bytes: int = Field(description="Bytes that it sent to the session.")
    inspected: bool = Field(description="Whether TLS to it was ended at the wall, at least once.")
    secrets: list[str] = Field(description="The names of secrets that were put in there.")

    @classmethod
    def of(cls, flow: Flow) -> "FlowBody":
        """Return a place as it is shown."""
        return cls(
            kind=flow.kind,
            name=flow.name,
            first_at=flow.first_at,
            last_at=flow.last_at,
            connections=flow.connections,
            denied=flow.denied,
            sent_bytes=flow.sent_bytes,
            received_bytes=flow.received_bytes,
            inspected=flow.inspected,
            secrets=list(flow.secrets),
        )


class FlowsAnswer(Answered):
    """Where the data of a session went: what has received most first."""

    session_id: str
    flows: list[FlowBody]
    denied: int = Field(
        description="How often something was denied in all, of those places too that are not"
        " listed."
    )
