"""asyncio drivers of the slot channel: :class:`SlotPort` in a queue_proxy, :class:`ChannelClient` in a gateway worker.

A channel is an HTTP/1.1 request for an upgrade to ``tidegate-slots`` with the deployment's token, and after the 101
lines in both directions (``tidegate.flow.messages``). Both sides collect what they have to say and write it once at
the end of a loop turn.
"""

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast

from tidegate import headers
from tidegate.aio.loop.sockets import host_port, is_unix, notice_loss
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.flow.messages import (
    LINE_LIMIT,
    Hello,
    MessageError,
    ProxyMessage,
    WorkerMessage,
    decode_proxy_line,
    decode_worker_line,
    encode_message,
)
from tidegate.flow.slots import Admit, Channel, Reject, Send, SlotLedger, StateIs, Visit
from tidegate.records.replica_state import ReplicaState

BACK_OFF_S: Final = 0.02
BACK_OFF_LIMIT_S: Final = 1.0
"""Pauses between attempts to open a channel: doubled from the first to the limit, each spread by half around."""
CONNECT_TIMEOUT_S: Final = 1.0
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A replica that starts accepts connections before its queue_proxy runs; the answer comes when it does."""
HELLO_TIMEOUT_S: Final = 10.0
"""An upgraded connection that has not said hello by then is closed."""
UNREAD_LIMIT: Final = 1 << 20
"""Bytes that a peer may leave unread before its channel is cut."""
_HEAD_LIMIT: Final = 16 * 1024


class ChannelRefusedError(Exception):
    """The queue_proxy does not take this worker for one of its deployment: its token is another one."""


class _Lines:
    """Bytes in, whole lines out."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without LF; raises MessageError for an endless one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT or any(len(line) > LINE_LIMIT for line in lines):
            raise MessageError(f"a line of more than {LINE_LIMIT} bytes")
        return lines


# --- queue_proxy ------------------------------------------------------------------------------------------------------


