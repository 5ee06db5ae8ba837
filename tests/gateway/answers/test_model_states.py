"""Questions about models at a worker that has no channels: after its start, or after a minute without requests."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.activator.commands import Link, Unlink
from tidegate.activator.state.room_state import UNUSED_S
from tidegate.flow.messages import State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.answers.model_states import AT_ONCE, LIMIT_S
from tidegate.gateway.routing import openai_paths
from tidegate.records.pipeline import PipelineRoute, Stage
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable
from tidegate.records.tenants import AccessRule

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
    again = door.arrive(ONE_MODEL)
    assert said(again) == ("starting", True), "it has been asked, and is not waited for again"
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert said(door.arrive(LIST)) == ("ready", True)


def test_where_all_replicas_sleep_nothing_is_asked_by_any_of_several_workers() -> None:
    replicas = tuple(ReplicaRoute(id=f"f-00001-{number:05d}", address="10.0.0.3:1") for number in range(100))
    asleep = tuple(each.id for each in replicas)
    door = Door(of_group(1, replicas, asleep))
    asked = door.arrive(LIST)
    assert said(asked) == ("asleep", True)
    assert not door.shell
    assert door.core.apply(of_group(2, replicas, asleep[1:]))
    asked = door.arrive(LIST)
    assert not asked.is_ended, "one was woken: it is asked"
    door.core.heard(replicas[0].id, State(ReplicaState.READY))
    assert said(asked) == ("ready", True)


def test_a_question_waits_as_long_as_the_channels_have_been_open_at_most() -> None:
    door = Door(table(1, ONE))
    door.arrive("POST /v2/models/m/infer")
    door.now += LIMIT_S - 0.1
    asked = door.arrive(LIST)
    door.now += 0.1
    door.core.sweep(door.now)
    assert said(asked) == ("starting", True)


def test_the_state_of_a_replica_whose_channel_was_closed_is_asked_for_again() -> None:
    door = Door(table(1, ONE))
    door.arrive(LIST)
    door.ready(ONE, 1)
    door.now += UNUSED_S + 1.0
    door.core.on_room_due()
    assert isinstance(door.shell[-1], Unlink)
    asked = door.arrive(LIST)
    assert not asked.is_ended, "it may sleep by now"
    door.core.heard(ONE.id, State(ReplicaState.DRAINED))
    assert said(asked) == ("asleep", True)


def test_equal_questions_wait_together_and_get_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = openai_paths.model_list

    def model_list(routes: Iterable[FunctionRoute], status_of: openai_paths.StatusOf) -> tuple[int, bytes]:
        made.append(routes)
        return real(routes, status_of)

    monkeypatch.setattr(openai_paths, "model_list", model_list)
    door = Door(table(1, ONE))
    asked = [door.arrive(LIST) for _ in range(3)]
    assert "3 questions" in repr(door.core.health.states)
    assert len([each for each in door.shell if isinstance(each, Link)]) == 1
    door.core.heard(ONE.id, State(ReplicaState.STARTING))
    assert [said(each) for each in asked] == [("starting", True)] * 3
    assert len(made) == 1
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert said(door.arrive(LIST)) == ("ready", True)
    assert door.core.apply(table(2, ONE, models=("n",)))
    assert json.loads(door.arrive(LIST).answer)["models"] == ["n"]


def test_replicas_are_asked_in_parts() -> None:
    replicas = [ReplicaRoute(id=f"f{number}-00001-aaaaa", address="10.0.0.3:1") for number in range(AT_ONCE + 2)]
    functions = tuple(of_stage(each.id.partition("-")[0], each) for each in replicas)
    door = Door(RouteTable(epoch=1, number=1, workers=1, functions=functions))
    asked = door.arrive(LIST)
    for count, each in enumerate(replicas, 1):
        links = sum(isinstance(command, Link) for command in door.shell)
        assert links == (AT_ONCE if count <= AT_ONCE else AT_ONCE + 2)
        assert not asked.is_ended
        door.core.heard(each.id, State(ReplicaState.READY))
    assert {each["status"] for each in json.loads(asked.answer)["data"]} == {"ready"}
    again = Door(RouteTable(epoch=1, number=1, workers=1, functions=functions))
    asked = again.arrive(LIST)
    again.now += LIMIT_S
    again.core.sweep(again.now)
    assert asked.is_ended, "the others are asked for the next question"
    assert not again.arrive(LIST).is_ended
    assert sum(isinstance(command, Link) for command in again.shell) == AT_ONCE + 2


@pytest.mark.parametrize("line", [LIST, ONE_MODEL])
def test_a_function_whose_state_is_not_shown_is_not_asked(line: str) -> None:
    door = Door(table(1, ONE, access=AccessRule(api_keys=True)))
    assert door.arrive(line).is_ended
    assert not door.shell


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


def test_a_stage_of_a_revision_that_gets_no_requests_does_not_count() -> None:
    (first,) = table(1, ONE).functions
    second = of_stage("g", ReplicaRoute(id="g-00001-aaaaa", address="10.0.0.3:1"))
    old, new = (PipelineRoute(stages=(Stage(function=name),), body_bytes=1000) for name in ("g", "f"))
    revisions = (
        RevisionRoute(id="p-00001", percent=0.0, pipeline=old),
        RevisionRoute(id="p-00002", percent=100.0, pipeline=new),
    )
    pipeline = replace(first, name="p", models=("p",), revisions=revisions)
    door = Door(RouteTable(epoch=1, number=1, workers=1, functions=(first, second, pipeline)))
    asked = door.arrive("GET /openai/v1/models/p")
    door.core.heard(ONE.id, State(ReplicaState.READY))
    assert said(asked) == ("ready", True)


def of_group(number: int, replicas: tuple[ReplicaRoute, ...], asleep: tuple[str, ...]) -> RouteTable:
    """A function with one group, at one of four workers."""
    (route,) = table(1).functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=replicas, asleep=asleep)
    functions = (replace(route, revisions=(RevisionRoute(id="f-00001", percent=100.0, groups=(group,)),)),)
    return RouteTable(epoch=1, number=number, workers=4, functions=functions)


def of_stage(name: str, *replicas: ReplicaRoute) -> FunctionRoute:
    (route,) = table(1).functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=replicas)
    revision = RevisionRoute(id=f"{name}-00001", percent=100.0, groups=(group,))
    return replace(route, name=name, models=(name,), revisions=(revision,))
