"""Rules of the papers' cores that no vector shows: ties, borders, degenerate input."""

import math
import random

import pytest

from tidegate.autoscaler.oltunes.affinity import affinity
from tidegate.autoscaler.oltunes.autotune import TunableTask, TuningRecord, autotune
from tidegate.autoscaler.oltunes.batches import BatchRules, Submit, after_failure, after_success, form
from tidegate.autoscaler.oltunes.character import Bound, kernel_ratio
from tidegate.autoscaler.oltunes.objective import TuningRow, objective
from tidegate.autoscaler.oltunes.prediction.ftrl import Form, Ftrl
from tidegate.autoscaler.oltunes.prediction.machine import gradient, predict
from tidegate.autoscaler.oltunes.queues import WindowRules, next_window_ms, order
from tidegate.autoscaler.oltunes.ranking import ranked
from tidegate.autoscaler.oltunes.task import BatchTask, JobClass, QueuedTask, Variant, job_class


def test_values_within_a_billionth_tie_and_the_name_decides() -> None:
    items = [("b", 1.0), ("a", 1.0 + 0.9e-9), ("c", 1.0 - 1e-6), ("d", math.inf)]
    found = ranked(items, (lambda item: item[1],), lambda item: item[0])
    assert [name for name, _ in found] == ["c", "a", "b", "d"]


def test_a_run_of_ties_ends_a_billionth_after_its_first_value() -> None:
    items = [("c", 0.0), ("b", 0.9e-9), ("a", 1.8e-9)]
    assert [name for name, _ in ranked(items, (lambda item: item[1],), lambda item: item[0])] == ["b", "c", "a"]


@pytest.mark.parametrize(("compute", "memory", "kind"), [(1.2 - 1e-10, 1, Bound.COMPUTE), (0, 0, Bound.MEMORY)])
def test_the_character_at_its_border(compute: float, memory: float, kind: Bound) -> None:
    assert kernel_ratio(compute, memory).kind is kind


@pytest.mark.parametrize("count", [-1, math.nan, math.inf])
def test_a_count_that_is_none_is_refused(count: float) -> None:
    with pytest.raises(ValueError, match="kernels; a finite number, 0 or more"):
        kernel_ratio(1, count)


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (0.0, JobClass.THROUGHPUT_ORIENTED),
        (0.5, JobClass.THROUGHPUT_ORIENTED),
        (0.5 + 1e-10, JobClass.THROUGHPUT_ORIENTED),
        (0.51, JobClass.LATENCY_CRITICAL),
        (1.0, JobClass.LATENCY_CRITICAL),
    ],
)
def test_the_class_of_a_weight(weight: float, found: JobClass) -> None:
    assert job_class(weight) is found


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_a_weight_outside_its_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        job_class(weight)


@pytest.mark.parametrize("parameters", [{"eta": 0.0}, {"eta": math.nan}, {"zeta": -1.0}, {"lambda1": -1.0}])
def test_ftrl_refuses_parameters_without_a_meaning(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Ftrl(**parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("form_", list(Form))
@pytest.mark.parametrize("weight", [0.05, -0.3, 0.0])
def test_a_start_weight_stays_without_gradients(form_: Form, weight: float) -> None:
    ftrl = Ftrl(form=form_)
    z, n, w = ftrl.step(ftrl.start(weight), 0.0, weight, 0.0)
    assert n == 0.0
    assert w == pytest.approx(weight)
    assert ftrl.weight(z, n) == w


def test_a_machine_without_features_has_its_bias() -> None:
    assert predict(0.5, [], [], []) == 0.5
    assert gradient(0.5, [], [], [], 0.0).w0 == 1.0


def test_the_gradient_is_the_slope_of_the_squared_error() -> None:
    rng = random.Random(7)
    w = [rng.gauss(0, 1) for _ in range(5)]
    v = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(5)]
    x = [(0, 1.0), (2, -0.5), (4, 2.0)]
    found = gradient(0.1, w, v, x, 0.7)
    step = 1e-6
    for index, (position, _) in enumerate(x):
        for factor in range(3):
            moved = [[*row] for row in v]
            moved[position][factor] += step
            slope = ((predict(0.1, w, moved, x) - 0.7) ** 2 - (predict(0.1, w, v, x) - 0.7) ** 2) / step
            assert found.v[index][factor] == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_a_clipped_gradient_has_the_bound_as_common_factor() -> None:
    free, bound = (
        gradient(0.0, [1.0], [[0.0]], [(0, 1.0)], 100.0),
        gradient(0.0, [1.0], [[0.0]], [(0, 1.0)], 100.0, clip=4.0),
    )
    assert (free.w0, bound.w0, bound.w[0]) == (-198.0, -4.0, -4.0)


def queued(name: str, deadline_s: float, latency_s: float, weight: float = 1.0) -> QueuedTask:
    return QueuedTask(id=name, class_weight=weight, deadline_s=deadline_s, average_latency_s=latency_s)


def test_late_and_instant_tasks_have_a_place_in_the_queue() -> None:
    """Most overdue first; a task that takes no time waits while it has time."""
    tasks = [
        queued("instant", 1.0, 0.0),
        queued("overdue", -1.0, 0.5),
        queued("very", -3.0, 0.5),
        queued("instant-overdue", -1.0, 0.0),
        queued("due", 1.0, 0.5),
    ]
    found = [each.id for each in order(tasks).latency_critical]
    assert found == ["instant-overdue", "very", "overdue", "due", "instant"]


def test_a_task_outside_the_range_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"class weight 1\.5"):
        order([queued("a", 1.0, 1.0, 1.5)])


