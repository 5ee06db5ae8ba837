"""Reads ``kind: Pipeline``: stages that are functions of their own, with one SLA over the whole.

A pipeline has no server, so a key about servers or replicas is a fault here: it belongs to the function of a stage.
"""

from collections.abc import Sequence
from typing import Final

from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.access import read_access
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.builder import NAME_KIND, SPEC_FLAG, FunctionBuilder, SourceLocation
from tidegate.manifest.policy_parameters import THEMIS_PROFILE
from tidegate.manifest.routing import read_matches
from tidegate.manifest.spec import MODEL_NAME, SPEC, URL_PATH
from tidegate.records.pipeline import (
    CHAIN,
    REQUEST,
    Comparison,
    Condition,
    Stage,
    ancestors,
    in_order,
    is_chain,
)
from tidegate.schema.rows import Row, Text
from tidegate.schema.yaml_nodes import Node, Scalar, Section, nearest, shown, shown_key

PIPELINE_KIND: Final = "Pipeline"
MAX_STAGES: Final = 16
BODY_BYTES: Final = 16 * 1024 * 1024
"""Default of ``limits.body-bytes``: the gateway keeps whole bodies between two stages."""
FIELDS: Final = (
    "sla.latency_s",
    "sla.percentile",
    "sla.drop_after",
    "scaling.policy",
    "timeout_s",
    "routing.priority",
    "body_bytes",
)
"""The fields of a function that a pipeline has as well."""
PIPELINE_ANNOTATIONS: Final[tuple[Row, ...]] = tuple(row for row in ANNOTATIONS if row.field in FIELDS)
PIPELINE_SPEC: Final[tuple[Row, ...]] = tuple(row for row in SPEC if row.field in FIELDS)
_ELSEWHERE: Final = "no such key of a pipeline: the functions of its stages have it"
_STAGES: Final = f"a list of 1 to {MAX_STAGES} stages, each with a function"
_FIELD: Final = Text(r"[!-~]{1,255}", "the name of an output, or the path of a value in a JSON answer (a.b.0)")
_VALUE: Final = Text(r"[^\x00-\x1f]{0,255}", "a text, a number, true or false")
_COMPARISONS: Final = " or ".join(Comparison)
_OVER_ALL: Final = ("themis", "horizontal-only", "vertical-only")
"""Policies that decide over all stages at once."""


def read_pipeline(root: Section, builder: FunctionBuilder, name: str | None) -> Function | None:
    """Returns the pipeline of a document whose metadata has been read; None after a fault."""
    spec = root.section("spec")
    stages: tuple[Stage, ...] = ()
    if spec is not None:
        stages = _stages(spec, name, is_profiled=builder.values.get("scaling.policy") in _OVER_ALL)
        _values(spec, builder)
        builder.values["routing.matches"] = read_matches(spec)
        builder.values["access"] = read_access(spec, builder)
        spec.close(lambda key: _ELSEWHERE if any(row.key.partition(".")[0] == key for row in SPEC) else None)
    elif root.node.get("spec") is None:
        builder.faults.report("spec", "nothing", "a mapping with stages", root.node.line)
    root.close()
    _refuse_others(builder)
    builder.values.setdefault("body_bytes", BODY_BYTES)
    _check_over_all(stages, builder)
    function = builder.finish_pipeline(name or "nameless", Server(kind=ServerKind.STAGES, stages=stages))
    return None if name is None or not stages else function


def _values(spec: Section, builder: FunctionBuilder) -> None:
    limits = spec.section("limits")
    for row in PIPELINE_SPEC:
        section, dot, key = row.key.partition(".")
        if not dot:
            builder.scalar(row, spec.take(row.key), spec.path(row.key))
        elif section == "limits" and limits is not None:
            builder.scalar(row, limits.take(key), limits.path(key))
    if limits is not None:
        limits.close()


