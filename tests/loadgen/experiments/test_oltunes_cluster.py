"""The cluster of OLTunes' experiments: shared devices, tasks, and each scheduler on it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tidegate.autoscaler.oltunes.character import Bound
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.judge import judge
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.setups.oltunes.comparison import _samples, _use
from tidegate.loadgen.experiments.setups.oltunes.dataset import DEVICES
from tidegate.loadgen.experiments.setups.oltunes.gpu import Execution, Gains, SharedGpu
from tidegate.loadgen.experiments.setups.oltunes.schedules import POLICIES, TaskCluster, scheduler
from tidegate.loadgen.experiments.setups.oltunes.testbed import TASKS, ClusterGpu, Pattern, Profiles, TaskTestbed
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.schema.yaml_nodes import Faults

GAINS = Gains(compute=0.98, memory=1.10, mixed=1.46)
SMALL = {"rows": 300}
SHORTER: Mapping[str, Mapping[str, Any]] = {
    **{name: {"duration_s": 12.0, "testbed": SMALL} for name in ("ot5", "ot6", "ot7", "ot10", "ot11", "ot12")},
    "ot9": {"tasks": 400, "testbed": SMALL},
    "ot14": {"tasks": 200, "testbed": SMALL},
}


@pytest.mark.parametrize("name", ["ot9", "ot12", "ot14"])
def test_the_checks_of_the_paper_hold_in_a_shorter_run(name: str) -> None:
    experiment = catalogue()[name]
    outcome = known()[experiment.setup]({**experiment.parameters, **SHORTER[name]}, 1)
    verdicts = judge(experiment, {1: outcome}).verdicts
    assert [(each.check.figure, each.measured) for each in verdicts if not each.holds] == []


@pytest.mark.parametrize("name", ["ot5", "ot6", "ot7", "ot10", "ot11"])
def test_each_experiment_gives_every_figure_that_it_names(name: str) -> None:
    experiment = catalogue()[name]
    outcome = known()[experiment.setup]({**experiment.parameters, **SHORTER[name]}, 1)
    named = {each.figure for each in experiment.checks} | {each.figure for each in experiment.reported}
    assert named - outcome.figures.keys() == set()


@pytest.mark.parametrize(
    ("compute", "memory", "gain"),
    [(1, 0, 1.0), (2, 0, 0.98), (0, 2, 1.10), (1, 1, 1.46), (2, 2, (0.98 + 1.10 + 5.84) / 6)],
)
def test_the_gain_of_a_mix_is_the_mean_over_its_pairs(compute: int, memory: int, gain: float) -> None:
    assert GAINS.of(compute, memory) == pytest.approx(gain)


def executions(*work: tuple[float, float, Bound]) -> tuple[list[float], SharedGpu]:
    """Runs executions of (seconds alone, part of the device, character) from 1 s on; returns when each ended."""
    kernel, ended = Kernel(), dict[str, float]()

    def done(now: float, _: SharedGpu, each: Execution) -> None:
        ended[each.task.task.id] = now

    gpu = SharedGpu("a100-1", DEVICES[0], kernel, GAINS, done)
    profiles = Profiles(TaskTestbed(), 1, is_tuned=False)
    for number, (seconds, part, character) in enumerate(work):
        task = replace(profiles.task(str(number), TASKS[0], 0.0, is_critical=True), character=character)
        execution = Execution(task=task, memory_gb=4.0, share=1.0, occupied=part, work_s=seconds, began_s=1.0)
        kernel.at(1.0, lambda now, each: gpu.begin(now, each), execution)
    kernel.run(100.0)
    return [ended[str(number)] for number in range(len(work))], gpu


def test_executions_slow_each_other_only_beyond_the_device() -> None:
    assert executions((1.0, 0.5, Bound.COMPUTE), (2.0, 0.4, Bound.COMPUTE))[0] == pytest.approx([2.0, 3.0])
    both, gpu = executions((1.0, 1.0, Bound.COMPUTE), (1.0, 1.0, Bound.MEMORY))
    assert both == pytest.approx([1.0 + 2.0 / 1.46] * 2), "table 1: 1.46 times as fast as one after the other"
    assert gpu.free_gb == 40.0
    assert _use(gpu, 1.0 + 2.0 / 1.46) == pytest.approx((2.0 / 1.46) / (1.0 + 2.0 / 1.46))
    first, second = executions((1.0, 1.0, Bound.COMPUTE), (2.0, 1.0, Bound.COMPUTE))[0]
    assert first == pytest.approx(1.0 + 2.0 / 0.98)
    assert second == pytest.approx(first + 1.0), "alone from then on, with a second left"


def test_what_a_scheduler_sees_of_a_device() -> None:
    kernel = Kernel()
    gpu = SharedGpu("a100-1", DEVICES[0], kernel, GAINS, lambda *_: None)
    task = Profiles(TaskTestbed(), 1, is_tuned=False).task("0", TASKS[0], 0.0, is_critical=True)
    gpu.begin(0.0, Execution(task=task, memory_gb=4.0, share=1.0, occupied=0.5, work_s=4.0, began_s=0.0))
    seen = gpu.view(3.0)
    assert [seen.free_gb, seen.done, seen.free_in_s] == pytest.approx([36.0, 0.75, 1.0])
    assert 0.3 < seen.utilisation < 0.5
    kernel.run(4.0)
    assert gpu.view(4.0).is_idle
    assert 0.0 < gpu.view(9.0).utilisation < 0.1


@pytest.mark.parametrize("policy", POLICIES)
def test_every_task_is_run_once_also_where_devices_refuse_batches(policy: str) -> None:
    testbed = TaskTestbed(rows=100)
    load = list(testbed.arrivals(Pattern.POISSON, 2.0, 1))
    cluster = TaskCluster(testbed, scheduler(policy, testbed), load, 1, refused=0.2)
    cluster.run()
    assert sorted(each.arrived_s for each in cluster.ended) == sorted(at_s for at_s, *_ in load)
    assert cluster.refused > 0
    assert all(each.arrived_s <= each.began_s < each.ended_s for each in cluster.ended)
    assert all(each.free_gb == each.device.memory_gb for each in cluster.gpus)


def test_the_best_two_kinds_of_a_task_are_never_the_slowest_one() -> None:
    tuned = Profiles(TaskTestbed(rows=1000), 1, is_tuned=True)
    for model in TASKS:
        records = tuned.task("0", model, 0.0, is_critical=True).records
        assert set(records) == {"a100", "rtx4090"}, model.name
        assert all(len(kept) == 3 for kept in records.values())


def test_patterns_have_the_rates_of_table_7() -> None:
    testbed = TaskTestbed()
    uniform = list(testbed.arrivals(Pattern.UNIFORM, 10.0, 1))
    assert len(uniform) == 1730
    for pattern, rate in ((Pattern.POISSON, 132.0), (Pattern.MODELS, 129.9)):
        assert len(list(testbed.arrivals(pattern, 60.0, 1))) / 60.0 == pytest.approx(rate, rel=0.05)
    assert list(testbed.arrivals(Pattern.TRACE, 5.0, 1)) == list(testbed.arrivals(Pattern.TRACE, 5.0, 1))


def test_samples_of_a_span() -> None:
    assert [_samples(0.5, 1.9), _samples(1.9, 2.1), _samples(1.0, 7.0)] == [0, 1, 3]


def test_unknown_devices_and_models_are_named() -> None:
    faults = Faults("parameters")
    given = {
        "patterns": ["uniform"],
        "duration_s": 1.0,
        "testbed": {"gpus": [{"name": "h100", "count": 1, "tdp_w": 700.0}]},
    }
    assert known()["oltunes.schedulers"].read(given, faults) is None
    with pytest.raises(InvalidInputError) as caught:
        faults.raise_any()
    assert "names of OT-P: a100, a30, rtx4090" in str(caught.value)
    with pytest.raises(ValueError, match="models of table 7"):
        TaskTestbed(models=(replace(TASKS[0], of="llama"),))
    assert ClusterGpu(name="a30", count=1, tdp_w=1.0) not in TaskTestbed().gpus
