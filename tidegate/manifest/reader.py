"""Parses the text of a manifest into functions: all faults of the text at once, or frozen :class:`Function` values.

A text may contain several documents, each a Tidegate ``Function`` or ``Pipeline`` (:mod:`tidegate.manifest.pipeline`),
a Knative ``Service`` (:mod:`tidegate.manifest.foreign.knative`), or a KServe ``InferenceService``
(:mod:`tidegate.manifest.foreign.kserve`). Unknown keys are faults at every level. Relative paths start from the folder
of the manifest, become absolute, and must exist.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.function import Function, MetricsEndpoint, ModelFormat, Protocol, Server, ServerKind
from tidegate.manifest import formats
from tidegate.manifest.access import read_access
from tidegate.manifest.annotations import ANNOTATION, PREFIX
from tidegate.manifest.builder import NAME_KIND, FunctionBuilder, Note, ParseContext, SourceLocation
from tidegate.manifest.foreign.knative import KNATIVE_API_VERSION, KNATIVE_KIND, read_service
from tidegate.manifest.foreign.kserve import KSERVE_API_VERSION, KSERVE_KIND, read_inference_service
from tidegate.manifest.pipeline import PIPELINE_KIND, read_pipeline
from tidegate.manifest.repository import LAYOUT, choose, is_repository, scan
from tidegate.manifest.routing import read_matches
from tidegate.manifest.spec import (
    ACCELERATOR,
    API_VERSION,
    ARGUMENT,
    DEFAULT_READINESS,
    HANDLER,
    IMAGE,
    KIND,
    MAX_BATCH,
    MODEL_NAME,
    SPEC,
    VARIABLE,
)
from tidegate.schema.files import Disk, Files, Found, absolute
from tidegate.schema.rows import Kind, accepts
from tidegate.schema.yaml_nodes import Faults, ListNode, Node, Pair, Scalar, Section, load, nearest, shown, shown_key

SOCKET_PATH_BYTES: Final = 100
"""Length of a unix socket's path that every system supports."""

FORMAT: Final = "format"
_SERVERS: Final = tuple(kind for kind in ServerKind if kind is not ServerKind.STAGES)
_PICKLE: Final = (
    "a pickle runs code when it is loaded: serve only files from sources that you trust; a .skops file holds no code"
)
_SHIPPED: Final = "no such key without a model or handler (served by the shipped runtime)"
_TRITONS: Final = "no such key with a Triton repository, whose models state it themselves (config.pbtxt)"
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
    if written == (API_VERSION, PIPELINE_KIND):
        return read_pipeline(root, builder, _metadata(root, builder))
    if written == (KNATIVE_API_VERSION, KNATIVE_KIND):
        return read_service(root, builder)
    if written == (KSERVE_API_VERSION, KSERVE_KIND):
        return read_inference_service(root, builder)
    allowed = (
        f"{API_VERSION} {KIND} or {PIPELINE_KIND}, {KNATIVE_API_VERSION} {KNATIVE_KIND}, or"
        f" {KSERVE_API_VERSION} {KSERVE_KIND}"
    )
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
    if server is not None and server.kind is ServerKind.ASGI:
        builder.values.setdefault("protocol", Protocol.HTTP)
    if server is not None and server.is_triton:
        _triton(spec, server, builder)
    _places(spec, builder, server)
    _listening(spec, builder, server)
    _lists(spec, builder, server)
    _environment(spec, builder)
    _arguments(spec, builder, server)
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
            allowed = f"a mapping with one of {_kinds(builder)}"
            builder.faults.report(spec.path("server"), "nothing", allowed, spec.node.line)
        return None
    kinds = [kind for kind in _SERVERS if server.take(kind.value) is not None]
    form = server.scalar(FORMAT)
    server.close(lambda key: _kinds(builder) + nearest(key, [FORMAT, *(kind.value for kind in _SERVERS)]))
    if len(kinds) != 1:
        allowed = f"exactly one of {_kinds(builder)}"
        builder.faults.report(server.where, " and ".join(kinds) or "nothing", allowed, server.node.line)
        return None
    if form is not None and kinds[0] is not ServerKind.MODEL:
        builder.fault(SourceLocation(server.path(FORMAT), form.text, form.line), "no such key without a model")
    if kinds[0] is ServerKind.COMMAND:
        return _command(server, builder)
    node = server.scalar(kinds[0].value)
    if node is None:
        return None
    origin = SourceLocation(server.path(kinds[0].value), node.text, node.line)
    if kinds[0] is ServerKind.MODEL:
        return _model(
            origin, None if form is None else SourceLocation(server.path(FORMAT), form.text, form.line), builder
        )
    target = _target(kinds[0], server, node, origin, builder)
    return None if target is None else Server(kind=kinds[0], target=target)


def _kinds(builder: FunctionBuilder) -> str:
    """Returns the kinds of servers that can run here."""
    return ", ".join(kind.value for kind in _SERVERS if kind is not ServerKind.IMAGE or builder.context.images)


