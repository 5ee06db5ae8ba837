"""Schedulers of tasks: the target device, batches over functions, refused ones, and the two rivals."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tidegate.autoscaler.oltunes.autotune import TuningRecord
from tidegate.autoscaler.oltunes.batches import BatchRules
from tidegate.autoscaler.oltunes.character import Bound
from tidegate.autoscaler.oltunes.queues import WindowRules
from tidegate.autoscaler.oltunes.scheduling.batching import BatchScheduler
from tidegate.autoscaler.oltunes.scheduling.contract import DeviceView, Submission, TaskScheduler, WaitingTask
from tidegate.autoscaler.oltunes.scheduling.rivals import OrionScheduler, ReserveAndPackScheduler
from tidegate.autoscaler.oltunes.scheduling.targets import target
from tidegate.autoscaler.oltunes.task import BatchTask, JobClass, Variant

COMPUTE, MEMORY = Bound.COMPUTE, Bound.MEMORY


def record(batch: int = 4, memory_gb: float = 4.0, latency_s: float = 0.1, throughput: float = 40.0) -> TuningRecord:
    return TuningRecord(batch=batch, memory_gb=memory_gb, latency_s=latency_s, throughput=throughput)


def task(
    name: str,
    *,
    memory_gb: float = 4.0,
    ratio: float = 2.0,
    variant: Variant = Variant.LOW,
    kinds: Sequence[str] = ("a",),
    is_critical: bool = True,
    due_s: float = 1.0,
    records: Sequence[TuningRecord] = (),
    is_large: bool = False,
    character: Bound = COMPUTE,
) -> WaitingTask:
    return WaitingTask(
        task=BatchTask(id=name, memory_gb=memory_gb, ratio=ratio, variant=variant, devices=tuple(kinds)),
        class_weight=0.75 if is_critical else 0.25,
        job_class=JobClass.LATENCY_CRITICAL if is_critical else JobClass.THROUGHPUT_ORIENTED,
        due_s=due_s,
        average_latency_s=0.1,
        character=character,
        is_large=is_large,
        records={kind: tuple(records) or (record(memory_gb=memory_gb),) for kind in kinds},
    )


def pair(first: str = "h", second: str = "l") -> tuple[WaitingTask, WaitingTask]:
    """Two tasks of high affinity: variants of two sizes."""
    return task(first, variant=Variant.HIGH), task(second)


def device(
    name: str = "a-1",
    kind: str = "a",
    free_gb: float = 16.0,
    running: Sequence[WaitingTask] = (),
    *,
    use: float = 0.0,
    done: float = 0.0,
    free_in_s: float = 0.0,
) -> DeviceView:
    return DeviceView(name, kind, 16.0, free_gb, use, running, done, free_in_s)


def names(submission: Submission | None) -> list[str]:
    assert submission is not None
    return [each.task.task.id for each in submission.tasks]


def filled(scheduler: TaskScheduler, *tasks: WaitingTask) -> None:
    for each in tasks:
        scheduler.add(each)


BUSY = (task("runs"),)


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ([], None),
        ([device("b", use=0.5), device("a", use=0.2), device("c", running=BUSY)], "a"),
        ([device("b", use=0.1), device("a", use=0.1)], "a"),
        ([device("b", use=0.9, running=BUSY, free_gb=13.0), device("a", use=0.1, running=BUSY, free_gb=12.0)], "b"),
        ([device("b", use=0.9, running=BUSY, free_gb=1.0, done=0.9), device("a", running=BUSY, free_gb=1.0)], "b"),
        ([device("b", running=BUSY, free_gb=12.8, free_in_s=2.0), device("a", running=BUSY, done=0.8)], "a"),
        (
            [
                device("b", running=BUSY, free_gb=1.0, free_in_s=1.0),
                device("a", running=BUSY, free_gb=1.0, free_in_s=2.0),
            ],
            "b",
        ),
        ([device("mig-1", running=BUSY, free_gb=1.0), device("mig-2", use=0.7)], "mig-2"),
    ],
    ids=[
        "none",
        "idle ones by use",
        "ties by name",
        "most of the memory free",
        "the longest task nearly over",
        "80 % exactly is not enough: the soonest one",
        "the soonest one",
        "a partition is a device",
    ],
)
def test_the_target_device(devices: list[DeviceView], chosen: str | None) -> None:
    found = target(devices)
    assert (None if found is None else found.id) == chosen


def test_a_batch_collects_tasks_of_high_affinity_until_its_window_ends() -> None:
    scheduler = BatchScheduler(BatchRules(window_ms=100.0))
    first, second = pair()
    scheduler.add(first)
    assert scheduler.step(10.0, [device()]) is None
    assert scheduler.wakes_s == pytest.approx(10.1)
    filled(scheduler, second, task("equal", variant=Variant.HIGH))
    assert scheduler.step(10.05, [device()]) is None
    assert scheduler.waiting == 3
    assert names(scheduler.step(10.2, [device()])) == ["h", "l"], "two high variants never share a device"
    assert scheduler.waiting == 1
    assert scheduler.step(10.2, [device()]) is None
    assert names(scheduler.step(10.4, [device()])) == ["equal"]
    assert scheduler.wakes_s is None


def test_a_batch_of_the_largest_size_and_one_that_fills_the_memory_leave_at_once() -> None:
    scheduler = BatchScheduler(BatchRules(max_tasks=2))
    filled(scheduler, *pair())
    assert names(scheduler.step(1.0, [device()])) == ["h", "l"]
    scheduler = BatchScheduler()
    filled(scheduler, *pair())
    assert names(scheduler.step(1.0, [device(free_gb=8.0)])) == ["h", "l"]


def test_each_device_has_a_batch_of_its_own_and_none_is_opened_where_no_task_may_run() -> None:
    """A single batch, as printed, would hold up the second task for a window."""
    scheduler = BatchScheduler(BatchRules(window_ms=100.0))
    filled(scheduler, task("h1", variant=Variant.HIGH), task("h2", variant=Variant.HIGH))
    devices = [device("a-1"), device("a-2"), device("b-1", kind="b")]
    assert scheduler.step(1.0, devices) is None
    found = [scheduler.step(1.2, devices) for _ in range(3)]
    assert [(each.device, names(each)) for each in found if each] == [("a-1", ["h1"]), ("a-2", ["h2"])]
    small = [device("a-1", free_gb=3.0), device("b-1", kind="b")]
    scheduler.add(task("large"))
    assert scheduler.step(2.0, small) is None
    assert scheduler.wakes_s is None


def test_the_more_urgent_task_and_the_latency_critical_one_join_first() -> None:
    scheduler = BatchScheduler(BatchRules(max_tasks=1))
    filled(scheduler, task("to", is_critical=False, due_s=0.5), task("later", due_s=9.0), task("sooner", due_s=2.0))
    found = [names(scheduler.step(1.0, [device()])) for _ in range(3)]
    assert found == [["sooner"], ["later"], ["to"]]


def test_one_task_of_a_batch_is_tuned_where_memory_is_left() -> None:
    records = (record(), record(batch=8, memory_gb=8.0, latency_s=0.15, throughput=60.0))
    scheduler = BatchScheduler(BatchRules(max_tasks=2))
    filled(
        scheduler,
        task("h", variant=Variant.HIGH, is_critical=False, records=records),
        task("l", is_critical=False, records=records),
    )
    found = scheduler.step(1.0, [device(free_gb=13.0)])
    assert found is not None
    assert [each.record.batch for each in found.tasks] == [8, 4]
    assert scheduler.tuned == 1


def test_tasks_of_a_refused_batch_go_first_next_time_and_window_and_count_shrink() -> None:
    scheduler = BatchScheduler(BatchRules(max_tasks=2, window_ms=500.0))
    filled(scheduler, task("to", is_critical=False), task("to2", is_critical=False, variant=Variant.HIGH))
    found = scheduler.step(1.0, [device()])
    assert found is not None
    scheduler.refused(found)
    assert (scheduler.rules.max_tasks, scheduler.rules.window_ms) == (1, 490.0)
    scheduler.add(task("urgent", due_s=1.01))
    again = [names(scheduler.step(1.1, [device()])) for _ in range(3)]
    assert again == [[each] for each in (*names(found), "urgent")], "throughput-oriented as they are"
    scheduler.served()
    assert scheduler.rules.max_tasks == 2
    scheduler.served()
    assert scheduler.rules.max_tasks == 2


def test_the_window_follows_what_is_left_in_the_queues() -> None:
    rules, window = BatchRules(window_ms=100.0), WindowRules()
    blocked = [device(free_gb=1.0)]
    scheduler = BatchScheduler(rules, window)
    scheduler.add(task("lc"))
    scheduler.step(1.0, blocked)
    assert scheduler.rules.window_ms == 90.0
    scheduler.add(task("to", is_critical=False))
    scheduler.step(1.0, blocked)
    assert scheduler.rules.window_ms == 100.0


def test_orion_takes_the_first_device_with_room() -> None:
    scheduler = OrionScheduler()
    filled(scheduler, task("to", is_critical=False), task("lc"))
    devices = [device("full", free_gb=1.0), device("second", running=BUSY, use=0.9), device("third")]
    found = scheduler.step(1.0, devices)
    assert (names(found), found and found.device) == (["lc"], "second")
    found = scheduler.step(1.0, devices)
    assert (names(found), found and found.device) == (["to"], "third"), "not beside an equal one"
    assert scheduler.step(1.0, devices) is None


@pytest.mark.parametrize(
    ("beside", "takes"),
    [
        (task("x", character=MEMORY), True),
        (task("x", character=COMPUTE), False),
        (task("x", character=MEMORY, is_critical=False), False),
    ],
    ids=["the other character", "the same", "the other character, throughput-oriented"],
)
def test_orion_puts_a_throughput_oriented_task_beside_a_critical_one_of_the_other_character(
    beside: WaitingTask, takes: bool
) -> None:
    scheduler = OrionScheduler()
    scheduler.add(task("to", is_critical=False))
    assert (scheduler.step(1.0, [device(running=(beside,))]) is not None) == takes
    assert scheduler.waiting == 1 - takes


def test_reserve_and_pack_fills_the_fullest_device_and_keeps_the_reserved_ones() -> None:
    scheduler = ReserveAndPackScheduler(["a"])
    devices = [
        device("a-1"),
        device("b-1", kind="b"),
        device("b-2", kind="b", free_gb=5.0),
        device("b-3", kind="b", free_gb=3.0),
    ]
    filled(scheduler, task("small", kinds="ab"), task("large", kinds="ab", is_large=True))
    found = [scheduler.step(1.0, devices) for _ in range(3)]
    assert [(each.device, names(each)) for each in found if each] == [("b-2", ["small"]), ("a-1", ["large"])]
    scheduler.add(task("large", kinds="ab", is_large=True))
    assert scheduler.step(1.0, devices[1:]) is None, "idle devices of the other kind are not for it"


@pytest.mark.parametrize("scheduler", [OrionScheduler(), ReserveAndPackScheduler(["b"]), BatchScheduler()])
def test_a_refused_task_waits_again(scheduler: TaskScheduler) -> None:
    filled(scheduler, task("one"))
    found = scheduler.step(1.0, [device()]) or scheduler.step(9.0, [device()])
    assert found is not None
    assert scheduler.waiting == 0
    scheduler.refused(found)
    scheduler.served()
    assert scheduler.waiting == 1
    assert names(scheduler.step(9.0, [device()]) or scheduler.step(19.0, [device()])) == ["one"]


def test_a_task_without_a_record_for_a_kind_never_runs_there() -> None:
    for scheduler in (OrionScheduler(), ReserveAndPackScheduler(["b"]), BatchScheduler()):
        scheduler.add(replace(task("one"), records={"b": (record(),)}, task=replace(task("one").task, devices=("b",))))
        assert scheduler.step(1.0, [device()]) is None
