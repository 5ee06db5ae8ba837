"""Variants of a model: which may serve a request, and what a request sees of it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import Door, table
from tidegate.activator.commands import Activate
from tidegate.records.gateway_sample import RevisionDemand
from tidegate.records.route_table import ModelVariant, ReplicaRoute, RouteTable
from tidegate.records.tenants import AccessRule

SMALL, MIDDLE, LARGE = (ReplicaRoute(id=f"{name}-00001-aaaaa", address=f"{name}:1") for name in ("r18", "r50", "r152"))
ACCURACY = {"r18": 69.8, "r50": 76.1, "r152": 78.3}


def variant(accuracy: float | None, loss: float = 0.0) -> ModelVariant:
    return ModelVariant(family="resnet", accuracy=accuracy, loss=loss)


def family(*replicas: ReplicaRoute, loss: float = 4.0, number: int = 1, **settings: Any) -> RouteTable:
    """Three variants; ``loss`` is what r152 allows, the others allow none. ``settings`` are those of r50."""
    routes = []
    for name, accuracy in ACCURACY.items():
        own = [replica for replica in replicas if replica.id.startswith(f"{name}-")]
        more = settings if name == "r50" else {}
        (route,) = table(1, *own, name=name, models=(name,)).functions
        route = replace(
            route,
            variant=variant(accuracy, loss if name == "r152" else 0.0),
            revisions=(replace(route.revisions[0], id=f"{name}-00001"),),
        )
        routes.append(replace(route, **more))
    return RouteTable(epoch=1, number=number, workers=1, functions=tuple(routes))


def ask(door: Door, name: str = "r152", *fields: str) -> FakeExchange:
    return door.arrive(f"POST /v2/models/{name}/infer?x=1", *fields)


def demands(door: Door) -> dict[str, RevisionDemand]:
    rooms = door.report.demands(lambda revision: door.core.room.counts(revision, door.now))
    return {demand.function: demand for demand in rooms}


def test_a_request_with_a_free_slot_is_served_by_its_own_variant() -> None:
    door = Door(family(MIDDLE, LARGE))
    door.core.room.open_channels("r50-00001", door.now)
    door.core.room.open_channels("r152-00001", door.now)
    door.ready(MIDDLE, 1)
    door.ready(LARGE, 1)
    asked = ask(door)
    assert asked.log == ["to r152:1"]
    asked.gets_answer(100.1)
    assert b"tidegate-variant" not in asked.extra


def test_a_busy_variant_gives_a_request_to_the_most_accurate_free_one_within_its_loss() -> None:
    door = Door(family(SMALL, MIDDLE, LARGE))
    for each in (SMALL, MIDDLE, LARGE):
        door.core.room.open_channels(each.id[:-6], door.now)
        door.ready(each, 1)
    first, second, third = ask(door), ask(door), ask(door)
    assert first.log == ["to r152:1"]
    assert second.log == ["to r50:1"], "2.2 points less, of 4 allowed"
    assert third.log == [], "r18 would lose 8.5 points: the request waits for its own variant"
    assert second.target == b"/v2/models/r50/infer?x=1", "the other server knows its own model"
    second.gets_answer(100.1, 200, "tidegate-timing: queue=0.500,model=40.000")
    assert b"tidegate-variant: r50\r\n" in second.extra
    assert b"server-timing: " in second.extra
    seen = demands(door)
    assert (seen["r152"].arrivals, seen["r152"].switched) == (2, 1)
    assert (seen["r50"].arrivals, seen["r50"].answered, seen["r50"].switched) == (1, 1, 0)
    assert "r18" not in seen


def test_without_a_stated_loss_every_request_waits_for_its_own() -> None:
    door = Door(family(MIDDLE, LARGE, loss=0.0))
    for each in (MIDDLE, LARGE):
        door.core.room.open_channels(each.id[:-6], door.now)
        door.ready(each, 1)
    assert [ask(door).log, ask(door).log] == [["to r152:1"], []]


def test_a_variant_asleep_is_woken_while_another_one_serves() -> None:
    door = Door(family(MIDDLE))
    door.core.room.open_channels("r50-00001", door.now)
    door.ready(MIDDLE, 1, 2)
    assert [ask(door).log, ask(door).log] == [["to r50:1"], ["to r50:1"]]
    woken = [each.activation for each in door.shell if isinstance(each, Activate)]
    assert [(each.function, each.revision, each.waiting) for each in woken] == [("r152", "r152-00001", 1)]
    door.now = 100.3
    door.grant(MIDDLE, 3)
    ask(door)
    assert sum(isinstance(each, Activate) for each in door.shell) == 2, "repeated, as for requests that wait"


def test_slots_that_another_worker_may_have_are_waited_for() -> None:
    door = Door(family(MIDDLE, LARGE))
    for each in (MIDDLE, LARGE):
        door.core.room.open_channels(each.id[:-6], door.now)
    door.ready(MIDDLE, 1)
    door.ready(LARGE)
    assert ask(door).log == [], "r152 is ready and runs nothing of this worker"
    assert ask(door).log == ["to r50:1"], "now a request waits for it"


def test_channels_to_a_variant_are_opened_by_the_first_request_that_could_use_it() -> None:
    door = Door(family(MIDDLE, LARGE))
    door.core.room.open_channels("r152-00001", door.now)
    door.ready(LARGE, 1)
    ask(door)
    assert ask(door).log == []
    door.ready(MIDDLE, 1)
    assert ask(door).log == ["to r50:1"]


@pytest.mark.parametrize(
    "settings", [{"access": AccessRule(api_keys=True)}, {"protocol": "http"}, {"variant": variant(70.0)}]
)
def test_other_access_another_protocol_and_too_little_accuracy_are_no_choice(settings: dict[str, Any]) -> None:
    door = Door(family(MIDDLE, LARGE, **settings))
    for each in (MIDDLE, LARGE):
        door.core.room.open_channels(each.id[:-6], door.now)
        door.ready(each, 1)
    assert [ask(door).log, ask(door).log] == [["to r152:1"], []]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("POST /functions/r152/v2/models/r152/versions/1/infer", b"/v2/models/r50/versions/1/infer"),
        ("POST /functions/r152/v1/models/r152:predict", b"/v1/models/r50:predict"),
        ("POST /functions/r152/predict", b"/predict"),
        ("POST /functions/r152/v2/models/r152/generate?x=:/", b"/v2/models/r50/generate?x=:/"),
    ],
)
def test_the_path_names_the_model_of_the_variant_that_serves(line: str, expected: bytes) -> None:
    door = Door(family(MIDDLE))
    door.core.room.open_channels("r50-00001", door.now)
    door.ready(MIDDLE, 1)
    asked = door.arrive(line)
    assert (asked.log, asked.target) == (["to r50:1"], expected)


@pytest.mark.parametrize(
    "line",
    [
        "POST /functions/r152/v2/models/other/infer",
        "GET /v2/models/r152",
        "GET /v2/models/r152/config",
        "GET /v2/models/r152/versions/1/stats",
        "POST /v2/models/r152/trace/setting",
        "POST /v2/repository/models/r152/load",
        "GET /functions/r152/v2",
        "GET /functions/r152/metrics",
    ],
)
def test_what_is_about_the_model_itself_is_for_its_own_variant(line: str) -> None:
    door = Door(family(MIDDLE))
    door.core.room.open_channels("r50-00001", door.now)
    door.ready(MIDDLE, 1)
    assert door.arrive(line).log == []


@pytest.mark.parametrize(("models", "target"), [(("a", "r152"), b"/v2/models/r152/infer?x=1"), (("a", "b"), None)])
def test_of_several_models_only_one_of_the_same_name_is_the_same(models: tuple[str, ...], target: bytes | None) -> None:
    door = Door(family(MIDDLE, models=models))
    door.core.room.open_channels("r50-00001", door.now)
    door.ready(MIDDLE, 1)
    asked = ask(door)
    assert asked.log == ([] if target is None else ["to r50:1"])
    assert target is None or asked.target in (None, target)


def test_a_larger_batch_than_the_other_takes_and_an_open_circuit_are_no_choice() -> None:
    door = Door(family(MIDDLE, max_batch=4))
    door.core.room.open_channels("r50-00001", door.now)
    door.ready(MIDDLE, 1, 2)
    assert ask(door, "r152", "tidegate-batch-size: 5").log == []
    door.core.resilience.outliers.open_circuits["r50-00001"] = door.now + 10.0
    assert ask(door).log == []
    del door.core.resilience.outliers.open_circuits["r50-00001"]
    assert ask(door, "r152", "tidegate-batch-size: 4").log == ["to r50:1"]


def test_a_tag_stays_with_its_revision() -> None:
    found = family(MIDDLE, LARGE)
    tagged = replace(
        found.functions[2], revisions=tuple(replace(each, tags=("new",)) for each in found.functions[2].revisions)
    )
    door = Door(replace(found, functions=(*found.functions[:2], tagged)))
    for each in (MIDDLE, LARGE):
        door.core.room.open_channels(each.id[:-6], door.now)
        door.ready(each, 1)
    assert ask(door, "r152", "tidegate-tag: new").log == ["to r152:1"]
    assert ask(door, "r152", "tidegate-tag: new").log == []
