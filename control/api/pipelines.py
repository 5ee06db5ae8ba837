"""Pipelines at the API: what holds between a pipeline and the functions of its stages, and the views of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.pipelines.budgets import Budgets
from tidegate.autoscaler.policies import registry as policies
from tidegate.control.api.errors import RefusedError
from tidegate.control.state.registry import Registry
from tidegate.control.views.functions import FunctionState, FunctionView, StageBudgetView
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Protocol
from tidegate.manifest.annotations import PREFIX
from tidegate.records.pipeline import before
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


def check_revision(function: Function, registry: Registry) -> None:
    """Raises InvalidInputError with the faults between pipelines and stages if traffic returned to this revision of a
    function or pipeline: a stage may be deleted since, or speak another protocol."""
    all_ = {each.name: each.current.function for each in registry.all()} | {function.name: function}
    touched = (
        each
        for each in all_.values()
        if each is function or any(stage.function == function.name for stage in each.server.stages)
    )
    faults = [fault for each in touched if each.is_pipeline for fault in _between(each, all_)]
    if faults:
        raise InvalidInputError("revision", faults)


def _between(pipeline: Function, functions: Mapping[str, Function]) -> list[Fault]:
    """Returns the faults between a pipeline and its stages."""
    faults = []
    stages = pipeline.server.stages
    for at, (stage, waits) in enumerate(zip(stages, before(stages), strict=True)):
        where = f"{pipeline.name}: spec.stages[{at}]"
        function = functions.get(stage.function)
        earlier = [functions.get(stages[each].function) for each in waits]
        are_v2 = function is not None and all(each is not None and each.protocol is Protocol.V2 for each in earlier)
        if function is None:
            known = sorted(each.name for each in functions.values() if not each.is_pipeline)
            allowed = f"a function that is deployed, or is in the same manifest{nearest(stage.function, known)}"
            faults.append(Fault(f"{where}.function", stage.function, allowed))
        elif function.is_pipeline:
            faults.append(Fault(f"{where}.function", stage.function, "a function: it is a pipeline"))
        elif function.protocol not in _PASSED:
            allowed = f"{' or '.join(_PASSED)}: {stage.function} is a stage of {pipeline.name}"
            faults.append(Fault(f"{stage.function}: spec.protocol", function.protocol.value, allowed))
        elif (stage.inputs or len(waits) > 1) and not (are_v2 and function.protocol is Protocol.V2):
            key, got = ("inputs", "inputs by name") if stage.inputs else ("after", "answers of several stages")
            faults.append(Fault(f"{where}.{key}", got, "no such key unless these functions speak v2"))
        faults += _ordered_over_all(pipeline, function, functions, where)
    return faults


def _ordered_over_all(
    pipeline: Function, stage: Function | None, functions: Mapping[str, Function], where: str
) -> list[Fault]:
    """Returns why a policy that decides over all stages at once cannot decide about this one."""
    if stage is None or pipeline.sla.latency_s is None or not policies.row(pipeline.scaling.policy).scales_cores:
        return []
    policy = pipeline.scaling.policy
    if stage.sla.latency_s is not None:
        allowed = f"no {PREFIX}latency of its own: {policy} decides over all stages of {pipeline.name} at once"
        return [Fault(f"{stage.name}: latency", f"{1e3 * stage.sla.latency_s:g}ms", allowed)]
    others = sorted(
        each.name
        for each in functions.values()
        if each.sla.latency_s is not None
        and each.name != pipeline.name
        and any(known.function == stage.name for known in each.server.stages)
    )
    if not others:
        return []
    allowed = f"a function that is no stage of {', '.join(others)}: {policy} decides over all stages at once"
    return [Fault(f"{where}.function", stage.name, allowed)]


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


def with_stages(view: FunctionView, stages: Sequence[FunctionView], budgets: Budgets | None) -> FunctionView:
    """Returns the view of a pipeline: its state is the worst of its stages, its price what they cost."""
    states = [each.state for each in stages] or [FunctionState.FAILED]
    messages = [f"stage {each.name}: {each.message}" for each in stages if each.message]
    return replace(
        view,
        stages=tuple(each.name for each in stages),
        budgets=() if budgets is None else _budget_views(budgets),
        attained=None if view.latency_s is None else _attained(view),
        state=next(state for state in _WORST_FIRST if state in states),
        ready=min((each.ready for each in stages), default=0),
        message="\n".join(messages) or None,
    )


def _budget_views(budgets: Budgets) -> tuple[StageBudgetView, ...]:
    return tuple(
        StageBudgetView(
            stage=each.name,
            budget_s=each.budget_s,
            percentile=budgets.percentile,
            service_s=each.service_s,
            requests_per_s=each.rps,
            replicas=each.replicas,
            is_own=each.is_own,
            is_even=not budgets.is_measured,
            is_feasible=budgets.is_feasible,
        )
        for each in budgets.stages
    )


def sentences(view: FunctionView, stages: Sequence[FunctionView]) -> tuple[str, ...]:
    """Returns what is to say about a pipeline: its SLA and how it is met, then each stage."""
    lines = [f"A pipeline of {len(stages)} {'stage' if len(stages) == 1 else 'stages'}: {', '.join(view.stages)}."]
    if view.latency_s is not None:
        lines.append(
            f"Its SLA is {_ms(view.latency_s)} for {view.percentile:g}% of the requests, all stages together; "
            f"{view.attained}."
        )
    budgets = {each.stage: each for each in view.budgets}
    if any(not each.is_feasible for each in view.budgets):
        lines.append("The stages alone take longer than that: a larger latency target, or faster stages, would help.")
    for at, each in enumerate(stages, 1):
        own = each.traffic
        time = (
            f"no answer in the last {own.window_s:g} s"
            if own.p50_s is None
            else f"half of its answers in {_ms(own.p50_s)}"
        )
        tail = "" if own.tail_s is None else f", p{each.percentile:g} in {_ms(own.tail_s)}"
        lines.append(f"stage {at}, {each.name}: {each.state.value}, {each.ready} ready; {time}{tail}.")
        budget = budgets.get(each.name)
        if budget is not None:
            lines.append(f"  {_of_budget(budget)}.")
    return tuple(lines)


def part_of(pipeline: str, stage: str, budgets: Budgets | None) -> str | None:
    """Returns what a pipeline means for the scaling of a stage; None if it is no stage of it, or if there is no
    target."""
    views = () if budgets is None else _budget_views(budgets)
    found = next((each for each in views if each.stage == stage), None)
    if found is None:
        return None
    if found.is_own:
        return f"a stage of {pipeline}, which leaves it its own latency target and policy."
    return f"a stage of {pipeline}, which scales it: {_of_budget(found)}."


def _attained(view: FunctionView) -> str:
    """Returns whether a pipeline keeps its SLA, by the answers that its clients got in the last minute."""
    traffic = view.traffic
    ended = traffic.answered + traffic.failed + traffic.refused + traffic.expired
    if not ended:
        return f"no request in the last {figure(traffic.window_s)} s"
    late = 1.0 - traffic.within_sla / ended
    word = "kept" if late <= 1.0 - view.percentile / 100.0 + 1e-9 else "missed"
    tail = "" if traffic.tail_s is None else f", p{view.percentile:g} is {_ms(traffic.tail_s)}"
    seen = f"{figure(100.0 * late)}% of {ended} requests late or failed{tail}"
    return f"{word} in the last {figure(traffic.window_s)} s: {seen}"


def _of_budget(budget: StageBudgetView) -> str:
    """Returns the budget of a stage, and what it follows from."""
    said = f"its budget is {_ms(budget.budget_s)} for {budget.percentile:.4g}% of its requests"
    if budget.is_own:
        return f"{said}, the latency target of its function"
    if budget.is_even:
        return f"{said}: an even part, until all stages have been measured"
    if budget.service_s is None:
        return said
    alone = f"{said}: a request takes {_ms(budget.service_s)} alone, the rest is for waiting"
    if budget.replicas is None:
        return alone
    count = "1 replica keeps" if budget.replicas == 1 else f"{budget.replicas} replicas keep"
    return f"{alone}; {count} it at {figure(budget.requests_per_s)}/s"


def _ms(seconds: float) -> str:
    return f"{figure(1e3 * seconds)} ms"
