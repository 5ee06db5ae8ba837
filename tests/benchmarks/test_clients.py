"""The load clients of the benchmarks against their own backend: what they measure is what happened."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.macro.clients import Lane, inference, paced, streams
from benchmarks.macro.harness import ROOT, Server, cpu_ns, free_port, open_socket, rss_mb

pytestmark = [pytest.mark.live, pytest.mark.alone]


@pytest.fixture(scope="module")
def origin() -> Iterator[Server]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-P", "-m", "benchmarks.macro.origin", address]
    process = subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)})
    try:
        end = time.monotonic() + 10.0
        while True:
            try:
                open_socket(address).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        yield Server("origin", address, [process])
    finally:
        process.kill()
        process.wait()


def test_a_lane_sends_at_its_rate_and_counts_from_when_a_request_was_due(origin: Server) -> None:
    lane = Lane(origin.address, inference(), 200.0, 4)
    paced([lane], 0.5)
    assert 99 <= len(lane.whole_us) <= 101
    assert all(0 < first <= whole for first, whole in zip(lane.first_us, lane.whole_us, strict=True))


def test_a_server_that_is_too_slow_for_the_rate_is_charged_for_the_queue(origin: Server) -> None:
    work = inference().replace(b"\r\n", b"\r\nx-work-ms: 20\r\n", 1)
    lane = Lane(origin.address, work, 100.0, 1)
    paced([lane], 0.4)
    assert 39 <= len(lane.whole_us) <= 41
    assert lane.whole_us[-1] > 200_000, "each request waits for all before it"


def test_large_bodies_arrive_whole(origin: Server) -> None:
    lane = Lane(origin.address, inference(2_000_000), 20.0, 4)
    paced([lane], 0.3)
    assert 5 <= len(lane.whole_us) <= 7


def test_events_carry_the_time_of_their_writing(origin: Server) -> None:
    found = streams(origin, "/events/50", 3, 0.5)
    assert len(found.first_us) == 3
    assert found.count >= 3 * 10
    assert all(0 < delay < 10e6 for delay in found.first_us + found.later_us)


def test_an_answer_in_chunks_ends_with_its_last_one() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            while peer.recv(65536):
                for part in (
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                    b"3\r\nabc\r\n",
                    b"0\r\n",
                    b"\r\n",
                ):
                    peer.sendall(part)

    thread = threading.Thread(target=answer)
    thread.start()
    lane = Lane(f"127.0.0.1:{listener.getsockname()[1]}", inference(), 50.0, 1)
    paced([lane], 0.3)
    thread.join()
    listener.close()
    assert 10 <= len(lane.whole_us) <= 16


def test_an_error_is_never_counted_as_an_answer() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=refuse)
    thread.start()
    lane = Lane(f"127.0.0.1:{listener.getsockname()[1]}", inference(), 50.0, 1)
    with pytest.raises(RuntimeError, match="500 No"):
        paced([lane], 0.2)
    thread.join()
    listener.close()


def test_cpu_and_memory_count_children() -> None:
    work = "t = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    child = f"import time\n{work}\nprint(flush=True)\ntime.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_ns(process.pid) > 200e6
        assert rss_mb(process.pid) > 10
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
