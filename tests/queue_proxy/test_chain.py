"""Conversations with a queue_proxy's request path: credits, strangers, deadlines, outcomes, endings."""

import gc
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange, Pool, request
from tests.support.worlds.fake_grpc_call import FakeRpc
from tidegate.flow.messages import Grant, State
from tidegate.flow.slots import Admit, Channel, Reject, Send, SlotLedger, StateIs
from tidegate.queue_proxy.chain import Sidecar
from tidegate.queue_proxy.lifecycle import ReplicaLifecycle
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters, ReplicaLevels
from tidegate.queue_proxy.settings import ProxySettings
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.heads import call_head, literals, request_drops
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.tails import read_call_tail

TOKEN = b"secret"


_CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/C"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
    )
)


class Call(FakeRpc):
    """One gRPC call, and how often its connection was vouched for."""

    vouched = 0

    def mark_as_gateway(self) -> None:
        self.vouched += 1


class Replica:
    """A sidecar with its ledger, no sockets; commands of the ledger are carried out as the port does."""

    def __init__(self, limit: int = 1, *, ready: bool = True, **settings: Any) -> None:
        self.now = 100.0
        self.sent: list[object] = []
        self.suspected: list[str] = []
        self.ledger = SlotLedger(incarnation="i", limit=limit, fifo_bound=1 << 30)
        self.lifecycle = ReplicaLifecycle(limit=limit, phases=ColdStartPhases(), epoch=0)
        self.counters = ReplicaCounters(
            Identity(function="f", revision="r", group="g", replica="x", incarnation="i"), self.now
        )
        self.sidecar = Sidecar(
            ProxySettings(function="f", timeout_s=10.0, **settings),
            token=TOKEN,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            counters=self.counters,
            pool=Pool("model"),  # type: ignore[arg-type]  # a stand-in
            clock=lambda: self.now,
            pump=self.pump,
            open_channel=lambda ex: ex.upgrade(lambda: None),  # type: ignore[arg-type,return-value]  # a stand-in
            check_model=self.suspected.append,
        )
        if ready:
            self.lifecycle.model_ready(limit=limit, load_s=1.0, warm_s=None)
            self.ledger.ready(self.now)
            self.pump()

    def pump(self) -> None:
        while self.ledger.out:
            commands, self.ledger.out = self.ledger.out, []
            for command in commands:
                if isinstance(command, Admit):
                    self.sidecar.slots.admitted(command.visit)
                elif isinstance(command, Reject):
                    self.sidecar.slots.rejected(command.visit)
                elif isinstance(command, StateIs):
                    self.lifecycle.entered(command.state)
                elif isinstance(command, Send):
                    self.sent.append(command.message)

    def channel(self) -> tuple[Channel, int]:
        """A worker's channel and the first credit that it was granted."""
        channel = self.ledger.opened("g0", self.now)
        self.pump()
        (grant,) = [message for message in self.sent if isinstance(message, Grant)]
        return channel, grant.credits[0][0]

    def arrive(self, *fields: str, line: str = "POST /v2/models/m/infer", body: bytes = b"{}") -> FakeExchange:
        lines = "".join(f"{field}\r\n" for field in fields)
        lines += f"content-length: {len(body)}\r\n" if body else ""
        head = request(f"{line} HTTP/1.1\r\nHost: x\r\n{lines}\r\n", front_door=False)
        return FakeExchange(self.sidecar, head, body, complete=True, now=self.now).start()

    def call(self, token: str, credit: int) -> "Call":
        """A gRPC call with fields as a gateway writes them; the connection has read one before."""
        lines = f"tidegate-token: {token}\r\ntidegate-timeout-ms: 3000\r\ntidegate-batch-size: 8\r\n"
        block = _CALL + literals(f"{lines}tidegate-credit: {credit}\r\n".encode())
        reader = Reader(Blocks(REQUEST, request_drops(front_door=False, trusted=False), read_call_tail))
        reader.read(b"\x20" + _CALL)
        head = call_head(reader.read(block), front_door=False, trusted=False)
        assert head.internal is not None
        call = Call(self.sidecar, head, b"", complete=True, now=self.now)
        call.start()
        return call

    def on_credit(self, credit: int, *fields: str) -> FakeExchange:
        return self.arrive("tidegate-token: secret", f"tidegate-credit: {credit}", *fields)


