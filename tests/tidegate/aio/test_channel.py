"""The slot channel's drivers: lines in and out, one write per loop turn, timers, reconnecting."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.worlds.virtual_loop import VirtualLoop
from tidegate.aio.channel import BACK_OFF_LIMIT_S, ChannelClient, SlotPort
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.flow.messages import Grant, ProxyMessage, Return, State, Welcome
from tidegate.flow.slots import SlotLedger, Visit
from tidegate.flow.wants import Want
from tidegate.records.replica_state import ReplicaState


class MemoryTransport(asyncio.Transport):
    """One end of a connection without a socket; the other end reads in the next loop turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.peer: MemoryTransport | None = None
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        assert not self.closed
        self.written.append(bytes(data))
        if self.peer is not None:
            self.loop.call_soon(self.peer.read, bytes(data))

    def read(self, data: bytes) -> None:
        if not self.closed:
            self.protocol.data_received(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.call_soon(self.protocol.connection_lost, None)
            if self.peer is not None:
                self.loop.call_soon(self.peer.close)

    def abort(self) -> None:
        self.close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol


class Door(asyncio.Protocol):
    """The queue_proxy's side before the upgrade: checks the request, answers, hands over."""

    def __init__(self, port: SlotPort, answer: bytes) -> None:
        self.port = port
        self.answer = answer
        self.request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.request += data
        if not self.request.endswith(b"\r\n\r\n"):
            return
        self.transport.write(self.answer)
        if b" 101 " in self.answer:
            channel = self.port.protocol()
            self.transport.set_protocol(channel)
            channel.connection_made(self.transport)


class MemoryLoop(VirtualLoop):
    """Virtual time, and unix sockets that only exist here."""

    def __init__(self) -> None:
        super().__init__()
        self.doors: dict[str, Callable[[], asyncio.Protocol]] = {}
        self.attempts: list[float] = []
        self.accepted: list[MemoryTransport] = []

    async def create_unix_connection(self, protocol_factory: Any, path: str | None = None, **_: Any) -> Any:
        self.attempts.append(self.time())
        if path not in self.doors:
            raise ConnectionRefusedError(path)
        protocol = protocol_factory()
        here, there = MemoryTransport(self, protocol), MemoryTransport(self, self.doors[path]())
        here.peer, there.peer = there, here
        self.accepted.append(there)
        there.protocol.connection_made(there)
        protocol.connection_made(here)
        return here, protocol


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=MemoryLoop) as runner:
        runner.run(main)


def memory_loop() -> MemoryLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MemoryLoop)
    return loop


async def turn() -> None:
    """The loop does what it has been asked to do soon."""
    for _ in range(6):
        await asyncio.sleep(0)


class Proxy:
    """A ledger behind a port, and what the port reported to its host."""

    def __init__(self, limit: int = 1) -> None:
        self.loop = memory_loop()
        self.ledger = SlotLedger(incarnation="i1", limit=limit)
        self.admitted: list[Visit] = []
        self.rejected: list[Visit] = []
        self.states: list[ReplicaState] = []
        self.on_admit: Callable[[Visit], None] = self.admitted.append
        self.port = SlotPort(
            self.ledger,
            self.loop,
            admit=lambda visit: self.on_admit(visit),
            reject=self.rejected.append,
            state=self.states.append,
            clock=self.loop.time,
        )

    def ready(self) -> None:
        self.ledger.ready(self.loop.time())
        self.port.pump()

    def connect(self) -> MemoryTransport:
        """A connection that was upgraded a moment ago."""
        protocol = self.port.protocol()
        transport = MemoryTransport(self.loop, protocol)
        protocol.connection_made(transport)
        return transport


def lines(transport: MemoryTransport) -> list[str]:
    """What was written, credits numbered from 1."""
    text = b"".join(transport.written).decode()
    numbers = [word.partition(":")[0] for word in text.split() if word[0].isdigit() and len(word) > 12]
    base = int(numbers[0]) - 1 if numbers else 0
    for number in dict.fromkeys(numbers):
        text = text.replace(number, str(int(number) - base))
    return text.splitlines()


# --- queue_proxy ------------------------------------------------------------------------------------------------------


def test_hello_is_answered_in_one_write() -> None:
    async def main() -> None:
        proxy = Proxy(limit=2)
        proxy.ready()
        transport = proxy.connect()
        transport.read(b"hel")
        transport.read(b"lo g0\n")
        await turn()
        assert len(transport.written) == 1
        assert lines(transport) == ["welcome i1 2 requests", "state ready", "grant 1:1 2:1"]
        assert proxy.states == [ReplicaState.READY]

    run(main())


