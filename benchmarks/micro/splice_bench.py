"""CPU time to pass a body from one TCP connection to another: read and written, or through a pipe.

    python -m benchmarks.micro.splice_bench [--rounds 7] [--transfers 200]

One process sends, one receives, this one passes on; both ways take turns, round by round. Prints microseconds of this
process per body (median of the rounds), and ``ratio``, the median of the rounds' ratios of the second way to the first:
from which size on a pipe pays (``tidegate.aio.loop.splice.LEAST_BYTES``), and how much. ``--transfers``: of one size,
in a round.
"""

import argparse
import json
import multiprocessing
import platform
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop.splice import HELD_BYTES, Splicer

SIZES = (32 * 1024, 64 * 1024, 128 * 1024, 256 * 1024, 602_112)
Way = Callable[[socket.socket, socket.socket, int], None]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for sock in (one, other):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def send(sock: socket.socket) -> None:
    """Sends bodies of the sizes that it is asked for, until the connection ends."""
    while asked := sock.recv(8):
        sock.sendall(bytes(int.from_bytes(asked)))


def receive(sock: socket.socket) -> None:
    """Reports the size of each piece that it received."""
    buffer = bytearray(1 << 20)
    while count := sock.recv_into(buffer):
        sock.sendall(count.to_bytes(8))


def wait(sock: socket.socket, event: int) -> None:
    poll = select.poll()
    poll.register(sock, event)
    poll.poll()


def write(sink: socket.socket, data: bytes) -> None:
    """All of ``data``, although the socket does not block."""
    view = memoryview(data)
    while view:
        try:
            view = view[sink.send(view) :]
        except BlockingIOError:
            wait(sink, select.POLLOUT)


def copy(source: socket.socket, sink: socket.socket, size: int) -> None:
    """As an event loop does it: read what is there, write it."""
    while size:
        wait(source, select.POLLIN)
        data = source.recv(HELD_BYTES)
        write(sink, data)
        size -= len(data)


def splice_with(splicer: Splicer) -> Way:
    def splice(source: socket.socket, sink: socket.socket, size: int) -> None:
        while size:
            wait(source, select.POLLIN)
            passed, rest = splicer.move(source.fileno(), sink.fileno(), size)
            write(sink, rest)
            size -= passed + len(rest)

    return splice


@contextmanager
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from a process that sends, and one to a process that receives."""
    (sender, source), (receiver, sink) = pair(), pair()
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=send, args=(sender,)), fork.Process(target=receive, args=(receiver,))]
    for child in children:
        child.daemon = True
        child.start()
    for sock in (sender, receiver):
        sock.close()
    try:
        source.setblocking(False)
        sink.setblocking(False)
        yield source, sink
    finally:
        for child in children:
            child.terminate()
            child.join()
        source.close()
        sink.close()


def cpu_us(way: Way, source: socket.socket, sink: socket.socket, size: int, transfers: int) -> float:
    """Processor time of this process for one body, without the cost of the requests and reports."""
    used = 0.0
    for _ in range(transfers):
        source.send(size.to_bytes(8))
        begun = time.process_time()
        way(source, sink, size)
        used += time.process_time() - begun
        got = 0
        while got < size:
            wait(sink, select.POLLIN)
            received = sink.recv(1 << 16)
            got += sum(int.from_bytes(received[at : at + 8]) for at in range(0, len(received), 8))
    return used / transfers * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transfers", type=int, default=200)
    chosen = parser.parse_args()
    keep_memory()  # as every process of the data plane: without it reading large pieces costs several times as much
    splicer = Splicer()
    splice = splice_with(splicer)
    for size in SIZES:
        with ends() as (source, sink):
            copied, spliced = [], []
            cpu_us(copy, source, sink, size, 20)
            for _ in range(chosen.rounds):
                copied.append(cpu_us(copy, source, sink, size, chosen.transfers))
                spliced.append(cpu_us(splice, source, sink, size, chosen.transfers))
        if not splicer.is_usable:
            raise SystemExit("splice_bench: this kernel does not move bytes between sockets through a pipe")
        line = {
            "bench": "splice",
            "bytes": size,
            "copy_us": round(median(copied), 1),
            "splice_us": round(median(spliced), 1),
            "ratio": round(median(b / a for a, b in zip(copied, spliced, strict=True)), 3),
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        print(json.dumps(line), flush=True)
    splicer.close()


if __name__ == "__main__":
    main()
