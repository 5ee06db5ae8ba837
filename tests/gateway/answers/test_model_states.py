"""Questions about models at a worker that has no channels: after its start, or after a minute without requests."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.activator.commands import Link
from tidegate.flow.messages import State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.answers.model_states import LIMIT_S
from tidegate.records.pipeline import PipelineRoute, Stage
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable

LIST, ONE_MODEL, OF_FUNCTION = "GET /v1/models", "GET /openai/v1/models/m", "GET /functions/f/openai/v1/models"


def said(asked: FakeExchange) -> tuple[str, bool]:
    document: dict[str, Any] = json.loads(asked.answer)
    (model,) = document.get("data", [document])
    return model["status"], model["ready"]


@pytest.mark.parametrize("line", [LIST, ONE_MODEL])
def test_a_worker_that_has_just_started_asks_the_replicas_before_it_says_their_state(line: str) -> None:
    door = Door(table(1, ONE))
    asked = door.arrive(line)
    assert not asked.is_ended, "its replica may be ready: that is asked first"
    assert [each.replica for each in door.shell if isinstance(each, Link)] == [ONE.id]
    assert not door.activations()
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert said(asked) == ("ready", True)
    assert said(door.arrive(line)) == ("ready", True), "known now"


def test_a_function_that_is_awake_gets_the_question_itself() -> None:
    door = Door(table(1, ONE, protocol="openai"))
    asked = door.arrive(OF_FUNCTION)
    door.core.linked(ONE.id)
    door.core.heard(ONE.id, Welcome("inc", 4, ConcurrencyUnit.REQUESTS))
    door.core.heard(ONE.id, State(ReplicaState.READY))
    door.grant(ONE, 1)
    assert asked.log == ["to 10.0.0.1:1"]


def test_a_replica_that_says_nothing_is_starting_and_one_that_is_ready_decides() -> None:
    door = Door(table(1, ONE, TWO))
    asked = door.arrive(LIST)
    door.core.heard(TWO.id, State(ReplicaState.STARTING))
    door.now += LIMIT_S - 0.01
    door.core.sweep(door.now)
    assert not asked.is_ended
    door.now += 0.01
    door.core.sweep(door.now)
    assert said(asked) == ("starting", True), "requests are taken meanwhile"
    again = door.arrive(LIST)
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert said(again) == ("ready", True)


def test_a_client_that_leaves_is_forgotten() -> None:
    door = Door(table(1, ONE))
    asked = door.arrive(LIST)
    asked.client_gone()
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert "0 questions" in repr(door.core.health.states)
    other = Door(table(1, ONE))
    other.arrive(LIST).client_gone()
    other.core.sweep(other.now)
    assert "0 questions" in repr(other.core.health.states)


def test_a_pipeline_has_the_status_of_its_worst_stage() -> None:
    (first,) = table(1, ONE).functions
    second = of_stage("g", ReplicaRoute(id="g-00001-aaaaa", address="10.0.0.3:1"))
    route = PipelineRoute(stages=(Stage(function="f"), Stage(function="g")), body_bytes=1000)
    revision = RevisionRoute(id="p-00001", percent=100.0, pipeline=route)
    pipeline = replace(first, name="p", models=("p",), revisions=(revision,))
    door = Door(RouteTable(epoch=1, number=1, workers=1, functions=(first, second, pipeline)))
    asked = door.arrive("GET /openai/v1/models/p")
    assert not asked.is_ended
    door.core.heard(ONE.id, State(ReplicaState.READY))
    door.core.heard("g-00001-aaaaa", State(ReplicaState.STARTING))
    assert said(asked) == ("starting", True)
    door.core.heard("g-00001-aaaaa", State(ReplicaState.READY))
    assert said(door.arrive("GET /openai/v1/models/p")) == ("ready", True)


def of_stage(name: str, *replicas: ReplicaRoute) -> FunctionRoute:
    (route,) = table(1).functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=replicas)
    revision = RevisionRoute(id=f"{name}-00001", percent=100.0, groups=(group,))
    return replace(route, name=name, models=(name,), revisions=(revision,))