def _model(origin: SourceLocation, stated: SourceLocation | None, builder: FunctionBuilder) -> Server | None:
    """Returns the server of a model: a file or a folder in the format that is stated, or else that the path shows."""
    files = builder.context.files
    is_folder = files.look(absolute(builder.context.base, origin.text)) is Found.FOLDER
    known: ModelFormat | None = None
    if stated is not None:
        fitting = [form.value for form in ModelFormat if not is_folder or form in formats.FOLDERS]
        if stated.text not in fitting:
            builder.fault(stated, f"{', '.join(fitting)}{nearest(stated.text, fitting)}")
            return None
        known = ModelFormat(stated.text)
    wanted = Found.FOLDER if is_folder or known in formats.FOLDERS else Found.FILE
    place = builder.place(origin.text, origin, wanted)
    if place is None:
        return None
    known = known or (formats.by_content(place, files) if is_folder else formats.by_suffix(place))
    if known is None and is_folder and is_repository(place, builder.dnn, files):
        return _stored(place, origin, builder)
    if known is None:
        allowed = formats.why_none(place, files) if is_folder else f"{formats.KNOWN_FILES}, or the server's format"
        builder.fault(origin, allowed)
        return None
    if place.lower().endswith(formats.PICKLES):
        builder.note(origin.where, _PICKLE, origin.line)
    return Server(kind=ServerKind.MODEL, target=place, format=known)


def _stored(root: str, origin: SourceLocation, builder: FunctionBuilder) -> Server | None:
    """Returns the server of a model repository: for each kind of accelerator the form that fits best."""
    wanted, accelerators = builder.dnn, builder.context.accelerators
    stored = scan(f"{root}/{wanted.name}", builder.context.files)
    for path in stored.strange:
        builder.note(origin.where, f"{wanted.name}/{path} is no stored form and is not used ({LAYOUT})", origin.line)
    forms = choose(stored.forms, wanted)
    if not forms:
        asked = f"{wanted.quantization.value} or more precise, for a batch of at most {wanted.batch_size}"
        there = ", ".join(map(str, stored.forms)) or "nothing"
        builder.fault(origin, f"a repository with a form of {wanted.name} in {asked}; it has {there}")
        return None
    kinds = {form.format for form in forms}
    if len(kinds) > 1:
        builder.fault(origin, f"forms of one format; {wanted.name} has {', '.join(sorted(kinds))}")
        return None
    server = Server(kind=ServerKind.MODEL, target=root, format=forms[0].format, forms=forms)
    builder.values.setdefault("batching.max_size", min(wanted.batch_size, MAX_BATCH))
    for name in sorted(accelerators or ()):
        form = server.form_on(name)
        if form is None:
            builder.note(
                origin.where, f"no form of {wanted.name} is stored for {name}: it runs no replica", origin.line
            )
        elif (form.quantization, form.batch_size) != (wanted.quantization, wanted.batch_size):
            asked = f"{wanted.quantization.value} for a batch of {wanted.batch_size}"
            builder.note(origin.where, f"{name} runs {form}: it has no {asked}", origin.line)
    return server


def _target(
    kind: ServerKind, server: Section, node: Scalar, origin: SourceLocation, builder: FunctionBuilder
) -> str | None:
    if kind in (ServerKind.HANDLER, ServerKind.ASGI):
        written = server.text_of(origin.where, node, HANDLER)
        if written is None:
            return None
        file, _, name = written.rpartition(":")
        place = builder.place(file, SourceLocation(origin.where, file, origin.line), Found.FILE)
        return None if place is None else f"{place}:{name}"
    if not builder.context.images:
        builder.fault(origin, "model, handler, asgi or command: images run on Kubernetes only")
        return None
    return server.text_of(origin.where, node, IMAGE)


def _triton(spec: Section, server: Server, builder: FunctionBuilder) -> None:
    """Checks what Triton's own protocols and the listing of its repository require."""
    protocol = builder.values.get("protocol", Protocol.V2)
    if protocol not in (Protocol.V2, Protocol.GRPC):
        builder.fault(builder.origins["protocol"], "v2 or grpc, which Triton speaks")
    files = builder.context.files
    if files.look(server.target) is Found.FOLDER and not formats.models_in(server.target, files):
        allowed = formats.why_none(server.target, files)
        builder.faults.report(f"{spec.path('server')}.model", shown(server.target), allowed)


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
        flag = builder.context.spec_flag(key)
        if flag is not None:
            builder.path(key, flag, SourceLocation(f"--{key}", flag), found)
        elif node is not None:
            builder.path(key, node.text, SourceLocation(spec.path(key), node.text, node.line), found)
    builder.values.setdefault("workdir", builder.context.base)
    if server is not None and (
        server.is_triton or server.kind in (ServerKind.COMMAND, ServerKind.IMAGE, ServerKind.ASGI)
    ):
        is_python = server.kind is ServerKind.ASGI
        for field in (*(() if is_python else ("python",)), "batching.max_size", "batching.delay_s", "body_bytes"):
            if builder.given(field):
                builder.fault(builder.origins[field], _TRITONS if server.is_triton else _SHIPPED)
        if builder.given("warmup") and builder.values.get("protocol") is Protocol.GRPC:
            builder.fault(
                builder.origins["warmup"], "no such key with protocol: grpc, except for a model or handler (REST)"
            )


