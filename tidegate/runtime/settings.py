"""The configuration of a model server, read from its environment. Pure: ``main`` passes the environment in."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import Fault, InvalidInputError
from tidegate.runtime.execute.emulated import Profile

MODEL = "TIDEGATE_RUNTIME_MODEL"
FORMAT = "TIDEGATE_RUNTIME_FORMAT"
HANDLER = "TIDEGATE_RUNTIME_HANDLER"
ARGS = "TIDEGATE_RUNTIME_ARGS"
ASGI = "TIDEGATE_RUNTIME_ASGI"
COPY = "TIDEGATE_RUNTIME_COPY"
MODULES = "TIDEGATE_RUNTIME_MODULES"
MAPPED = "TIDEGATE_RUNTIME_MAPPED"
EMULATED = "TIDEGATE_RUNTIME_EMULATED"
NAME = "TIDEGATE_RUNTIME_NAME"
LISTEN = "TIDEGATE_RUNTIME_LISTEN"
THREADS = "TIDEGATE_RUNTIME_THREADS"
CORES = "TIDEGATE_RUNTIME_CORES"
MAX_BATCH = "TIDEGATE_RUNTIME_MAX_BATCH"
BATCH_DELAY = "TIDEGATE_RUNTIME_BATCH_DELAY"
BODY_BYTES = "TIDEGATE_RUNTIME_BODY_BYTES"
PROVIDERS = "TIDEGATE_RUNTIME_PROVIDERS"

KINDS = (MODEL, HANDLER, EMULATED)
FORMATS = ("onnx", "sklearn", "xgboost", "torchscript", "huggingface")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """One model and how to serve it. Exactly one of ``model``, ``handler``, ``emulated`` is set; ``emulated`` may have
    the handler whose inputs and outputs it shows."""

    model: str | None = None
    """Path of a model's file or folder."""
    format: str = "onnx"
    """Format of the model: one of FORMATS."""
    handler: tuple[str, str] | None = None
    """Path of a Python file and the name of a class in it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class, or of the loader of the model's format."""
    copy: str | None = None
    """Path of a copy of the model or handler, which is read instead."""
    mapped: str | None = None
    """Folder of the mapped forms of an ONNX file (``formats/mapped.py``)."""
    modules: str | None = None
    """Path of a bundle with the modules beside the handler, which are read instead."""
    emulated: Profile | None = None
    names: tuple[str, ...]
    listen: str = "127.0.0.1:8080"
    """``host:port`` or ``unix:/path``."""
    threads: int | None = None
    """Threads for one inference. None is the runtime's own choice: all cores."""
    cores: int | None = None
    """Cores of this process's own. With twice as many a model that allows it runs twice at a time. None if it is bound
    to none."""
    max_batch: int = 1
    batch_delay_s: float = 0.0
    body_bytes: int = 256 << 20
    providers: tuple[str, ...] = ("CPUExecutionProvider",)


def parse(environment: Mapping[str, str]) -> RuntimeSettings:
    """Returns the settings in ``environment``. An empty value counts as absent. Raises InvalidInputError with every
    fault."""
    given = {key: value for key, value in environment.items() if value}
    faults: list[Fault] = []

    def read(key: str, convert: Callable[[str], Any], allowed: str, default: Any) -> Any:
        if key not in given:
            return default
        try:
            return convert(given[key])
        except (ValueError, TypeError):
            faults.append(Fault(key, repr(given[key]), allowed))
            return default

    kinds = [key for key in KINDS if key in given and not (key == HANDLER and EMULATED in given)]
    if len(kinds) != 1:
        faults.append(Fault("the model", ", ".join(kinds) or "nothing", f"exactly one of {', '.join(KINDS)}"))
    handler = read(HANDLER, _handler, "/path/file.py:Class", None)
    emulated = read(EMULATED, _profile, '{"base_s": .., "per_item_s": .., "jitter": 0..1}, in seconds', None)
    settings = RuntimeSettings(
        model=given.get(MODEL),
        format=read(FORMAT, _format, f"one of {', '.join(FORMATS)}", "onnx"),
        handler=handler,
        arguments=read(ARGS, _arguments, '{"NAME": "TEXT OR JSON", ...}', {}),
        copy=given.get(COPY),
        mapped=given.get(MAPPED),
        modules=given.get(MODULES),
        emulated=emulated,
        names=read(NAME, _names, "model names, separated by commas", ("model",)),
        listen=read(LISTEN, _address, "host:port or unix:/path", "127.0.0.1:8080"),
        threads=read(THREADS, lambda text: _whole(text, 1, 1024), "a whole number, 1..1024", None),
        cores=read(CORES, lambda text: _whole(text, 1, 1024), "a whole number, 1..1024", None),
        max_batch=read(MAX_BATCH, lambda text: _whole(text, 1, 65536), "a whole number, 1..65536", 1),
        batch_delay_s=read(BATCH_DELAY, _seconds, "seconds, 0..60", 0.0),
        body_bytes=read(BODY_BYTES, lambda text: _whole(text, 1024, 1 << 40), "bytes, from 1024", 256 << 20),
        providers=read(PROVIDERS, _names, "ONNX Runtime providers, separated by commas", ("CPUExecutionProvider",)),
    )
    if faults:
        raise InvalidInputError("environment of the model server", faults)
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class AsgiSettings:
    """One ASGI application and where it listens."""

    application: tuple[str, str]
    """Path of a Python file and the name of the application in it."""
    copy: str | None
    """Path of a copy of the file, which is read instead."""
    modules: str | None
    """Path of a bundle with the modules beside the file, which are read instead."""
    listen: str


def parse_asgi(environment: Mapping[str, str]) -> AsgiSettings:
    """Returns the settings of the process that serves an ASGI application. Raises InvalidInputError with every
    fault."""
    faults = []
    application, listen = ("", ""), environment.get(LISTEN) or "127.0.0.1:8080"
    try:
        application = _handler(environment.get(ASGI, ""))
    except ValueError:
        faults.append(Fault(ASGI, repr(environment.get(ASGI, "")), "/path/file.py:NAME"))
    try:
        _address(listen)
    except ValueError:
        faults.append(Fault(LISTEN, repr(listen), "host:port or unix:/path"))
    if faults:
        raise InvalidInputError("environment of the ASGI server", faults)
    return AsgiSettings(
        application=application,
        copy=environment.get(COPY) or None,
        modules=environment.get(MODULES) or None,
        listen=listen,
    )


def _format(text: str) -> str:
    if text not in FORMATS:
        raise ValueError(text)
    return text


def _handler(text: str) -> tuple[str, str]:
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise ValueError(text)
    return path, name


def _arguments(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise ValueError(text)
    return {name: _value(value) for name, value in fields.items()}


def _value(text: str) -> Any:
    """Returns the JSON value of a text, or the text where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _profile(text: str) -> Profile:
    fields = json.loads(text)
    if not isinstance(fields, dict) or not all(type(value) in (int, float) for value in fields.values()):
        raise ValueError(text)
    return Profile(**fields)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(text)
    return names


def _address(text: str) -> str:
    if text.startswith("unix:/"):
        return text
    host, colon, port = text.rpartition(":")
    if not host or not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(text)
    return text


def _whole(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or not 0 <= value <= 60:
        raise ValueError(text)
    return value
