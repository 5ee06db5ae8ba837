"""What holds between a pipeline and the functions of its stages."""

from dataclasses import dataclass

import pytest

from tidegate.control.api.errors import RefusedError
from tidegate.control.api.pipelines import check_delete, fitted
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Protocol, Server, ServerKind
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
    assert "no such key unless both functions speak v2" in faults(named, plain("a"), plain("b", Protocol.HTTP))


def test_a_deployed_stage_gets_no_protocol_that_it_may_not_have_and_no_kind_changes() -> None:
    there = (plain("a"), pipeline("p", "a"))
    assert "a: spec.protocol: got openai" in faults([plain("a", Protocol.OPENAI)], *there)
    assert "p: kind: got Function; allowed: Pipeline" in faults([plain("p")], *there)


def test_a_stage_is_deleted_after_its_pipelines_alone() -> None:
    known = KnownFunctions(plain("a"), plain("b"), pipeline("p", "a"))
    check_delete("b", known)  # type: ignore[arg-type]  # a stand-in
    check_delete("p", known)  # type: ignore[arg-type]  # as above
    with pytest.raises(RefusedError, match="a is a stage of p: delete the pipeline first"):
        check_delete("a", known)  # type: ignore[arg-type]  # as above
