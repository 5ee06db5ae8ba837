"""Runs one case of the hostile HTTP/2 corpus over sockets: a fresh connection to a proxy before a capture backend."""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from tests.support.deadline import Patience
from tests.support.http2.capture import H2Capture
from tests.support.http2.view import PROBED, WAIT_S, Case, View, probe_call, step_bytes
from tidegate.wire.http2 import frames

POLL_S = 0.01
TAKEN_WITHIN_S = 2.0
"""A send that the proxy does not take for so long ends the steps."""
ANSWERED_WITHIN_S = 1.0
"""A valid call on a fresh connection, while and after a case runs."""
REST_S = 0.05
_PIECE = 1 << 16

Address = tuple[str, int]


def rss_mb(pids: Sequence[int]) -> float:
    """Resident memory of the largest of these processes, in 10^6 bytes."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return max(pages, default=0) * 4096 / 1e6


class H2Client(asyncio.Protocol):
    """The client's socket."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.closed = False
        self._drained = asyncio.Event()
        self._drained.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    def eof_received(self) -> bool:
        self._gone()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        self.closed = True
        self._drained.set()

    def pause_writing(self) -> None:
        if not self.closed:
            self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def write(self, data: bytes) -> None:
        if not self.closed and not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self, within_s: float) -> None:
        """Until the kernel has taken all; TimeoutError when it does not."""
        async with asyncio.timeout(within_s):
            await self._drained.wait()

    def reset(self) -> None:
        """RST."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


async def connect(address: Address, client_host: str | None = None) -> H2Client:
    """A connection without Nagle's algorithm; ``client_host``: the address that it comes from."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    try:
        if client_host is not None:
            sock.bind((client_host, 0))
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _, client = await loop.create_connection(H2Client, sock=sock)
    return client


async def is_alive(address: Address) -> bool:
    """Whether a valid call on a fresh connection is answered in time."""
    client = await connect(address)
    view = View({"name": "alive"}, client.write)
    client.on_data = view.received
    patience = Patience(ANSWERED_WITHIN_S)
    client.write(frames.PREFACE + frames.settings() + probe_call(1, 4096))
    try:
        while not patience.is_over:
            if view.is_ok(1, PROBED):
                return True
            await asyncio.sleep(POLL_S)
        return False
    finally:
        client.transport.abort()


async def send_case(case: Case, address: Address, rest_s: float, client_host: str) -> View:
    """The steps of a case alone, from that address, and so long a rest: what its client has got then."""
    live = _Live(case, address, H2Capture(), ())
    live.client = await connect(address, client_host)
    live.view = View(case, live.client.write)
    live.client.on_data = live.view.received
    try:
        await live.steps()
        await asyncio.sleep(rest_s)
    finally:
        live.client.transport.abort()
    return live.view


async def run_case(case: Case, address: Address, backend: H2Capture, pids: Sequence[int] = ()) -> list[str]:
    """What is wrong about the case at the proxy at ``address``; empty: nothing. ``pids``: the proxy's processes."""
    live = _Live(case, address, backend, pids)
    live.client = await connect(address)
    live.view = View(case, live.client.write)
    live.client.on_data = live.view.received
    try:
        await live.steps()
        faults = await live.verdict()
    finally:
        live.client.transport.abort()
    if not await is_alive(address):
        faults.append("a fresh connection is not answered afterwards")
    return faults


class _Live:
    client: H2Client
    view: View

    def __init__(self, case: Case, address: Address, backend: H2Capture, pids: Sequence[int]) -> None:
        self._case = case
        self._address = address
        self._record = backend.begin()
        self._pids = pids if "max_rss_mb" in case["expect"] else ()
        self._before_mb = self._most_mb = rss_mb(self._pids)
        self._now = asyncio.get_running_loop().time
        self._faults: list[str] = []

    # --- steps ------------------------------------------------------------------------------------------------------

    async def steps(self) -> None:
        for step in self._case["steps"]:
            if self.client.closed or self.view.stalled:
                break
            await self._step(step)
        self.view.ended_at = self._now()

    async def _step(self, step: dict[str, Any]) -> None:
        if "send" in step or "send_z" in step:
            await self._send(step)
        elif "sleep" in step:
            await self._pause(step["sleep"])
        elif "await" in step:
            patience = Patience(step.get("limit", 2.0))
            while not patience.is_over and not self.client.closed:
                if self.view.reached(step["await"], self._record):
                    return
                await self._pause(POLL_S)
        elif "ack" in step:
            self.view.acknowledge()
        elif "alive" in step:
            if not await is_alive(self._address):
                self._faults.append("a second connection was not answered meanwhile")
        elif "read" in step:
            (self.client.transport.resume_reading if step["read"] else self.client.transport.pause_reading)()
        elif "half_close" in step:
            self.client.transport.write_eof()
        elif "reset" in step:
            await self._pause(0.05)
            self.client.reset()
        else:
            raise ValueError(f"unknown step {step}")

    async def _send(self, step: dict[str, Any]) -> None:
        """Copies travel together, up to some 64 KB, unless the step itself says where to cut."""
        pending = bytearray()
        for data in step_bytes(step):
            for at in range(0, len(data), step.get("every", len(data))):
                pending += data[at : at + step.get("every", len(data))]
                if "every" in step or len(pending) >= _PIECE:
                    await self._write(pending)
                    pending = bytearray()
                if "every" in step:
                    await asyncio.sleep(step.get("pause", 0.002))
                if self.client.closed or self.view.stalled:
                    return
        await self._write(pending)

    async def _write(self, data: bytearray) -> None:
        self.client.write(bytes(data))
        try:
            await self.client.drain(TAKEN_WITHIN_S)
        except TimeoutError:
            self.view.stalled = True
        self._weigh()

    async def _pause(self, seconds: float) -> None:
        until = self._now() + seconds
        while (left := until - self._now()) > 0:
            await asyncio.sleep(min(left, 0.05))
            self._weigh()

    def _weigh(self) -> None:
        if self._pids:
            self._most_mb = max(self._most_mb, rss_mb(self._pids))

    # --- verdict ----------------------------------------------------------------------------------------------------

    async def verdict(self) -> list[str]:
        view, expect = self.view, self._case["expect"]
        patience = Patience(self._case.get("wait", WAIT_S))
        while (winner := self._winner(expect["any"])) is None and not patience.is_over:
            await self._pause(POLL_S)
        await self._pause(REST_S)
        if "cancel" in expect:
            await self._pause(view.ended_at + expect["cancel"] - self._now())
        faults = self._faults + view.judge(self._record, winner)
        if (most := expect.get("max_rss_mb")) is not None and self._most_mb - self._before_mb > most:
            faults.append(f"the proxy grew by {self._most_mb - self._before_mb:.0f} MB, {most} are allowed")
        return faults

    def _winner(self, outcomes: list[dict[str, Any]]) -> dict[str, Any] | None:
        self.view.closed = self.client.closed
        return next((one for one in outcomes if self.view.holds(one, self._now())), None)
