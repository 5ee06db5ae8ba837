"""The ledger: what fits, who gets which unit and cores, and that it is never over-committed."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.searches import part
from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.ledger import (
    WHOLE,
    Accelerator,
    AcceleratorKind,
    Assignment,
    Demand,
    Ledger,
    NoRoomError,
    Room,
    candidates,
    demand_of,
    part_of,
)
from tidegate.deploy.placement.strategies import BEST_FIT, LEAST_INTERFERENCE, WORST_FIT, WORST_FIT_SOFT
from tidegate.function import DnnModel, Function, GpuNeeds, ModelFormat, Resources, Server, ServerKind, StoredForm

if TYPE_CHECKING:
    from tidegate.deploy.placement.ledger import _Fill

GIB = 1 << 30
T4 = Accelerator(
    name="t4",
    kind=AcceleratorKind.NVIDIA,
    count=2,
    memory_bytes=16 * GIB,
    price_per_hour=0.5,
    mps=True,
    devices=("GPU-0", "GPU-1"),
)
V100 = Accelerator(name="v100", kind=AcceleratorKind.NVIDIA, count=1, memory_bytes=32 * GIB, price_per_hour=3.0)
CPU = Accelerator(name="cpu-1core", kind=AcceleratorKind.CPU, count=2, memory_bytes=4 * GIB, cores=1)
CPU2 = Accelerator(name="cpu-2core", kind=AcceleratorKind.CPU, count=1, memory_bytes=8 * GIB, cores=2)


def function(**fields: object) -> Function:
    return Function(name="f", server=Server(kind=ServerKind.COMMAND, argv=("x",)), **fields)  # type: ignore[arg-type]


def test_a_whole_unit_each() -> None:
    ledger = Ledger.of([T4])
    assert ledger.assign("a", "t4", Demand()).unit == 0
    assert ledger.assign("b", "t4", Demand()).unit == 1
    with pytest.raises(NoRoomError, match="no room on t4: 2 of 2 units in use"):
        ledger.assign("c", "t4", Demand())
    ledger.release("a")
    assert ledger.assign("c", "t4", Demand()).unit == 0


def test_shares_fill_a_unit_before_the_next_is_opened() -> None:
    ledger = Ledger.of([T4])
    units = [ledger.assign(name, "t4", Demand(share=40, memory_bytes=GIB)).unit for name in "abcd"]
    assert units == [0, 0, 1, 1]
    assert ledger.room("t4", Demand(share=20)) == Room(free=2, total=10)
    assert ledger.room("t4", Demand(share=30)) == Room(free=0, total=6)


def test_memory_is_counted_beside_the_share() -> None:
    ledger = Ledger.of([T4])
    ledger.assign("a", "t4", Demand(share=10, memory_bytes=10 * GIB))
    assert ledger.assign("b", "t4", Demand(share=10, memory_bytes=10 * GIB)).unit == 1
    with pytest.raises(NoRoomError):
        ledger.assign("c", "t4", Demand(share=10, memory_bytes=10 * GIB))
    assert ledger.assign("d", "t4", Demand(share=10, memory_bytes=6 * GIB)).unit == 0


def test_cores_go_to_replicas_that_have_none_yet() -> None:
    ledger = Ledger.of([CPU, CPU2], host_cores=(4, 5, 6, 7))
    assert ledger.assign("a", "cpu-2core", Demand()).cores == (4, 5)
    assert ledger.assign("b", "cpu-1core", Demand()).cores == (6,)
    assert ledger.cores_overdrawn == 0
    ledger.release("a")
    assert ledger.assign("c", "cpu-1core", Demand()).cores == (4,)


def test_cores_that_are_declared_but_not_there_are_shared_evenly() -> None:
    ledger = Ledger.of([CPU, CPU2], host_cores=(0, 1))
    assert ledger.cores_overdrawn == 2
    dealt: Counter[int] = Counter()
    for name, kind in (("a", "cpu-1core"), ("b", "cpu-1core"), ("c", "cpu-2core")):
        dealt.update(ledger.assign(name, kind, Demand()).cores)
    assert dealt == {0: 2, 1: 2}


def test_cores_within_a_unit_change_in_place() -> None:
    ledger = Ledger.of([CPU2], host_cores=(0, 1))
    ledger.assign("a", "cpu-2core", Demand())
    assert ledger.reassign_cores("a", 1).cores == (0,)
    assert ledger.reassign_cores("a", 2).cores == (0, 1)
    with pytest.raises(NoRoomError, match="cannot have 3 cores; a unit has 2"):
        ledger.reassign_cores("a", 3)
    assert ledger.held["a"].cores == (0, 1), "a refusal changes nothing"


def test_what_an_adopted_replica_held_is_taken_back() -> None:
    before = Ledger.of([CPU], host_cores=(0, 1))
    before.assign("a", "cpu-1core", Demand())
    held = before.assign("b", "cpu-1core", Demand())
    after = Ledger.of([CPU], host_cores=(0, 1))
    after.restore("b", held)
    assert after.held["b"] == held
    assert after.assign("c", "cpu-1core", Demand()).cores == (0,)
    with pytest.raises(NoRoomError, match="unit 1 of cpu-1core is taken"):
        after.restore("d", held)
    with pytest.raises(NoRoomError, match="no accelerator cpu-1core; there are: t4"):
        Ledger.of([T4]).restore("b", held)


def test_a_replica_holds_one_thing() -> None:
    ledger = Ledger.of([T4, V100])
    ledger.assign("a", "t4", Demand())
    with pytest.raises(NoRoomError, match="already holds"):
        ledger.assign("a", "v100", Demand())


def test_candidates_are_the_allowed_kinds_that_are_large_enough_cheapest_first() -> None:
    kinds = [V100, T4, CPU]
    assert [each.name for each in candidates(kinds, function())] == ["cpu-1core", "t4", "v100"]
    assert [each.name for each in candidates(kinds, function(accelerators=("v100", "t4")))] == ["t4", "v100"]
    large = function(gpu=GpuNeeds(memory_gb=30.0), accelerators=("t4", "v100"))
    assert [each.name for each in candidates(kinds, large)] == ["v100"]
    assert [each.name for each in candidates(kinds, function(gpu=GpuNeeds(model="V100")))] == ["v100"]
    assert candidates(kinds, function(resources=Resources(memory_bytes=5 * GIB), accelerators=("cpu-1core",))) == ()


def test_a_replica_may_hold_several_whole_units() -> None:
    ledger = Ledger.of([replace(T4, count=5, devices=())])
    ledger.assign("a", "t4", Demand(share=50))
    pair = Demand(count=2, memory_bytes=GIB)
    assert ledger.room("t4", pair) == Room(free=2, total=2)
    assert ledger.assign("b", "t4", pair).units == (1, 2)
    assert ledger.assign("c", "t4", pair).units == (3, 4)
    with pytest.raises(NoRoomError, match="no room for 2 units on t4: 5 of 5 units in use"):
        ledger.assign("d", "t4", pair)
    held = ledger.held["b"]
    ledger.release("b")
    assert ledger.room("t4", pair).free == 1
    ledger.restore("b", held)
    assert ledger.room("t4", Demand()).free == 0
    with pytest.raises(NoRoomError, match="cannot hold unit 5"):
        ledger.restore("e", replace(held, more=(5,)))
    ledger.release("c")
    with pytest.raises(NoRoomError, match="unit 2 of t4 is taken"):
        ledger.restore("e", replace(held, unit=3))
    assert Ledger.of([T4]).room("t4", Demand(count=2, memory_bytes=17 * GIB)) == Room(free=0, total=0)


def test_gpu_count_asks_for_whole_units_of_kinds_that_have_as_many_and_pays_for_each() -> None:
    needs = function(gpu=GpuNeeds(memory_gb=4.0, count=2))
    assert [each.name for each in candidates([T4, V100], needs)] == ["t4"]
    assert demand_of(needs, T4) == Demand(memory_bytes=4 * 10**9, count=2, model="f")
    assert part_of(needs, T4) == 2.0
    assert demand_of(function(gpu=GpuNeeds(count=2)), CPU).count == 1
    ledger = Ledger.of([T4])
    assert ledger.rooms(needs)["t4"].free == 1
    assert ledger.rooms(function(gpu=GpuNeeds(memory_gb=4.0)))["t4"].free == 2, "the answer of one is not the other's"


def test_time_slices_and_mps_divide_a_gpu_and_a_device_without_mps_is_not_divided() -> None:
    turns = function(gpu=GpuNeeds(memory_gb=1.0, time_slices=3))
    assert demand_of(turns, V100) == Demand(memory_bytes=10**9, share=33, model="f")
    shared = function(gpu=GpuNeeds(memory_gb=1.0, mps=True, core_percentage=30))
    assert [demand_of(shared, each).share for each in (T4, V100, replace(V100, mps=True))] == [30, WHOLE, 30]
    assert demand_of(shared, replace(V100, kind=AcceleratorKind.EMULATED)).share == 30
    ledger = Ledger.of([T4, V100])
    assert {name: room.total for name, room in ledger.rooms(turns).items()} == {"t4": 6, "v100": 3}
    assert {name: room.total for name, room in ledger.rooms(shared).items()} == {"t4": 6, "v100": 1}
    assert candidates([CPU], turns) == ()


def test_a_tainted_unit_takes_no_replica_and_keeps_those_that_it_has() -> None:
    ledger = Ledger.of([T4])
    ledger.assign("a", "t4", Demand(share=50))
    ledger.set_failed({"GPU-0"})
    assert ledger.is_tainted("a") and not ledger.is_tainted("b")
    assert ledger.assign("b", "t4", Demand(share=50)).unit == 1
    assert ledger.room("t4", Demand(share=50)) == Room(free=1, total=2, why="1 unit has failed")
    assert ledger.describe("t4") == "2 of 2 units in use, 1 unit has failed"
    with pytest.raises(NoRoomError, match="1 unit has failed"):
        ledger.assign("c", "t4", Demand())
    ledger.release("a")
    assert ledger.describe("t4") == "1 of 2 units in use, 1 unit has failed"
    assert ledger.room("t4", Demand()).free == 0, "given back, and tainted still"
    ledger.set_failed(())
    assert ledger.room("t4", Demand()) == Room(free=1, total=2)
    assert ledger.assign("c", "t4", Demand()).unit == 0


def test_an_adopted_replica_holds_its_tainted_unit_until_it_has_ended() -> None:
    ledger = Ledger.of([T4])
    ledger.set_failed({"GPU-0", "GPU-7"})
    ledger.restore("a", Assignment(accelerator="t4", unit=0, memory_bytes=0, share=100, devices=("GPU-0",)))
    assert ledger.is_tainted("a")
    assert ledger.room("t4", Demand()) == Room(free=1, total=1, why="1 unit has failed")


def test_a_replica_is_counted_where_its_device_is_after_a_reload_that_renumbers_and_renames() -> None:
    ledger = Ledger.of([T4])
    for name in ("a", "b"):
        ledger.assign(name, "t4", Demand())
    ledger.release("a")
    ledger.set_accelerators([replace(T4, count=1, devices=("GPU-1",))], ())
    assert ledger.room("t4", Demand()) == Room(free=0, total=1), "b runs on GPU-1, which was unit 1 and is unit 0"
    ledger.set_accelerators([replace(T4, name="gpu", count=1, devices=("GPU-1",))], ())
    assert ledger.room("gpu", Demand()).free == 0
    ledger.release("b")
    assert ledger.room("gpu", Demand()).free == 1
    assert list(ledger.accelerators) == ["gpu"]


def test_a_lost_device_counts_as_the_unit_that_its_replicas_will_need() -> None:
    ledger = Ledger.of([replace(T4, count=3, devices=("GPU-0", "GPU-1", "GPU-2"))])
    for index in range(4):
        ledger.assign(f"r{index}", "t4", Demand(share=25))
    ledger.set_accelerators([replace(T4, devices=("GPU-1", "GPU-2"))], ())
    assert ledger.room("t4", Demand()) == Room(free=1, total=2)
    assert ledger.room("t4", Demand(count=2)) == Room(free=0, total=1)
    ledger.release("r0")
    assert ledger.room("t4", Demand(share=25)) == Room(free=5, total=8), "three of eight are still to move"
    assert ledger.describe("t4") == "1 of 2 units in use"


def test_two_devices_that_are_gone_are_two_units() -> None:
    ledger = Ledger.of([T4])
    for name in ("a", "b"):
        ledger.assign(name, "t4", Demand())
    ledger.set_accelerators([replace(T4, count=1, devices=("GPU-9",))], ())
    assert sorted(held.unit for held in ledger.held.values()) == [1, 2]
    ledger.set_accelerators([T4], ())
    assert [(held.unit, held.devices) for held in ledger.held.values()] == [(0, ("GPU-0",)), (1, ("GPU-1",))]


def test_taints_follow_a_device_through_a_reload_of_the_accelerators() -> None:
    ledger = Ledger.of([T4])
    ledger.assign("a", "t4", Demand(share=50))
    ledger.set_failed({"GPU-0"})
    ledger.set_accelerators([replace(T4, devices=("GPU-1", "GPU-0"))], ())
    assert ledger.is_tainted("a")
    assert ledger.assign("b", "t4", Demand(share=50)).devices == ("GPU-1",)
    with pytest.raises(NoRoomError, match="1 unit has failed"):
        ledger.assign("c", "t4", Demand())
    ledger.set_accelerators([replace(T4, count=1, devices=("GPU-1",))], ())
    assert ledger.room("t4", Demand(share=50)) == Room(free=0, total=2), "a is of a unit that is gone"
    ledger.set_failed(())
    ledger.set_accelerators([T4], ())
    assert ledger.room("t4", Demand(share=50)) == Room(free=2, total=4)


def test_another_control_process_finds_a_replica_by_its_device_and_not_by_its_number() -> None:
    before = Ledger.of([T4])
    held = [before.assign(name, "t4", Demand()) for name in ("a", "b")]
    after = Ledger.of([replace(T4, count=1, devices=("GPU-1",))])
    after.restore("b", held[1])
    assert after.held["b"].unit == 0
    with pytest.raises(NoRoomError, match="a cannot hold GPU-0 of t4"):
        after.restore("a", held[0])


def test_a_model_repository_runs_on_the_kinds_that_it_has_a_form_for() -> None:
    form = StoredForm(accelerator="t4", path="/m", format=ModelFormat.ONNX)
    stored = replace(function(), server=Server(kind=ServerKind.MODEL, forms=(form,)))
    assert [each.name for each in candidates([V100, T4, CPU], stored)] == ["t4"]
    ledger = Ledger.of([V100, T4])
    assert list(ledger.rooms(stored)) == ["t4"]
    assert list(ledger.rooms(function())) == ["t4", "v100"], "the answer of one is not the other's"


@pytest.mark.parametrize("gpu", [GpuNeeds(memory_gb=2.0), GpuNeeds(mps=True)])
def test_who_says_how_it_uses_a_gpu_gets_one_though_it_names_no_model(gpu: GpuNeeds) -> None:
    kinds = [T4, V100, CPU, CPU2]
    assert [each.name for each in candidates(kinds, function(gpu=gpu))] == ["t4", "v100"]
    listed = function(gpu=gpu, accelerators=("cpu-1core", "t4"))
    assert [each.name for each in candidates(kinds, listed)] == ["cpu-1core", "t4"], "its own list is its own"


def test_a_gpu_model_is_also_its_variants() -> None:
    variant = Accelerator(name="h100-80gb-hbm3", kind=AcceleratorKind.NVIDIA, count=1, memory_bytes=80 * GIB)
    assert candidates([variant], function(gpu=GpuNeeds(model="h100"))) == (variant,)
    assert candidates([variant], function(gpu=GpuNeeds(model="h10"))) == ()


def test_only_mps_divides_a_unit() -> None:
    assert demand_of(function(gpu=GpuNeeds(core_percentage=30)), T4).share == WHOLE
    assert demand_of(function(gpu=GpuNeeds(core_percentage=30, mps=True)), T4).share == 30
    assert demand_of(function(gpu=GpuNeeds(core_percentage=30, mps=True)), T4, share=20).share == 20
    assert demand_of(function(gpu=GpuNeeds(core_percentage=30, mps=True)), CPU).share == WHOLE


SIZES = {"GPU-0": 16 * GIB, "GPU-1": 16 * GIB, "GPU-2": 32 * GIB}
ARRANGEMENTS = st.permutations(sorted(SIZES)).flatmap(
    lambda uuids: st.tuples(*(st.tuples(st.just(uuid), st.sampled_from(["a", "b", None])) for uuid in uuids))
)
"""The order in which the driver lists the devices, and the kind that each is of now; None: it is missing."""


def arranged(arrangement: Iterable[tuple[str, str | None]]) -> list[Accelerator]:
    """The kinds that a machine with these devices and its cores has."""
    gpus: dict[str, list[str]] = {}
    for uuid, name in arrangement:
        if name is not None:
            gpus.setdefault(name, []).append(uuid)
    kinds = [
        replace(T4, name=name, count=len(uuids), devices=tuple(uuids), memory_bytes=min(SIZES[each] for each in uuids))
        for name, uuids in gpus.items()
    ]
    return [*kinds, CPU, CPU2]


class LedgerMachine(RuleBasedStateMachine):
    """Any order of starts, ends, faults, reloads that renumber, rename and lose devices, and adoptions by another
    control process: shares, memory and counts stay within every device."""

    strategy = BEST_FIT

    def __init__(self) -> None:
        super().__init__()
        kinds = arranged([("GPU-0", "a"), ("GPU-1", "a"), ("GPU-2", "b")])
        self.ledger = Ledger.of(kinds, host_cores=(0, 1, 2, 3), strategy=self.strategy)
        self.names = 0
        self.failed: set[str] = set()

    @rule(
        data=st.data(),
        share=st.integers(-5, 120),
        memory=st.integers(-1, 40 * GIB),
        model=st.sampled_from(["resnet", "bert"]),
        count=st.sampled_from([1, 1, 1, 2]),
    )
    def assign(self, data: st.DataObject, share: int, memory: int, model: str, count: int) -> None:
        self.names += 1
        accelerator = data.draw(st.sampled_from(sorted(self.ledger.accelerators)))
        share = share if count == 1 else WHOLE
        demand = Demand(share=share, memory_bytes=memory, model=model, count=count)
        room = self.ledger.room(accelerator, demand).free
        try:
            taken = self.ledger.assign(f"r{self.names}", accelerator, demand)
        except NoRoomError:
            assert room <= 0, "what room() promises can be had"
        else:
            assert room > 0 or self.ledger.room(accelerator, demand).free < 0, "or others hold units that are gone"
            assert len(set(taken.units)) == count
            assert self.failed.isdisjoint(taken.devices)

    @rule(uuids=st.sets(st.sampled_from(sorted(SIZES))))
    def fail(self, uuids: set[str]) -> None:
        self.failed = uuids
        self.ledger.set_failed(uuids)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.ledger.held:
            self.ledger.release(data.draw(st.sampled_from(sorted(self.ledger.held))))

    @rule(data=st.data(), count=st.integers(0, 4))
    def reassign_cores(self, data: st.DataObject, count: int) -> None:
        if self.ledger.held:
            name = data.draw(st.sampled_from(sorted(self.ledger.held)))
            with contextlib.suppress(NoRoomError):
                self.ledger.reassign_cores(name, count)

    @rule(arrangement=ARRANGEMENTS)
    def reload(self, arrangement: Iterable[tuple[str, str | None]]) -> None:
        self.ledger.set_accelerators(arranged(arrangement), (0, 1, 2, 3))

    @rule(arrangement=ARRANGEMENTS)
    def adopt(self, arrangement: Iterable[tuple[str, str | None]]) -> None:
        """Another control process finds the replicas; one whose device is not of its kind any more is ended."""
        before = dict(self.ledger.held)
        self.ledger = Ledger.of(arranged(arrangement), host_cores=(0, 1, 2, 3), strategy=self.strategy)
        self.failed = set()
        for name, held in before.items():
            with contextlib.suppress(NoRoomError):
                self.ledger.restore(name, held)
                assert self.ledger.held[name].devices == held.devices

    @invariant()
    def no_unit_is_over_committed(self) -> None:
        units: dict[str, list[Assignment]] = {}
        for held in self.ledger.held.values():
            for unit in held.devices or (f"{held.accelerator} {unit}" for unit in held.units):
                units.setdefault(unit, []).append(held)
        for unit, here in units.items():
            kind = self.ledger.accelerators[here[0].accelerator]
            assert sum(each.share for each in here) <= WHOLE
            assert sum(each.memory_bytes for each in here) <= SIZES.get(unit, kind.memory_bytes)
            assert all(each.share > 0 for each in here)
            assert all(len(each.cores) <= kind.cores for each in here)
            if self.strategy.keeps_models_apart:
                assert len({each.model for each in here}) == len(here)


class WorstFitMachine(LedgerMachine):
    strategy = WORST_FIT


class WorstFitSoftMachine(LedgerMachine):
    strategy = WORST_FIT_SOFT


class LeastInterferenceMachine(LedgerMachine):
    strategy = LEAST_INTERFERENCE


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = part(0.5)
TestWorstFitMachine = WorstFitMachine.TestCase
TestWorstFitMachine.settings = part(0.2)
TestWorstFitSoftMachine = WorstFitSoftMachine.TestCase
TestWorstFitSoftMachine.settings = part(0.2)
TestLeastInterferenceMachine = LeastInterferenceMachine.TestCase
TestLeastInterferenceMachine.settings = part(0.2)


def test_worst_fit_opens_an_empty_unit_and_keeps_equal_models_apart() -> None:
    ledger = Ledger.of([T4], strategy=WORST_FIT)
    resnet, bert = Demand(share=30, memory_bytes=GIB, model="resnet"), Demand(share=30, memory_bytes=GIB, model="bert")
    assert ledger.room("t4", resnet) == Room(free=2, total=2)
    assert [ledger.assign("a", "t4", resnet).unit, ledger.assign("b", "t4", resnet).unit] == [0, 1]
    assert ledger.room("t4", resnet).free == 0
    with pytest.raises(NoRoomError, match="no room on t4"):
        ledger.assign("c", "t4", resnet)
    assert ledger.room("t4", bert) == Room(free=2, total=2)
    ledger.release("a")
    assert ledger.assign("d", "t4", bert).unit == 0, "an empty one before one with a tenant"
    assert ledger.assign("e", "t4", bert).unit == 1


def test_soft_worst_fit_puts_equal_models_together_when_nothing_else_is_left() -> None:
    ledger = Ledger.of([T4], strategy=WORST_FIT_SOFT)
    resnet = Demand(share=30, model="resnet")
    assert [ledger.assign(name, "t4", resnet).unit for name in "abcd"] == [0, 1, 0, 1]


def test_a_replica_goes_where_it_and_its_neighbours_are_slowed_the_least_by_what_was_learnt() -> None:
    table = Interference()
    ledger = Ledger.of([T4], strategy=LEAST_INTERFERENCE, interference=table)
    part = {name: Demand(share=30, memory_bytes=GIB, model=name) for name in ("resnet", "bert", "gpt", "ocr")}
    assert [ledger.assign(name, "t4", part[name]).unit for name in ("resnet", "bert")] == [0, 1], "empty ones first"
    table.set("t4", "gpt", "resnet", 0.02)
    table.set("t4", "resnet", "gpt", 0.7)
    assert ledger.assign("gpt", "t4", part["gpt"]).unit == 1, "it is not slowed beside resnet, but slows it"
    assert ledger.assign("resnet2", "t4", part["resnet"]).unit == 0, (
        "beside gpt it would be slower than beside its own kind"
    )
    table.set("t4", "resnet", "resnet", 0.0)
    table.set("t4", "ocr", "resnet", 0.3)
    assert ledger.assign("ocr", "t4", part["ocr"]).unit == 1


def test_an_adopted_replica_keeps_its_place_also_beside_an_equal_one() -> None:
    ledger = Ledger.of([T4], strategy=WORST_FIT)
    for name in "ab":
        ledger.restore(name, Assignment(accelerator="t4", unit=0, memory_bytes=0, share=30, model="resnet"))
    assert ledger.room("t4", Demand(share=30, model="resnet")).free == 1


def test_rooms_differ_by_model_only_where_models_are_kept_apart() -> None:
    needs, of = GpuNeeds(mps=True, core_percentage=30), ("t4",)
    one, other = function(gpu=needs, accelerators=of), function(gpu=needs, accelerators=of, dnn=DnnModel(name="bert"))
    for strategy, free in ((BEST_FIT, 5), (WORST_FIT, 2)):
        ledger = Ledger.of([T4], strategy=strategy)
        ledger.assign("a", "t4", demand_of(one, T4))
        assert ledger.rooms(other)["t4"].free == free
        assert ledger.rooms(one)["t4"].free == (5 if strategy is BEST_FIT else 1)


KINDS = [replace(T4, devices=()), V100, CPU, CPU2]
DEMANDS = st.builds(
    Demand,
    share=st.sampled_from([-5, 0, 10, 30, 50, WHOLE, 120]),
    memory_bytes=st.sampled_from([-1, 0, GIB, 4 * GIB, 12 * GIB]),
)


def added_up(ledger: Ledger, kind: Accelerator) -> list[tuple[int, int]]:
    """Memory and share that each unit has to spare, from what is held."""
    here = [each for each in ledger.held.values() if each.accelerator == kind.name]
    mine = [[each for each in here if each.unit == unit] for unit in range(kind.count)]
    return [
        (kind.memory_bytes - sum(each.memory_bytes for each in unit), WHOLE - sum(each.share for each in unit))
        for unit in mine
    ]


def places(spare: tuple[int, int], demand: Demand) -> int:
    memory, share = spare
    if demand.share <= 0 or demand.memory_bytes < 0:
        return 0
    by_memory = memory // demand.memory_bytes if demand.memory_bytes else WHOLE
    return max(0, min(share // demand.share, by_memory)) if memory >= 0 else 0


def least_held(ledger: Ledger, count: int) -> tuple[int, ...]:
    load = Counter(core for each in ledger.held.values() for core in each.cores)
    return tuple(sorted(sorted(ledger.host_cores, key=lambda core: (load[core], core))[:count]))


class SumsMachine(RuleBasedStateMachine):
    """After any order of everything that a ledger can do, what it keeps is what adding up all that is held gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger.of(KINDS, host_cores=(0, 1, 2, 3))
        self.gone: list[Assignment] = []
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"r{self.names}"

    @precondition(lambda self: self.ledger.accelerators)
    @rule(data=st.data(), demand=DEMANDS)
    def assign(self, data: st.DataObject, demand: Demand) -> None:
        kind = self.ledger.accelerators[data.draw(st.sampled_from(sorted(self.ledger.accelerators)))]
        spare = added_up(self.ledger, kind)
        fitting = [(*free, unit) for unit, free in enumerate(spare) if places(free, demand)]
        if not fitting:
            with pytest.raises(NoRoomError):
                self.ledger.assign(self.name(), kind.name, demand)
            return
        cores = least_held(self.ledger, kind.cores)
        got = self.ledger.assign(self.name(), kind.name, demand)
        assert (got.unit, got.cores) == (min(fitting)[2], cores)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.ledger.held:
            name = data.draw(st.sampled_from(sorted(self.ledger.held)))
            self.gone.append(self.ledger.held[name])
            self.ledger.release(name)
            self.ledger.release(name)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        if self.gone:
            with contextlib.suppress(NoRoomError):
                self.ledger.restore(self.name(), data.draw(st.sampled_from(self.gone)))

    @rule(data=st.data(), count=st.integers(0, 3))
    def reassign_cores(self, data: st.DataObject, count: int) -> None:
        if self.ledger.held:
            with contextlib.suppress(NoRoomError):
                self.ledger.reassign_cores(data.draw(st.sampled_from(sorted(self.ledger.held))), count)

    @rule(
        counts=st.lists(st.integers(0, 4), min_size=len(KINDS), max_size=len(KINDS)),
        smaller=st.booleans(),
        cores=st.integers(0, 5),
    )
    def set_accelerators(self, counts: list[int], smaller: bool, cores: int) -> None:
        kinds = [replace(kind, count=count) for kind, count in zip(KINDS, counts, strict=True) if count]
        if smaller:
            kinds = [replace(kind, memory_bytes=kind.memory_bytes // 2) for kind in kinds]
        self.ledger.set_accelerators(kinds, range(cores))

    @invariant()
    def the_kept_sums_are_those_made_anew(self) -> None:
        for kind in self.ledger.accelerators.values():
            spare = added_up(self.ledger, kind)
            here = [each for each in self.ledger.held.values() if each.accelerator == kind.name]
            lost: dict[int, tuple[int, int]] = {}
            for each in here:
                if each.unit >= kind.count:
                    memory, share = lost.get(each.unit, (kind.memory_bytes, WHOLE))
                    lost[each.unit] = memory - each.memory_bytes, share - each.share
            assert kind.count or here, "a kind without units stays only while something is held of it"
            used = len({each.unit for each in here if each.unit < kind.count}) + len(lost)
            assert self.ledger.describe(kind.name) == f"{used} of {kind.count} units in use"
            for demand in (Demand(), Demand(share=30), Demand(share=10, memory_bytes=GIB), Demand(memory_bytes=-1)):
                empty = places((kind.memory_bytes, WHOLE), demand)
                free = sum(places(unit, demand) for unit in spare)
                free -= sum(empty - places(unit, demand) for unit in lost.values())
                assert self.ledger.room(kind.name, demand) == Room(free=free, total=kind.count * empty)


TestSumsMachine = SumsMachine.TestCase
TestSumsMachine.settings = part(0.5)


class Walked(dict[str, Assignment]):
    """Counts how often all of it is iterated."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_the_work_of_an_answer_does_not_grow_with_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Walked()
    many = [replace(CPU, count=1000), replace(T4, count=1000, devices=())]
    ledger = Ledger({kind.name: kind for kind in many}, tuple(range(4)), held)
    looked: list[object] = []
    times = Ledger._times

    def counted(self: Ledger, kind: Accelerator, fill: "_Fill", demand: Demand) -> int:
        looked.append(fill)
        return times(self, kind, fill, demand)

    monkeypatch.setattr(Ledger, "_times", counted)
    held.walks = 0
    for index in range(600):
        ledger.assign(f"r{index}", CPU.name, Demand())
        ledger.assign(f"g{index}", T4.name, Demand(share=40))
    for index in range(0, 600, 7):
        ledger.reassign_cores(f"r{index}", 1)
        ledger.release(f"g{index}")
    assert ledger.room(CPU.name, Demand()) == Room(free=400, total=1000)
    assert ledger.room(T4.name, Demand(share=40)) == Room(free=1486, total=2000)
    assert held.walks == 0
    assert len(looked) <= 6, "units that are filled alike are one question"


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_everything_given_back_is_there_again(shares: list[int]) -> None:
    ledger = Ledger.of([T4])
    for index, share in enumerate(shares):
        try:
            ledger.assign(str(index), "t4", Demand(share=share))
        except NoRoomError:
            continue
    for name in list(ledger.held):
        ledger.release(name)
    assert ledger.room("t4", Demand()) == Room(free=2, total=2)


CARD = replace(T4, count=3, devices=())


def test_fewer_units_leave_too_many_replicas_until_some_give_back_theirs() -> None:
    ledger = Ledger.of([CARD])
    for index in range(CARD.count):
        ledger.assign(f"r{index}", CARD.name, Demand())
    ledger.set_accelerators([replace(CARD, count=CARD.count - 1)], ())
    assert ledger.room(CARD.name, Demand()) == Room(free=-1, total=CARD.count - 1)
    assert ledger.describe(CARD.name) == f"{CARD.count} of {CARD.count - 1} units in use"
    with pytest.raises(NoRoomError):
        ledger.assign("more", CARD.name, Demand())
    ledger.release("r0")
    assert ledger.room(CARD.name, Demand()).free == 0, "a place is free, and one replica holds a place that is gone"
    ledger.release(f"r{CARD.count - 1}")
    assert ledger.room(CARD.name, Demand()).free == 1
    ledger.set_accelerators([replace(CARD, count=CARD.count + 2)], ())
    assert ledger.room(CARD.name, Demand()).free == 4


def test_a_kind_that_is_gone_stays_without_units_until_it_is_given_back() -> None:
    ledger = Ledger.of([CARD])
    ledger.assign("r0", CARD.name, Demand())
    other = replace(CARD, name="other")
    ledger.set_accelerators([other], ())
    assert [(each.name, each.count) for each in ledger.accelerators.values()] == [("other", CARD.count), (CARD.name, 0)]
    assert candidates(ledger.accelerators.values(), function()) == (other,)
    ledger.release("r0")
    assert list(ledger.accelerators) == ["other"]


def test_candidates_of_one_price_are_in_name_order_and_a_unit_that_just_suffices_is_large_enough() -> None:
    kinds = [replace(V100, name="b"), replace(V100, name="a"), replace(V100, name="c", price_per_hour=1.0)]
    assert [each.name for each in candidates(kinds, function())] == ["c", "a", "b"]
    exact = replace(V100, memory_bytes=30 * 10**9)
    assert candidates([exact], function(gpu=GpuNeeds(memory_gb=30.0))) == (exact,)
    assert (
        candidates([replace(exact, memory_bytes=exact.memory_bytes - 1)], function(gpu=GpuNeeds(memory_gb=30.0))) == ()
    )
    assert candidates([replace(V100, count=0)], function()) == ()


def test_the_memory_of_a_replica_is_that_of_the_kind_it_runs_on() -> None:
    both = function(gpu=GpuNeeds(memory_gb=1.5), resources=Resources(memory_bytes=7))
    assert demand_of(both, T4) == Demand(memory_bytes=1_500_000_000, model="f")
    assert demand_of(both, CPU) == Demand(memory_bytes=7, model="f")
    assert demand_of(function(), T4) == demand_of(function(), CPU) == Demand(model="f")
    assert demand_of(function(dnn=DnnModel(name="resnet50")), T4).model == "resnet50"


def test_a_replica_goes_to_the_unit_with_the_least_memory_then_the_least_share_then_the_first() -> None:
    ledger = Ledger.of([replace(T4, count=3)])
    ledger.restore("a", Assignment(accelerator="t4", unit=1, memory_bytes=4 * GIB, share=10))
    ledger.restore("b", Assignment(accelerator="t4", unit=2, memory_bytes=4 * GIB, share=50))
    assert ledger.assign("c", "t4", Demand(share=10)).unit == 2, "the least share to spare"
    assert ledger.assign("d", "t4", Demand(share=50)).unit == 1
    assert ledger.assign("e", "t4", Demand(share=10, memory_bytes=13 * GIB)).unit == 0, "the only one with the memory"
    assert ledger.assign("f", "t4", Demand(share=10)).unit == 0, "the least memory to spare"


def test_room_counts_by_share_and_by_memory() -> None:
    ledger = Ledger.of([T4])
    assert ledger.room("t4", Demand(share=30)) == Room(free=6, total=6)
    assert ledger.room("t4", Demand(share=30, memory_bytes=6 * GIB)) == Room(free=4, total=4)
    assert ledger.room("t4", Demand(share=100, memory_bytes=16 * GIB)) == Room(free=2, total=2)
    assert ledger.room("t4", Demand(share=100, memory_bytes=16 * GIB + 1)) == Room(free=0, total=0)
    ledger.assign("a", "t4", Demand(share=50, memory_bytes=5 * GIB))
    assert ledger.room("t4", Demand(share=10, memory_bytes=6 * GIB)) == Room(free=3, total=4)
    assert ledger.room("t4", Demand(share=0)) == ledger.room("t4", Demand(share=101)) == Room(free=0, total=0)
    assert ledger.room("t4", Demand(memory_bytes=-1)) == Room(free=0, total=0)


def test_cores_are_changed_on_cpu_units_alone_and_between_one_and_those_of_the_unit() -> None:
    ledger = Ledger.of([CPU2, T4], host_cores=(0, 1, 2))
    ledger.assign("a", "cpu-2core", Demand())
    ledger.assign("g", "t4", Demand())
    for replica, count in (("a", 0), ("a", 3), ("g", 0), ("g", 1)):
        with pytest.raises(NoRoomError, match=f"cannot have {count} cores"):
            ledger.reassign_cores(replica, count)
    assert ledger.reassign_cores("a", 1).cores == (0,)
    assert ledger.held["g"].cores == ()


def test_an_adopted_replica_with_a_core_that_the_host_no_longer_has_gets_the_least_used_ones() -> None:
    ledger = Ledger.of([replace(CPU2, count=3)], host_cores=(0, 1, 2))
    ledger.restore("a", Assignment(accelerator="cpu-2core", unit=0, memory_bytes=0, share=WHOLE, cores=(0, 1)))
    ledger.restore("b", Assignment(accelerator="cpu-2core", unit=1, memory_bytes=0, share=WHOLE, cores=(1, 9)))
    assert (ledger.held["a"].cores, ledger.held["b"].cores) == ((0, 1), (0, 2))
    for unit in (3, 4):
        with pytest.raises(NoRoomError, match=f"c cannot hold unit {unit} of cpu-2core"):
            ledger.restore("c", Assignment(accelerator="cpu-2core", unit=unit, memory_bytes=0, share=WHOLE))
    with pytest.raises(NoRoomError, match="a cannot hold unit 2 of cpu-2core"):
        ledger.restore("a", Assignment(accelerator="cpu-2core", unit=2, memory_bytes=0, share=WHOLE))


def test_units_in_use_are_those_with_any_part_held() -> None:
    ledger = Ledger.of([replace(T4, count=3)])
    assert ledger.describe("t4") == "0 of 3 units in use"
    ledger.assign("a", "t4", Demand(share=1))
    assert ledger.describe("t4") == "1 of 3 units in use"
    ledger.assign("b", "t4", Demand(share=1))
    ledger.assign("c", "t4", Demand(share=100))
    assert ledger.describe("t4") == "2 of 3 units in use"
    ledger.set_accelerators([replace(T4, count=1)], ())
    assert ledger.describe("t4") == "2 of 1 units in use"
    assert Ledger.of([]).names == "none"
    assert Ledger.of([V100, T4]).names == "t4, v100"


def test_rooms_are_counted_again_only_when_something_changes_and_then_at_once() -> None:
    ledger, anywhere = Ledger.of([T4, V100]), function()
    first = ledger.rooms(anywhere)
    assert {name: room.free for name, room in first.items()} == {"t4": 2, "v100": 1}
    assert ledger.rooms(function(timeout_s=5.0)) is first, "it needs the same"
    ledger.assign("a", "t4", Demand())
    assert ledger.rooms(anywhere)["t4"].free == 1
    ledger.release("a")
    assert ledger.rooms(anywhere)["t4"].free == 2
    ledger.set_accelerators([V100], ())
    assert list(ledger.rooms(anywhere)) == ["v100"]
    assert ledger.rooms(function(gpu=GpuNeeds(memory_gb=40.0))) == {}
    for name, room in ledger.rooms(anywhere).items():
        assert room == ledger.room(name, demand_of(anywhere, ledger.kind(name)))


def test_idle_cores_are_those_that_no_replica_holds() -> None:
    ledger = Ledger.of([CPU], (0, 1, 2))
    ledger.assign("a", CPU.name, Demand())
    assert ledger.idle_cores(2) == (1, 2)
    assert ledger.idle_cores(1, without=(1,)) == (2,)
    with pytest.raises(NoRoomError, match="2 cores of this machine are held by no replica, not 3"):
        ledger.idle_cores(3)


@pytest.mark.parametrize(
    ("needs", "part"),
    [
        (GpuNeeds(mps=True, core_percentage=30), 0.3),
        (GpuNeeds(mps=True, core_percentage=30, memory_gb=4.0), 4e9 / (16 * GIB)),
        (GpuNeeds(mps=True, core_percentage=30, memory_gb=40.0), 1.0),
        (GpuNeeds(mps=True, core_percentage=100, memory_gb=4.0), 1.0),
        (GpuNeeds(time_slices=3), 0.33),
        (GpuNeeds(memory_gb=4.0), 1.0),
    ],
)
def test_a_replica_is_charged_the_part_of_a_unit_that_it_has(needs: GpuNeeds, part: float) -> None:
    assert T4.memory_bytes == 16 * GIB
    assert part_of(function(gpu=needs), T4) == pytest.approx(part)


def test_the_defaults_of_kinds_and_demands() -> None:
    bare = Accelerator(name="x", kind=AcceleratorKind.NVIDIA, count=1, memory_bytes=GIB)
    assert (bare.cores, bare.quota, bare.price_per_hour, bare.start_up_s) == (0, 100.0, 0.0, 0.0)
    assert (bare.mps, bare.mig, bare.is_emulated, bare.devices) == (False, False, False, ())
    demand = Demand()
    assert (demand.memory_bytes, demand.share, demand.model, demand.count) == (0, 100, "", 1)