def test_a_credit_runs_one_request_and_stays_with_the_worker() -> None:
    replica = Replica(limit=1)
    _, credit = replica.channel()
    first = replica.on_credit(credit, "tidegate-batch-size: 8")
    assert (first.log, first.inferences) == (["proceed", "to model"], 8)
    replica.now = 100.05
    first.gets_answer(100.05, 200)
    assert b"tidegate-credit: keep\r\n" in first.extra
    assert b"tidegate-timing: queue=0.000,model=50.000\r\n" in first.extra
    assert replica.on_credit(credit).log == ["proceed", "to model"], "the same number again"
    assert (replica.counters.requests, replica.counters.inferences) == (1, 8)


def test_a_credit_that_is_not_outstanding_never_reaches_the_model() -> None:
    replica = Replica(limit=1)
    _, credit = replica.channel()
    replica.on_credit(credit)
    for number in (credit, credit + 99):
        stale = replica.on_credit(number)
        assert (stale.status, stale.attempts) == (409, 0)
        assert b"tidegate-outcome: not-started\r\n" in stale.extra
    for nonsense in ("x", "-1", "9" * 40, "\xb2"):
        assert replica.arrive("tidegate-token: secret", f"tidegate-credit: {nonsense}").status == 409
    assert replica.counters.requests == 0, "the worker sends it again: it is counted where it runs"


def test_without_the_token_control_fields_mean_nothing() -> None:
    replica = Replica(limit=1)
    stranger = replica.arrive("tidegate-token: guess", "tidegate-credit: 1")
    assert stranger.log == ["to model"], "a free slot, and no interim answer"
    stranger.gets_answer(100.0, 500)
    assert b"tidegate-" not in stranger.extra


def test_strangers_wait_in_order_and_the_queue_is_ten_times_the_limit() -> None:
    replica = Replica(limit=1)
    running, *waiting = [replica.arrive() for _ in range(11)]
    refused = replica.arrive()
    assert refused.status == 503
    assert replica.ledger.queued == 10
    running.gets_answer(100.0)
    assert [one.attempts for one in waiting] == [1] + [0] * 9
    waiting[0].client_leaves(100.0)
    waiting[5].client_leaves(100.0)
    assert [one.attempts for one in waiting[:3]] == [1, 1, 0]
    assert (replica.counters.cancelled, replica.ledger.queued) == (2, 7)


def test_work_past_its_deadline_is_never_started() -> None:
    replica = Replica(limit=1)
    running = replica.arrive()
    late = replica.arrive("tidegate-timeout-ms: 200")
    other = replica.arrive()
    replica.now = 100.25
    running.gets_answer(100.25)
    assert (late.status, late.attempts, late.error["error"]["executed"]) == (504, 0, "false")
    assert other.attempts == 1
    assert replica.arrive("tidegate-timeout-ms: 0").status == 504
    assert replica.arrive("tidegate-timeout-ms: soon").status == 400


def test_a_deadline_while_the_model_runs_is_reported_as_started() -> None:
    replica = Replica(limit=1)
    _, credit = replica.channel()
    overrun = replica.on_credit(credit, "tidegate-timeout-ms: 300")
    assert overrun.deadline == 100.3
    overrun.expires(100.31)
    assert (overrun.status, overrun.error["error"]["executed"]) == (504, "unknown")
    assert b"tidegate-outcome: started\r\n" in overrun.extra
    assert replica.counters.in_flight == 0


