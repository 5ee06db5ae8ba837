"""Builds a manifest from a file and flags: what `tidegate deploy model.onnx --latency 200ms` deploys.

The result is the text of an ordinary manifest and goes through the same parser (:mod:`tidegate.manifest.reader`). The
meaning and bounds of a flag are those of the table of annotations.
"""

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import PREFIX
from tidegate.manifest.builder import NAME_KIND, SPEC_FLAG
from tidegate.manifest.spec import API_VERSION, HANDLER, KIND
from tidegate.schema.rows import accepts
from tidegate.schema.units import OBJECTIVE, UnreadableError, objective
from tidegate.schema.yaml_nodes import dump

NAME_LENGTH: Final = 50
"""Characters of a derived name. They leave room for what revisions and replicas append within a DNS label."""


def from_file(
    path: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
    size_bytes: int | None = None,
    source: str | None = None,
    is_model: bool = False,
) -> str | None:
    """Returns the manifest of a model's file or folder (``is_model``), or of ``file.py:NAME``, where ``source`` is the
    text of the Python file and the name is a class with ``predict`` or an ASGI application. Returns None if ``path`` is
    neither, so it is a manifest itself."""
    if is_model:
        return from_model(path, name=name, flags=flags, accelerators=accelerators, size_bytes=size_bytes)
    if ".py:" in path:
        return from_handler(path, name=name, flags=flags, accelerators=accelerators, source=source)
    return None


def from_model(
    path: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
    size_bytes: int | None = None,
) -> str:
    """Returns the manifest of a model's file or folder. ``flags`` are annotations without prefix; ``size_bytes`` is the
    size of the file, if known."""
    return _manifest({"model": path}, name or name_of(path), flags or {}, accelerators, size_bytes)


def from_handler(
    target: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
    source: str | None = None,
) -> str:
    """Returns the manifest of a Python class or, if ``source`` shows one, an ASGI application (``file.py:NAME``)."""
    if not accepts(HANDLER, target):
        raise InvalidInputError(target, [Fault("file", repr(target), HANDLER.allowed)])
    file, _, attribute = target.rpartition(":")
    if source is not None:
        _check_bound(file, source, attribute)
    kind = "handler" if source is None or not _names_asgi(source, attribute) else "asgi"
    return _manifest({kind: target}, name or name_of(file), flags or {}, accelerators, None)


def handler_in(path: str, source: str) -> str:
    """Returns ``file.py:NAME`` for the only class with a ``predict`` in a handler's source, else for the only ASGI
    application. Raises InvalidInputError if there is not exactly one."""
    try:
        body = ast.parse(source, path).body
    except (SyntaxError, ValueError) as error:
        raise InvalidInputError(path, [Fault("file", f"{path} ({error})", "a Python file")]) from error
    found = [node.name for node in body if isinstance(node, ast.ClassDef) and "predict" in _methods(node)]
    found = found or [name for name in dict.fromkeys(_asgi_names(body)) if not name.startswith("_")]
    if len(found) != 1:
        what = f"{path} with {', '.join(found) or 'no class that has predict(inputs), and no ASGI application'}"
        raise InvalidInputError(path, [Fault("file", what, "a file with one such class, or FILE.py:CLASS")])
    return f"{path}:{found[0]}"


