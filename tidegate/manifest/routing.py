"""The table of routing in a manifest: choice of the replica, order of waiting requests, retries.

Each row is an annotation, and so a flag of ``tidegate deploy`` (``queue-order``), and also a plain value of ``spec``
(``queue.order``). A value in both places is a fault. ``match`` is a list of mappings and exists in ``spec`` only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate.function import SizeRouting
from tidegate.records.route_table import Binding, HeaderMatch, Hedging, QueueOrder, RouteMatch, Spread
from tidegate.schema.rows import Choice, Duration, Number, Percent, Row, Text, Whole, WordOr
from tidegate.schema.units import UnreadableError
from tidegate.schema.yaml_nodes import Scalar, Section, shown, shown_key

TOPIC: Final = "Routing"
MAX_MATCHES: Final = 64
"""Maximum entries of ``match``. Our choice."""
MAX_MATCH_FIELDS: Final = 16
"""Maximum header fields of one entry. Our choice."""

_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}"
FIELD_NAME: Final = Text(_TOKEN, "a header name of 1 to 64 characters", lower=True)
FIELD_VALUE: Final = Text(
    r"[!-~](?:[ -~]{0,1022}[!-~])?", "1 to 1024 printable ASCII characters, no blank at either end, or null"
)
HOST: Final = Text(
    r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62}))*",
    "a host name without port",
    lower=True,
)
PATH_PREFIX: Final = Text(r"/[!\"$->@-~]{0,1023}", "a path that starts with /, without ? and #")


_HASHED: Final = ("client", "session", "prompt", "prefix", "model")


@dataclass(frozen=True, slots=True)
class HashOn:
    """A property to hash: one of ``_HASHED``, ``header:NAME`` (kept in lower case) or ``cookie:NAME``."""

    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"{', '.join(_HASHED)}, header:NAME or cookie:NAME"

    def read(self, text: str) -> str:
        if text in _HASHED:
            return text
        source, _, name = text.partition(":")
        name = FIELD_NAME.read(name) if source == "header" else Text(_TOKEN, "").read(name)
        if source not in ("header", "cookie"):
            raise UnreadableError(text)
        return f"{source}:{name}"


@dataclass(frozen=True, slots=True)
class HedgeAfter:
    """The delay of a hedge: ``p95`` for a percentile of recent latencies, or a duration."""

    low_s: float
    high_s: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        lasting = Duration(self.low_s, self.high_s).allowed
        return f"pN for the Nth percentile of recent latencies (1 to 99.999), or {lasting}"

    def read(self, text: str) -> Hedging:
        if text.startswith("p"):
            return Hedging(percentile=Percent(1, 99.999).read(text[1:]))
        return Hedging(percentile=None, after_s=Duration(self.low_s, self.high_s).read(text))


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """Weights of groups: ``learnt``, ``equal`` (no names), or ``v100=65,t4=35``."""

    unit: str = ""

    @property
    def allowed(self) -> str:
        return "learnt, equal, or NAME=NUMBER,... (numbers of 0 or more, at least one above 0, each accelerator once)"

    def read(self, text: str) -> Mapping[str, float] | None:
        if text in ("learnt", "equal"):
            return None if text == "learnt" else {}
        pairs = [part.strip().partition("=") for part in text.split(",")]
        names, number = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", ""), Number(0, 1e9)
        found = {names.read(name): number.read(value) for name, _, value in pairs}
        if len(found) < len(pairs) or not any(found.values()):
            raise UnreadableError(text)
        return found


ROUTING: Final[tuple[Row, ...]] = (
    Row(
        key="spread",
        topic=TOPIC,
        kind=Choice(Spread),
        default="most-free",
        field="routing.spread",
        description="Choice among the replicas of a group that have a free slot.",
    ),
    Row(
        key="hash-on",
        topic=TOPIC,
        kind=HashOn(),
        default="client",
        field="routing.hash_on",
        description="Property of a request that is hashed to choose its replica; requires spread hash.",
    ),
    Row(
        key="queue-order",
        topic=TOPIC,
        kind=Choice(QueueOrder),
        default="arrival",
        field="routing.queue_order",
        description="Order of waiting requests of one priority.",
    ),
    Row(
        key="binding",
        topic=TOPIC,
        kind=Choice(Binding),
        default="late",
        field="routing.binding",
        description="Whether a request takes the first free slot, or gets its group at arrival by weight.",
    ),
    Row(
        key="size-routing",
        topic=TOPIC,
        kind=Choice(SizeRouting),
        default="auto",
        field="routing.size_routing",
        description="Whether larger requests go to stronger groups where measurements show a benefit.",
    ),
    Row(
        key="group-weights",
        topic=TOPIC,
        kind=GroupWeights(),
        default="learnt",
        field="routing.group_weights",
        description="Split of a revision's inferences over its groups: by service rate, equal, or explicit.",
    ),
    Row(
        key="priority",
        topic=TOPIC,
        kind=Whole(0, 9),
        default="5",
        field="routing.priority",
        description="Priority of requests without a tidegate-priority header: 0 (first) to 9 (last).",
    ),
    Row(
        key="retry-budget",
        topic=TOPIC,
        kind=Percent(0, 100),
        default="20",
        field="routing.retry_percent",
        description="Maximum retries and hedges together, as a share of the recent requests.",
    ),
    Row(
        key="hedge-after",
        topic=TOPIC,
        kind=WordOr("off", HedgeAfter(0.001, 3600)),
        default="off",
        field="routing.hedging",
        description="Delay until a request goes to a second replica too; the first response wins; requires idempotent.",
    ),
    Row(
        key="outlier-failures",
        topic=TOPIC,
        kind=Whole(0, 1000, "failures"),
        default="5",
        field="routing.outlier.failures",
        description="Consecutive failures after which a replica is ejected; 0: never.",
    ),
    Row(
        key="outlier-ejection",
        topic=TOPIC,
        kind=Duration(0.1, 3600),
        default="10s",
        field="routing.outlier.ejection_s",
        description="Duration of the first ejection; doubled with each further one, up to ten times as long.",
    ),
    Row(
        key="outlier-max-percent",
        topic=TOPIC,
        kind=Percent(0, 100, whole=True),
        default="50",
        field="routing.outlier.max_percent",
        description="Maximum share of a revision's ready replicas that is ejected at once; never all.",
    ),
)

_SECTIONS: Final = ("queue", "outlier")
"""Sections of ``spec`` that contain rows: ``queue-order`` is ``queue.order`` there."""


def spec_rows() -> tuple[Row, ...]:
    """Returns the rows as plain values of ``spec``."""
    return tuple(replace(row, key=_spec_key(row.key), topic="") for row in ROUTING)


def _spec_key(key: str) -> str:
    section, _, name = key.partition("-")
    return f"{section}.{name}" if section in _SECTIONS else key


# --- match -----------------------------------------------------------------------------------------------------------


def read_matches(spec: Section) -> tuple[RouteMatch, ...]:
    """Returns the entries of ``spec.match``, or () without any. Errors become faults, entry by entry."""
    nodes = spec.items("match")
    if nodes is None:
        return ()
    where = spec.path("match")
    if not 1 <= len(nodes) <= MAX_MATCHES:
        line = nodes[0].line if nodes else spec.node.line
        spec.faults.report(where, f"{len(nodes)} entries", f"1 to {MAX_MATCHES} entries, or no such key", line)
    sections = (Section.of(node, f"{where}[{index}]", spec.faults) for index, node in enumerate(nodes[:MAX_MATCHES]))
    return tuple(_match(section) for section in sections if section is not None)


def _match(section: Section) -> RouteMatch:
    host = section.text("host", HOST)
    prefix = section.text("path-prefix", PATH_PREFIX)
    headers = section.section("headers")
    fields = () if headers is None else tuple(_fields(headers))
    section.close()
    if not any(section.node.get(key) is not None for key in ("host", "path-prefix", "headers")):
        section.faults.report(section.where, "nothing", "at least one of host, path-prefix, headers", section.node.line)
    if prefix is not None and len(prefix) > 1:
        prefix = prefix.rstrip("/") or "/"
    return RouteMatch(host=host, path_prefix=prefix, headers=fields)


def _fields(headers: Section) -> Iterator[HeaderMatch]:
    """Yields the header conditions: ``NAME: VALUE``, or ``NAME:`` for any value."""
    pairs = headers.node.pairs
    if not 1 <= len(pairs) <= MAX_MATCH_FIELDS:
        allowed = f"1 to {MAX_MATCH_FIELDS} fields, or no such key"
        headers.faults.report(headers.where, f"{len(pairs)} fields", allowed, headers.node.line)
    names: set[str] = set()
    for pair in pairs[:MAX_MATCH_FIELDS]:
        where = headers.path(shown_key(pair.key))
        name = headers.text_of(where, Scalar(pair.key, pair.line), FIELD_NAME)
        if name is None:
            continue
        if name in names:
            headers.faults.report(where, shown(pair.key), "each field once, whatever its case", pair.line)
        names.add(name)
        node = pair.value
        if isinstance(node, Scalar) and node.is_null:
            yield HeaderMatch(name=name)
        elif isinstance(node, Scalar):
            yield HeaderMatch(name=name, value=headers.text_of(where, node, FIELD_VALUE))
        else:
            headers.faults.add(where, node, FIELD_VALUE.allowed, pair.line)
