"""Conversations with the request path about branching pipelines: fan-out, join, conditions, and what never runs."""

import json
from typing import Any

import pytest

from tests.gateway.pipelines.test_pipelines import KEPT, ask, ended, route
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import Door
from tidegate.activator.commands import Activate
from tidegate.gateway.pipelines.graph import Graph
from tidegate.records.pipeline import Comparison, Condition, PipelineRoute, Stage
from tidegate.records.route_table import GroupRoute, ReplicaRoute, RouteTable

NAMES = ("detect", "latin", "kanji", "page")
REPLICAS = {name: ReplicaRoute(id=f"{name}-00001-aaaaa", address=f"10.0.0.{at}:1") for at, name in enumerate(NAMES)}
BODY = json.dumps({"id": "r1", "inputs": [{"name": "size", "shape": [1], "datatype": "INT64", "data": [7]}]}).encode()


def when(*values: str) -> Condition:
    return Condition(field="script", test=Comparison.IS, values=values)


def stages(*, inputs: tuple[tuple[str, str], ...] = ()) -> tuple[Stage, ...]:
    return (
        Stage(function="detect"),
        Stage(function="latin", after=("detect",), when=when("latin", "both")),
        Stage(function="kanji", after=("detect",), when=when("kanji", "both")),
        Stage(function="page", after=("latin", "kanji"), inputs=inputs),
    )


def table(graph: tuple[Stage, ...], *asleep: str, **settings: Any) -> RouteTable:
    functions = [
        route(
            name,
            {
                "groups": (
                    GroupRoute(accelerator="cpu", weight=1.0, replicas=() if name in asleep else (REPLICAS[name],)),
                )
            },
        )
        for name in NAMES
    ]
    pipeline = PipelineRoute(stages=graph, body_bytes=settings.pop("body_bytes", 1000))
    functions.append(route("p", {"pipeline": pipeline}, **settings))
    return RouteTable(epoch=1, number=1, workers=1, functions=tuple(functions))


def outputs(*tensors: tuple[str, object], datatype: str = "BYTES") -> bytes:
    listed = [{"name": name, "shape": [1], "datatype": datatype, "data": [value]} for name, value in tensors]
    return json.dumps({"outputs": listed}).encode()


class World:
    """A door with ready replicas of all stages; answers by the name of the stage."""

    def __init__(self, graph: tuple[Stage, ...], **settings: Any) -> None:
        self.door = Door(table(graph, **settings))
        for at, replica in enumerate(REPLICAS.values()):
            self.door.ready(replica, *range(10 * at + 1, 10 * at + 5))
        self.client = ask(self.door, body=BODY)
        for at, replica in enumerate(REPLICAS.values()):
            self.door.grant(replica, *range(10 * at + 5, 10 * at + 9))

    @property
    def names(self) -> list[str]:
        """The stages that have begun, in order."""
        return [each.head.target.decode().split("/")[3] for each in self.door.stages]

    def stage(self, name: str) -> FakeExchange:
        return self.door.stages[self.names.index(name)]

    def inputs(self, name: str) -> dict[str, object]:
        document = json.loads(self.stage(name).body)
        return {each["name"]: each["data"][0] for each in document["inputs"]}

    def answers(self, name: str, body: bytes, status: int = 200) -> None:
        self.stage(name).gets_answer(self.door.now, status, KEPT, body=body)


def test_branches_run_beside_each_other_and_join() -> None:
    world = World(stages(inputs=(("l", "latin.text"), ("k", "kanji.text"), ("size", "request.size"))))
    assert world.names == ["detect"]
    world.answers("detect", outputs(("script", "both")))
    assert world.names == ["detect", "latin", "kanji"], "both at once"
    world.answers("kanji", outputs(("text", "nihon")))
    assert "page" not in world.names and not world.client.is_ended
    world.answers("latin", outputs(("text", "rome")))
    assert world.inputs("page") == {"l": "rome", "k": "nihon", "size": 7}
    world.answers("page", b'{"outputs":[]}')
    assert world.client.log[-1] == "answer 200" and world.client.answer == b'{"outputs":[]}'
    timing = world.client.extra.decode()
    assert all(f"{name};dur=" in timing for name in (*NAMES, "total"))
    assert world.client.budget.used == 0
    assert [ended(world.door, name) for name in ("p", *NAMES)] == [(1, 1, 0, 0)] * 5


