"""Questions that the gateway answers itself: health, models, metadata, and names of no function."""

from typing import Any

import pytest

from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.records.tenants import AccessRule


@pytest.mark.parametrize(
    ("line", "status", "answer"),
    [
        ("GET /v2/health/live", 200, {"live": True}),
        ("GET /v2/health/ready", 200, {"ready": True}),
        ("GET /v2/models", 200, {"models": ["m"]}),
        ("GET /v2/models/m/ready", 200, {"name": "m", "ready": True}),
        ("GET /functions/f/v2/health/ready", 200, {"name": "f", "ready": True}),
        ("GET /functions/f/v2/health/live", 200, {"live": True}),
        ("GET /functions/f/v2/models/undeclared/ready", 200, {"name": "undeclared", "ready": True}),
    ],
)
def test_health_never_wakes_a_function_asleep_counts_as_ready(line: str, status: int, answer: dict[str, Any]) -> None:
    door = Door(table(1))
    asked = door.arrive(line)
    assert (asked.status, asked.error) == (status, answer)
    assert not door.activations()


def test_a_function_that_cannot_start_is_not_ready() -> None:
    door = Door(table(1, revision={"failure": "no such file: model.onnx"}))
    asked = door.arrive("GET /v2/models/m/ready")
    assert (asked.status, asked.error["error"]) == (503, "no such file: model.onnx")
    work = door.arrive()
    assert work.status == 503
    assert "no such file" in work.error["error"]


def test_a_ready_function_is_asked_about_models_and_versions_it_does_not_declare() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1, 2)
    assert door.arrive("GET /functions/f/v2/models/undeclared/ready").log == ["to 10.0.0.1:1"]
    assert door.arrive("GET /v2/models/m/versions/2/ready").log == ["to 10.0.0.1:1"]
    door.core.apply(table(2, ONE, access=AccessRule(api_keys=True)))
    assert door.arrive("GET /v2/models/m/versions/2/ready").status == 200, (
        "health is everybody's, asking its server is not"
    )


def test_metadata_comes_from_the_last_copy_while_the_function_sleeps_else_it_wakes() -> None:
    door = Door(table(1))
    first = door.arrive("GET /v2/models/m")
    assert (first.log, door.activations()) == ([], [1]), "nothing known yet: it wakes"
    door.core.apply(table(2, ONE))
    door.ready(ONE, 1)
    first.gets_answer(100.0)
    assert door.learnt == [("f-00001", "10.0.0.1:1", "/v2/models/m")]
    door.core.health.copies.keep("f-00001", "/v2/models/m", b'{"name":"m"}')
    door.core.apply(table(3))
    door.shell.clear()
    asleep = door.arrive("GET /functions/f/v2/models/m")
    assert (asleep.status, asleep.answer, door.activations()) == (200, b'{"name":"m"}', [])


def test_unknown_names_get_404_and_are_counted_apart() -> None:
    door = Door(table(1))
    assert door.arrive("POST /v2/models/missing/infer").error["code"] == "function_not_found"
    assert "names no function" in door.arrive("POST /predict").error["error"]["message"]
    assert door.report.unmatched == 2


def test_draining_the_front_door_is_not_ready_but_live() -> None:
    door = Door(table(1))
    door.core.leave(is_draining=True)
    assert door.arrive("GET /v2/health/ready").status == 503
    assert door.arrive("GET /v2/health/live").status == 200
