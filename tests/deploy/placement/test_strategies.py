"""Placement over several nodes: what fits, which device wins, and that nothing is given twice."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.strategies import (
    BEST_FIT,
    LEAST_INTERFERENCE,
    STRATEGIES,
    WORST_FIT,
    WORST_FIT_SOFT,
    Cluster,
    Device,
    Free,
    Instance,
    Node,
    StrategyRow,
    strategy,
)
from tidegate.errors import InvalidInputError
from tidegate.settings import PlacementStrategy


def device(name: str, node: str = "n1", memory: float = 16.0, free: float | None = None, **fields: object) -> Device:
    tenants = fields.pop("tenants", ())
    share = fields.pop("share", 100.0)
    left = Free(memory if free is None else free, share, tenants)  # type: ignore[arg-type]
    return Device(id=name, node=node, kind="t4", memory=memory, free=left, **fields)  # type: ignore[arg-type]


def instance(name: str = "i", model: str = "resnet", memory: float = 4.0, **fields: object) -> Instance:
    return Instance(id=name, model=model, memory=memory, **fields)  # type: ignore[arg-type]


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    assert strategy("best-fit") is BEST_FIT
    with pytest.raises(InvalidInputError, match="one of best-fit, worst-fit, worst-fit-soft"):
        strategy("first-fit")


def test_the_setting_names_every_strategy() -> None:
    assert [each.value for each in PlacementStrategy] == list(STRATEGIES)


def test_an_instance_needs_a_device() -> None:
    with pytest.raises(ValueError, match="needs 1 device or more, not 0"):
        instance(count=0)


@pytest.mark.parametrize("row", STRATEGIES.values(), ids=lambda row: row.name)
def test_nothing_to_choose_from_leaves_it_pending(row: StrategyRow) -> None:
    assert Cluster([]).assign(row, instance()) is None
    assert Cluster([device("a", is_healthy=False)]).assign(row, instance()) is None
    assert Cluster([device("a")], {}).assign(row, instance()) is None, "a node without resources carries nothing"


def test_on_several_nodes_too_the_least_slowed_device_wins() -> None:
    table = Interference()
    table.set("t4", "resnet", "bert", 0.01)
    table.set("t4", "bert", "resnet", 0.01)
    devices = [device("a", tenants=("gpt",), free=12.0), device("b", node="n2", tenants=("bert",), free=12.0)]
    assert Cluster(devices).choose(LEAST_INTERFERENCE, instance()) == ("a",), "equal where nothing is learnt"
    assert Cluster(devices, interference=table).choose(LEAST_INTERFERENCE, instance()) == ("b",)


def test_binary_noise_refuses_nothing() -> None:
    cluster = Cluster([device("a", free=0.1 + 0.2, share=100.0)], {"n1": Node(0.3, 0.3)})
    assert cluster.assign(BEST_FIT, instance(memory=0.30000000000000004, cores=0.1 + 0.2, node_memory=0.1 + 0.2))
    assert Cluster([device("a", free=0.3)]).assign(BEST_FIT, instance(memory=0.1 + 0.2))
    assert Cluster([device("a", memory=0.3, free=0.1 + 0.2)]).assign(BEST_FIT, instance(memory=0.3, is_exclusive=True))


def test_leftovers_that_differ_by_noise_are_equal() -> None:
    gpus = [device("a", free=8.0 + 4e-10, share=30.0), device("b", free=8.0, share=60.0)]
    assert Cluster(gpus).assign(BEST_FIT, instance(share=10.0)) == ("a",)


def test_all_devices_of_a_replica_are_on_one_node() -> None:
    gpus = [device("a", "n1", free=6.0), device("b", "n2", free=12.0), device("c", "n2", free=12.0)]
    assert Cluster(gpus).assign(BEST_FIT, instance(count=2)) == ("b", "c")
    assert Cluster(gpus).assign(BEST_FIT, instance(count=3)) is None
    assert Cluster(gpus).assign(WORST_FIT, instance(count=2)) == ("b", "c")


def test_an_exclusive_replica_leaves_nothing_on_its_device() -> None:
    cluster = Cluster([device("a")])
    assert cluster.assign(BEST_FIT, instance(is_exclusive=True)) == ("a",)
    assert cluster.assign(BEST_FIT, instance(memory=1.0)) is None


def test_a_device_without_sharing_takes_exclusive_replicas_alone() -> None:
    assert Cluster([device("a", is_shared=False)]).assign(BEST_FIT, instance()) is None
    assert Cluster([device("a", is_shared=False)]).assign(BEST_FIT, instance(is_exclusive=True)) == ("a",)


def test_equal_models_share_a_device_only_where_that_is_soft() -> None:
    gpus = [device("a", free=8.0, tenants=("resnet",)), device("b", free=5.0, tenants=("bert", "ssd"))]
    assert Cluster(gpus).assign(WORST_FIT, instance()) == ("b",)
    assert Cluster(gpus[:1]).assign(WORST_FIT, instance()) is None
    assert Cluster(gpus).assign(WORST_FIT_SOFT, instance()) == ("b",)
    assert Cluster(gpus[:1]).assign(WORST_FIT_SOFT, instance()) == ("a",)


@given(
    st.sampled_from(tuple(STRATEGIES.values())),
    st.lists(
        st.tuples(
            st.integers(0, 20), st.integers(0, 110), st.integers(1, 3), st.booleans(), st.sampled_from("abc"),
            st.integers(0, 6), st.integers(0, 9),
        ),
        max_size=40,
    ),
)  # fmt: skip
def test_no_device_and_no_node_is_given_twice(
    row: StrategyRow, wanted: list[tuple[int, int, int, bool, str, int, int]]
) -> None:
    gpus = [device(f"g{number}", f"n{number % 3}", 16.0, is_shared=number != 4) for number in range(6)]
    cluster = Cluster(gpus, {f"n{number}": Node(8.0, 16.0) for number in range(3)})
    held: dict[str, list[Instance]] = {each.id: [] for each in gpus}
    carried: dict[str, list[Instance]] = {each.node: [] for each in gpus}
    for number, (memory, share, count, alone, model, cores, node_memory) in enumerate(wanted):
        asked = instance(
            str(number),
            model,
            memory,
            share=share,
            count=count,
            is_exclusive=alone,
            cores=cores,
            node_memory=node_memory,
        )
        ids = cluster.assign(row, asked)
        if ids is None:
            continue
        assert len(set(ids)) == count
        nodes = {each.node for each in gpus if each.id in ids}
        assert len(nodes) == 1
        carried[nodes.pop()].append(asked)
        for id_ in ids:
            held[id_].append(asked)
    for tenants in held.values():
        assert sum(each.memory for each in tenants) <= 16.0
        assert sum(each.share for each in tenants if not each.is_exclusive) <= 100.0
        assert len(tenants) == 1 or not any(each.is_exclusive for each in tenants)
        if row.keeps_models_apart:
            assert len({each.model for each in tenants}) == len(tenants)
    for tenants in carried.values():
        assert sum(each.cores for each in tenants) <= 8.0
        assert sum(each.node_memory for each in tenants) <= 16.0


def test_worst_fit_takes_the_emptiest_of_many() -> None:
    rng = random.Random(1)
    gpus = [device(f"g{number}", free=rng.uniform(0.0, 16.0), tenants=("bert",)) for number in range(50)]
    most = max(gpus, key=lambda each: each.free.memory)
    assert Cluster(gpus).assign(WORST_FIT, instance()) == (most.id,)
    assert Cluster([*gpus, device("z", memory=5.0)]).assign(WORST_FIT, instance()) == ("z",), "empty ones come first"