class SlotPort:
    """Hosts a SlotLedger on a loop: its channels, its messages, its timer.

    Call the ledger directly; afterwards, while ``ledger.out`` is not empty or its wake-up moved, ``pump()``.
    """

    def __init__(
        self,
        ledger: SlotLedger,
        loop: asyncio.AbstractEventLoop,
        *,
        admit: Callable[[Visit], None],
        reject: Callable[[Visit], None],
        state: Callable[[ReplicaState], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``clock`` is the one whose readings the ledger is called with, in seconds."""
        self.ledger = ledger
        self._loop = loop
        self._admit = admit
        self._reject = reject
        self._state = state
        self._clock = clock
        self._peers: dict[Channel, _ServerChannel] = {}
        self._connections: set[_ServerChannel] = set()
        self._unwritten: list[_ServerChannel] = []
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def __repr__(self) -> str:
        return f"<SlotPort {len(self._connections)} channels, {self.ledger!r}>"

    def protocol(self) -> asyncio.Protocol:
        """The factory for ``ex.upgrade`` on ``tidegate.headers.SLOT_CHANNEL_PATH`` once the token was checked."""
        return _ServerChannel(self)

    def pump(self) -> None:
        """Carries out ``ledger.out``: messages leave at the end of this loop turn, admits and states at once."""
        if self._pumping:
            return  # A callback below changed the ledger again: the loop there sees it.
        self._pumping = True
        try:
            while self.ledger.out:
                commands, self.ledger.out = self.ledger.out, []
                for command in commands:
                    if isinstance(command, Send):
                        peer = self._peers.get(command.channel)
                        if peer is not None:
                            self._write(peer, encode_message(command.message))
                    elif isinstance(command, Admit):
                        self._admit(command.visit)
                    elif isinstance(command, Reject):
                        self._reject(command.visit)
                    elif isinstance(command, StateIs):
                        self._state(command.state)
        finally:
            self._pumping = False
        if self.ledger.next_wakeup() != self._timer_at:
            self._arm()

    def close(self) -> None:
        """Closes all channels and the timer."""
        for connection in tuple(self._connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = None

    def opened(self, connection: "_ServerChannel") -> None:
        """A connection was upgraded; it has not said hello yet."""
        self._connections.add(connection)
        self._loop.call_later(HELLO_TIMEOUT_S, connection.end_unless_greeted)

    def greeted(self, connection: "_ServerChannel", hello: Hello) -> Channel:
        """A connection said hello: it is a channel from now on."""
        channel = self.ledger.opened(hello.worker, self._clock())
        self._peers[channel] = connection
        return channel

    def heard(self, channel: Channel, message: WorkerMessage) -> None:
        """A later message of a channel; ``pump`` follows when all of a read are handed over."""
        self.ledger.heard(channel, message, self._clock())

    def lost(self, connection: "_ServerChannel", channel: Channel | None) -> None:
        """A connection ended."""
        self._connections.discard(connection)
        if channel is not None:
            self._peers.pop(channel, None)
            self.ledger.closed(channel, self._clock())
            self.pump()

    def _write(self, peer: "_ServerChannel", line: bytes) -> None:
        if not peer.lines:
            if not self._unwritten:
                self._loop.call_soon(self._flush)
            self._unwritten.append(peer)
        peer.lines.append(line)

    def _flush(self) -> None:
        peers, self._unwritten = self._unwritten, []
        for peer in peers:
            peer.flush()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self.ledger.next_wakeup()
        if self._timer_at is not None:
            self._timer = self._loop.call_later(max(0.0, self._timer_at - self._clock()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._timer_at = None
        now = self._clock()
        due = self.ledger.next_wakeup()
        if due is not None and due <= now:
            self.ledger.on_wakeup(now)
        self.pump()


class _ServerChannel(asyncio.Protocol):
    """One upgraded connection at the queue_proxy."""

    def __init__(self, port: SlotPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._channel: Channel | None = None
        self._lines = _Lines()
        self.lines: list[bytes] = []
        """Lines to be written at the end of this loop iteration."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_LIMIT)
        _notice_loss(self._transport)
        self._port.opened(self)

    def end_unless_greeted(self) -> None:
        """Ends a channel whose peer has sent nothing: it is no gateway of ours."""
        if self._channel is None:
            self.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for line in self._lines.feed(data):
                message = decode_worker_line(line)
                if self._channel is not None:
                    if message is not None:
                        self._port.heard(self._channel, message)
                elif isinstance(message, Hello):
                    self._channel = self._port.greeted(self, message)
                else:
                    raise MessageError("the first line must be hello")
        except MessageError:
            self.abort()
        self._port.pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        # The worker does not read: it would act on promises long void.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lines.clear()
        self._port.lost(self, self._channel)

    def flush(self) -> None:
        """Writes what was collected."""
        lines, self.lines = self.lines, []
        if self._transport is not None and lines:
            self._transport.write(b"".join(lines))

    def abort(self) -> None:
        """Cuts the connection; ``connection_lost`` follows."""
        if self._transport is not None:
            self._transport.abort()


# --- gateway ----------------------------------------------------------------------------------------------------------


class ChannelHandler(Protocol):
    """The callbacks of a ChannelClient to its host. All run in the loop's thread; none may raise."""

    def linked(self, replica: str) -> None:
        """The channel is open; its messages follow."""
        ...

    def heard(self, replica: str, message: ProxyMessage) -> None:
        """A message arrived."""
        ...

    def unlinked(self, replica: str) -> None:
        """An open channel broke; it is being opened again."""
        ...


class ChannelClient:
    """One worker's channel to one replica, opened again with back-off until ``close()``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        replica: str,
        address: str,
        worker: str,
        token: str,
        handler: ChannelHandler,
        rng: random.Random,
        tasks: TaskOwner,
    ) -> None:
        """``address``: ``host:port`` or ``unix:/path`` of the queue_proxy. Needs a running loop; starts at once."""
        self.replica = replica
        self._loop = loop
        self._address = address
        self._worker = worker
        self._token = token
        self._handler = handler
        self._rng = rng
        self._connection: _ClientChannel | None = None
        self._lines: list[bytes] = []
        self._closed = False
        self._tasks = tasks
        self._is_refused = False
        self._task = tasks.spawn(self._keep_open(), name=f"channel {replica}")

    def __repr__(self) -> str:
        return f"<ChannelClient {self.replica} {'open' if self._connection is not None else 'not open'}>"

    @property
    def is_open(self) -> bool:
        """Messages can be sent."""
        return self._connection is not None

    def send(self, message: WorkerMessage) -> None:
        """Queues a message for the end of this loop turn; dropped while the channel is not open."""
        if self._connection is None:
            return
        if not self._lines:
            self._loop.call_soon(self._flush)
        self._lines.append(encode_message(message))

    def close(self) -> None:
        """Closes the channel for good, after the queued lines were sent; the handler is not called any more."""
        if self._closed:
            return
        self._closed = True
        self._flush()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._task.cancel()

    def opened(self, connection: "_ClientChannel") -> None:
        """A connection was upgraded."""
        if self._closed:
            return
        self._connection = connection
        self._is_refused = False
        self.send(Hello(self._worker))
        self._handler.linked(self.replica)

    def refused(self, status: int) -> None:
        """The upgrade got another answer. A wrong token is reported once, until a channel opens."""
        if status == 403 and not self._is_refused:
            self._is_refused = True
            self._tasks.report(
                f"channel {self.replica}",
                ChannelRefusedError(f"{self._address} refuses this deployment's token; it gets no work from here"),
            )

    def heard(self, message: ProxyMessage) -> None:
        """A message of the open channel."""
        if not self._closed:
            self._handler.heard(self.replica, message)

    def lost(self, connection: "_ClientChannel") -> None:
        """A connection ended."""
        if self._connection is connection:
            self._connection = None
            self._lines.clear()
            self._handler.unlinked(self.replica)

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if self._connection is not None and lines:
            self._connection.write(b"".join(lines))

    async def _keep_open(self) -> None:
        pause = BACK_OFF_S
        while not self._closed:
            if await self._attempt():
                pause = BACK_OFF_S
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            pause = min(BACK_OFF_LIMIT_S, pause * 2)

    async def _attempt(self) -> bool:
        """One connection from its start to its end; True if it was a channel."""
        connection = _ClientChannel(self, self._request())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if is_unix(self._address):
                    path = self._address.removeprefix("unix:")
                    await self._loop.create_unix_connection(lambda: connection, path)
                else:
                    await self._loop.create_connection(lambda: connection, *host_port(self._address))
        except (OSError, TimeoutError):
            return False
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await connection.answered.wait()
            await connection.ended.wait()
        except TimeoutError:
            return False
        finally:
            connection.close()
        return connection.is_channel

    def _request(self) -> bytes:
        host = "localhost" if is_unix(self._address) else self._address
        return b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: upgrade\r\nupgrade: %b\r\n%b: %b\r\n\r\n" % (
            headers.SLOT_CHANNEL_PATH,
            host.encode(),
            headers.SLOT_CHANNEL_PROTOCOL,
            headers.TOKEN,
            self._token.encode(),
        )


class _ClientChannel(asyncio.Protocol):
    """One connection of a client, from the request to the end."""

    def __init__(self, client: ChannelClient, request: bytes) -> None:
        self._client = client
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._lines = _Lines()
        self.is_channel = False
        self.answered = asyncio.Event()
        """The upgrade was answered, or the connection ended."""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_LIMIT)
        _notice_loss(self._transport)
        self.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.is_channel:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                if len(head) > _HEAD_LIMIT:
                    self.close()
                return
            self.answered.set()
            if not head.startswith(b"HTTP/1.1 101 "):
                self._client.refused(int(head[9:12]) if head[9:12].isdigit() else 0)
                self.close()
                return
            self.is_channel = True
            self._client.opened(self)
        try:
            for line in self._lines.feed(data):
                message = decode_proxy_line(line)
                if message is not None and self._transport is not None:
                    self._client.heard(message)
        except MessageError:
            self.abort()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.answered.set()
        self.ended.set()
        self._client.lost(self)

    def write(self, data: bytes) -> None:
        """Writes now, if the connection stands."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Ends the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._transport.abort()


def _notice_loss(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        notice_loss(sock)
