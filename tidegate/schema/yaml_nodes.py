"""A YAML text as a tree of nodes with line numbers, so that every fault can name its line.

Scalars stay text as written (``on`` is two letters, ``0644`` four digits): the key decides the meaning of a text, not
YAML. Key order and duplicates are preserved. Tags and merge keys are refused. Aliases are resolved within a budget of
nodes, so that a document of exponential expansion does no harm.
"""

import difflib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

import yaml

from tidegate.errors import Fault, InvalidInputError, suggestion
from tidegate.schema.rows import Kind
from tidegate.schema.units import UnreadableError

MAX_BYTES: Final = 256 * 1024
"""Maximum size of a document; a manifest is a page, not a data set."""
MAX_NODES: Final = 20_000
"""Maximum nodes with aliases resolved."""
MAX_DEPTH: Final = 24
MAX_FAULTS: Final = 100
"""Maximum faults reported about one text; above it only the number of further ones is reported."""
MAX_SHOWN: Final = 80
"""Maximum characters of a value in a fault."""

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_CORE_TAGS: Final = frozenset(
    {"!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))}
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text and the line it starts on; ``is_null`` if nothing was written (``key:`` or ``~``), ``is_quoted`` if it
    stands in quotes or is a block."""

    text: str
    line: int
    is_null: bool = False
    is_quoted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ListNode:
    items: tuple["Node", ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pair:
    key: str
    line: int
    value: "Node"


@dataclass(frozen=True, slots=True)
class MapNode:
    pairs: tuple[Pair, ...]
    line: int

    def get(self, key: str) -> "Node | None":
        """Returns the value of ``key``, or None if it is absent or written without a value."""
        for pair in self.pairs:
            if pair.key == key:
                return None if isinstance(pair.value, Scalar) and pair.value.is_null else pair.value
        return None


Node = Scalar | ListNode | MapNode


def shown(value: "Node | str") -> str:
    """Returns a value as a fault quotes it: shortened, with control characters escaped."""
    if isinstance(value, ListNode):
        return "a list"
    if isinstance(value, MapNode):
        return "a mapping"
    if isinstance(value, Scalar):
        if value.is_null:
            return "nothing"
        value = value.text
    text = ascii(value) if not value.isprintable() else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


class Faults:
    """All faults found in one text, in the order of discovery; reported together at the end."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[Fault] = []
        self._more = 0

    def __len__(self) -> int:
        return len(self._found) + self._more

    def add(self, where: str, value: "Node | str", allowed: str, line: int | None = None) -> None:
        """Adds a fault. ``value`` is quoted as written; the line is the node's own unless another is given."""
        if line is None and not isinstance(value, str):
            line = value.line
        self.report(where, shown(value), allowed, line)

    def report(self, where: str, got: str, allowed: str, line: int | None = None) -> None:
        """Adds a fault with ``got`` in words."""
        if len(self._found) < MAX_FAULTS:
            self._found.append(Fault(where, got, allowed, line))
        else:
            self._more += 1

    def error(self) -> InvalidInputError:
        """Returns all faults as one error, in the order of lines; faults without a line (flags) come first."""
        ordered = sorted(self._found, key=lambda fault: fault.line or 0)
        if self._more:
            ordered.append(Fault("and more", f"{self._more} further faults", "correct these first"))
        return InvalidInputError(self.source, ordered)

    def raise_any(self) -> None:
        if self._found:
            raise self.error()


def nearest(word: str, known: Collection[str]) -> str:
    """Returns `` (did you mean `latency`?)``, or an empty text if no known word is similar."""
    found = difflib.get_close_matches(word[:64], sorted(known), n=1, cutoff=0.6)
    return suggestion(found[0]) if found else ""


class Section:
    """A mapping that is read key by key; keys that were not read are faults when it is closed."""

    def __init__(self, node: MapNode, where: str, faults: Faults) -> None:
        self.node = node
        self.where = where
        self.faults = faults
        self._known: set[str] = set()

    @classmethod
    def of(cls, node: Node | None, where: str, faults: Faults) -> "Section | None":
        """Returns a section of ``node``. Adds a fault and returns None if it is something other than a mapping."""
        if node is None:
            return None
        if not isinstance(node, MapNode):
            faults.add(where, node, "a mapping of keys to values")
            return None
        return cls(node, where, faults)

    def path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def take(self, key: str) -> Node | None:
        """Returns the node under ``key``, and marks the key as known."""
        self._known.add(key)
        return self.node.get(key)

    def empty(self, key: str) -> int | None:
        """Returns the line of ``key`` if it is written without a value, else None."""
        for pair in self.node.pairs:
            if pair.key == key and isinstance(pair.value, Scalar) and pair.value.is_null:
                return pair.line
        return None

    def section(self, key: str) -> "Section | None":
        return Section.of(self.take(key), self.path(key), self.faults)

    def scalar(self, key: str) -> Scalar | None:
        """Returns the text under ``key``; a list or mapping there is a fault."""
        node = self.take(key)
        if node is not None and not isinstance(node, Scalar):
            self.faults.add(self.path(key), node, "one value")
            return None
        return node

    def text(self, key: str, kind: Kind) -> str | None:
        """Returns the text under ``key`` as ``kind`` reads it, or None if it is absent or a fault."""
        node = self.scalar(key)
        return None if node is None else self.text_of(self.path(key), node, kind)

    def text_of(self, where: str, node: Scalar, kind: Kind) -> str | None:
        try:
            return str(kind.read(node.text))
        except UnreadableError:
            self.faults.add(where, node, kind.allowed)
            return None

    def items(self, key: str) -> tuple[Node, ...] | None:
        """Returns the items of the list under ``key``, or None if it is absent or a fault."""
        node = self.take(key)
        if node is None:
            return None
        if not isinstance(node, ListNode):
            self.faults.add(self.path(key), node, "a list")
            return None
        return node.items

    def texts(self, key: str) -> tuple[Scalar, ...] | None:
        """Returns the items of a list of plain values; other items are faults."""
        found = self.items(key)
        if found is None:
            return None
        texts = []
        for index, item in enumerate(found):
            if isinstance(item, Scalar) and not item.is_null:
                texts.append(item)
            else:
                self.faults.add(f"{self.path(key)}[{index}]", item, "one value")
        return tuple(texts)

    def pairs(self, key: str) -> Iterator[tuple[Pair, Scalar]]:
        """Yields the pairs of a mapping of plain values under ``key``; other pairs are faults."""
        section = self.section(key)
        for pair in () if section is None else section.node.pairs:
            if isinstance(pair.value, Scalar) and not pair.value.is_null:
                yield pair, pair.value
            else:
                self.faults.add(
                    f"{self.path(key)}.{shown_key(pair.key)}", pair.value, 'one value ("" for an empty one)'
                )

    def rest(self) -> Iterator[Pair]:
        """Yields the pairs that were not read, in order."""
        return (pair for pair in self.node.pairs if pair.key not in self._known)

    def close(self, hint: Callable[[str], str | None] = lambda key: None) -> None:
        """Adds a fault for each unknown key; ``hint`` may return a better text for a key than the list of known
        keys."""
        for pair in self.rest():
            where = self.path(shown_key(pair.key))
            allowed = hint(pair.key) or ", ".join(sorted(self._known)) + nearest(pair.key, self._known)
            self.faults.report(where, f"the unknown key {shown(pair.key)}", allowed, pair.line)


def shown_key(key: str) -> str:
    """Returns a key as part of a path in a fault."""
    return key if len(key) <= MAX_SHOWN and key.isprintable() else shown(key)


# --- from text -------------------------------------------------------------------------------------------------------


def load(text: str, faults: Faults) -> tuple[Node, ...]:
    """Returns the documents of a YAML text without empty ones. Errors in the text itself are added to ``faults``."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        faults.report("document", f"{len(text)} characters", f"at most {MAX_BYTES} bytes")
        return ()
    try:
        return tuple(_Reader(text, faults).documents())
    except _RefusedError as error:
        faults.report("document", str(error), error.allowed, error.line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context or "unreadable").split())
        faults.report("document", problem, "YAML", None if mark is None else mark.line + 1)
    except yaml.YAMLError as error:
        faults.report("document", " ".join(str(error).split()), "YAML")
    except (ValueError, OverflowError) as error:
        # PyYAML leaks two errors of its own: for an escape beyond Unicode and for a version number of 5000 digits.
        faults.report("document", str(error), "YAML")
    return ()


def dump(value: object) -> str:
    """Returns plain data as YAML in the given order; :func:`load` reads it back."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)


class _RefusedError(Exception):
    """A text that is well-formed so far, but too deep or too large for a manifest, or an alias without anchor."""

    def __init__(self, problem: str, allowed: str, line: int) -> None:
        self.allowed = allowed
        self.line = line
        super().__init__(problem)


def _line(event: yaml.Event) -> int:
    """Returns the line, counted from 1."""
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _where(path: tuple[str, ...]) -> str:
    return ".".join(path) or "document"


class _Reader:
    """Builds trees from PyYAML's events, one document after the other, within the budgets."""

    def __init__(self, text: str, faults: Faults) -> None:
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.faults = faults
        self.nodes = 0
        self.anchors: dict[str, tuple[Node, int]] = {}

    def documents(self) -> Iterator[Node]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors.clear()
                node = self.node(next(self.events), ())
                if not (isinstance(node, Scalar) and node.is_null):
                    yield node

    def node(self, event: yaml.Event, path: tuple[str, ...]) -> Node:
        before = self.nodes
        self.spend(1, event)
        if len(path) > MAX_DEPTH:
            raise _RefusedError("deeper nesting", f"at most {MAX_DEPTH} levels", _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        line = _line(event)
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _CORE_TAGS:
            self.faults.add(_where(path), str(tag), "no tags", line)
        node: Node
        if isinstance(event, yaml.SequenceStartEvent):
            node = ListNode(tuple(self.items(path)), line)
        elif isinstance(event, yaml.MappingStartEvent):
            node = MapNode(tuple(self.pairs(path)), line)
        else:
            node = self.scalar(event, path, line)
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = (node, self.nodes - before)
        return node

    def spend(self, count: int, event: yaml.Event) -> None:
        self.nodes += count
        if self.nodes > MAX_NODES:
            raise _RefusedError("more values", f"at most {MAX_NODES}, with aliases resolved", _line(event))

    def alias(self, event: yaml.AliasEvent) -> Node:
        found = self.anchors.get(str(event.anchor))
        if found is None:
            raise _RefusedError(f"the alias *{event.anchor}", "an alias of an anchor above it", _line(event))
        node, count = found
        self.spend(count, event)
        return node

    def scalar(self, event: yaml.Event, path: tuple[str, ...], line: int) -> Scalar:
        assert isinstance(event, yaml.ScalarEvent)
        text = event.value
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            self.faults.add(_where(path), text, "text without lone surrogates", line)
            text = ascii(text)
        is_null = event.style is None and text in _NULLS and event.implicit[0]
        return Scalar(text, line, is_null=is_null, is_quoted=event.style is not None)

    def items(self, path: tuple[str, ...]) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, (*path, "[]"))

    def pairs(self, path: tuple[str, ...]) -> Iterator[Pair]:
        seen: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, (*path, "?"))
            below = (*path, shown_key(key.text) if isinstance(key, Scalar) else "?")
            value = self.node(next(self.events), below)
            line = _line(event)
            if not isinstance(key, Scalar) or key.is_null or key.text == "<<":
                self.faults.add(_where(path), key, "a key that is a text (merge keys are not supported)", line)
            elif key.text in seen:
                self.faults.report(_where(below), "the same key again", f"once (line {seen[key.text]} has it)", line)
            else:
                seen[key.text] = line
                yield Pair(key.text, line, value)