def _refuse_others(builder: FunctionBuilder) -> None:
    """Adds a fault for each annotation and flag that says how replicas run or scale."""
    keys = {row.field: row.key for row in ANNOTATIONS}
    for field, origin in builder.origins.items():
        if field not in FIELDS and field in keys:
            builder.fault(origin, _ELSEWHERE)
    profile = builder.parameters.get("profile")
    if profile is not None and builder.values.get("scaling.policy") in _OVER_ALL:
        builder.fault(profile, "no such key of a pipeline: each of its stages has a profile (spec.stages[].profile)")
    for key, text in builder.context.flags.items():
        if key.startswith(SPEC_FLAG):
            builder.fault(SourceLocation(f"--{key.removeprefix(SPEC_FLAG)}", text), _ELSEWHERE)


def _stages(spec: Section, name: str | None, *, is_profiled: bool) -> tuple[Stage, ...]:
    nodes, where = spec.items("stages"), spec.path("stages")
    if nodes is None:
        if spec.node.get("stages") is None:
            spec.faults.report(where, "nothing", _STAGES, spec.node.line)
        return ()
    if not 1 <= len(nodes) <= MAX_STAGES:
        line = nodes[0].line if nodes else spec.node.line
        spec.faults.report(where, f"{len(nodes)} stages", _STAGES, line)
    found = [
        _stage(node, f"{where}[{at}]", spec, is_profiled=is_profiled) for at, node in enumerate(nodes[:MAX_STAGES])
    ]
    names: set[str | None] = {name, REQUEST}
    for at, each in enumerate(found):
        if each is not None and each.function in names:
            allowed = "another function: a stage is in a pipeline once, and no pipeline"
            if each.function == REQUEST:
                allowed = f"another name: {REQUEST} stands for the client's request"
            spec.faults.report(f"{where}[{at}].function", shown(each.function), allowed, nodes[at].line)
        names.add(None if each is None else each.function)
    stages = [each for each in found if each is not None]
    if len(stages) < len(found) or len({each.function for each in stages}) < len(stages):
        return tuple(stages)
    return _graph(stages, nodes, where, spec)


def _graph(stages: list[Stage], nodes: Sequence[Node], where: str, spec: Section) -> tuple[Stage, ...]:
    """Returns the stages, each behind those whose answers it gets; adds a fault for each name that is none and for
    cycles."""
    known, is_whole = [each.function for each in stages], True
    for at, each in enumerate(stages):
        for name in () if each.after == CHAIN else each.after:
            if name not in known or name == each.function:
                others = [other for other in known if other != each.function]
                allowed = f"another stage: {', '.join(others) or 'there is none'}{nearest(name, others)}"
                spec.faults.report(f"{where}[{at}].after", shown(name), allowed, nodes[at].line)
                is_whole = False
    if not is_whole:
        return tuple(stages)
    try:
        ordered = in_order(stages)
    except ValueError as error:
        allowed = "stages that follow each other: these wait for one another"
        spec.faults.report(where, f"a cycle: {error}", allowed, spec.node.line)
        return tuple(stages)
    lines = {each.function: (at, nodes[at].line) for at, each in enumerate(stages)}
    for index, each in enumerate(ordered):
        at, line = lines[each.function]
        _check_sources(ordered, index, f"{where}[{at}]", line, spec)
    return ordered


def _check_sources(stages: tuple[Stage, ...], at: int, where: str, line: int, spec: Section) -> None:
    """Adds faults for what a stage's inputs and condition cannot be read from."""
    stage = stages[at]
    earlier = {stages[each].function for each in ancestors(stages, at)}
    others = {each.function for each in stages} - earlier
    for taken, given in stage.inputs:
        source = given.partition(".")[0] if "." in given else ""
        if source in others:
            allowed = f"an output of {', '.join(sorted(earlier)) or 'no stage'}, or {REQUEST}.INPUT"
            spec.faults.report(f"{where}.inputs.{shown_key(taken)}", shown(given), allowed, line)
        elif not earlier and source != REQUEST:
            allowed = f"{REQUEST}.INPUT: no stage comes before this one"
            spec.faults.report(f"{where}.inputs.{shown_key(taken)}", shown(given), allowed, line)
    if stage.when is not None and not earlier:
        allowed = "no such key of a stage that gets the client's request: conditions are about answers"
        spec.faults.report(f"{where}.when", "a condition", allowed, line)