def test_only_what_was_answered_counts_as_served() -> None:
    """Clients that give up while an overloaded model runs for them are no measure of its rate."""
    replica = Replica(limit=5)
    channel, credit = replica.channel()
    assert credit in channel.idle
    left, late, streamed, cut, served = (replica.on_credit(each) for each in list(channel.idle))
    left.client_leaves(100.2)
    late.expires(100.31)
    streamed.gets_answer(100.2, length=None, ends=False)
    streamed.client_leaves(100.25)
    cut.gets_answer(100.2, length=None, ends=False)
    cut.expires(100.31)
    served.gets_answer(100.25)
    level = ReplicaLevels(state=ReplicaState.READY, limit=4, queued=0, phases=ColdStartPhases())
    sample = replica.counters.sample(101.0, level)
    assert (sample.requests, sample.inferences, sample.unanswered, sample.cancelled) == (3, 3, 2, 2)
    assert sum(count for _, count in sample.execution) == 3


def test_a_deadline_while_it_waits_frees_its_place() -> None:
    replica = Replica(limit=1)
    replica.arrive()
    waiting = replica.arrive("grpc-timeout: 100m")
    waiting.expires(100.2)
    assert (waiting.status, replica.ledger.queued) == (504, 0)


def test_a_model_that_cannot_be_reached_did_not_start_it_one_that_breaks_off_did() -> None:
    replica = Replica(limit=2)
    channel, credit = replica.channel()
    unreachable = replica.on_credit(credit)
    unreachable.breaks_off(100.0, sent=False, why="refused")
    assert unreachable.attempts == 2, "nothing was sent: once more"
    unreachable.breaks_off(100.0, sent=False, why="refused")
    assert unreachable.status == 502
    assert b"tidegate-outcome: not-started\r\n" in unreachable.extra
    broken = replica.on_credit(next(iter(channel.idle)))
    broken.breaks_off(100.0, sent=True, why="reset")
    assert (broken.status, broken.attempts) == (502, 1)
    assert b"tidegate-outcome: started\r\n" in broken.extra
    assert replica.suspected == ["refused", "refused", "reset"]
    assert replica.counters.failures == 2


def test_what_was_sent_once_is_never_reported_as_not_started() -> None:
    """A connection breaks off under a request that may be made twice; then the model server cannot be reached."""
    replica = Replica()
    _, credit = replica.channel()
    asked = replica.on_credit(credit)
    asked.may_retry = lambda sent, idempotent: asked.attempts == 1  # type: ignore[method-assign]  # as for a GET
    asked.breaks_off(100.0, sent=True, why="reset")
    asked.breaks_off(100.0, sent=False, why="refused")
    assert (asked.status, asked.attempts, asked.error["error"]["executed"]) == (502, 2, "unknown")
    assert b"tidegate-outcome: started\r\n" in asked.extra


def test_a_request_leaves_nothing_for_the_collector() -> None:
    replica = Replica(limit=1)
    channel, credit = replica.channel()
    replica.on_credit(credit).gets_answer(100.0)
    replica.ledger.closed(channel, 100.0)
    gc.collect()
    gc.disable()
    try:
        replica.arrive().gets_answer(100.0)
        first, second = replica.arrive(), replica.arrive()
        first.gets_answer(100.0)
        second.gets_answer(100.0)
        del first, second
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_while_the_model_server_is_in_doubt_nothing_is_sent_and_nothing_is_lost() -> None:
    replica = Replica(limit=4)
    channel, _ = replica.channel()
    running, *others = list(channel.idle)
    broken = replica.on_credit(running)
    replica.sidecar.pause()
    broken.breaks_off(100.0, sent=True, why="reset")
    held = [replica.on_credit(credit, "tidegate-timeout-ms: 200") for credit in others]
    assert [one.attempts for one in held] == [0, 0, 0]
    held[0].client_leaves(100.0)
    held[1].expires(100.2)
    assert (held[1].status, held[1].error["error"]["executed"]) == (504, "false"), "the model never saw it"
    replica.sidecar.resume()
    assert [one.attempts for one in held] == [0, 0, 1], "it lives: the rest goes on"
    assert replica.counters.in_flight == 1


