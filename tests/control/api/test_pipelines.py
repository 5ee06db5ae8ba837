"""What holds between a pipeline and the functions of its stages."""

from dataclasses import dataclass, replace

import pytest

from tidegate.autoscaler.pipelines.budgets import StageFacts, divided
from tidegate.control.api.errors import RefusedError
from tidegate.control.api.pipelines import check_delete, check_revision, fitted, part_of
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Protocol, Scaling, Server, ServerKind, Sla
from tidegate.records.pipeline import Stage


@dataclass
class Known:
    """Stands for a deployed function and for its record."""

    function: Function

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def current(self) -> "Known":
        return self


class KnownFunctions:
    """A registry of these functions."""

    def __init__(self, *functions: Function) -> None:
        self.functions = functions

    def all(self) -> list[Known]:
        return [Known(each) for each in self.functions]


def plain(name: str, protocol: Protocol = Protocol.V2) -> Function:
    return Function(name=name, server=Server(kind=ServerKind.COMMAND), protocol=protocol)


def pipeline(name: str, *stages: str, inputs: tuple[tuple[str, str], ...] = ()) -> Function:
    found = tuple(Stage(function=each, inputs=inputs if at else ()) for at, each in enumerate(stages))
    return Function(name=name, server=Server(kind=ServerKind.STAGES, stages=found))


def faults(functions: list[Function], *deployed: Function) -> str:
    with pytest.raises(InvalidInputError) as raised:
        fitted(functions, KnownFunctions(*deployed))  # type: ignore[arg-type]  # a stand-in
    return str(raised.value)


def test_a_pipeline_speaks_as_its_first_stage_deployed_or_in_the_same_file() -> None:
    first = plain("a", Protocol.HTTP)
    (found,) = fitted([pipeline("p", "a", "b")], KnownFunctions(first, plain("b")))  # type: ignore[arg-type]  # as above
    assert found.protocol is Protocol.HTTP
    found, *_ = fitted([pipeline("p", "a"), first], KnownFunctions())  # type: ignore[arg-type]  # as above
    assert found.protocol is Protocol.HTTP


def test_every_fault_between_a_pipeline_and_its_stages_is_reported() -> None:
    words = faults([pipeline("p", "absent", "q", "rpc"), pipeline("q", "a")], plain("a"), plain("rpc", Protocol.GRPC))
    assert "p: spec.stages[0].function: got absent" in words
    assert "p: spec.stages[1].function: got q; allowed: a function: it is a pipeline" in words
    assert "rpc: spec.protocol: got grpc; allowed: v2 or http: rpc is a stage of p" in words
    named = [pipeline("p", "a", "b", inputs=(("x", "y"),))]
    assert "no such key unless these functions speak v2" in faults(named, plain("a"), plain("b", Protocol.HTTP))


def test_a_deployed_stage_gets_no_protocol_that_it_may_not_have_and_no_kind_changes() -> None:
    there = (plain("a"), pipeline("p", "a"))
    assert "a: spec.protocol: got openai" in faults([plain("a", Protocol.OPENAI)], *there)
    assert "p: kind: got Function; allowed: Pipeline" in faults([plain("p")], *there)


def test_answers_join_between_functions_that_speak_v2_alone() -> None:
    joined = Stage(function="c", after=("a", "b"))
    found = Function(
        name="p",
        server=Server(kind=ServerKind.STAGES, stages=(Stage(function="a"), Stage(function="b", after=()), joined)),
    )
    words = faults([found], plain("a"), plain("b", Protocol.HTTP), plain("c"))
    assert "p: spec.stages[2].after: got answers of several stages" in words


def test_a_policy_over_all_stages_is_alone_in_scaling_them() -> None:
    whole = replace(pipeline("p", "a", "b"), sla=Sla(latency_s=0.5), scaling=Scaling(policy="themis"))
    other = replace(pipeline("q", "a"), sla=Sla(latency_s=0.2), scaling=Scaling(policy="tide"))
    own = replace(plain("b"), sla=Sla(latency_s=0.1))
    words = faults([whole], plain("a"), own, other)
    assert "p: spec.stages[0].function: got a; allowed: a function that is no stage of q" in words
    assert "b: latency: got 100ms; allowed: no tidegate.dev/latency of its own" in words
    assert "b: latency" in faults([own], plain("a"), plain("b"), whole), "nor is the stage deployed with one later"


def test_traffic_returns_to_no_graph_whose_stages_are_gone_or_speak_otherwise() -> None:
    known = KnownFunctions(plain("a"), pipeline("p", "a"))
    check_revision(pipeline("p", "a"), known)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(InvalidInputError, match=r"p: spec.stages\[1\].function: got b"):
        check_revision(pipeline("p", "a", "b"), known)  # type: ignore[arg-type]  # as above
    with pytest.raises(InvalidInputError, match=r"a: spec\.protocol: got grpc"):
        check_revision(plain("a", Protocol.GRPC), known)  # type: ignore[arg-type]  # as above


def test_a_stage_is_deleted_after_its_pipelines_alone() -> None:
    known = KnownFunctions(plain("a"), plain("b"), pipeline("p", "a"))
    check_delete("b", known)  # type: ignore[arg-type]  # a stand-in
    check_delete("p", known)  # type: ignore[arg-type]  # as above
    with pytest.raises(RefusedError, match="a is a stage of p: delete the pipeline first"):
        check_delete("a", known)  # type: ignore[arg-type]  # as above


def test_a_stage_says_which_pipeline_scales_it_and_why() -> None:
    stages = [StageFacts(name="a", after=(), service_s=0.1, rps=5.0), StageFacts(name="b", after=(0,), service_s=None)]
    even = divided(0.4, 98.0, stages)
    words = part_of("p", "a", even)
    assert words is not None and words.startswith("a stage of p, which scales it: its budget is 200 ms for 99% of its")
    assert "an even part, until all stages have been measured" in words
    assert part_of("p", "c", even) is None and part_of("p", "a", None) is None
    own = divided(0.4, 98.0, [replace(stages[0], own_s=0.1), replace(stages[1], service_s=0.02)])
    assert part_of("p", "a", own) == "a stage of p, which leaves it its own latency target and policy."
    assert "a request takes 20 ms alone, the rest is for waiting; 1 replica keeps it at 0/s" in str(
        part_of("p", "b", own)
    )
