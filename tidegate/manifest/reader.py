"""Parses the text of a manifest into functions: all faults of the text at once, or frozen :class:`Function` values.

A text may contain several documents, each a Tidegate ``Function`` or a Knative ``Service``
(:mod:`tidegate.manifest.knative`). Unknown keys are faults at every level. Relative paths start from the folder of the
manifest, become absolute, and must exist.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.function import Function, MetricsEndpoint, Protocol, Server, ServerKind
from tidegate.manifest.access import read_access
from tidegate.manifest.annotations import ANNOTATION, PREFIX
from tidegate.manifest.builder import NAME_KIND, FunctionBuilder, Note, ParseContext, SourceLocation
from tidegate.manifest.knative import KNATIVE_API_VERSION, KNATIVE_KIND, read_service
from tidegate.manifest.routing import read_matches
from tidegate.manifest.spec import (
    ACCELERATOR,
    API_VERSION,
    DEFAULT_READINESS,
    HANDLER,
    IMAGE,
    KIND,
    MODEL_NAME,
    SPEC,
    VARIABLE,
)
from tidegate.schema.files import Disk, Files, Found, absolute
from tidegate.schema.rows import Kind
from tidegate.schema.yaml_nodes import Faults, ListNode, Node, Pair, Scalar, Section, load, nearest, shown, shown_key

SOCKET_PATH_BYTES: Final = 100
"""Length of a unix socket's path that every system supports."""

_GROUPS: Final = tuple(dict.fromkeys(row.key.partition(".")[0] for row in SPEC if "." in row.key))


@dataclass(frozen=True, slots=True)
class Parsed:
    functions: tuple[Function, ...]
    warnings: tuple[Note, ...] = ()


def parse(
    text: str,
    *,
    source: str,
    base: str,
    policies: Collection[str],
    accelerators: Mapping[str, str] | None = None,
    images: bool = False,
    files: Files | None = None,
    flags: Mapping[str, str] | None = None,
) -> list[Function]:
    """Returns the functions of a text, in its order. Raises InvalidInputError with every fault.

    ``source`` names the text in messages; the other arguments are those of
    :class:`tidegate.manifest.builder.ParseContext`.
    """
    context = ParseContext(
        base=base,
        policies=policies,
        accelerators=accelerators,
        images=images,
        files=files or Disk(),
        flags=flags or {},
    )
    return list(read(text, source=source, context=context).functions)


def read(text: str, *, source: str, context: ParseContext) -> Parsed:
    """Parses as :func:`parse`, and returns warnings as well: valid keys that have no effect here."""
    faults = Faults(source)
    notes: list[Note] = []
    documents = load(text, faults)
    if not documents and not faults:
        faults.report("document", "nothing", f"a document of kind {KIND} ({API_VERSION})")
    builders = [FunctionBuilder(context, faults, notes) for _ in documents]
    found = [_document(node, builder, faults) for node, builder in zip(documents, builders, strict=True)]
    functions = [(function, node.line) for node, function in zip(documents, found, strict=True) if function is not None]
    _check_names(functions, faults)
    faults.raise_any()
    return Parsed(
        tuple(function for function, _ in functions),
        tuple(sorted(notes, key=lambda note: note.line or 0)),
    )


def _document(node: Node, builder: FunctionBuilder, faults: Faults) -> Function | None:
    root = Section.of(node, "document", faults)
    if root is None:
        return None
    root.where = ""
    version, kind = root.scalar("apiVersion"), root.scalar("kind")
    written = (version.text if version else "", kind.text if kind else "")
    if written == (API_VERSION, KIND):
        return _function(root, builder)
    if written == (KNATIVE_API_VERSION, KNATIVE_KIND):
        return read_service(root, builder)
    allowed = f"{API_VERSION} {KIND}, or {KNATIVE_API_VERSION} {KNATIVE_KIND}"
    faults.report("apiVersion and kind", f"{shown(written[0])} {shown(written[1])}", allowed, node.line)
    return None


