"""The thesis' systems on small loads, and its quick experiments with one seed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.loadgen.experiments.small import Heard
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.outcome import ExperimentError
from tidegate.loadgen.experiments.report import markdown
from tidegate.loadgen.experiments.run import run
from tidegate.loadgen.experiments.setups.thesis.runs import SAMPLING_S, ThesisRun, measured
from tidegate.loadgen.experiments.setups.thesis.systems import Cluster, Hpa, Kpa, System, SystemPhase

CLUSTER = Cluster(devices=4, service_s=0.05, hop_s=0.0, first_s=0.0, idle_s=60)
KPA = Kpa(target=1, utilization=0.7, start_s=5)
HPA = Hpa(
    threshold=6,
    busy_utilization=10,
    tolerance=0.1,
    period_s=15,
    window_s=30,
    cooldown_s=120,
    start_s=5,
    calm=1,
    crowd=4,
    crowded_s=0.1,
)
BUSY = (SystemPhase(start_s=0, requests=2400, workers=4, rate=20),)


def one(system: System, phases: tuple[SystemPhase, ...] = BUSY, seed: int = 1, hpa: Hpa = HPA) -> ThesisRun:
    return measured(system, phases, CLUSTER, KPA, hpa, seed)


def test_requests_in_flight_scale_out_at_once_and_late_binding_leaves_nothing_waiting() -> None:
    blind, late = one(System.KPA), one(System.LATE)
    assert blind.ready[-1][1] == late.ready[-1][1] == 4
    assert late.whole.percentiles_s[90] == pytest.approx(0.05, rel=0.01)
    assert blind.whole.percentiles_s[90] > 1.5 * late.whole.percentiles_s[90]
    assert late.whole.total_s < blind.whole.total_s
    assert len([each for each in late.active if each > 50.0]) == 4


def test_a_threshold_that_is_never_reached_leaves_one_replica_that_all_slow() -> None:
    found = one(System.HPA, hpa=replace(HPA, threshold=30))
    assert found.whole.rate == pytest.approx(10.0, rel=0.01), "one every crowded_s"
    assert found.whole.mean_s == pytest.approx(0.4, rel=0.01)
    assert {value for _, value in found.wanted} == {1}
    assert found.own.tau_under == 0.0 and found.workload.tau_under > 95.0
    assert found.active[0] > 99.0 and found.active[1:] == (0.0, 0.0, 0.0)


def test_a_threshold_that_is_reached_adds_replicas_period_by_period() -> None:
    found = one(System.HPA)
    steps = [at_s for at_s, _ in found.wanted[1:-1:2]]
    assert [value for _, value in found.wanted[::2]] == [1, 2, 3, 4]
    assert all(later - earlier >= HPA.period_s for earlier, later in pairwise(steps))
    assert found.whole.total_s > one(System.KPA).whole.total_s


def test_replicas_are_held_for_the_cool_down_through_a_quiet_phase() -> None:
    phases = (*BUSY, SystemPhase(start_s=70, requests=300, workers=1, rate=10))
    found = one(System.HPA, phases)
    assert found.fewest_wanted(70, 100) == 4
    assert one(System.KPA, phases).fewest_wanted(70, 100) < 4


def test_phases_start_on_schedule_and_overlap_where_the_system_is_slow() -> None:
    phases = (
        SystemPhase(start_s=0, requests=400, workers=4, rate=20),
        SystemPhase(start_s=5, requests=20, workers=1, rate=10),
    )
    first, second = one(System.HPA, phases).phases
    assert (first.requests, second.requests) == (400, 20)
    assert first.total_s > 5.0 + second.total_s, "the second one ends within the first"
    assert second.mean_s > 0.1, "and is slowed by it"


def test_a_load_begins_at_another_moment_with_another_seed() -> None:
    assert one(System.KPA, seed=1) == one(System.KPA, seed=1)
    assert one(System.KPA, seed=1).wanted != one(System.KPA, seed=2).wanted


def test_supply_is_sampled_in_the_middle_of_each_period() -> None:
    """Pods are wanted within seconds and ready before the second sample: one sample of 15 s is short."""
    found = one(System.KPA)
    assert found.own.tau_under == pytest.approx(100.0 * SAMPLING_S / found.whole.total_s)


def test_a_request_that_waits_longer_than_the_timeout_ends_the_run() -> None:
    slow = replace(CLUSTER, devices=1, service_s=301.0, idle_s=0.0)
    with pytest.raises(ExperimentError, match=r"a request that was sent at .* s was not answered: "):
        measured(System.LATE, (SystemPhase(start_s=0, requests=2, workers=2, rate=20),), slow, KPA, HPA, 1)


@pytest.mark.parametrize("name", ["th1", "th2", "th3", "th4"])
def test_quick_experiments_hold_with_one_seed(name: str) -> None:
    """Four looks at the same three runs, which are remembered."""
    report = run([catalogue()[name]], Heard(), seeds=1)
    assert [(each.check.figure, each.measured) for each in report.results[0].verdicts if not each.holds] == []


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_all_experiments_hold_and_the_page_shows_what_they_give() -> None:
    """Ten minutes of processor time."""
    report = run(list(catalogue().values()), Heard(), jobs=2)
    assert report.holds, [(each.experiment.name, each.verdicts) for each in report.results if not each.holds]
    page = (Path(__file__).resolve().parents[3] / "docs/inside/experiments.md").read_text(encoding="utf-8")
    missing = [each.experiment.name for each in report.results if markdown(each) not in page]
    assert not missing, "docs/inside/experiments.md is stale: see how it is written, on its top"
