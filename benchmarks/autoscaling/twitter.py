"""Ten minutes of the Twitter trace, live, from zero replicas: the same requests under ``tide``, ``smif`` and ``kpa``,
one after the other, each with a deployment of its own.

*Emulated* (``twitter``): 20 to 200 requests a second on two groups, cheap slow devices and expensive fast ones. *Real*
(``twitter_real``): ResNet-50 on processors, 4 to 24 requests a second; a replica has a quarter of a core by the
kernel's quota, so that five of them, the client and the gateway fit on two cores.

The slice has a calm, a burst to six times the rate within a minute, and the way back. Counts are smoothed over 9 s
before they are scaled, else the noise of a second would be scaled too; arrivals are Poisson at that rate. The first
cold start, until 5 s after the first replica was ready, is reported separately.
"""

import gzip
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.autoscaling.lab import HERE, Kind, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, cost, latency_s, replica_seconds, within
from benchmarks.autoscaling.trace import arrivals, cut, parse, scaled, smoothed
from benchmarks.laboratory import resnet
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request

POLICIES = ("tide", "smif", "kpa")
JUDGED = ("tide", "smif")
"""``kpa`` knows no latency."""
FIRST_S = 480
"""Where the slice begins: three minutes before the burst of the shipped trace."""
SHORT_FIRST_S = 640
"""Where a slice of less than five minutes begins: the burst comes soon."""
SHORT_S = 300
COLD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What serves the requests, and how many come."""

    name: str
    kinds: tuple[Kind, ...]
    low: float
    high: float
    """Smallest and largest rate, in requests per second."""
    target_s: float
    least: float | None
    """The share that must be in time under the policies that know the latency."""
    handler: str = "work.py:Nap"
    base: Path = HERE
    env: Mapping[str, str] = field(default_factory=dict)


EMULATED = Case(
    name="twitter",
    kinds=(
        Kind(name="t4", base_s=1 / 65.25, jitter=0.1, count=3, price=0.526, start_up_s=1.0),
        Kind(name="v100", base_s=1 / 117.0, jitter=0.1, count=3, price=3.06, start_up_s=1.0),
    ),
    low=20.0,
    high=200.0,
    target_s=0.3,
    least=0.98,
)


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    """Under emulated devices."""
    yield from _run(EMULATED, setup, judge)


def run_real(setup: Setup, judge: Judge) -> Iterator[Row]:
    """Under ResNet-50 on processors. Its latencies depend on what else the machine does, so nothing is required."""
    with tempfile.TemporaryDirectory(prefix="resnet-") as folder:
        resnet.prepare(folder)
        real = Case(
            name="twitter-real",
            kinds=(Kind(name="quarter", cores=1, quota="25%", count=5, price=0.01),),
            low=4.0,
            high=24.0,
            target_s=0.6,
            least=None,
            handler="work.py:ResNet",
            base=resnet.HERE,
            env={"RESNET50": str(Path(folder) / "model.onnx")},
        )
        yield from _run(real, setup, judge)


def _run(case: Case, setup: Setup, judge: Judge) -> Iterator[Row]:
    seconds = int(setup.long(600, 25))
    counts = parse(read(setup.trace))
    first = min(SHORT_FIRST_S if seconds < SHORT_S else FIRST_S, max(0, len(counts) - seconds))
    rates = scaled(smoothed(cut(counts, first, seconds), 9), case.low, case.high)
    body = v2_body(1)
    shots = [(at_s, Request(body)) for at_s in arrivals(rates, random.Random(setup.seed))]
    for policy in POLICIES:
        with lab(case.kinds) as world:
            annotations: dict[str, object] = {
                "policy": policy,
                "latency": f"{case.target_s:g}s",
                "percentile": "98",
                "initial-scale": 0,
            }
            world.deploy(
                "tweets", replicas=0, handler=case.handler, env=case.env, base=case.base, annotations=annotations
            )
            found = world.open("tweets", shots, seconds)
            reasons = world.client.explain("tweets", last=200).text
        yield from client_rows(judge, policy, found)
        yield from _rows(judge, policy, found, case)
        page = write_timeline(setup, f"{case.name}-{policy}", found, case.target_s)
        (setup.out / f"{case.name}-{policy}-decisions.txt").write_text(reasons)
        yield judge.row(policy, "seconds", seconds, note=f"from {first} s of {setup.trace.name}; plots: {page}")


def _rows(judge: Judge, policy: str, found: Run, case: Case) -> Iterator[Row]:
    target_s, least = case.target_s, case.least if policy in JUDGED else None
    ready_s = next((look.at_s for look in found.looks if look.replicas), found.seconds)
    warm = [outcome for outcome in found.outcomes if outcome.at_s >= ready_s + COLD_S]
    note = f"{len(warm)} of {len(found.outcomes)} requests, from {ready_s + COLD_S:.1f} s on"
    yield judge.row(policy, "within_sla", within(warm, target_s), least=least, note=note)
    yield judge.row(policy, "late_share", 1.0 - within(warm, target_s))
    yield judge.row(policy, "late_share_with_the_cold_start", 1.0 - within(found.outcomes, target_s))
    late = sorted(int(outcome.at_s) for outcome in warm if not outcome.is_good or outcome.latency_s > target_s)
    yield judge.row(policy, "seconds_with_late_requests", len(set(late)), note=spans(late))
    for q in (0.5, 0.98):
        value = latency_s(warm, q)
        yield judge.row(policy, f"p{q * 100:g}_ms", None if value is None else value * 1e3)
    most = max((look.replicas for look in found.looks), default=0)
    yield judge.row(policy, "most_replicas", most)
    yield judge.row(policy, "replica_seconds", replica_seconds(found.looks, found.seconds))
    yield judge.row(policy, "cost", cost(found.looks, found.seconds), note="what the replicas cost, at list prices")


def spans(seconds: list[int]) -> str:
    """``81-84, 90``."""
    spans: list[list[int]] = []
    for second in sorted(set(seconds)):
        if spans and second <= spans[-1][1] + 1:
            spans[-1][1] = second
        else:
            spans.append([second, second])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)[:160]


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