def test_the_window_keeps_to_its_bounds() -> None:
    rules = WindowRules()
    assert next_window_ms(rules.most_ms, 1, 1) == rules.most_ms
    assert next_window_ms(rules.least_ms, 1, 0) == rules.least_ms
    assert next_window_ms(500, 7, 3) == 510, "0.7 itself is not above 0.7"


def member(name: str, memory_gb: float = 1.0, ratio: float = 1.0, variant: Variant | None = Variant.LOW) -> BatchTask:
    return BatchTask(id=name, memory_gb=memory_gb, ratio=ratio, variant=variant, devices=("g",))


def test_an_unknown_variant_never_pairs_with_a_high_one() -> None:
    unknown, high = member("u", variant=None), member("h", ratio=1000.0, variant=Variant.HIGH)
    assert affinity(unknown, [high]).variant == 0.0
    assert affinity(unknown, [high]).workload == 100.0
    assert not affinity(unknown, [high]).is_high


def test_rescaled_affinity_spreads_over_the_whole_range() -> None:
    one, other = member("a"), member("b")
    assert affinity(one, [other], is_rescaled=True).workload == 0.0
    assert affinity(one, [other]).workload == 50.0


def test_the_time_of_a_batch_that_is_empty_does_not_count() -> None:
    formed = form("g", 8, [member("a")], [], [], open_for_s=3.0)
    assert [each.id for each in formed.batch] == ["a"]
    assert formed.submit is None


def test_a_device_that_was_not_chosen_for_a_task_does_not_get_it() -> None:
    formed = form("other", 8, [member("a")], [member("b")], [], open_for_s=0.0)
    assert (formed.batch, formed.submit) == ((), None)
    assert ([each.id for each in formed.latency_critical], [each.id for each in formed.throughput_oriented]) == (
        ["a"],
        ["b"],
    )


def test_memory_that_adds_up_with_binary_noise_is_filled_exactly() -> None:
    tasks = [member("a", 0.1), member("b", 0.2, 10.0)]
    formed = form("g", 0.3, tasks, [], [], open_for_s=0.0)
    assert len(formed.batch) == 2
    assert formed.submit is Submit.MEMORY


def test_a_refused_batch_makes_the_next_ones_smaller_and_served_ones_larger_again() -> None:
    configured, window = BatchRules(window_ms=55, max_tasks=2), WindowRules()
    once = after_failure(configured, window)
    twice = after_failure(once, window)
    assert [(each.window_ms, each.max_tasks) for each in (once, twice)] == [(50, 1), (50, 1)]
    assert [after_success(twice, configured).max_tasks, after_success(configured, configured).max_tasks] == [2, 2]


def test_without_rows_there_is_nothing_to_rank() -> None:
    found = objective([], class_weight=0.5, alpha=1.0, beta=0.5, deadline_s=1.0)
    assert (found.values, found.devices, found.combinations) == ((), (), {})


def test_ratios_without_a_reference_are_nothing() -> None:
    rows = [TuningRow(device="a", combination=0, latency_s=0.0, throughput=0.0, epc=0.0)]
    found = objective(rows, class_weight=0.5, alpha=1.0, beta=1.0, deadline_s=0.0)
    assert found.values == (0.5,)


def way(batch: int, memory_gb: float, latency_s: float, throughput: float) -> TuningRecord:
    return TuningRecord(batch=batch, memory_gb=memory_gb, latency_s=latency_s, throughput=throughput)


def test_a_gain_within_the_tolerance_is_none() -> None:
    now = way(4, 4, 0.04, 100.0)
    task = TunableTask(
        id="t",
        job_class=JobClass.THROUGHPUT_ORIENTED,
        current=now,
        records=(now, way(8, 4, 0.08, 100.0 + 1e-10)),
    )
    assert autotune(24, [task]) is None
    assert autotune(24, []) is None