@pytest.mark.parametrize(("script", "ran"), [("latin", "latin"), ("kanji", "kanji")])
def test_a_stage_whose_condition_does_not_hold_is_left_out(script: str, ran: str) -> None:
    world = World(stages(inputs=(("l", "latin.text"), ("k", "kanji.text"))))
    world.answers("detect", outputs(("script", script)))
    assert world.names == ["detect", ran]
    world.answers(ran, outputs(("text", "found")))
    assert world.inputs("page") == {ran[0]: "found"}


def test_where_no_branch_is_taken_the_answer_before_it_is_the_clients() -> None:
    world = World(stages())
    answer = outputs(("script", "runes"))
    world.answers("detect", answer)
    assert world.names == ["detect"]
    assert world.client.log[-1] == "answer 200" and world.client.answer == answer
    assert world.client.budget.used == 0


def test_several_last_answers_become_one() -> None:
    graph = stages()[:3]
    world = World(graph)
    world.answers("detect", outputs(("script", "both")))
    world.answers("latin", outputs(("rome", 1)))
    world.answers("kanji", outputs(("nihon", 2)))
    found = json.loads(world.client.answer)
    assert found["model_name"] == "p" and [each["name"] for each in found["outputs"]] == ["rome", "nihon"]


def test_a_stage_that_fails_ends_those_beside_it_and_the_rest_never_runs() -> None:
    world = World(stages())
    world.answers("detect", outputs(("script", "both")))
    world.answers("latin", b"oh", status=500)
    assert world.client.log[-1] == "answer 500" and b"tidegate-stage: latin\r\n" in world.client.extra
    assert world.stage("kanji").is_ended and world.stage("kanji").log[-1] == "gone"
    assert "page" not in world.names and world.client.budget.used == 0


def test_a_client_that_leaves_and_a_deadline_end_all_branches() -> None:
    left, late = World(stages()), World(stages())
    for world in (left, late):
        world.answers("detect", outputs(("script", "both")))
    left.client.client_leaves(100.1)
    late.client.expires(110.0)
    for world in (left, late):
        assert world.stage("kanji").is_ended and world.stage("latin").is_ended
        assert world.client.budget.used == 0
    assert "in stage latin, kanji" in late.client.error["error"]


def test_answers_that_wait_for_a_join_count_towards_the_budget_and_are_dropped_when_used() -> None:
    world = World(stages(inputs=(("l", "latin.text"), ("k", "kanji.text"))))
    world.answers("detect", outputs(("script", "both")))
    assert world.client.budget.used == 0, "both branches have begun, so it is no longer needed"
    world.answers("latin", text := outputs(("text", "rome")))
    assert world.client.budget.used == len(text)
    world.answers("kanji", outputs(("text", "nihon")))
    assert world.client.budget.used == 0


def test_a_condition_on_what_is_not_there_says_so() -> None:
    world = World(stages())
    world.answers("detect", outputs(("other", "both")))
    assert world.client.log[-1] == "answer 502" and world.client.error["code"] == "stage_failed"
    assert "stage latin cannot follow detect: its answer has no value 'script'" in world.client.error["error"]


def test_outputs_of_the_same_name_must_differ() -> None:
    world = World(stages())
    world.answers("detect", outputs(("script", "both")))
    world.answers("latin", outputs(("text", "rome")))
    world.answers("kanji", outputs(("text", "nihon")))
    assert "'text' is in the answers of latin and kanji" in world.client.error["error"]


def test_from_zero_stages_that_only_some_requests_run_are_not_started_ahead() -> None:
    door = Door(table(stages(), *NAMES))
    ask(door)
    asked = [command.activation.revision for command in door.shell if isinstance(command, Activate)]
    assert asked == ["detect-00001"]
    chain = (
        Stage(function="detect"),
        Stage(function="latin", after=("detect",)),
        Stage(function="page", after=("latin",)),
    )
    door = Door(table(chain, *NAMES))
    ask(door)
    asked = [command.activation.revision for command in door.shell if isinstance(command, Activate)]
    assert sorted(asked) == ["detect-00001", "latin-00001", "page-00001"]


def test_a_graph_knows_who_needs_an_answer() -> None:
    graph = Graph(PipelineRoute(stages=stages(inputs=(("s", "detect.script"),)), body_bytes=1))
    assert graph.waits == ((), (0,), (0,), (1, 2))
    assert graph.users == (frozenset({1, 2, 3}), frozenset({3}), frozenset({3}), frozenset())
    assert graph.are_sure == (True, False, False, False)
    assert not graph.keeps_request
