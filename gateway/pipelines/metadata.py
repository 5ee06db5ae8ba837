"""V2 metadata of a pipeline: a model whose inputs its first stages take, and whose outputs its last stages give.

It is made of the metadata of the stages: of kept copies, and of what a running replica answers now.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tidegate.function import Protocol
from tidegate.gateway.answers.health import HealthResponder
from tidegate.gateway.pipelines.graph import Graph
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.records.pipeline import REQUEST, PipelineRoute, Stage

PLATFORM: Final = "tidegate_pipeline"
VERSIONS: Final = ("1",)

Tensors = Mapping[str, list[Mapping[str, Any]]]
"""*inputs* and *outputs* of a model, as its metadata lists them."""


def pipeline_metadata(name: str, route: PipelineRoute, known: Mapping[str, bytes | None]) -> dict[str, Any]:
    """Returns the metadata of a pipeline by those of its stages' functions; None for those that are not known, or no
    metadata. Of these the answer lists no tensors, and names them."""
    graph = Graph(route)
    found = {function: _tensors(copy) for function, copy in known.items()}
    inputs: dict[str, Mapping[str, Any]] = {}
    outputs: dict[str, Mapping[str, Any]] = {}
    unknown = []
    for at, stage in enumerate(graph.stages):
        taken = _taken(stage, is_first=not graph.waits[at])
        is_last = graph.is_last(at)
        if taken is not None and not taken and not is_last:
            continue
        tensors = found.get(stage.function)
        if tensors is None:
            unknown.append(stage.function)
            continue
        for each in tensors["inputs"]:
            asked = each["name"] if taken is None else taken.get(each["name"])
            if asked is not None:
                inputs.setdefault(asked, {**each, "name": asked})
        if is_last:
            for each in tensors["outputs"]:
                outputs.setdefault(each["name"], each)
    answer: dict[str, Any] = {
        "name": name,
        "versions": list(VERSIONS),
        "platform": PLATFORM,
        "inputs": list(inputs.values()),
        "outputs": list(outputs.values()),
    }
    return {**answer, "unknown_stages": unknown} if unknown else answer


def _taken(stage: Stage, *, is_first: bool) -> Mapping[str, str] | None:
    """Returns by input of a stage the input of the client that fills it; None if the client's fill those of their
    names."""
    if is_first and not stage.inputs:
        return None
    pairs = ((taken, given.partition(".")) for taken, given in stage.inputs)
    return {taken: name for taken, (source, dot, name) in pairs if dot and source == REQUEST}


def _tensors(copy: bytes | None) -> Tensors | None:
    try:
        document = None if copy is None else json.loads(copy)
        if not isinstance(document, dict):
            return None
        found = {side: list(document.get(side) or ()) for side in ("inputs", "outputs")}
    except (ValueError, TypeError, RecursionError):
        return None
    entries = [each for side in found.values() for each in side]
    return found if all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in entries) else None


class PipelineMetadata:
    """Answers questions about the metadata of one worker's pipelines."""

    __slots__ = ("_health", "_routers")

    def __init__(self, health: HealthResponder) -> None:
        self._health = health
        self._routers: Mapping[str, FunctionRouter] = {}

    def apply(self, routers: Mapping[str, FunctionRouter]) -> None:
        """Takes over the functions of a route table."""
        self._routers = routers

    def find(self, router: FunctionRouter, done: Callable[[bytes], None]) -> None:
        """Calls ``done`` with the metadata of a pipeline, at once or when replicas of its stages have answered."""
        route = next(iter((router.pipelines or {}).values()))
        functions = [stage.function for stage in route.stages]
        known: dict[str, bytes | None] = {}

        def learnt(function: str, copy: bytes | None) -> None:
            known[function] = copy
            if len(known) == len(functions):
                done(json.dumps(pipeline_metadata(router.name, route, known)).encode())

        for function in functions:
            stage = self._routers.get(function)
            if stage is None or stage.route.protocol != Protocol.V2:
                learnt(function, None)
                continue
            model = (stage.route.models or (stage.name,))[0]
            self._health.learn(stage, f"/v2/models/{model}", partial(learnt, function))

    def __repr__(self) -> str:
        return f"<PipelineMetadata {len(self._routers)} functions>"