def _check_bound(file: str, source: str, name: str) -> None:
    """Raises InvalidInputError if a Python file certainly has nothing of this name. What only its start can show (a
    wrong syntax, names that it makes up) is left to that."""
    try:
        nodes = list(ast.walk(ast.parse(source, file)))
    except (SyntaxError, ValueError):
        return
    bound = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    classes = [each.name for each in nodes if isinstance(each, ast.ClassDef)]
    bound |= {*classes, *(each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))}
    bound |= {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    is_open = bound & {"*", "__getattr__"} or any(isinstance(each, ast.Name) and each.id == "globals" for each in nodes)
    if name not in bound and not is_open:
        allowed = f"a class of it: {', '.join(classes)}" if classes else "a name that it has"
        raise InvalidInputError(file, [Fault("file", f"{file}:{name} (no such name in it)", allowed)])


_APPLICATION_NAMES: Final = ("app", "application", "asgi")
_APPLICATION_CLASSES: Final = ("FastAPI", "Starlette", "Litestar", "Quart", "BlackSheep", "Sanic", "Falcon", "Robyn")
_SCOPE: Final = ["scope", "receive", "send"]


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {each.name: each for each in node.body if isinstance(each, functions)}


def _asgi_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yields names of a module that look like ASGI applications: functions and classes with ASGI's three arguments,
    instances of well-known frameworks, and other values under the usual names."""
    for node in body:
        if isinstance(node, ast.AsyncFunctionDef) and [each.arg for each in node.args.args] == _SCOPE:
            yield node.name
        elif isinstance(node, ast.ClassDef) and "predict" not in (methods := _methods(node)):
            call = methods.get("__call__")
            if call is not None and [each.arg for each in call.args.args][1:] == _SCOPE:
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            made = ast.unparse(node.value.func).rpartition(".")[2]
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and (made in _APPLICATION_CLASSES or target.id in _APPLICATION_NAMES):
                    yield target.id


def _names_asgi(source: str, name: str) -> bool:
    """Returns True if ``name`` is no class of the file, or a class that looks like an ASGI application."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    assigned = [
        target.id
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    return name in _asgi_names(body) or (name in assigned and name not in classes)


def slo_flags(text: str) -> dict[str, str]:
    """Returns ``p99=200ms`` or ``200ms@99`` as the annotations ``percentile`` and ``latency``; the time per token of
    ``p99=500ms,50ms/token`` is ``time-per-output-token``. Their own rules check the values."""
    try:
        latency, percentile, per_token = objective(text)
    except UnreadableError:
        raise InvalidInputError("command line", [Fault("--slo", repr(text), OBJECTIVE)]) from None
    keys = {"percentile": percentile, "latency": latency, "time-per-output-token": per_token}
    return {key: value for key, value in keys.items() if value is not None}


def name_of(path: str) -> str:
    """Derives a function's name from a file's: ``models/ResNet_50 v2.onnx`` -> ``resnet-50-v2``."""
    stem = posixpath.splitext(posixpath.basename(path))[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem)[:NAME_LENGTH].strip("-")
    return label or "model"


def _manifest(
    server: dict[str, str], name: str, flags: Mapping[str, str], accelerators: Sequence[str], size_bytes: int | None
) -> str:
    if not accepts(NAME_KIND, name):
        raise InvalidInputError(next(iter(server.values())), [Fault("--name", repr(name), NAME_KIND.allowed)])
    given = {**_defaults(name, flags, size_bytes), **flags}
    keys = {key.removeprefix(SPEC_FLAG): given.pop(key) for key in flags if key.startswith(SPEC_FLAG)}
    annotations = {f"{PREFIX}{key}": value for key, value in given.items()}
    metadata: dict[str, object] = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    spec: dict[str, object] = {"server": server}
    if accelerators:
        spec["accelerators"] = list(accelerators)
    spec |= _spec(keys)
    return dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


def _spec(keys: Mapping[str, str]) -> dict[str, object]:
    """Returns the keys of ``spec`` that flags set: ``python``, ``accelerators``, ``env.NAME``, ``args.NAME``."""
    spec: dict[str, object] = {}
    for key, text in keys.items():
        name, dot, inner = key.partition(".")
        if dot:
            group = spec.setdefault(name, {})
            assert isinstance(group, dict)
            group[inner] = text
        else:
            spec[name] = [part.strip() for part in text.split(",")] if name == "accelerators" else text
    return spec


GPU_FLAGS: Final = frozenset(
    {"gpu-model", "gpu-mem-limit", "mps-on", "gpu-core-percentage", "gpu-count", "gpu-time-slices"}
)
CONTEXT_BYTES: Final = 500 * 10**6


def _defaults(name: str, flags: Mapping[str, str], size_bytes: int | None) -> dict[str, str]:
    """Returns annotations that SMIF requires for a GPU, or for a stored form, and that the file itself answers.

    Our choice for the memory: twice the file (weights, and as much again for activations) and 0.5 GB for the GPU
    context, in tenths of a GB.
    """
    needs_gpu = not GPU_FLAGS.isdisjoint(flags)
    if not needs_gpu and "dnn-quantization" not in flags:
        return {}
    filled = {"dnn-model": name}
    if needs_gpu and size_bytes is not None:
        tenths = -(-(2 * size_bytes + CONTEXT_BYTES) // 10**8)
        filled["gpu-mem-limit"] = f"{tenths // 10}.{tenths % 10}"
    return filled
