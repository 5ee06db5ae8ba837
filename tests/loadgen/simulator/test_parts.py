"""Kernel, profiles, devices and callers by themselves."""

import random
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.simulator.worlds import deployed, fixed, kind
from tests.support.worlds.autoscaling import replica_sample
from tidegate.deploy.backend import ReplicaStatus
from tidegate.loadgen.simulator.counters import Request
from tidegate.loadgen.simulator.devices import DeviceKind, Devices, Sharing
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile, Table
from tidegate.loadgen.simulator.scenario import Callers
from tidegate.loadgen.simulator.shares import SimulatedShares
from tidegate.loadgen.simulator.sources import ClosedLoop
from tidegate.records.replica_state import ReplicaState
from tidegate.traffic.shares import GroupShares
from tidegate.traffic.weights import LIFT

# --- kernel


@given(st.lists(st.integers(0, 5), max_size=30))
def test_events_come_in_order_of_time_and_then_of_asking(times: list[int]) -> None:
    kernel, seen = Kernel(), list[tuple[float, int]]()
    for number, when in enumerate(times):
        kernel.at(when, lambda now, argument: seen.append((now, argument)), number)
    kernel.run(10.0)
    assert seen == sorted((float(when), number) for number, when in enumerate(times))
    assert kernel.now() == 10.0


def test_a_run_ends_at_its_time_and_goes_on_from_there() -> None:
    kernel, seen = Kernel(), list[float]()
    for when in (1.0, 2.0, 3.0):
        kernel.at(when, lambda now, _: seen.append(now))
    kernel.run(2.0)
    assert seen == [1.0, 2.0] and kernel.now() == 2.0
    kernel.at(0.5, lambda now, _: seen.append(now))  # The past is now.
    kernel.at(2.5, lambda now, _: kernel.stop())
    kernel.run(9.0)
    assert seen == [1.0, 2.0, 2.0] and kernel.now() == 2.5
    kernel.run(9.0)
    assert seen == [1.0, 2.0, 2.0, 3.0] and kernel.now() == 9.0


class Beats:
    """A feed of one arrival a second, from the first one on."""

    def __init__(self, seen: list[str]) -> None:
        self.at_s = 1.0
        self._seen = seen

    def comes(self, now: float) -> None:
        self._seen.append(f"arrival at {now:g}")
        self.at_s = now + 1.0


def test_who_comes_at_a_moment_comes_after_all_else_of_it() -> None:
    kernel, seen = Kernel(), list[str]()
    for when in (0.5, 2.0, 2.0):
        kernel.at(when, lambda now, _: seen.append(f"event at {now:g}"))
    feed = Beats(seen)
    kernel.run(2.5, feed)
    assert seen == ["event at 0.5", "arrival at 1", "event at 2", "event at 2", "arrival at 2"]
    assert (kernel.now(), feed.at_s) == (2.5, 3.0)
    kernel.run(3.0, feed)
    assert seen[-1] == "arrival at 3"


# --- profiles


def test_times_between_measured_batches_lie_on_lines() -> None:
    table = Table({8: 0.08, 1: 0.02, 16: 0.12})
    assert [table.seconds(size) for size in (1, 8, 12, 16, 32)] == pytest.approx([0.02, 0.08, 0.1, 0.12, 0.2])
    assert [Table({4: 0.5}).seconds(size) for size in (1, 4, 9)] == [0.5, 0.5, 0.5]
    assert Table({2: 0.01, 4: 0.02}).seconds(1) == 0.01
    assert Table({1: 0.2, 2: 0.1}).seconds(9) == 0.0


def test_cores_divide_the_parallel_part_and_shares_slow_down_below_the_full_one() -> None:
    profile = ServiceProfile(times=Line(base_s=0.1), parallel=0.9, full_share=50)
    assert profile.nominal(1) == pytest.approx(0.1)
    assert profile.nominal(1, cores=9) == pytest.approx(0.02)
    assert [profile.nominal(1, share=share) for share in (100, 50, 25)] == pytest.approx([0.1, 0.1, 0.2])


