"""What a deploy takes: a manifest, a model or ``file.py[:Class]``, with annotations of any plain type."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest import formats
from tidegate.schema.files import Disk, read_start
from tidegate.schema.units import plain, show_duration

if TYPE_CHECKING:
    from tidegate.records.profile_point import ProfilePoint

Option = str | int | float | bool | timedelta
"""The value of an annotation. A number is written as it is: a duration needs its unit, or a timedelta."""


def read_source(
    file: str,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    *,
    standard_input: Callable[[], str] | None = None,
) -> tuple[str, Path, str]:
    """Returns (manifest text, folder of its relative paths, name of the source) for a manifest, a model's file or
    folder, or file.py[:Class]. Raises InvalidInputError.

    ``flags`` are annotations without their prefix. What they require and the file itself answers is filled in.
    ``standard_input`` is read for the file ``-``.
    """
    from tidegate.deploy.builder import from_file, handler_in, name_of  # 37 ms that only a deploy spends

    path = Path(file)
    if path.suffix == ".py":
        file = handler_in(file, _text(path))
    python = Path(file.rpartition(":")[0]) if ".py:" in file else None
    stored = (flags or {}).get("dnn-model")
    repository = stored if stored is not None and (path / stored).is_dir() else None
    is_model = python is None and file != "-" and (repository is not None or _is_model(path))
    made = from_file(
        file,
        name=name_of(repository or path.resolve().name) if name is None and path.is_dir() else name,
        flags=flags,
        size_bytes=path.stat().st_size if path.is_file() else None,
        source=_text(python) if python is not None and python.is_file() else None,
        is_model=is_model,
    )
    if made is not None:
        target = python or path
        if not (target.is_file() or (is_model and target.is_dir())):
            allowed = "a model file or file.py:Class that exists"
            raise InvalidInputError(file, [Fault("file", f"{target} (no such file)", allowed)])
        return made, Path.cwd(), file
    if name is not None:
        allowed = "only with model files: the name of a manifest is its metadata.name"
        raise InvalidInputError(file, [Fault("--name", name, allowed)])
    if file == "-" and standard_input is not None:
        return standard_input(), Path.cwd(), "standard input"
    return _text(path), path.absolute().parent, file


def read_measured(path: Path) -> "tuple[ProfilePoint, ...]":
    """Returns the measured points of a profile file. Raises InvalidInputError with every fault."""
    from tidegate.loadgen.profile_file import parse  # 20 ms for deploys with a profile

    found = parse(_text(path, "a file that `tidegate profile` wrote"), source=str(path))
    points = tuple(point for each in found.values() for point in each.measured)
    if not points:
        allowed = "at least one point; `tidegate profile` writes them"
        raise InvalidInputError(str(path), [Fault("profiles[].measured", "nothing", allowed)])
    return points


def _is_model(path: Path) -> bool:
    """Returns whether a path is a model's file or folder. A file named ``.json`` is one if it begins as XGBoost writes
    it, else a manifest. Raises InvalidInputError for a folder that shows no format."""
    if path.is_dir():
        if formats.by_content(str(path.absolute()), Disk()) is None:
            allowed = formats.why_none(str(path.absolute()), Disk())
            raise InvalidInputError(str(path), [Fault("file", f"{path} (a folder)", allowed)])
        return True
    if path.suffix.lower() != ".json":
        return formats.by_suffix(path.name) is not None
    try:
        return re.match(rb'\s*\{\s*"(learner|version)"', read_start(str(path), 100)) is not None
    except OSError:
        return False


def _text(path: Path, allowed: str = "a manifest, a model (model.onnx, model.joblib, ...) or file.py:Class") -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not a text"
        raise InvalidInputError(
            str(path),
            [Fault("file", f"{path} ({what})", allowed)],
        ) from error


def flags_of(annotations: Mapping[str, object], options: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the annotations as texts by key, and the caller's name of each: ``max_scale``, or
    ``annotations['max-scale']``. Raises InvalidInputError with every fault. ``slo`` and ``sla`` are
    short for percentile and latency."""
    from tidegate.deploy.builder import slo_flags  # as above

    flags, labels, faults = dict[str, str](), dict[str, str](), list[Fault]()
    named = [(key, value, f"annotations[{key!r}]") for key, value in annotations.items()]
    named += [(key.replace("_", "-"), value, key) for key, value in options.items()]
    for key, value, label in named:
        try:
            text = _written(value)
            pairs = slo_flags(text) if key in ("slo", "sla") else {key: text}
        except TypeError:
            faults.append(Fault(label, repr(value), "a text, a number, True or False, or a timedelta"))
            continue
        except InvalidInputError as error:
            faults += [Fault(label, each.value, each.allowed) for each in error.faults]
            continue
        for flag, meant in pairs.items():
            if flag in flags:
                faults.append(Fault(label, repr(value), f"once: {labels[flag]} sets it too"))
            flags[flag], labels[flag] = meant, label
    if faults:
        raise InvalidInputError("arguments", faults)
    return flags, labels


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        return show_duration(value.total_seconds())
    if isinstance(value, int | float):
        return plain(value)
    raise TypeError(type(value).__name__)


@contextmanager
def faults_by_argument(labels: Mapping[str, str]) -> Iterator[None]:
    """Names arguments instead of flags in the faults of a deploy."""
    try:
        yield
    except InvalidInputError as error:
        faults = [
            Fault(renamed(each.where, labels), each.value, renamed(each.allowed, labels), each.line)
            for each in error.faults
        ]
        raise InvalidInputError(renamed(error.source, labels), faults) from error.__cause__


def renamed(text: str, labels: Mapping[str, str]) -> str:
    """Returns a text with ``--max-scale`` replaced by the caller's name of it."""
    known = {**labels, "name": "name"}
    return re.sub(r"--([a-z][A-Za-z0-9_.-]*)", lambda found: known.get(found[1], found[0]), text)
