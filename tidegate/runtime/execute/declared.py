"""The class attributes that a Python file states as literals, read without running the file.

An emulated server shows the tensors of a class whose libraries and accelerator need not be on this machine. Names of
the module and of the class stand for the literal that was last assigned to them: ``inputs = {"x": ("FP32", [-1, W])}``.
Base classes of the same file count. Pure.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Declared:
    """Values by attribute; ``computed``: the lines of attributes whose value only running the file would show."""

    values: Mapping[str, Any]
    computed: Mapping[str, int]


def read(source: bytes, class_name: str, attributes: Iterable[str]) -> Declared:
    """Returns those of ``attributes`` that the class has. Raises SyntaxError, and LookupError if there is no such
    class."""
    module = ast.parse(source)
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    if class_name not in classes:
        raise LookupError(f"no class {class_name}; it has {', '.join(sorted(classes)) or 'none'}")
    names = _assigned(module.body)
    found: dict[str, ast.expr] = {}
    for kind in reversed(_lineage(class_name, classes)):
        own = _assigned(kind.body)
        found |= own
        names |= own
    values, computed = dict[str, Any](), dict[str, int]()
    for attribute in attributes:
        if attribute not in found:
            continue
        try:
            values[attribute] = _literal(found[attribute], names, depth=0)
        except ValueError:
            computed[attribute] = found[attribute].lineno
    return Declared(values, computed)


def _lineage(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Returns the class and its bases of the same file, nearest first."""
    found: list[ast.ClassDef] = []
    todo = [name]
    while todo:
        kind = classes.get(todo.pop(0))
        if kind is not None and kind not in found:
            found.append(kind)
            todo += [base.id for base in kind.bases if isinstance(base, ast.Name)]
    return found


def _assigned(body: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def _literal(node: ast.expr, names: Mapping[str, ast.expr], depth: int) -> Any:
    """Returns the value of a literal. Raises ValueError for anything that would have to run."""
    if depth > 20:
        raise ValueError("names in a circle")
    if isinstance(node, ast.Name) and node.id in names:
        return _literal(names[node.id], names, depth + 1)
    if isinstance(node, ast.Tuple | ast.List):
        items = [_literal(item, names, depth + 1) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key) if key is not None else _unpacked(): _literal(value, names, depth + 1)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    return ast.literal_eval(node)


def _unpacked() -> Any:
    raise ValueError("** in a dictionary")