def test_a_death_costs_what_ran_and_nothing_that_was_held() -> None:
    replica = Replica(limit=2)
    channel, _ = replica.channel()
    first, second = list(channel.idle)
    broken = replica.on_credit(first)
    replica.sidecar.pause()
    broken.breaks_off(100.0, sent=True, why="reset")
    held = replica.on_credit(second)
    replica.lifecycle.model_failed("gone")
    replica.sidecar.model_failed("gone")
    assert (broken.status, held.status) == (502, 503)
    assert b"tidegate-outcome: started\r\n" in broken.extra
    assert b"tidegate-outcome: not-started\r\n" in held.extra
    assert (held.attempts, replica.counters.in_flight) == (0, 0)


def test_held_past_its_deadline_it_is_not_sent_when_the_doubt_ends() -> None:
    replica = Replica(limit=1)
    replica.sidecar.pause()
    late = replica.arrive("tidegate-timeout-ms: 100")
    replica.now = 100.2
    replica.sidecar.resume()
    assert (late.status, late.attempts) == (504, 0)


def test_the_models_own_failure_is_answered() -> None:
    replica = Replica(limit=1)
    _, credit = replica.channel()
    failed = replica.on_credit(credit)
    failed.gets_answer(100.0, 503)
    assert b"tidegate-outcome: answered\r\n" in failed.extra
    assert replica.counters.failures == 1


def test_a_truncated_answer_is_a_failure_and_its_slot_comes_home() -> None:
    replica = Replica(limit=1)
    channel, credit = replica.channel()
    cut = replica.on_credit(credit)
    cut.truncated = True
    cut.gets_answer(100.0, 200)
    assert replica.counters.failures == 1
    assert credit not in channel.idle


def test_a_failed_start_tells_those_who_wait_and_those_who_come() -> None:
    replica = Replica(limit=1, ready=False)
    waiting = replica.arrive()
    assert (waiting.log, replica.ledger.queued) == ([], 1)
    replica.lifecycle.model_failed("exited with code 3")
    replica.sidecar.model_failed("exited with code 3")
    later = replica.arrive("tidegate-token: secret")
    for refused in (waiting, later):
        assert (refused.status, refused.error["error"]["code"]) == (503, "start_failed")
        assert "exited with code 3" in refused.error["error"]["message"]
    assert b"tidegate-outcome: not-started\r\n" in later.extra


def test_strangers_that_came_during_the_start_run_when_it_is_ready() -> None:
    replica = Replica(limit=1, ready=False)
    waiting = replica.arrive()
    replica.ledger.ready(100.0)
    replica.pump()
    assert waiting.log == ["to model"]


def test_a_drained_replica_takes_nothing() -> None:
    replica = Replica(limit=1)
    running, waiting = replica.arrive(), replica.arrive()
    replica.ledger.drain(100.0)
    replica.pump()
    running.gets_answer(100.0)
    assert waiting.log == ["to model"], "what it had accepted still runs"
    waiting.gets_answer(100.0)
    assert replica.lifecycle.state is ReplicaState.DRAINED
    assert replica.arrive().status == 503
    assert State(ReplicaState.DRAINED) not in replica.sent, "no gateway is connected"


def test_without_a_limit_nothing_waits() -> None:
    replica = Replica(limit=0)
    assert [replica.arrive().log for _ in range(5)] == [["to model"]] * 5
    assert replica.arrive("tidegate-token: secret").log == ["proceed", "to model"], "a worker has no credit to show"


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        (("user-agent: kube-probe/1.30", "k-network-probe: queue"), 200, b"queue"),
        (("user-agent: kube-probe/1.30",), 400, b"unexpected probe header value"),
        (("k-network-probe: probe", "k-network-hash: abc"), 200, b"probe"),
        (("k-network-probe: probe",), 400, b"unexpected probe header value"),
    ],
)
def test_knatives_probes_take_no_slot_and_are_not_counted(fields: tuple[str, ...], status: int, text: bytes) -> None:
    replica = Replica(limit=1)
    replica.arrive()
    probe = replica.arrive(*fields, line="GET /")
    assert (probe.status, probe.answer) == (status, text)
    assert replica.counters.requests == 0


