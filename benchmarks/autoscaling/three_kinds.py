"""Three kinds of accelerators behind one function at 75 % of capacity: is each as busy as the others?

Emulated L4, A10 and H100, two each; Poisson arrivals, the same for every contender. The weights aim at equal
utilisation, so the busiest kind may be 1.15 times as busy as the least busy one. No contender that knows only numbers
of requests (least connections, power of two choices) may have a lower p99. The peers are HAProxy's rules directly
before the same queue_proxies, which saves them a hop. Rounds are interleaved; the median is judged.
"""

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.autoscaling import haproxy
from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, latency_s
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request

USE = 0.75
WARM_S = 5.0
"""Warm-up seconds of each visit, not counted."""
KINDS = (
    Kind(name="l4", base_s=0.060, jitter=0.2, count=2, price=0.8),
    Kind(name="a10", base_s=0.040, jitter=0.2, count=2, price=1.2),
    Kind(name="h100", base_s=0.016, jitter=0.2, count=2, price=3.9),
)
OURS = "tidegate"
SETTINGS: dict[str, dict[str, object]] = {
    OURS: {},
    "tidegate, no limit": {"concurrency": 0},
    "tidegate, limit 1": {"concurrency": 1},
    "tidegate, power of two": {"spread": "power-of-two"},
}
PEERS = {"haproxy leastconn": "leastconn", "haproxy random(2)": "random(2)"}
MUST_NOT_WIN = tuple(PEERS)


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    found = _Figures(setup, judge)
    settings = {OURS: SETTINGS[OURS]} if setup.smoke else SETTINGS
    with lab(KINDS) as world:
        for name, annotations in settings.items():
            world.deploy("three", replicas=6, annotations={"min-scale": 6, "max-scale": 6} | annotations)
            if name == OURS:
                yield from found.rounds(world)
            else:
                yield from found.visit(world, name)
            world.delete("three")
    yield from found.rows()


class _Figures:
    def __init__(self, setup: Setup, judge: Judge) -> None:
        self.setup, self.judge = setup, judge
        self.seconds = setup.long(35, 8)
        self.haproxy = haproxy.program()
        self.p99_ms: dict[str, list[float]] = defaultdict(list)
        self.ratio: dict[str, list[float]] = defaultdict(list)
        self.busy: dict[str, dict[str, float]] = {}

    def rounds(self, world: Lab) -> Iterator[Row]:
        """Ours and the peers in turn, over the very same replicas."""
        route = world.route("three")
        assert route is not None
        addresses = [replica.address for group in route.groups for replica in group.replicas]
        yield from self.visit(world, OURS)  # So that the rates are learnt; counted with the others.
        for _ in range(int(self.setup.long(2, 1))):
            for name, rule in PEERS.items() if self.haproxy is not None else ():
                with haproxy.in_front(self.haproxy or "", rule, addresses) as address:
                    yield from self.visit(world, name, address)
            yield from self.visit(world, OURS)

    def visit(self, world: Lab, name: str, address: str | None = None) -> Iterator[Row]:
        rate = USE * sum(kind.count * kind.mu_ips() for kind in KINDS)
        times = poisson(lambda at_s: rate, self.seconds, rate, random.Random(self.setup.seed))
        body = v2_body(1)
        before = world.busy_s("three")
        found = world.open("three", [(at_s, Request(body)) for at_s in times], self.seconds, address=address)
        after = world.busy_s("three")
        self._note(name, found, before, after)
        yield from client_rows(self.judge, name, found)
        if name == OURS:
            write_timeline(self.setup, "three_kinds", found, 1.0)

    def _note(self, name: str, found: Run, before: dict[str, float], after: dict[str, float]) -> None:
        p99 = latency_s([each for each in found.outcomes if each.at_s >= WARM_S], 0.99)
        self.p99_ms[name].append(0.0 if p99 is None else p99 * 1e3)
        busy = {kind.name: (after[kind.name] - before[kind.name]) / kind.count / self.seconds for kind in KINDS}
        self.busy[name] = busy
        self.ratio[name].append(max(busy.values()) / max(1e-9, min(busy.values())))

    def rows(self) -> Iterator[Row]:
        for name in self.p99_ms:
            shares = ", ".join(f"{kind} {share:.0%}" for kind, share in self.busy[name].items())
            most = 1.15 if name in (OURS, "tidegate, no limit") else None
            ratio = statistics.median(self.ratio[name])
            yield self.judge.row(name, "busiest_over_least_busy", ratio, most=most, note=f"busy: {shares}")
            yield self.judge.row(name, "p99_ms", statistics.median(self.p99_ms[name]))
        ours = statistics.median(self.p99_ms[OURS])
        for peer in MUST_NOT_WIN:
            if peer not in self.p99_ms:
                yield self.judge.row(peer, "p99_of_tidegate_over_peer", None, most=1.0, note="not measured: no haproxy")
                continue
            theirs = statistics.median(self.p99_ms[peer])
            yield self.judge.row(peer, "p99_of_tidegate_over_peer", ours / theirs, most=1.0)