def _check_names(found: list[tuple[Function, int]], faults: Faults) -> None:
    """Checks that the functions of one text (each with its line) have unique names, and their models as well."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for function, line in found:
        if function.name in names:
            faults.report("metadata.name", shown(function.name), "each name once in a manifest", line)
            continue
        names.add(function.name)
        for model in function.models:
            if owners.setdefault(model, function.name) != function.name:
                allowed = f"models of no other function; {owners[model]} has it"
                faults.report("spec.models", shown(model), allowed, line)


def _function(root: Section, builder: FunctionBuilder) -> Function | None:
    name = _metadata(root, builder)
    spec = root.section("spec")
    server = None
    if spec is not None:
        server = _spec(spec, builder)
        spec.close(_misplaced)
    elif root.node.get("spec") is None:
        builder.faults.report("spec", "nothing", "a mapping with at least a server", root.node.line)
    root.close()
    if name is None or server is None:
        # Missing parts have been reported; the checks across keys still report theirs.
        builder.finish(name or "nameless", server or Server(kind=ServerKind.COMMAND))
        return None
    return builder.finish(name, server)


def _misplaced(key: str) -> str | None:
    """Returns a better hint for a key that exists elsewhere, or None."""
    row = ANNOTATION.get(key)
    return None if row is None else f"the annotation {PREFIX}{row.key} instead"


def _metadata(root: Section, builder: FunctionBuilder) -> str | None:
    metadata = root.section("metadata")
    if metadata is None:
        if root.node.get("metadata") is None:
            builder.faults.report("metadata", "nothing", "a mapping with at least a name", root.node.line)
        return None
    name = metadata.text("name", NAME_KIND)
    if metadata.node.get("name") is None:
        builder.faults.report("metadata.name", "nothing", NAME_KIND.allowed, metadata.node.line)
    annotations = metadata.section("annotations")
    if annotations is not None:
        builder.annotations(annotations.node, "metadata.annotations")
    metadata.close()
    return name


# --- spec ------------------------------------------------------------------------------------------------------------


def _spec(spec: Section, builder: FunctionBuilder) -> Server | None:
    for row in SPEC:
        if "." not in row.key:
            builder.scalar(row, spec.take(row.key), spec.path(row.key))
    groups = {name: spec.section(name) for name in _GROUPS}
    for name, group in groups.items():
        if group is not None:
            _group(name, group, builder)
    _metrics(builder, groups["metrics"] is not None, spec)
    server = _server(spec, builder)
    _places(spec, builder, server)
    _listening(spec, builder)
    _lists(spec, builder)
    _environment(spec, builder)
    _readiness(builder)
    return server


def _group(name: str, group: Section, builder: FunctionBuilder) -> None:
    for row in SPEC:
        head, _, key = row.key.partition(".")
        if head == name:
            builder.scalar(row, group.take(key), group.path(key))
    group.close()


def _metrics(builder: FunctionBuilder, is_given: bool, spec: Section) -> None:
    """Builds the metrics endpoint, which is one value: present with the section, or if user-metrics requires it."""
    path, port = builder.values.pop("metrics.path", "/metrics"), builder.values.pop("metrics.port", None)
    wanted = builder.values.get("user_metrics", is_given)
    if is_given and not wanted:
        builder.fault(builder.origins["user_metrics"], f"true, or no {spec.path('metrics')}")
    if wanted:
        assert isinstance(path, str) and (port is None or isinstance(port, int))
        origin = SourceLocation(spec.path("metrics"), "", spec.node.line)
        builder.origins.setdefault("user_metrics", builder.origins.get("metrics.path", origin))
        builder.values["metrics"] = MetricsEndpoint(path=path, port=port)
        builder.values["user_metrics"] = True


def _server(spec: Section, builder: FunctionBuilder) -> Server | None:
    server = spec.section("server")
    if server is None:
        if spec.node.get("server") is None:
            allowed = "a mapping with one of model, handler, command, image"
            builder.faults.report(spec.path("server"), "nothing", allowed, spec.node.line)
        return None
    kinds = [kind for kind in ServerKind if server.take(kind.value) is not None]
    server.close()
    if len(kinds) != 1:
        allowed = f"exactly one of {', '.join(ServerKind)}"
        builder.faults.report(server.where, " and ".join(kinds) or "nothing", allowed, server.node.line)
        return None
    if kinds[0] is ServerKind.COMMAND:
        return _command(server, builder)
    node = server.scalar(kinds[0].value)
    if node is None:
        return None
    origin = SourceLocation(server.path(kinds[0].value), node.text, node.line)
    target = _target(kinds[0], server, node, origin, builder)
    return None if target is None else Server(kind=kinds[0], target=target)


def _target(
    kind: ServerKind, server: Section, node: Scalar, origin: SourceLocation, builder: FunctionBuilder
) -> str | None:
    if kind is ServerKind.MODEL:
        return builder.place(node.text, origin, Found.FILE)
    if kind is ServerKind.HANDLER:
        written = server.text_of(origin.where, node, HANDLER)
        if written is None:
            return None
        file, _, name = written.rpartition(":")
        place = builder.place(file, SourceLocation(origin.where, file, origin.line), Found.FILE)
        return None if place is None else f"{place}:{name}"
    if not builder.context.images:
        builder.fault(origin, "model, handler or command: images run on Kubernetes only")
        return None
    return server.text_of(origin.where, node, IMAGE)


def _command(server: Section, builder: FunctionBuilder) -> Server | None:
    where = server.path("command")
    if isinstance(node := server.take("command"), Scalar):
        server.faults.add(where, node, "a list of words ([python, server.py, --port, '{port}'])")
        return None
    words = server.texts("command")
    if words is None or not isinstance(node, ListNode) or len(words) != len(node.items):
        return None
    if not words or not words[0].text:
        server.faults.report(where, "nothing to run", "a program, then its arguments", node.line)
        return None
    if any(builder.has_nul(where, word) for word in words):
        return None
    return Server(kind=ServerKind.COMMAND, argv=tuple(word.text for word in words))


def _places(spec: Section, builder: FunctionBuilder, server: Server | None) -> None:
    """Reads folder, interpreter and warm-up file, and checks keys that only the shipped runtime supports."""
    wanted = {"workdir": Found.FOLDER, "python": Found.FILE, "warmup": Found.FILE}
    for key, found in wanted.items():
        node = spec.scalar(key)
        if node is not None:
            builder.path(key, node.text, SourceLocation(spec.path(key), node.text, node.line), found)
    builder.values.setdefault("workdir", builder.context.base)
    if server is not None and server.kind in (ServerKind.COMMAND, ServerKind.IMAGE):
        for field in ("python", "batching.max_size", "batching.delay_s"):
            if builder.given(field):
                builder.fault(
                    builder.origins[field], "no such key without a model or handler (served by the shipped runtime)"
                )
        if builder.given("warmup") and builder.values.get("protocol") is Protocol.GRPC:
            builder.fault(
                builder.origins["warmup"], "no such key with protocol: grpc, except for a model or handler (REST)"
            )


def _listening(spec: Section, builder: FunctionBuilder) -> None:
    node = spec.scalar("socket")
    if node is None:
        return
    origin = SourceLocation(spec.path("socket"), node.text, node.line)
    place = absolute(builder.context.base, node.text)
    if builder.given("port"):
        builder.fault(origin, "either port or socket")
    elif not node.text or not node.text.isprintable() or len(place.encode()) > SOCKET_PATH_BYTES:
        builder.fault(origin, f"the path of a unix socket, at most {SOCKET_PATH_BYTES} bytes once absolute")
    else:
        builder.put("socket", place, origin)


def _lists(spec: Section, builder: FunctionBuilder) -> None:
    models = _names(spec, "models", MODEL_NAME)
    if models:
        builder.values["models"] = tuple(node.text for node in models)
    builder.values["routing.matches"] = read_matches(spec)
    builder.values["access"] = read_access(spec, builder)
    kinds = _names(spec, "accelerators", ACCELERATOR)
    if not kinds:
        return
    names = tuple(node.text for node in kinds)
    builder.put("accelerators", names, SourceLocation(spec.path("accelerators"), ", ".join(names), kinds[0].line))
    there = builder.context.accelerators
    for node in () if there is None else kinds:
        if there is not None and node.text not in there:
            allowed = f"{', '.join(sorted(there)) or 'none: there are no accelerators'}{nearest(node.text, there)}"
            builder.faults.add(spec.path("accelerators"), node, allowed)


def _names(spec: Section, key: str, kind: Kind) -> list[Scalar]:
    """Returns a list of unique names; empty if the key is absent."""
    nodes = spec.texts(key)
    found: dict[str, Scalar] = {}
    for node in nodes or ():
        if spec.text_of(spec.path(key), node, kind) is None:
            continue
        if node.text in found:
            spec.faults.add(spec.path(key), node, "each name once")
        found.setdefault(node.text, node)
    if nodes is not None and not spec.items(key):
        spec.faults.report(spec.path(key), "an empty list", "at least one name, or no such key", spec.node.line)
    return list(found.values())


def _environment(spec: Section, builder: FunctionBuilder) -> None:
    env: dict[str, str] = {}
    for pair, node in spec.pairs("env"):
        if _is_variable(spec, "env", pair) and not builder.has_nul(spec.path("env"), node):
            env[pair.key] = node.text
    secrets: dict[str, str] = {}
    for pair, node in spec.pairs("secrets"):
        where = f"{spec.path('secrets')}.{shown_key(pair.key)}"
        place = builder.place(node.text, SourceLocation(where, node.text, node.line), Found.FILE)
        if pair.key in env:
            builder.faults.report(where, "a variable that env sets as well", "either env or secrets", pair.line)
        elif _is_variable(spec, "secrets", pair) and place is not None:
            secrets[pair.key] = place
    builder.values |= {"env": env, "secrets": secrets}


def _is_variable(spec: Section, key: str, pair: Pair) -> bool:
    where = f"{spec.path(key)}.{shown_key(pair.key)}"
    return spec.text_of(where, Scalar(pair.key, pair.line), VARIABLE) is not None


def _readiness(builder: FunctionBuilder) -> None:
    protocol = builder.values.get("protocol", Protocol.V2)
    assert isinstance(protocol, Protocol)
    builder.values.setdefault("readiness.path", DEFAULT_READINESS[protocol])