def test_times_vary_around_the_nominal_one() -> None:
    rng = random.Random(1)
    even = ServiceProfile(times=Line(base_s=1.0), jitter=0.2)
    drawn = [even.varied(1.0, rng) for _ in range(4000)]
    assert 0.8 <= min(drawn) < 0.82 and 1.18 < max(drawn) <= 1.2 and fmean(drawn) == pytest.approx(1.0, abs=0.01)
    steep = ServiceProfile(times=Line(base_s=1.0), is_exponential=True)
    drawn = [steep.varied(1.0, rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(1.0, rel=0.03)
    assert sum(each > 1.0 for each in drawn) / len(drawn) == pytest.approx(0.368, abs=0.015)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Line(base_s=-0.1),
        lambda: Line(base_s=float("nan")),
        lambda: Table({}),
        lambda: Table({0: 0.1}),
        lambda: Table({1: float("inf")}),
        lambda: ServiceProfile(times=Line(base_s=0.1), jitter=1.5),
        lambda: ServiceProfile(times=Line(base_s=0.1), full_share=0),
        lambda: ServiceProfile(times=Line(base_s=0.1), jitter=0.1, is_exponential=True),
        lambda: ServiceProfile(times=Line(base_s=0.1), joins=0, width=1),
        lambda: ServiceProfile(times=Line(base_s=0.1), joins=4),
        lambda: ServiceProfile(times=Line(base_s=0.1), joins=4, width=1, per_prompt_token_s=0.1),
        lambda: ColdStart(load_s=-1.0),
        lambda: kind(sharing=Sharing.MPS, gain={1: 1.0}),
        lambda: kind(sharing=Sharing.MPS, interference={("a", "b"): 0.9}),
        lambda: Callers(function="f", callers=0),
        lambda: Callers(function="f", callers=1, rate=0.0),
    ],
)
def test_figures_that_mean_nothing_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError):
        make()


# --- devices


def ends(
    of: DeviceKind, works: list[tuple[float, str, float]]
) -> tuple[list[tuple[str, float]], list[tuple[float, float]]]:
    """(function, end) of executions (begin, function, work) on one unit, in order of their ends; its busy times."""
    kernel, seen = Kernel(), list[tuple[str, float]]()
    devices = Devices(kernel, (of,))
    unit = devices.unit(of.accelerator.name, 0)

    def begin(now: float, work: tuple[str, float]) -> None:
        unit.run(*work, lambda at, name: seen.append((str(name), at)), work[0], now)

    for at_s, function, work_s in works:
        kernel.at(at_s, begin, (function, work_s))
    kernel.run(100.0)
    return seen, [(since, until) for _, _, since, until in devices.take_busy(100.0)]


def test_two_in_turns_take_twice_as_long() -> None:
    """1 s of work alone for half of it, then beside another, which has the rest to itself again."""
    seen, busy = ends(kind(sharing=Sharing.TIME_MULTIPLEXED), [(0.0, "a", 1.0), (0.5, "b", 1.0)])
    assert [name for name, _ in seen] == ["a", "b"]
    assert [at for _, at in seen] == pytest.approx([1.5, 2.0])
    ((since, until),) = busy
    assert (since, until) == pytest.approx((0.0, 2.0))


def test_side_by_side_they_gain() -> None:
    of = kind(sharing=Sharing.MPS, gain={2: 1.5, 4: 2.0})
    seen, _ = ends(of, [(0.0, "a", 1.0), (0.0, "b", 1.0)])
    assert [at for _, at in seen] == pytest.approx([2 / 1.5] * 2)
    assert [of.total_gain(count) for count in (1, 2, 3, 4, 9)] == pytest.approx([1.0, 1.5, 1.75, 2.0, 2.0])


