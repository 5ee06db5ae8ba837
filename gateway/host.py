"""What the request path needs of the process that it runs in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from activator.commands import Command
from gateway.cold_answers import BeginStream
from gateway.resilience import Probe
from gateway.shadow import Ear, Shadows
from gateway.tenants import Ask, Till

if TYPE_CHECKING:
    from tidegate.aio.exchange import Exchange
    from tidegate.aio.upstream import UpstreamPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Sockets, time and tasks, as the chain uses them."""

    clock: Callable[[], float]
    pool_of: "Callable[[str], UpstreamPool]"
    """The connections to an address."""
    shell: Callable[[Command], None]
    """Carries out commands about channels and activation."""
    after: Callable[[], None]
    """The room may want to be settled or woken."""
    learn: Callable[[str, str, str], None]
    """(revision, address, path): fetches a copy of model metadata."""
    copy: "Callable[[Exchange], Exchange | None]"
    hand_over: "Callable[[Exchange, Exchange], None]"
    """Those of ``tidegate.aio.hedge``."""
    shadow_copy: "Callable[[Exchange, Shadows, float, Ear], Exchange | None]"
    overhear: "Callable[[Exchange, Ear], None]"
    """Those of ``tidegate.aio.shadow``."""
    begin_stream: BeginStream
    alarm: Callable[[float], None]
    """Call ``Chain.late`` at this time."""
    probe: Probe
    """Asks an ejected replica; ``Chain.probed`` follows."""
    wall: Callable[[], float]
    """Unix seconds of the wall clock: tokens state their times so."""
    till: Callable[[], Till]
    """Where quotas are reserved; called once, for the first quota."""
    ask: Ask
    """Asks the other gateways about a quota, in the background."""
