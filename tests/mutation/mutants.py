"""Mutants of one module: copies of its syntax tree, each with one operator, limit, branch or statement changed.

Left out: text, annotations, ``__slots__``, ``__repr__`` and constants of the module. Constants are choices; their tests
read them by name.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
LEFT_OUT: Final = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. ``path``: the steps from the module's tree to the changed node."""

    path: tuple[tuple[str, int | None], ...]
    change: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.line}: {self.before}  ->  {self.after}"


def mutants(source: str) -> list[Mutant]:
    """Returns every mutant of a module's source, in the order of its lines."""
    found = [mutant for path, node in _nodes(ast.parse(source)) for mutant in _of(path, node)]
    return sorted(found, key=lambda mutant: (mutant.line, mutant.path, mutant.change))


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Returns the module's tree with the change made."""
    tree = ast.parse(source)
    *way, (field, index) = mutant.path
    parent: ast.AST = tree
    for step, at in way:
        found = getattr(parent, step)
        parent = found if at is None else found[at]
    old = getattr(parent, field) if index is None else getattr(parent, field)[index]
    new = _changed(old, mutant.change)
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return ast.fix_missing_locations(tree)


Path = tuple[tuple[str, int | None], ...]


def _nodes(tree: ast.Module) -> Iterator[tuple[Path, ast.AST]]:
    """Yields every node inside a function that may be changed, with its path."""
    todo: list[tuple[Path, ast.AST, bool]] = [((), tree, False)]
    while todo:
        path, node, is_inside = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in LEFT_OUT:
                continue
            is_inside = True
        if is_inside and path:
            yield path, node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            if isinstance(value, list):
                todo += [((*path, (field, at)), each, is_inside) for at, each in enumerate(value) if _is_open(each)]
            elif _is_open(value):
                todo.append(((*path, (field, None)), value, is_inside))


def _is_open(value: object) -> bool:
    """Returns False for text, whose changes no test should notice, and for what is no node."""
    return isinstance(value, ast.AST) and not isinstance(value, ast.JoinedStr | ast.Raise | ast.Assert)


def _of(path: Path, node: ast.AST) -> Iterator[Mutant]:
    for change in _changes(node):
        after = _changed(node, change)
        line = getattr(node, "lineno", 0)
        yield Mutant(path, change, line, _text(node), _text(after))


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=ops):
            yield from (f"op {at}" for at, op in enumerate(ops) if type(op) in SWAPS)
        case ast.BoolOp():
            yield "op 0"
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield "op 0"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "bare"
        case ast.If() | ast.While() | ast.IfExp():
            yield "not"
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
            yield "call"
        case ast.Constant(value=bool() | int() | float()):
            yield "number"
        case ast.Expr(value=ast.Call()) | ast.Continue():
            yield "gone"


def _changed(node: ast.AST, change: str) -> ast.AST:
    new = copy.deepcopy(node)
    kind, _, index = change.partition(" ")
    match new, kind:
        case ast.Compare(), "op":
            at = int(index)
            new.ops[at] = SWAPS[type(new.ops[at])]()  # type: ignore[call-overload]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign(), "op":
            new.op = SWAPS[type(new.op)]()  # type: ignore[assignment]
        case ast.UnaryOp(), "bare":
            return new.operand
        case ast.If() | ast.While() | ast.IfExp(), "not":
            new.test = ast.UnaryOp(op=ast.Not(), operand=new.test)
        case ast.Call(func=ast.Name() as called), "call":
            called.id = CALLS[called.id]
        case ast.Call(func=ast.Attribute() as called), "call":
            called.attr = CALLS[called.attr]
        case ast.Constant(value=bool() as value), "number":
            new.value = not value
        case ast.Constant(value=int() as number), "number":
            new.value = number + 1
        case ast.Constant(value=float() as number), "number":
            new.value = number * 2.0 if number else 1.0
        case ast.Continue(), "gone":
            return ast.copy_location(ast.Break(), node)
        case _, "gone":
            return ast.copy_location(ast.Pass(), node)
    return new


def _text(node: ast.AST) -> str:
    shown = node
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return ast.unparse(shown).replace("\n", " ")[:100]
