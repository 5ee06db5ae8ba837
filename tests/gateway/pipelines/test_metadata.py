"""The V2 metadata of a pipeline, made of those of its stages."""

import json
from typing import Any

from tests.gateway.pipelines.test_pipelines import A, B, table
from tests.support.worlds.gateway_chain import Door
from tidegate.gateway.pipelines.metadata import pipeline_metadata
from tidegate.records.pipeline import PipelineRoute, Stage


def tensor(name: str, *shape: int, datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def copy(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> bytes:
    return json.dumps({"name": "m", "versions": ["3"], "inputs": inputs, "outputs": outputs}).encode()


A_COPY = copy([tensor("x", -1, 2)], [tensor("y", -1)])
B_COPY = copy([tensor("x", -1), tensor("k", 1, datatype="INT64")], [tensor("z", -1, datatype="BYTES")])


def of(*stages: Stage, **known: bytes | None) -> dict[str, Any]:
    return pipeline_metadata("p", PipelineRoute(stages=stages, body_bytes=1), known)


def test_its_inputs_are_those_of_the_first_stages_and_its_outputs_those_of_the_last() -> None:
    found = of(Stage(function="a"), Stage(function="b", inputs=(("x", "y"), ("k", "request.top"))), a=A_COPY, b=B_COPY)
    assert found == {
        "name": "p",
        "versions": ["1"],
        "platform": "tidegate_pipeline",
        "inputs": [tensor("x", -1, 2), tensor("top", 1, datatype="INT64")],
        "outputs": [tensor("z", -1, datatype="BYTES")],
    }


def test_branches_give_the_outputs_of_all_that_may_be_last() -> None:
    stages = (Stage(function="a"), Stage(function="b", after=("a",)), Stage(function="c", after=("a",)))
    found = of(*stages, a=A_COPY, b=B_COPY, c=copy([], [tensor("w", 1)]))
    assert [each["name"] for each in found["outputs"]] == ["z", "w"]
    assert [each["name"] for each in found["inputs"]] == ["x"]


def test_a_stage_whose_metadata_are_unknown_or_none_is_named() -> None:
    stages = (Stage(function="a"), Stage(function="b"))
    for bad in (None, b"no", b"[]", b'{"inputs": 3, "outputs": []}', b'{"outputs": [{"shape": [1]}]}'):
        found = of(*stages, a=bad, b=B_COPY)
        assert (found["inputs"], found["unknown_stages"]) == ([], ["a"])
        assert found["outputs"] == [tensor("z", -1, datatype="BYTES")]


def test_it_waits_for_the_answers_of_running_replicas_and_asks_them_once() -> None:
    door = Door(table())
    clients = [door.arrive("GET /v2/models/p") for _ in range(2)]
    assert door.learnt == [("a-00001", A.address, "/v2/models/a"), ("b-00001", B.address, "/v2/models/b")]
    keep = door.core.health.copies.keep
    keep("a-00001", "/v2/models/a", A_COPY)
    assert not any(each.is_ended for each in clients)
    keep("b-00001", "/v2/models/b", B_COPY)
    assert all(each.log[-1] == "answer 200" for each in clients)
    later = door.arrive("GET /functions/p/v2/models/p")
    assert later.log[-1] == "answer 200" and len(door.learnt) == 2


def test_a_client_that_has_left_meanwhile_is_not_answered() -> None:
    door = Door(table())
    client = door.arrive("GET /v2/models/p")
    client.client_gone()
    for revision, path in (("a-00001", "/v2/models/a"), ("b-00001", "/v2/models/b")):
        door.core.health.copies.keep(revision, path, None)
    assert "answer 200" not in client.log


def test_stages_that_sleep_are_not_started_for_it() -> None:
    door = Door(table(a=(), b=()))
    assert door.arrive("GET /v2/models/p").log[-1] == "answer 200"
    assert not door.learnt and not door.shell
