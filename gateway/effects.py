"""Ports: what the request path needs of the process that it runs in.

The chain is a core: it reads no clock, opens no socket and starts no task. Its host (``live.py``, a test, a benchmark)
passes these callables in, grouped by subject.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidegate.gateway.jobs.records import JobBounds, JobStore, JobStoreError

if TYPE_CHECKING:
    from tidegate.activator.state.bind import Command
    from tidegate.aio.proxy.detached import AnswerSink, BodyTap, DeferredClient
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp
    from tidegate.aio.upstream.pool import UpstreamPool
    from tidegate.gateway.access.quota_pool import AskPool, QuotaCounters
    from tidegate.gateway.answers.cold_answers import BeginStream
    from tidegate.gateway.payloads.sampler import PutPayloads
    from tidegate.gateway.pipelines.conversions import ConvertElsewhere
    from tidegate.gateway.pipelines.pipelines import NextExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Clocks and the timer of hedges."""

    clock: Callable[[], float]
    """Returns seconds of ``time.monotonic``."""
    wall: Callable[[], float]
    """Returns Unix seconds: JSON Web Tokens state their times so."""
    alarm: Callable[[float], None]
    """Schedules a call of ``GatewayCore.on_hedges_due`` at this time, or before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomHost:
    """Carries out what the waiting room wants beyond requests."""

    run: "Callable[[Command], None]"
    """Carries out one command about channels or activation."""
    reschedule: Callable[[], None]
    """Schedules ``GatewayCore.settle`` and ``on_room_due`` by what the room says now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstreams:
    """Connections to replicas."""

    pool_of: "Callable[[str], UpstreamPool]"
    """Returns the connections to an address."""
    fetch_metadata: Callable[[str, str, str], None]
    """(revision, address, path): fetches model metadata for ``HealthResponder.copies``, in the background."""
    probe: Callable[[str, str, str | None], None]
    """(replica, address, path): probes a replica in the background; ``GatewayCore.probed`` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTools:
    """Operations on exchanges (``detached``, ``tapped`` and ``early_stream`` of ``tidegate.aio.proxy``)."""

    second_copy: "Callable[[Exchange], Exchange | None]"
    """Returns a second exchange of the same request without a client; None if the request cannot be copied."""
    swap_clients: "Callable[[Exchange, Exchange], None]"
    """Gives the client of the first exchange to the second one, and ends the first."""
    shadow_copy: "Callable[[Exchange, ProxyApp, float, BodyTap], Exchange | None]"
    """Returns a copy for a shadow; the body of its answer goes to the tap only."""
    tap_response: "Callable[[Exchange, BodyTap], None]"
    """Passes the body of the answer to the tap as well as to the client."""
    next_exchange: "NextExchange"
    """Returns the exchange of a pipeline's stage; its answer goes to a sink."""
    begin_stream: "BeginStream"
    """Opens an event stream before a replica answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Quotas that gateway workers share."""

    open_counters: "Callable[[], QuotaCounters]"
    """Called once, when the first tenant has a quota."""
    ask_pool: "AskPool"
    """Asks the other gateways about a quota, in the background."""


T = TypeVar("T")


class RunInStore(Protocol):
    """Runs an action on the store of jobs, which waits for the disk, in the background."""

    def __call__(self, action: Callable[[JobStore], T], done: Callable[[T | JobStoreError], None]) -> None:
        """``done`` gets the result of ``action`` in a later loop turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHost:
    """What jobs need of the process."""

    run: RunInStore
    new_id: Callable[[], str]
    """Returns an id that cannot be guessed: ``tg-`` and 32 hexadecimal digits."""
    owner: str
    """Names this worker process."""
    bounds: JobBounds
    defer: "Callable[[Exchange, AnswerSink], DeferredClient]"
    """``tidegate.aio.proxy.detached.defer_client``."""
    sweep: "Callable[[Exchange, float], None]"
    """Acts on the time limits of an exchange that no connection looks after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEffects:
    """All ports of one chain."""

    time: Time
    room: RoomHost
    upstreams: Upstreams
    exchanges: ExchangeTools
    quotas: Quotas
    convert_elsewhere: "ConvertElsewhere"
    """Converts a large body of a pipeline in another process."""
    jobs: JobHost | None = None
    """None if there are no jobs."""
    put_payloads: "PutPayloads | None" = None
    """Takes the two events of a sampled request; must not wait. None if no payload is sampled."""