@pytest.mark.parametrize("first", [b"want 1 0\n", b"hello\n", b"nonsense\n", b"x" * 70_000])
def test_a_peer_that_does_not_say_hello_is_cut(first: bytes) -> None:
    async def main() -> None:
        proxy = Proxy()
        transport = proxy.connect()
        transport.read(first)
        assert transport.closed
        await turn()
        assert proxy.ledger.channels == ()

    run(main())


def test_a_malformed_line_cuts_the_channel_and_its_credits_are_free() -> None:
    async def main() -> None:
        proxy = Proxy()
        proxy.ready()
        bad, good = proxy.connect(), proxy.connect()
        bad.read(b"hello g0\n")
        good.read(b"hello g1\nwant 1 1 0 0 0 0 1 0\n")
        await turn()
        bad.read(b"want 1 2 3\n")
        await turn()
        assert bad.closed
        assert lines(good)[-1] == "grant 1:1"

    run(main())


def test_a_recall_without_an_answer_is_void_by_the_timer() -> None:
    async def main() -> None:
        proxy = Proxy()
        proxy.ready()
        silent, wanting = proxy.connect(), proxy.connect()
        silent.read(b"hello g0\n")
        wanting.read(b"hello g1\nwant 1 1 0 0 0 0 1 0\n")
        await asyncio.sleep(0.099)
        assert lines(silent)[-1] == "recall 1"
        await asyncio.sleep(0.002)
        assert lines(silent)[-1] == "void 1"
        assert lines(wanting)[-1] == "grant 1:1"

    run(main())


def test_an_admitted_visit_may_end_inside_the_callback() -> None:
    """The host refuses what it was just admitted to run: the next in the queue is admitted in the same pump."""

    async def main() -> None:
        proxy = Proxy()

        def admit(visit: Visit) -> None:
            proxy.admitted.append(visit)
            assert visit.credit is not None
            proxy.ledger.ended(visit.credit, 0.0, aborted=True)
            proxy.port.pump()

        proxy.on_admit = admit
        for request in "abc":
            proxy.ledger.enter(request, 1, 0.0)
        proxy.ready()
        assert [visit.request for visit in proxy.admitted] == ["a", "b", "c"]
        assert proxy.ledger.running == 0

    run(main())


def test_a_drain_rejects_what_waits_for_a_replica_that_starts() -> None:
    async def main() -> None:
        proxy = Proxy()
        proxy.ledger.enter("a", 1, 0.0)
        proxy.ledger.drain(0.0)
        proxy.port.pump()
        assert [visit.request for visit in proxy.rejected] == ["a"]
        assert proxy.states == [ReplicaState.DRAINED]

    run(main())


def test_a_worker_that_does_not_read_is_cut() -> None:
    async def main() -> None:
        proxy = Proxy()
        transport = proxy.connect()
        transport.read(b"hello g0\n")
        transport.protocol.pause_writing()
        assert transport.closed

    run(main())


def test_closing_the_port_closes_its_channels() -> None:
    async def main() -> None:
        proxy = Proxy()
        transport = proxy.connect()
        transport.read(b"hello g0\n")
        proxy.port.close()
        await turn()
        assert transport.closed
        assert proxy.ledger.channels == ()

    run(main())


def test_a_connection_that_never_says_hello_is_closed_after_ten_seconds() -> None:
    async def main() -> None:
        proxy = Proxy()
        silent, polite = proxy.connect(), proxy.connect()
        polite.read(b"hello g0\n")
        await asyncio.sleep(9.9)
        assert (silent.closed, polite.closed) == (False, False)
        await asyncio.sleep(0.2)
        assert (silent.closed, polite.closed) == (True, False)
        proxy.port.close()

    run(main())


# --- gateway ----------------------------------------------------------------------------------------------------------


class Host:
    """A gateway worker, as far as its channels go."""

    def __init__(self) -> None:
        self.loop = memory_loop()
        self.reports: list[str] = []
        self.tasks = TaskOwner("test", lambda name, error: self.reports.append(f"{name}: {error}"))
        self.events: list[str] = []
        self.messages: list[ProxyMessage] = []

    def linked(self, replica: str) -> None:
        self.events.append(f"{replica} linked")

    def heard(self, replica: str, message: ProxyMessage) -> None:
        self.events.append(f"{replica} {type(message).__name__.lower()}")
        self.messages.append(message)

    def unlinked(self, replica: str) -> None:
        self.events.append(f"{replica} unlinked")

    def client(self) -> ChannelClient:
        return ChannelClient(
            self.loop,
            replica="r0",
            address="unix:/r0",
            worker="g0",
            token="secret",
            handler=self,
            rng=random.Random(1),
            tasks=self.tasks,
        )


UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tidegate-slots\r\n\r\n"


def test_the_client_upgrades_with_the_token_and_hears_the_ledger() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        proxy.ready()
        door = Door(proxy.port, UPGRADED)
        host.loop.doors["/r0"] = lambda: door
        client = host.client()
        await turn()
        await turn()
        assert door.request.startswith(b"GET /tidegate/slots HTTP/1.1\r\n")
        assert b"\r\ntidegate-token: secret\r\n" in door.request
        assert b"\r\nupgrade: tidegate-slots\r\n" in door.request
        assert host.events == ["r0 linked", "r0 welcome", "r0 state", "r0 grant"]
        assert isinstance(host.messages[0], Welcome)
        assert client.is_open
        client.close()
        await host.tasks.close()

    run(main())


def test_messages_of_one_turn_leave_in_one_write() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy(limit=2)
        proxy.ready()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED)
        client = host.client()
        await turn()
        await turn()
        grant = host.messages[-1]
        assert isinstance(grant, Grant)
        there = host.loop.accepted[0]
        assert there.peer is not None
        before = len(there.peer.written)
        client.send(Return((grant.credits[0][0],)))
        client.send(Want(1, 2))
        await turn()
        assert len(there.peer.written) == before + 1
        assert proxy.ledger.channels[0].want.amount == 2
        client.close()
        await host.tasks.close()

    run(main())


def test_bytes_after_the_101_are_messages() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED + b"state starting\n")
        client = host.client()
        await turn()
        assert host.messages[0] == State(ReplicaState.STARTING)
        client.close()
        await host.tasks.close()

    run(main())


def test_it_connects_again_with_back_off_until_the_replica_is_there() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        client = host.client()
        await asyncio.sleep(5.0)
        pauses = [after - before for before, after in zip(host.loop.attempts, host.loop.attempts[1:], strict=False)]
        assert pauses[0] < 0.031
        assert max(pauses) <= BACK_OFF_LIMIT_S * 1.5
        assert host.events == []
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED)
        await asyncio.sleep(2.0)
        assert host.events[0] == "r0 linked"
        client.close()
        await host.tasks.close()

    run(main())


def test_a_broken_channel_is_reported_and_opened_again_at_once() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        proxy.ready()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED)
        client = host.client()
        await turn()
        await turn()
        host.events.clear()
        host.loop.accepted[0].abort()
        await asyncio.sleep(0.05)
        assert host.events == ["r0 unlinked", "r0 linked", "r0 welcome", "r0 state", "r0 grant"]
        client.close()
        await host.tasks.close()

    run(main())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"junk" * 5000])
def test_an_answer_that_is_no_upgrade_is_tried_again_later(answer: bytes) -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, answer)
        client = host.client()
        await asyncio.sleep(3.0)
        assert host.events == []
        assert 5 < len(host.loop.attempts) < 12
        refusal = ["test/channel r0: unix:/r0 refuses this deployment's token; it gets no work from here"]
        assert host.reports == (refusal if b"403" in answer else []), "a wrong token is reported, once"
        client.close()
        await host.tasks.close()

    run(main())


def test_a_replica_that_never_answers_is_given_ten_seconds() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, b"HTTP/1.1 1")
        client = host.client()
        await asyncio.sleep(9.9)
        assert len(host.loop.attempts) == 1
        await asyncio.sleep(0.2)
        assert len(host.loop.attempts) == 2
        client.close()
        await host.tasks.close()

    run(main())


def test_a_line_that_cannot_be_read_breaks_the_channel() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED + b"grant cats\n")
        client = host.client()
        await turn()
        assert "r0 unlinked" in host.events
        client.close()
        await host.tasks.close()

    run(main())


def test_a_closed_client_says_its_last_words_and_hears_nothing_more() -> None:
    async def main() -> None:
        host, proxy = Host(), Proxy()
        proxy.ready()
        host.loop.doors["/r0"] = lambda: Door(proxy.port, UPGRADED)
        client = host.client()
        await turn()
        await turn()
        heard = list(host.events)
        client.send(Want(1, 3))
        client.close()
        assert not client.is_open
        client.send(Want(2, 4))
        await turn()
        assert host.events == heard
        written = host.loop.accepted[0].peer
        assert written is not None
        assert b"".join(written.written).endswith(b"want 1 3 0 0 0 0 1 0\n")
        assert proxy.ledger.channels == ()
        await host.tasks.close()

    run(main())