def _listening(spec: Section, builder: FunctionBuilder, server: Server | None) -> None:
    node = spec.scalar("socket")
    if node is None:
        return
    origin = SourceLocation(spec.path("socket"), node.text, node.line)
    place = absolute(builder.context.base, node.text)
    if builder.given("port"):
        builder.fault(origin, "either port or socket")
    elif server is not None and server.is_triton:
        builder.fault(origin, "no such key with a Triton repository: Triton listens on ports")
    elif not node.text or not node.text.isprintable() or len(place.encode()) > SOCKET_PATH_BYTES:
        builder.fault(origin, f"the path of a unix socket, at most {SOCKET_PATH_BYTES} bytes once absolute")
    else:
        builder.put("socket", place, origin)


def _lists(spec: Section, builder: FunctionBuilder, server: Server | None) -> None:
    models = _names(spec, "models", MODEL_NAME)
    if models:
        builder.values["models"] = tuple(node.text for node in models)
    elif server is not None and server.is_triton:
        found = formats.models_in(server.target, builder.context.files)
        builder.values["models"] = tuple(name for name in found if accepts(MODEL_NAME, name))
    builder.values["routing.matches"] = read_matches(spec)
    builder.values["access"] = read_access(spec, builder)
    kinds, where = _names(spec, "accelerators", ACCELERATOR), spec.path("accelerators")
    if (flag := builder.context.spec_flag("accelerators")) is not None:
        where = "--accelerators"
        kinds = [Scalar(name, 0) for name in dict.fromkeys(part.strip() for part in flag.split(","))]
    if not kinds:
        return
    names = tuple(node.text for node in kinds)
    builder.put("accelerators", names, SourceLocation(where, ", ".join(names), kinds[0].line or None))
    there = builder.context.accelerators
    for node in () if there is None else kinds:
        if there is not None and node.text not in there:
            allowed = f"{', '.join(sorted(there)) or 'none: there are no accelerators'}{nearest(node.text, there)}"
            builder.fault(SourceLocation(where, node.text, node.line or None), allowed)


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
    for name, text in builder.context.spec_flags("env").items():
        if accepts(VARIABLE, name):
            env[name] = text
        else:
            builder.fault(SourceLocation("--env", name), VARIABLE.allowed)
    secrets: dict[str, str] = {}
    for pair, node in spec.pairs("secrets"):
        where = f"{spec.path('secrets')}.{shown_key(pair.key)}"
        place = builder.place(node.text, SourceLocation(where, node.text, node.line), Found.FILE)
        if pair.key in env:
            builder.faults.report(where, "a variable that env sets as well", "either env or secrets", pair.line)
        elif _is_variable(spec, "secrets", pair) and place is not None:
            secrets[pair.key] = place
    builder.values |= {"env": env, "secrets": secrets}


def _arguments(spec: Section, builder: FunctionBuilder, server: Server | None) -> None:
    """Reads the arguments of a handler's class, or of a model's loader. Those of the command line win."""
    args: dict[str, str] = {}
    origins: dict[str, SourceLocation] = {}
    for pair, node in spec.pairs("args"):
        where = f"{spec.path('args')}.{shown_key(pair.key)}"
        origins[pair.key] = SourceLocation(where, node.text, node.line)
        if spec.text_of(where, Scalar(pair.key, pair.line), ARGUMENT) is not None:
            args[pair.key] = node.text
    for name, text in builder.context.spec_flags("args").items():
        origins[name] = SourceLocation("--arg", f"{name}={text}")
        if accepts(ARGUMENT, name):
            args[name] = text
        else:
            builder.fault(SourceLocation("--arg", name), ARGUMENT.allowed)
    if origins and server is not None:
        _check_arguments(origins, server, builder)
    builder.values["args"] = args


def _check_arguments(origins: Mapping[str, SourceLocation], server: Server, builder: FunctionBuilder) -> None:
    """Checks that the server takes arguments, and a model's loader those that are given."""
    if server.kind is ServerKind.HANDLER:
        return
    if server.kind is not ServerKind.MODEL:
        builder.fault(
            next(iter(origins.values())), "no such key without a handler, whose class gets them, or a model's loader"
        )
        return
    known = formats.ARGUMENTS[server.format]
    for name, origin in origins.items():
        if known is not None and name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            builder.fault(origin, f"no such argument: the format {server.format.value} {takes}")


def _is_variable(spec: Section, key: str, pair: Pair) -> bool:
    where = f"{spec.path(key)}.{shown_key(pair.key)}"
    return spec.text_of(where, Scalar(pair.key, pair.line), VARIABLE) is not None


def _readiness(builder: FunctionBuilder) -> None:
    protocol = builder.values.get("protocol", Protocol.V2)
    assert isinstance(protocol, Protocol)
    builder.values.setdefault("readiness.path", DEFAULT_READINESS[protocol])