def test_neighbours_interfere_by_kind() -> None:
    of = kind(sharing=Sharing.MPS, gain={2: 2.0}, interference={("a", "b"): 1.25})
    seen, _ = ends(of, [(0.0, "a", 1.0), (0.0, "b", 2.0)])
    assert [at for _, at in seen] == pytest.approx([1.25, 2.0])


def test_equal_models_interfere_between_replicas_and_not_within_one() -> None:
    kernel, ended = Kernel(), list[float]()
    of = kind(count=1, sharing=Sharing.MPS, gain={4: 4.0}, interference={("a", "a"): 1.5})
    unit = Devices(kernel, (of,)).unit("t4", 0)
    for replica in ("one", "one", "other"):
        unit.run("a", 1.0, lambda now, _: ended.append(now), None, 0.0, replica=replica)
    kernel.run(10.0)
    assert ended == pytest.approx([1.5, 1.5, 1.5 + 1.0 - 1.5 / 2.25]), (
        "two slow the third one twice; it slows each once"
    )


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from("ab"), st.floats(0.01, 2.0)), min_size=1, max_size=8),
    st.floats(0.5, 3.0),
)
def test_work_is_neither_lost_nor_made(works: list[tuple[float, str, float]], gain: float) -> None:
    """Every execution ends; without a gain the unit is busy for exactly the work."""
    seen, _ = ends(kind(sharing=Sharing.MPS, gain={2: gain}), works)
    assert sorted(name for name, _ in seen) == sorted(name for _, name, _ in works)
    seen, busy = ends(kind(sharing=Sharing.TIME_MULTIPLEXED), works)
    assert sum(until - since for since, until in busy) == pytest.approx(sum(work for _, _, work in works))
    assert all(
        at >= begin + work - 1e-9 for begin, name, work in works for at in [max(e for n, e in seen if n == name)]
    )


# --- callers


def test_callers_share_the_requests_and_keep_their_pace() -> None:
    kernel, sent = Kernel(), list[tuple[float, int | None]]()

    def arrive(request: Request, now: float) -> None:
        sent.append((now, request[4]))
        kernel.at(now + 0.3, answered, request)

    def answered(now: float, request: Request) -> None:
        loop.ended(request, now)

    groups = (Callers(function="f", callers=2, requests=5, rate=2.0, start_s=1.0),)
    loop = ClosedLoop(kernel, groups, {"f": "f-00001"}, arrive)
    loop.begin()
    kernel.run(60.0)
    assert [caller for _, caller in sent] == [0, 1, 0, 1, 0]
    assert [at for at, _ in sent] == pytest.approx([1.5, 1.5, 2.0, 2.0, 2.5])
    assert not loop.open and loop.sent == 5


# --- what the traffic manager is sent


def test_weights_follow_the_same_rule_as_live_ones() -> None:
    """A group that waits for another one counts for a little more (``tidegate.traffic.weights``)."""
    found = deployed({"t4": fixed(0.01), "v100": fixed(0.01)})
    shares, revision = SimulatedShares(GroupShares()), found.revision.id
    samples = [replica_sample(f"{revision}-{name}", group=name, limit=0) for name in ("t4", "v100")]
    shares.measured(samples, [each.replica for each in samples])
    work = [
        replace(each, inferences=100, busy_s=1.0, in_flight_request_s=request_s)
        for each, request_s in zip(samples, (62.0, 1.5), strict=True)
    ]
    shares.measured(work, [each.replica for each in work])
    here = [
        ReplicaStatus(
            id=each.replica,
            function="f",
            revision=revision,
            accelerator=each.group,
            state=ReplicaState.READY,
            address="",
            admin="",
            created_at=0.0,
        )
        for each in samples
    ]
    (served,) = shares.served([found], here, lambda _: None, 0.0)
    weights = served.revisions[0].weights
    assert weights["v100"] / weights["t4"] == pytest.approx(1.0 + LIFT)
