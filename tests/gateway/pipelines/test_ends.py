"""The end of a request: once, with all of its stages, and with nothing kept."""

import json

import pytest

from tests.gateway.pipelines.test_graphs import World, outputs, stages
from tests.gateway.pipelines.test_pipelines import KEPT, opened
from tests.support.worlds.fake_grpc_call import INFER, call
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST
from tidegate.wire.http2 import grpc_fields


def split() -> World:
    """Both stages behind the first run."""
    world = World(stages())
    world.answers("detect", outputs(("script", "both")))
    assert world.names == ["detect", "latin", "kanji"]
    return world


@pytest.mark.parametrize("status", [404, 500])
def test_a_stage_that_fails_ends_the_one_beside_it(status: int) -> None:
    world = split()
    world.stage("latin").gets_answer(100.0, status, KEPT, body=b"oh")
    assert world.client.log[-1] == f"answer {status}" and b"tidegate-stage: latin\r\n" in world.client.extra
    assert world.stage("kanji").log[-1] == "gone" and world.client.budget.used == 0
    assert b", total;dur=" in world.client.extra and b"latin;dur=" in world.client.extra


def test_a_client_that_leaves_ends_what_runs_and_frees_what_was_kept() -> None:
    world = split()
    world.answers("latin", outputs(("text", "a")))
    assert world.client.budget.used == len(outputs(("text", "a"))), "kept for the stage that joins"
    world.client.client_leaves(100.0)
    assert [world.stage(name).log.count("gone") for name in ("latin", "kanji")] == [0, 1]
    assert world.client.budget.used == 0 and not any(line.startswith("answer") for line in world.client.log)


def test_an_error_says_that_a_replica_had_the_request() -> None:
    world = split()
    world.answers("latin", b"no json")
    world.answers("kanji", b"{}")
    assert world.client.error["executed"] == "true" and world.client.log.count("answer 502") == 1
    assert world.client.budget.used == 0


@pytest.mark.parametrize("text", ["no x", "no \ud800"])
def test_a_call_ends_with_the_status_and_the_text_of_its_stage(text: str) -> None:
    door = opened()
    client = call(door, INFER, MODEL_INFER_REQUEST.encode({"model_name": "p"}))
    door.stages[0].gets_answer(100.1, 404, KEPT, body=json.dumps({"error": text}).encode())
    assert (client.code, client.message) == (grpc_fields.NOT_FOUND, text)
    assert b"tidegate-stage: a\r\n" in client.extra
    assert text.encode("utf-8", "replace").decode() == grpc_fields.decode_message(grpc_fields.encode_message(text))