def _check_over_all(stages: tuple[Stage, ...], builder: FunctionBuilder) -> None:
    """Adds a fault for a policy that decides over all stages, if they branch."""
    if builder.values.get("scaling.policy") in _OVER_ALL and stages and not is_chain(stages):
        allowed = "tide or smif: the stages branch, and this policy takes them one after the other"
        builder.fault(builder.origins["scaling.policy"], allowed)


def _stage(node: Node, where: str, spec: Section, *, is_profiled: bool) -> Stage | None:
    """Returns a stage; None after a fault without which there is no name. ``is_profiled``: it may have a profile."""
    section = Section.of(node, where, spec.faults)
    if section is None:
        return None
    profile = section.text("profile", THEMIS_PROFILE)
    if profile is not None and not is_profiled:
        allowed = f"no such key unless policy is {', '.join(_OVER_ALL[:-1])} or {_OVER_ALL[-1]}"
        section.faults.report(section.path("profile"), shown(profile), allowed, section.node.line)
    function = section.text("function", NAME_KIND)
    if section.node.get("function") is None:
        section.faults.report(section.path("function"), "nothing", "the name of a function", section.node.line)
    found = Stage(
        function=function or "nameless",
        path=section.text("path", URL_PATH),
        inputs=_inputs(section),
        after=_after(section),
        when=_when(section),
        profile=profile,
    )
    section.close()
    return None if function is None else found


def _after(section: Section) -> tuple[str, ...]:
    """Returns the stages that one follows: one name, or a list of them."""
    node = section.take("after")
    if node is None:
        return CHAIN
    if isinstance(node, Scalar) and not node.is_null:
        name = section.text("after", NAME_KIND)
        return CHAIN if name is None else (name,)
    texts = section.texts("after")
    if texts is None:
        return CHAIN
    found = [section.text_of(f"{section.path('after')}[{at}]", each, NAME_KIND) for at, each in enumerate(texts)]
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _when(section: Section) -> Condition | None:
    when = section.section("when")
    if when is None:
        return None
    field = when.text("field", _FIELD)
    given = [each for each in Comparison if when.take(each.value) is not None]
    values: tuple[str, ...] = ()
    for test in given:
        values = _compared(when, test)
    if when.node.get("field") is None:
        when.faults.report(when.path("field"), "nothing", _FIELD.allowed, when.node.line)
    if len(given) != 1:
        got = " and ".join(given) or "nothing"
        when.faults.report(section.path("when"), got, f"one of {_COMPARISONS}", when.node.line)
    when.close()
    if field is None or len(given) != 1 or not values:
        return None
    return Condition(field=field, test=given[0], values=values)


def _compared(when: Section, test: Comparison) -> tuple[str, ...]:
    if test in (Comparison.ABOVE, Comparison.BELOW):
        number = when.text(test.value, Text(r"-?[0-9]{1,12}(?:\.[0-9]{1,9})?", "a number"))
        return () if number is None else (number,)
    node = when.node.get(test.value)
    if isinstance(node, Scalar):
        text = when.text(test.value, _VALUE)
        return () if text is None else (text,)
    texts = when.texts(test.value)
    found = [when.text_of(f"{when.path(test.value)}[{at}]", each, _VALUE) for at, each in enumerate(texts or ())]
    if texts is not None and not texts:
        when.faults.report(when.path(test.value), "an empty list", _VALUE.allowed, when.node.line)
    return tuple(each for each in found if each is not None)


def _inputs(section: Section) -> tuple[tuple[str, str], ...]:
    found = []
    for pair, node in section.pairs("inputs"):
        place = f"{section.path('inputs')}.{shown_key(pair.key)}"
        taken = section.text_of(place, Scalar(pair.key, pair.line), MODEL_NAME)
        given = section.text_of(place, node, MODEL_NAME)
        if taken is not None and given is not None:
            found.append((taken, given))
    return tuple(found)