def test_a_probe_of_a_replica_that_is_not_ready_or_drains_is_503() -> None:
    fields = ("user-agent: kube-probe/1.30", "k-network-probe: queue")
    assert Replica(ready=False).arrive(*fields, line="GET /").status == 503
    draining = Replica()
    draining.arrive()
    draining.ledger.drain(100.0)
    draining.pump()
    assert draining.arrive(*fields, line="GET /").answer == b"shutting down"


def test_a_slot_channel_needs_the_token() -> None:
    replica = Replica()
    upgrade = ("connection: upgrade", "upgrade: tidegate-slots")
    head = "GET /tidegate/slots"
    assert replica.arrive(*upgrade, "tidegate-token: guess", line=head, body=b"").status == 403
    assert replica.arrive(*upgrade, "tidegate-token: secret", line=head, body=b"").log == ["upgrade"]


def test_a_strangers_size_is_read_as_the_gateway_would_read_it() -> None:
    replica = Replica(limit=9, bytes_per_item=10.0, batch_overhead_bytes=0.0, batch_header="X-Batch")
    assert replica.arrive("x-batch: 5").inferences == 5
    assert replica.arrive(body=b'{"inputs":[{"shape":[7,1]}]}').inferences == 7
    assert replica.arrive(line="POST /predict", body=b"x" * 30).inferences == 3


@pytest.mark.parametrize("token", ["guess", "secre", "secrets", "SECRET"])
def test_a_call_that_imitates_a_gateways_fields_is_a_strangers(token: str) -> None:
    replica = Replica(limit=1)
    _, credit = replica.channel()
    forged = replica.call(token, credit)
    assert forged.head.internal is not None and forged.head.internal.credit == b"%d" % credit
    assert not forged.context.is_trusted
    assert forged.vouched == 0
    assert forged.context.credit is None, "the credit is still the worker's"
    forged.gets_answer(100.0, 200)
    assert b"tidegate-" not in forged.extra
    real = replica.call("secret", credit)
    assert (real.context.is_trusted, real.vouched, real.inferences) == (True, 1, 8)
    again = replica.call(token, credit)
    assert not again.context.is_trusted, "that a gateway wrote the same before says nothing"


def test_a_request_without_a_client_keeps_its_slot_while_the_model_server_reports_the_call() -> None:
    replica = Replica(limit=1, asks_running=True)
    left, waiting = replica.arrive(), replica.arrive()
    left.client_leaves(101.0)
    assert (left.log[0], waiting.log) == ("to model", []), "the call goes on: nothing else is sent"
    held = replica.sidecar.slots.held
    held.reported(1, held.calls())
    assert waiting.log == []
    held.reported(0, held.calls())
    assert waiting.log == ["to model"]


def test_a_credit_past_its_deadline_is_held_too_and_one_that_never_reached_the_server_is_not() -> None:
    replica = Replica(limit=1, asks_running=True)
    channel, credit = replica.channel()
    late = replica.on_credit(credit)
    late.expires(104.0)
    assert late.status == 504
    assert (replica.sidecar.slots.held.count, credit in channel.idle) == (1, False)
    replica.sidecar.slots.held.reported(0, replica.sidecar.slots.held.calls())
    assert replica.sidecar.slots.held.count == 0
    other = Replica(limit=1, asks_running=True)
    first, queued = other.arrive(), other.arrive()
    queued.client_leaves(101.0)
    assert other.sidecar.slots.held.count == 0
    first.gets_answer(102.0)
    assert other.sidecar.slots.held.count == 0, "it has ended with its client"
