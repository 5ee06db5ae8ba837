"""What the request path needs of the process that it runs in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.activator.commands import Command
from tidegate.gateway.access.control import Ask, QuotaCounters
from tidegate.gateway.answers.cold_answers import BeginStream
from tidegate.gateway.resilience.resilience import Probe
from tidegate.gateway.resilience.shadow import Ear, Shadows

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.aio.upstream.pool import UpstreamPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEffects:
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
    """Those of ``tidegate.aio.proxy.detached``."""
    shadow_copy: "Callable[[Exchange, Shadows, float, Ear], Exchange | None]"
    overhear: "Callable[[Exchange, Ear], None]"
    """Those of ``tidegate.aio.proxy.tapped``."""
    begin_stream: BeginStream
    alarm: Callable[[float], None]
    """Call ``Chain.late`` at this time."""
    probe: Probe
    """Asks an ejected replica; ``Chain.probed`` follows."""
    wall: Callable[[], float]
    """Unix seconds of the wall clock: tokens state their times so."""
    till: Callable[[], QuotaCounters]
    """Where quotas are reserved; called once, for the first quota."""
    ask: Ask
    """Asks the other gateways about a quota, in the background."""
