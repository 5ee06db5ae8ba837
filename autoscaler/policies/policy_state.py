"""The state of a policy as plain data, and back: a replay continues from it bit for bit.

No pickle: only plain values, the collections below and the classes that a policy's row names (``PolicyRow.keeps``) are
recorded or restored. An object is ``{"Calm": {attribute: value, ...}}``. Values that JSON lacks have a form here
(``{"tuple": [...]}``, ``{"deque": [...]}`` or, with a bound, ``{"bounded": [most, [...]]}``,
``{"dict": [[key, value], ...]}``, ``{"float": "inf"}``); a bytearray is ``{"bytes": ...}``, compressed by zlib, in
base64. A field of a struct that is unset is left out. The function that the policy decides for is
``{"function": null}``: a recording has it in its header. Attributes that a class names in ``UNRECORDED`` follow from
the others: they are left out, and None in what is restored.
"""

import math
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from tidegate.function import Function

Plain = Any
"""A value that JSON can hold."""

_PLAIN = (type(None), bool, int, str)

RECORDED_NAMES = {"MissMemory": "Scars", "ScaleInTimer": "Calm", "SlowGroupHold": "Slowness"}
"""Class name -> its name in recordings, where they differ: recordings outlive renames. Other classes keep theirs."""


class StateError(ValueError):
    """The data is no state of this policy, or the policy keeps something that cannot be recorded."""


class OtherVersionError(StateError):
    """The state was recorded by a version of this program with other attributes."""


def snapshot(value: object, function: Function, keeps: Collection[type]) -> Plain:
    """Returns ``value`` as plain data. Raises StateError for an object of a class that is not in ``keeps``."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return _all(value, function, keeps)
    if isinstance(value, bytearray):
        return {"bytes": b64encode(zlib.compress(value)).decode()}
    if isinstance(value, deque) and value.maxlen is not None:
        return {"bounded": [value.maxlen, _all(value, function, keeps)]}
    if kind is tuple or kind is deque:
        return {kind.__name__: _all(value, function, keeps)}
    if isinstance(value, dict):
        return {"dict": [_all(pair, function, keeps) for pair in value.items()]}
    if value is function:
        return {"function": None}
    if kind not in keeps:
        raise StateError(f"{kind.__name__} is not among what the policy's row says it keeps")
    if isinstance(value, Enum):
        return {recorded_name(kind): value.value}
    there = ((name, getattr(value, name)) for name in _attributes(kind))
    return {
        recorded_name(kind): {
            name: snapshot(each, function, keeps) for name, each in there if each is not msgspec.UNSET
        }
    }


def restored(plain: Plain, function: Function, keeps: Collection[type]) -> Any:
    """Returns the value that :func:`snapshot` recorded. Raises StateError."""
    if isinstance(plain, list):
        return [restored(each, function, keeps) for each in plain]
    if not isinstance(plain, dict):
        return plain
    try:
        ((name, content),) = plain.items()
        match name:
            case "float":
                return float(content)
            case "bytes":
                return bytearray(zlib.decompress(b64decode(content)))
            case "tuple":
                return tuple(restored(content, function, keeps))
            case "deque":
                return deque(restored(content, function, keeps))
            case "bounded":
                most, values = content
                return deque(restored(values, function, keeps), maxlen=most)
            case "dict":
                return {restored(key, function, keeps): restored(value, function, keeps) for key, value in content}
            case "function":
                return function
        kind = next(kind for kind in keeps if recorded_name(kind) == name)
        if issubclass(kind, Enum):
            return kind(content)
        return _made(kind, {key: restored(value, function, keeps) for key, value in content.items()})
    except StateError:
        raise
    except (ValueError, zlib.error, TypeError, AttributeError, StopIteration) as error:
        raise StateError(f"not a state of this policy: {str(plain)[:80]} ({type(error).__name__})") from error


def recorded_name(kind: type) -> str:
    """Returns the name that stands for ``kind`` in recordings."""
    return RECORDED_NAMES.get(kind.__name__, kind.__name__)


def _all(values: Any, function: Function, keeps: Collection[type]) -> list[Plain]:
    return [snapshot(each, function, keeps) for each in values]


def _attributes(kind: type) -> Iterable[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    slots = (name for base in reversed(kind.__mro__) for name in vars(base).get("__slots__", ()))
    return tuple(name for name in slots if name not in _unrecorded(kind))


def _unrecorded(kind: type) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(kind, "UNRECORDED", ())
    return found


def _unset_by_default(kind: type) -> set[str]:
    """Returns the fields of a struct that are left out of a recording unless they are set."""
    if not issubclass(kind, msgspec.Struct):
        return set()
    named = zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False)
    return {name for name, default in named if default is msgspec.UNSET}


def _made(kind: type, values: dict[str, Any]) -> object:
    """Returns an object without calling its constructor: it has been constructed once, elsewhere."""
    names = _attributes(kind)
    differing = (values.keys() ^ set(names)) - _unset_by_default(kind)
    if differing:
        other = ", ".join(sorted(differing))
        raise OtherVersionError(f"{kind.__name__} was of another version of this program: {other}")
    if issubclass(kind, msgspec.Struct):
        return kind(**values)
    made: object = object.__new__(kind)
    for name in names:
        object.__setattr__(made, name, values[name])
    for name in _unrecorded(kind):
        object.__setattr__(made, name, None)
    return made
