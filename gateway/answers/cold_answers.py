"""Responses to clients during a cold start, if the function's annotations ask for them
(``tidegate.records.cold_rules``).

An event stream that waits for a cold start is opened after the first interval: 200, then comments with the phase and
the time, until the replica's own stream follows. Any other call is answered 202 with Retry-After and the address of the
function's status. That call has requested the start; its body is dropped and the client sends it again. Meanwhile the
activation is repeated, as if the call waited. While some replica is ready nothing is sent: that is no cold start.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.activator.commands import Activate
from tidegate.activator.room import WaitingRoom
from tidegate.errors import REPLICA_BROKE, Executed, error_body
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.cold_rules import ColdCalls
from tidegate.records.gateway_sample import Activation
from tidegate.wire.bodies.openai import openai_error, read_request
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.early_stream import EarlyEventStream
    from tidegate.aio.proxy.exchange import Exchange

ACCEPT_AFTER_S: Final = 0.25
"""Time before a 202. A worker without channels to a function's replicas needs a moment to learn that one is ready. Our
choice."""
WANTED_S: Final = 60.0
"""Time after a 202 for which the activation is repeated. Our choice: longer than the Retry-After of the 202."""
ASK_S: Final = 1.0
EVENTS: Final = b"text/event-stream"

BeginStream = Callable[["Exchange", bytes, bytes, bytes], "EarlyEventStream"]
"""Type of ``tidegate.aio.proxy.early_stream.begin_stream``."""


class _Wait:
    """A request that gets a response if it waits for long."""

    __slots__ = ("due", "interval_s", "stream")

    def __init__(self, due: float, interval_s: float | None) -> None:
        self.due = due
        self.interval_s = interval_s
        """Interval of the comments; None if it gets a 202."""
        self.stream: EarlyEventStream | None = None
        """Set once the stream was opened."""


class _Wanted:
    """A revision with a client that got a 202 and is expected to come again."""

    __slots__ = ("ask_at", "function", "since")

    def __init__(self, function: str, since: float) -> None:
        self.function = function
        self.since = since
        self.ask_at = since + ASK_S

    def activation(self, revision: str, now: float) -> Activation:
        waited_s = now - self.since
        return Activation(
            function=self.function, revision=revision, waiting=1, waiting_inferences=1, oldest_waiting_s=waited_s
        )


class ColdAnswers:
    """The requests of this worker that wait for a cold start and get a response meanwhile; as many as the room lets
    wait."""

    __slots__ = ("_begin", "_cold", "_room", "_waits", "_wanted", "domain")

    def __init__(self, cold: ColdStarts, room: WaitingRoom, begin: BeginStream) -> None:
        self.domain = ""
        """The domain of the functions' own hosts; set with each route table."""
        self._cold = cold
        self._room = room
        self._begin = begin
        self._waits: dict[Exchange, _Wait] = {}
        self._wanted: dict[str, _Wanted] = {}
        """Entries by revision, of revisions in the route table only."""

    def waits(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """A request has begun to wait: schedules its response.

        A request with an incomplete body gets none, because it is unknown whether it asks for a stream. Many clients
        send the body apart from the head: it is looked at again when more has come.
        """
        if ex.is_rpc or ex.head.upgrade is not None or not self._is_cold(state):
            return
        if not ex.body_complete:
            ex.on_body = lambda ex: self.waits(ex, state, router, now)
            return
        rules = router.route.cold
        if wants_events(ex.head, ex.body, state):
            if rules.heartbeat_s is not None and ex.head.method != b"HEAD":
                self._waits[ex] = _Wait(ex.received + rules.heartbeat_s, rules.heartbeat_s)
        elif rules.calls is ColdCalls.ACCEPT:
            self._waits[ex] = _Wait(now + ACCEPT_AFTER_S, None)

    def _is_cold(self, state: RequestState) -> bool:
        counters = state.counters
        return state.bind is None and counters is not None and not self._room.ready_replicas(counters.revision)

    def sweep(self, now: float) -> None:
        """Sends due heartbeats and 202 responses; activations are appended to ``room.out``."""
        for ex, wait in tuple(self._waits.items()):
            if ex.ended or ex.first_byte:
                del self._waits[ex]
            elif now >= wait.due:
                self._tell(ex, wait, now)
        for revision, wanted in tuple(self._wanted.items()):
            is_known = self._room.counts(revision, now) is not None
            if not is_known or self._room.ready_replicas(revision) or now >= wanted.since + WANTED_S:
                del self._wanted[revision]
            elif now >= wanted.ask_at:
                wanted.ask_at = now + ASK_S
                self._room.out.append(Activate(wanted.activation(revision, now)))

    def _tell(self, ex: "Exchange", wait: _Wait, now: float) -> None:
        state: RequestState = ex.context
        router = state.target.router
        is_cold = self._is_cold(state)
        if router is None or (wait.stream is None and not is_cold):
            del self._waits[ex]
        elif wait.interval_s is None:
            del self._waits[ex]
            self._accept(ex, state, router, now)
        else:
            if wait.stream is None:
                wait.stream = self._open(ex, state, router)
            wait.stream.send_comment(self._comment(ex, state, router, now))
            wait.due += wait.interval_s

    def _open(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> "EarlyEventStream":
        """Opens the stream. OpenAI's clients read an error from any event, the others from an event named ``error``."""
        error_format = state.target.error_format or error_body
        failure = error_format(
            REPLICA_BROKE,
            "the stream broke off before its end",
            function=router.name,
            request_id=state.request_id.decode("latin-1"),
            executed=Executed.UNKNOWN,
        )
        name = b"" if error_format is openai_error else b"error"
        return self._begin(ex, b"x-request-id: %b\r\n" % state.request_id, name, failure)

    def _comment(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> bytes:
        phase = "model" if state.bind is not None else self._cold.phase(router.name)
        word = {"model": "running", "queue": "waiting"}.get(phase, "starting")
        return f"{word}, phase={phase}, {now - ex.received:.1f} s".encode()

    def _accept(self, ex: "Exchange", state: RequestState, router: FunctionRouter, now: float) -> None:
        """Answers 202: the request leaves the room, and its activation is repeated."""
        self._room.withdraw(ex, now)
        if state.counters is not None:
            self._wanted[state.counters.revision] = _Wanted(router.name, now)
        state.ending = Ending.REFUSED
        retry_after_s = self._cold.retry_after_s(router.name, now - ex.received)
        models = router.route.models or (router.name,)
        # A path may name what the function does not have, in any bytes: that is no address of a status.
        model = state.target.model if state.target.model in models else models[0]
        url = status_url(ex.head, self.domain, model)
        body = {
            "status": "starting",
            "message": f"{router.name} is starting: send the request again in {retry_after_s} s",
            "function": router.name,
            "request_id": state.request_id.decode("latin-1"),
            "retry_after_s": retry_after_s,
            "status_url": url,
        }
        lines = f"retry-after: {retry_after_s}\r\nlocation: {url}\r\n".encode("latin-1")
        ex.respond(202, json.dumps(body).encode(), extra=b"x-request-id: %b\r\n%b" % (state.request_id, lines))

    def __repr__(self) -> str:
        return f"<ColdAnswers {len(self._waits)} wait, {len(self._wanted)} wanted>"


def wants_events(head: AnyRequestHead, body: bytes, state: RequestState) -> bool:
    """Returns whether a request asks for an event stream: by its Accept field, or by its body as OpenAI's calls do."""
    if EVENTS in (head.get(b"accept") or b"").lower():
        return True
    if state.asked is not None:
        return state.asked.stream
    if b'"stream"' not in body:
        return False
    asked = read_request(body)
    return type(asked) is not Rejected and asked.stream


def status_url(head: AnyRequestHead, domain: str, model: str) -> str:
    """Returns the address of a model's status, which starts no replica; relative to the request's own address.

    Under a function's own host the paths are the function's, so the host is the gateway's there.
    """
    host, path = head.host.decode("latin-1"), f"/openai/v1/models/{model}"
    if not host.endswith(f".{domain.lower()}"):
        return path
    return f"//{head.authority.decode('latin-1')[len(host) - len(domain) :]}{path}"
