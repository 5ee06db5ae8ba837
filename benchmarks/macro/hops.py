"""gateway -> queue_proxy -> backend beside queue_proxy -> backend: CPU of both hops, and the latency they add.

A real gateway worker with a route table and a real queue_proxy with slots and token; reference POST. Between the two is
a unix socket, as the local backend has it, or TCP (``tcp``), as between two machines.
"""

from collections.abc import Iterator

from benchmarks.macro import peers
from benchmarks.macro.clients import wrk
from benchmarks.macro.harness import Bench, Stage
from benchmarks.macro.latency import RATE, round_of
from benchmarks.macro.report import Book, Row

BOUND = 2.3
PACED = "2000/s"


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("hops")
    with Stage(bench) as stage:
        direct = peers.nginx_backend(stage)
        one = peers.queue_proxy(stage, direct.address)
        behind = peers.queue_proxy(stage, direct.address, name="replica", local=True)
        front = peers.gateway(stage, [behind])
        two = peers.both(front, behind)
        far = peers.queue_proxy(stage, direct.address, name="replica (tcp)")
        both_far = peers.both(peers.gateway(stage, [far], name="gateway-tcp"), far)
        for counts in bench.counted():
            for server in (one, two, both_far):
                before = front.cpu_us()
                visit = wrk(bench, server, "post", bench.length_s(counts))
                if counts:
                    book.add("post", server.name, cpu_us_per_request=visit.cpu_us, requests_per_s=visit.rps)
                    if server is two:
                        cpu_us = (front.cpu_us() - before) / (visit.rps * visit.seconds)
                        book.add("post", front.name, cpu_us_per_request=cpu_us)
            kept = book if counts else Book("warm-up")
            round_of(kept, PACED, direct, [one, two], RATE, bench.length_s(counts))
    yield book.row("post", one.name, "cpu_us_per_request")
    yield book.row("post", two.name, "cpu_us_per_request", against=one.name, bound=BOUND)
    yield book.row("post", front.name, "cpu_us_per_request", note="its part of both hops")
    yield book.row("post", both_far.name, "cpu_us_per_request", against=one.name, note="TCP between the hops")
    yield book.row("post", two.name, "requests_per_s", against=one.name)
    yield book.row(PACED, one.name, "added_p50_us")
    yield book.row(PACED, two.name, "added_p50_us", against=one.name, bound=BOUND)
    yield book.row(PACED, two.name, "added_p99_us", against=one.name)
