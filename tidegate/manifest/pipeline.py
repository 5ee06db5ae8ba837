"""Reads ``kind: Pipeline``: stages that are functions of their own, with one SLA over the whole.

A pipeline has no server, so a key about servers or replicas is a fault here: it belongs to the function of a stage.
"""

from typing import Final

from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.access import read_access
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.builder import NAME_KIND, SPEC_FLAG, FunctionBuilder, SourceLocation
from tidegate.manifest.routing import read_matches
from tidegate.manifest.spec import MODEL_NAME, SPEC, URL_PATH
from tidegate.records.pipeline import Stage
from tidegate.schema.rows import Row
from tidegate.schema.yaml_nodes import Node, Scalar, Section, shown, shown_key

PIPELINE_KIND: Final = "Pipeline"
MAX_STAGES: Final = 16
BODY_BYTES: Final = 16 * 1024 * 1024
"""Default of ``limits.body-bytes``: the gateway keeps whole bodies between two stages."""
FIELDS: Final = ("sla.latency_s", "sla.percentile", "sla.drop_after", "timeout_s", "routing.priority", "body_bytes")
"""The fields of a function that a pipeline has as well."""
PIPELINE_ANNOTATIONS: Final[tuple[Row, ...]] = tuple(row for row in ANNOTATIONS if row.field in FIELDS)
PIPELINE_SPEC: Final[tuple[Row, ...]] = tuple(row for row in SPEC if row.field in FIELDS)
_ELSEWHERE: Final = "no such key of a pipeline: the functions of its stages have it"
_STAGES: Final = f"a list of 1 to {MAX_STAGES} stages, each with a function"


def read_pipeline(root: Section, builder: FunctionBuilder, name: str | None) -> Function | None:
    """Returns the pipeline of a document whose metadata has been read; None after a fault."""
    spec = root.section("spec")
    stages: tuple[Stage, ...] = ()
    if spec is not None:
        stages = _stages(spec, name)
        _values(spec, builder)
        builder.values["routing.matches"] = read_matches(spec)
        builder.values["access"] = read_access(spec, builder)
        spec.close(lambda key: _ELSEWHERE if any(row.key.partition(".")[0] == key for row in SPEC) else None)
    elif root.node.get("spec") is None:
        builder.faults.report("spec", "nothing", "a mapping with stages", root.node.line)
    root.close()
    _refuse_others(builder)
    builder.values.setdefault("body_bytes", BODY_BYTES)
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
    for origin in builder.parameters.values():
        builder.fault(origin, _ELSEWHERE)
    for key, text in builder.context.flags.items():
        if key.startswith(SPEC_FLAG):
            builder.fault(SourceLocation(f"--{key.removeprefix(SPEC_FLAG)}", text), _ELSEWHERE)


def _stages(spec: Section, name: str | None) -> tuple[Stage, ...]:
    nodes, where = spec.items("stages"), spec.path("stages")
    if nodes is None:
        if spec.node.get("stages") is None:
            spec.faults.report(where, "nothing", _STAGES, spec.node.line)
        return ()
    if not 1 <= len(nodes) <= MAX_STAGES:
        line = nodes[0].line if nodes else spec.node.line
        spec.faults.report(where, f"{len(nodes)} stages", _STAGES, line)
    found = [_stage(node, f"{where}[{at}]", at, spec) for at, node in enumerate(nodes[:MAX_STAGES])]
    names: set[str | None] = {name}
    for at, each in enumerate(found):
        if each is not None and each.function in names:
            allowed = "another function: a stage is in a pipeline once, and no pipeline"
            spec.faults.report(f"{where}[{at}].function", shown(each.function), allowed, nodes[at].line)
        names.add(None if each is None else each.function)
    return tuple(each for each in found if each is not None)


def _stage(node: Node, where: str, at: int, spec: Section) -> Stage | None:
    section = Section.of(node, where, spec.faults)
    if section is None:
        return None
    function = section.text("function", NAME_KIND)
    if section.node.get("function") is None:
        section.faults.report(section.path("function"), "nothing", "the name of a function", section.node.line)
    path = section.text("path", URL_PATH)
    inputs = _inputs(section, at)
    section.close()
    return None if function is None else Stage(function=function, path=path, inputs=inputs)


def _inputs(section: Section, at: int) -> tuple[tuple[str, str], ...]:
    pairs = tuple(section.pairs("inputs"))
    if pairs and at == 0:
        section.faults.report(
            section.path("inputs"), "inputs of the first stage", "no such key: clients write them", pairs[0][0].line
        )
    found = []
    for pair, node in pairs:
        place = f"{section.path('inputs')}.{shown_key(pair.key)}"
        taken = section.text_of(place, Scalar(pair.key, pair.line), MODEL_NAME)
        given = section.text_of(place, node, MODEL_NAME)
        if taken is not None and given is not None:
            found.append((taken, given))
    return tuple(found)
