"""Tables of a TOML document as dataclasses: every fault at once, each with its path and the allowed values.

The fields of the dataclass are the keys of the table; one without a default is required. The annotation gives the
allowed values: plain types, ``msgspec.Meta`` for ranges (``Annotated[int, Meta(ge=1)]``), enums, dataclasses for tables
and ``tuple[X, ...]`` or ``Some[X]`` for lists. ``__post_init__`` checks fields against each other; its ValueError names
what is allowed.
"""

import math
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec

from tidegate.schema.yaml_nodes import Faults, nearest, shown_key
from tidegate.schema.yaml_nodes import shown as shown_text

T = TypeVar("T")

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Word = Annotated[str, msgspec.Meta(min_length=1)]
Some = Annotated[tuple[T, ...], msgspec.Meta(min_length=1)]
"""A list that is not empty."""


def read(kind: type[T], table: Mapping[str, object], where: str, faults: Faults) -> T | None:
    """Returns ``table`` as a ``kind``; None if it has faults, which are added. ``where``: its path, empty for the
    document."""
    hints = typing.get_type_hints(kind, include_extras=True)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    before = len(faults)
    for key in table:
        if key not in known:
            allowed = ", ".join(known) + nearest(key, known)
            faults.report(path(where, key), "an unknown key", allowed or "no keys at all")
    values = {}
    for key, each in known.items():
        if key in table:
            values[key] = _value(hints[key], table[key], path(where, key), faults)
        elif each.default is MISSING and each.default_factory is MISSING:
            faults.report(path(where, key), "nothing", _allowed(hints[key]))
    if len(faults) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        faults.report(where or "document", "values that do not fit together", str(error))
        return None


def path(where: str, key: str) -> str:
    return f"{where}.{shown_key(key)}" if where else shown_key(key)


def _value(hint: Any, value: object, where: str, faults: Faults) -> object:
    if is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return read(hint, value, where, faults)
        faults.report(where, shown(value), "a table")
        return None
    items = _items(hint)
    if items is not None:
        return _list(hint, items, value, where, faults)
    each = _by_key(hint)
    if each is not None and isinstance(value, dict) and value:
        return {key: _value(each, item, path(where, key), faults) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        faults.report(where, shown(value), "a finite number")
        return None
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        faults.report(where, shown(value), _words(str(error)))
        return None


def _list(hint: Any, items: Any, value: object, where: str, faults: Faults) -> tuple[object, ...] | None:
    if not isinstance(value, list) or (not value and hint is not _plain(hint)):
        faults.report(where, "an empty list" if value == [] else shown(value), _allowed(hint))
        return None
    return tuple(_value(items, item, f"{where}[{index}]", faults) for index, item in enumerate(value))


def _plain(hint: Any) -> Any:
    """Returns the type without ``Annotated``."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _items(hint: Any) -> Any:
    """Returns the X of ``tuple[X, ...]``; None for other types."""
    plain = _plain(hint)
    return typing.get_args(plain)[0] if typing.get_origin(plain) is tuple else None


def _by_key(hint: Any) -> Any:
    """Returns the X of ``dict[str, X]``; None for other types, or if X is Any, which another reader checks."""
    plain = _plain(hint)
    found = typing.get_args(plain)[1] if typing.get_origin(plain) is dict else Any
    return None if found is Any else found


def _allowed(hint: Any) -> str:
    """Returns the allowed values of a missing key."""
    if is_dataclass(hint):
        return "a table"
    if _items(hint) is not None:
        return "a list" if hint is _plain(hint) else "a list of one or more"
    try:
        msgspec.convert(object(), hint)
    except msgspec.ValidationError as error:
        return _words(str(error))
    return "a value"


def _words(message: str) -> str:
    """Rewords msgspec's messages: ``Expected `int` >= 1`` to ``a whole number >= 1``, ``Expected `str`, got `int``` to
    ``a text``."""
    expected = message.removeprefix("Expected ").split(", got ")[0].split(" - at ")[0]
    return re.sub(r"`(\w+)(?: \| null)?`", lambda found: _KINDS.get(found[1], found[1]), expected)


def shown(value: object) -> str:
    """Returns a TOML value as faults quote it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return (
        shown_text(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    )
