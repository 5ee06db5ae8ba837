"""Renders the chart as Helm does, for the plain YAML beside it: ``make docs`` needs no Helm.

It knows the part of Helm's templates that the chart uses, and refuses the rest: values, ``if`` and ``else``,
``.Files.Get``, and a few functions. What fills in absent values (``_defaults.tpl``) has nothing to do here. A test
compares it with ``helm template``.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_ACTION: Final = re.compile(r"\{\{(-?) *(.*?) *(-?)\}\}")
_FIELD: Final = re.compile(r"\.[A-Za-z]+(?:\.[A-Za-z]+)*")
_FILLED: Final = 'include "tidegate.defaults" .'
_WORD: Final = re.compile(r'"[^"]*"|\S+')


class ChartError(ValueError):
    """A template is none of those that are known here."""


def render(folder: Path, namespace: str, values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns the text of each template by its name, with ``values`` over those of the chart."""
    about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    stated = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    facts = {
        "Values": merged(stated, values or {}),
        "Release": {"Namespace": namespace, "Name": "tidegate"},
        "Chart": {"AppVersion": about["appVersion"], "Version": about["version"]},
    }
    templates = sorted((folder / "templates").iterdir())
    return {path.name: _Template(path, folder, facts).text() for path in templates if path.name[0] != "_"}


def merged(stated: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with others over them, mapping by mapping."""
    found = dict(stated)
    for key, value in given.items():
        inner = found.get(key)
        found[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found


class _Template:
    def __init__(self, path: Path, folder: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._folder = folder
        self._facts = facts

    def text(self) -> str:
        """Returns the rendered text. Raises ChartError."""
        found: list[str] = []
        shown = [True]
        for text, action in self._parts():
            if all(shown):
                found.append(text)
            word, _, rest = action.partition(" ")
            if word == "if":
                shown.append(bool(self._value(rest)) if all(shown) else False)
            elif action == "else":
                shown[-1] = not shown[-1] and all(shown[:-1])
            elif action == "end":
                if len(shown) == 1:
                    raise ChartError(f"{self._path.name}: an end without its if")
                shown.pop()
            elif action and action != _FILLED and all(shown):
                found.append(str(self._value(action)))
        if len(shown) > 1:
            raise ChartError(f"{self._path.name}: an if without its end")
        return "".join(found)

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Yields each text with the action behind it; the last one has none."""
        source, place = self._path.read_text(encoding="utf-8"), 0
        for match in _ACTION.finditer(source):
            cut_before, action, cut_after = match.groups()
            before = source[place : match.start()]
            yield before.rstrip() if cut_before else before, action
            place = match.end()
            if cut_after:
                place += len(source[place:]) - len(source[place:].lstrip())
        yield source[place:], ""

    def _value(self, pipeline: str) -> Any:
        first, *functions = (step.strip() for step in pipeline.split("|"))
        value = self._term(first)
        for each in functions:
            value = self._call(each, value)
        return value

    def _term(self, text: str) -> Any:
        name, *rest = _WORD.findall(text)
        if name == ".Files.Get" and len(rest) == 1:
            return (self._folder / json.loads(rest[0])).read_text(encoding="utf-8")
        if rest:
            return self._call(" ".join((name, *rest[:-1])), self._term(rest[-1]))
        if not _FIELD.fullmatch(name):
            raise ChartError(f"{self._path.name}: {{{{ {text} }}}} is no field")
        value: Any = self._facts
        for key in name.split(".")[1:]:
            if not isinstance(value, Mapping) or key not in value:
                raise ChartError(f"{self._path.name}: there is no {name}")
            value = value[key]
        return value

    def _call(self, step: str, value: Any) -> Any:
        name, *arguments = step.split()
        match name, arguments:
            case "quote", []:
                return json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)
            case "toYaml", []:
                return yaml.safe_dump(value, sort_keys=True, allow_unicode=True, width=10_000).removesuffix("\n")
            case "toJson", []:
                return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            case "sha256sum", []:
                return hashlib.sha256(str(value).encode()).hexdigest()
            case "nindent", [count]:
                pad = " " * int(count)
                return "\n" + "\n".join(pad + line for line in str(value).split("\n"))
        raise ChartError(f"{self._path.name}: {step} is not known here")
