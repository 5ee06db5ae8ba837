"""What the gateway knows of one request, from its head to its end."""

from typing import TYPE_CHECKING

from tidegate.activator.commands import Bind
from tidegate.gateway.counting.counters import Ending, RevisionCounters
from tidegate.gateway.routing.match import Target

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.counting.tenant_accounts import Account, Held
    from tidegate.gateway.counting.tokens import Tokens
    from tidegate.wire.bodies.openai import Asked


class RequestState:
    """The chain's own state of one exchange."""

    __slots__ = (
        "asked",
        "bind",
        "bound_at",
        "copy",
        "counters",
        "ending",
        "exchange",
        "first",
        "group",
        "held",
        "id_line",
        "is_answered",
        "is_exposed",
        "is_mute",
        "is_stranded",
        "is_stream",
        "keeps",
        "late_at",
        "replica",
        "request_id",
        "target",
        "tenant",
        "tokens",
    )

    def __init__(self, target: Target, request_id: bytes, id_line: bytes) -> None:
        self.target = target
        self.request_id = request_id
        self.id_line = id_line
        """The field to add on the way to the replica; empty where the client sent one."""
        self.counters: RevisionCounters | None = None
        """Where it is counted; None: nowhere (yet)."""
        self.bind: Bind | None = None
        """Set while a replica has the request."""
        self.bound_at = 0.0
        self.group = ""
        """Of the last replica; empty: it reached none."""
        self.replica = ""
        self.is_answered = self.is_stream = self.keeps = False
        self.is_mute = False
        """One of two copies, and not the one that counts: nothing is told of it."""
        self.is_exposed = False
        """A replica may have run it before it failed."""
        self.ending: Ending | None = None
        """Set where the status alone does not tell how it ended."""
        self.exchange: Exchange | None = None
        """Itself, while it may yet get a second copy or one for a shadow."""
        self.late_at: float | None = None
        """When it gets one."""
        self.copy: Exchange | None = None
        """Its second copy, while that runs."""
        self.first: Exchange | None = None
        """This is a second copy: of that exchange, which still has the client."""
        self.asked: Asked | None = None
        """What was read of an OpenAI body before it is admitted; None: nothing."""
        self.tokens: Tokens | None = None
        """What the request is likely to take, and at its end has taken; None: nobody counts its tokens."""
        self.tenant: Account | None = None
        """Who calls; None: the function does not ask."""
        self.held: Held | None = None
        """What it has reserved of its tenant's quotas."""
        self.is_stranded = False
        """Its replica broke off while its second copy ran: that one decides."""
