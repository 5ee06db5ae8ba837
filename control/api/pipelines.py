"""Pipelines at the API: what holds between a pipeline and the functions of its stages, and the views of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.control.api.errors import RefusedError
from tidegate.control.state.registry import Registry
from tidegate.control.views.functions import FunctionState, FunctionView
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Protocol
from tidegate.schema.yaml_nodes import nearest

_PASSED: Final = (Protocol.V2, Protocol.HTTP)
"""Protocols whose answers can be the next stage's requests."""
_WORST_FIRST: Final = (
    FunctionState.FAILED,
    FunctionState.UNPLACED,
    FunctionState.STARTING,
    FunctionState.ASLEEP,
    FunctionState.DRAINING,
    FunctionState.READY,
)


def fitted(functions: Sequence[Function], registry: Registry) -> tuple[Function, ...]:
    """Returns the functions to deploy, each pipeline with the protocol of its first stage. Raises InvalidInputError
    with every fault between pipelines and stages, the deployed ones included."""
    deployed = {each.name: each.current.function for each in registry.all()}
    all_ = deployed | {function.name: function for function in functions}
    faults: list[Fault] = []
    for function in functions:
        before = deployed.get(function.name)
        if before is not None and before.is_pipeline is not function.is_pipeline:
            kind, other = _kind(function), _kind(before)
            faults.append(Fault(f"{function.name}: kind", kind, f"{other}, as it is deployed, or delete it first"))
    for pipeline in all_.values():
        if pipeline.is_pipeline:
            faults += _between(pipeline, all_)
    if faults:
        raise InvalidInputError("pipelines", faults)
    return tuple(_with_protocol(each, all_) for each in functions)


def _between(pipeline: Function, functions: Mapping[str, Function]) -> list[Fault]:
    """Returns the faults between a pipeline and its stages."""
    faults = []
    before: Function | None = None
    for at, stage in enumerate(pipeline.server.stages):
        where = f"{pipeline.name}: spec.stages[{at}]"
        function = functions.get(stage.function)
        if function is None:
            known = sorted(each.name for each in functions.values() if not each.is_pipeline)
            allowed = f"a function that is deployed, or is in the same manifest{nearest(stage.function, known)}"
            faults.append(Fault(f"{where}.function", stage.function, allowed))
        elif function.is_pipeline:
            faults.append(Fault(f"{where}.function", stage.function, "a function: it is a pipeline"))
        elif function.protocol not in _PASSED:
            allowed = f"{' or '.join(_PASSED)}: {stage.function} is a stage of {pipeline.name}"
            faults.append(Fault(f"{stage.function}: spec.protocol", function.protocol.value, allowed))
        elif stage.inputs and not (before and before.protocol is function.protocol is Protocol.V2):
            faults.append(Fault(f"{where}.inputs", "inputs by name", "no such key unless both functions speak v2"))
        before = function
    return faults


def _with_protocol(function: Function, functions: Mapping[str, Function]) -> Function:
    if not function.is_pipeline:
        return function
    return replace(function, protocol=functions[function.server.stages[0].function].protocol)


def _kind(function: Function) -> str:
    return "Pipeline" if function.is_pipeline else "Function"


def check_delete(name: str, registry: Registry) -> None:
    """Raises RefusedError for a function that is a stage of a pipeline."""
    users = [
        each.name
        for each in registry.all()
        if any(stage.function == name for stage in each.current.function.server.stages)
    ]
    if users:
        raise RefusedError(f"{name} is a stage of {', '.join(users)}: delete the pipeline first")


def with_stages(view: FunctionView, stages: Sequence[FunctionView]) -> FunctionView:
    """Returns the view of a pipeline: its state is the worst of its stages, its price what they cost."""
    states = [each.state for each in stages] or [FunctionState.FAILED]
    messages = [f"stage {each.name}: {each.message}" for each in stages if each.message]
    return replace(
        view,
        stages=tuple(each.name for each in stages),
        state=next(state for state in _WORST_FIRST if state in states),
        ready=min((each.ready for each in stages), default=0),
        message="\n".join(messages) or None,
    )


def sentences(view: FunctionView, stages: Sequence[FunctionView]) -> tuple[str, ...]:
    """Returns what is to say about a pipeline: its SLA and how it is met, then each stage."""
    traffic = view.traffic
    lines = [f"A pipeline of {len(stages)} {'stage' if len(stages) == 1 else 'stages'}: {', '.join(view.stages)}."]
    if view.latency_s is not None:
        target = f"Its SLA is {figure(1e3 * view.latency_s)} ms for {view.percentile:g}% of the requests, all stages"
        seen = "" if traffic.tail_s is None else f"; p{view.percentile:g} is {figure(1e3 * traffic.tail_s)} ms now"
        lines.append(f"{target} together{seen}.")
    for at, each in enumerate(stages, 1):
        own = each.traffic
        time = "no request in the last seconds" if own.p50_s is None else f"half of its answers in {_ms(own.p50_s)}"
        tail = "" if own.tail_s is None else f", p{each.percentile:g} in {_ms(own.tail_s)}"
        lines.append(f"stage {at}, {each.name}: {each.state.value}, {each.ready} ready; {time}{tail}.")
    return tuple(lines)


def _ms(seconds: float) -> str:
    return f"{figure(1e3 * seconds)} ms"
