"""What a function takes on real hardware, as people write it: a text in YAML, read whole, every fault at once.

.. code-block:: yaml

    profiles:
      - accelerator: t4
        base: 9.05ms                       # an execution takes base + per-item x batch
        per-item: 5.53ms
        jitter: 5%
      - accelerator: v100
        times: {1: 14ms, 8: 40ms}          # or measured times by batch, straight lines between
        start: {load: 4s, warm: 500ms}     # phases of a start: schedule, pull, load, warm
        sharing: mps                       # exclusive | time-multiplexed | mps
        gain: {2: 1.55, 3: 1.85}           # work that so many executions on one unit do together
      - accelerator: v100
        function: resnet                   # of this function alone; without it of all that have none of their own
        base: 20ms
        variation: 15%                     # times are lognormal
        interference: {bert: 1.18}         # an execution beside one of bert takes 18 % longer
      - accelerator: h100
        base: 150ms
        per-prompt-token: 0.1ms            # of traces with tokens
        per-completion-token: 12ms
      - accelerator: cpu                   # as `tidegate profile` writes it
        times: {1: 9.05ms, 8: 41ms}
        memory: 180MB                      # of its model server
        measured:                          # at a batch and cores, 0 where it is not bound to any
          - {batch: 1, cores: 0, execution: 9.05ms, p50: 9.8ms, p95: 11ms, p99: 14ms, slots: 4,
             full-execution: 36ms, rate: 110.2, requests: 900}

What the figures mean: :mod:`tidegate.loadgen.simulator.profiles` and :mod:`tidegate.loadgen.simulator.devices`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile, Table, Times
from tidegate.records.profile_point import ProfileCell, ProfilePoint
from tidegate.schema.rows import NAME, Choice, Duration, Kind, Number, Percent, Row, Size, Text, Whole, YesNo
from tidegate.schema.units import UnreadableError
from tidegate.schema.yaml_nodes import Faults, MapNode, Node, Section, load

_TIME: Final = Duration(0, 3600)
_BATCH: Final = Whole(1, 100_000, "inferences")
_GAIN: Final = Number(0, 1000, above=True)
_FUNCTION: Final = Text(NAME, "the name of a function")
_SLOWER: Final = Number(1, 1000)
_MEMBERS: Final = Whole(2, 1000, "executions")

KEYS: Final[tuple[Row, ...]] = (
    Row(
        key="accelerator",
        kind=Text(NAME, "the name of an accelerator"),
        field="accelerator",
        description="Whose profile it is.",
    ),
    Row(
        key="function",
        kind=_FUNCTION,
        field="function",
        description="Whose times they are; default: of every function.",
    ),
    Row(key="base", kind=_TIME, field="base_s", description="Time of an execution, before its inferences."),
    Row(
        key="per-item",
        kind=_TIME,
        field="per_item_s",
        default="0s",
        description="Time that each inference of a batch adds.",
    ),
    Row(
        key="per-prompt-token",
        kind=_TIME,
        field="per_prompt_token_s",
        default="0s",
        description="Time that each token of a prompt adds.",
    ),
    Row(
        key="per-completion-token",
        kind=_TIME,
        field="per_completion_token_s",
        default="0s",
        description="Time that each token of an answer adds.",
    ),
    Row(
        key="variation",
        kind=Percent(0, 1000),
        field="variation",
        default="0%",
        description="Coefficient of variation of lognormal times around the nominal one.",
    ),
    Row(
        key="jitter",
        kind=Percent(0, 100),
        field="jitter",
        default="0%",
        description="Times vary evenly by this much to both sides.",
    ),
    Row(
        key="exponential",
        kind=YesNo(),
        field="is_exponential",
        default="false",
        description="Times are exponential around the nominal one instead.",
    ),
    Row(
        key="first",
        kind=_TIME,
        field="first_s",
        default="0s",
        description="A replica's first execution takes this long at least, alone.",
    ),
    Row(
        key="parallel",
        kind=Percent(0, 100),
        field="parallel",
        default="0%",
        description="Part of the work that cores divide among them.",
    ),
    Row(
        key="full-share",
        kind=Percent(1, 100, whole=True),
        field="full_share",
        default="1%",
        description="Part of a device below which it becomes slower.",
    ),
    Row(
        key="width",
        kind=Whole(0, 100_000, "requests"),
        field="width",
        default="0",
        description="Requests that the model server runs at once; 0: all that it is given.",
    ),
    Row(
        key="sharing",
        kind=Choice(Sharing),
        field="sharing",
        default="exclusive",
        description="What executions on one unit do to each other.",
    ),
    Row(
        key="memory",
        kind=Size(1, 1 << 50),
        field="memory_bytes",
        description="Most memory of its model server, as measured.",
    ),
    Row(
        key="emulated",
        kind=YesNo(),
        field="is_emulated",
        default="false",
        description="Whether it was measured on an emulated accelerator: the times are stated ones.",
    ),
)
START: Final[tuple[Row, ...]] = tuple(
    Row(key=phase, kind=_TIME, field=f"{phase}_s", default="0s", description=f"Of a start: the phase {phase}.")
    for phase in ("schedule", "pull", "load", "warm")
)
_AT_LEAST_US: Final = Duration(1e-6, 3600)
MEASURED: Final[tuple[Row, ...]] = (
    Row(key="batch", kind=_BATCH, field="batch", description="Inferences of a request."),
    Row(key="cores", kind=Whole(0, 10_000, "cores"), field="cores", default="0", description="0: not bound to any."),
    Row(key="execution", kind=_AT_LEAST_US, field="execution_s", description="Mean time, one request at a time."),
    *(
        Row(key=f"p{each}", kind=_AT_LEAST_US, field=f"p{each}_s", description="Latency of its clients.")
        for each in (50, 95, 99)
    ),
    Row(key="slots", kind=Whole(1, 100_000, "requests"), field="slots", description="Requests taken at once."),
    Row(key="full-execution", kind=_AT_LEAST_US, field="full_execution_s", description="With all slots taken."),
    Row(key="rate", kind=Number(0, 1e9, above=True), field="rate_ips", description="Inferences per second then."),
    Row(key="requests", kind=Whole(1, 10**9, "requests"), field="requests", description="How many were measured."),
)
_ON_DEVICE: Final = ("accelerator", "function", "sharing", "base_s", "per_item_s", "memory_bytes", "is_emulated")
"""Keys that do not belong to the service profile itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The entry of one accelerator, or of one function there. ``start`` is None if it is not given; ``sharing`` is
    that of the accelerator, whichever of its entries states it."""

    accelerator: str
    function: str
    """Empty: of every function without an entry of its own."""
    profile: ServiceProfile
    start: ColdStart | None
    sharing: Sharing
    gain: Mapping[int, float]
    interference: Mapping[str, float]
    """How much longer an execution of ``function`` takes beside one of another function."""
    memory_bytes: int | None
    measured: tuple[ProfilePoint, ...]
    line: int


def parse(text: str, *, source: str) -> dict[tuple[str, str], Profiled]:
    """Returns profiles by (accelerator, function), the function empty for those of every function. Raises
    InvalidInputError with every fault."""
    faults = Faults(source)
    documents = load(text, faults)
    faults.raise_any()
    if len(documents) != 1:
        faults.report("document", f"{len(documents)} documents", "one, with a list under `profiles`")
        faults.raise_any()
    top = Section.of(documents[0], "", faults)
    if top is None:
        raise faults.error()
    items = top.items("profiles")
    if not items:
        faults.report("profiles", "nothing", "a list of at least one profile", top.node.line)
    found: dict[tuple[str, str], Profiled] = {}
    shared = _sharing(items or ())
    for index, item in enumerate(items or ()):
        entry = _entry(item, f"profiles[{index}]", shared, faults)
        if entry is None:
            continue
        key = (entry.accelerator, entry.function)
        if key in found:
            words = f"{entry.accelerator} again" + (f" for {entry.function}" if entry.function else "")
            faults.report(f"profiles[{index}].accelerator", words, "each once", entry.line)
        others = [each for each in found.values() if each.accelerator == entry.accelerator]
        if others and others[0].sharing is not entry.sharing:
            allowed = f"{others[0].sharing}, as above: units of one accelerator are shared in one way"
            faults.report(f"profiles[{index}].sharing", str(entry.sharing), allowed, entry.line)
        if entry.gain and any(each.gain for each in others):
            faults.report(f"profiles[{index}].gain", "a second one", "one for each accelerator", entry.line)
        found[key] = entry
    top.close()
    faults.raise_any()
    return found


def gain_of(profiles: Mapping[tuple[str, str], Profiled], accelerator: str) -> Mapping[int, float]:
    """Returns the gain of an accelerator's units, from the entry that states it."""
    return next((each.gain for (name, _), each in profiles.items() if name == accelerator and each.gain), {})


def interference_of(profiles: Mapping[tuple[str, str], Profiled], accelerator: str) -> Mapping[tuple[str, str], float]:
    """Returns how much longer an execution of the first function takes beside one of the second."""
    return {
        (each.function, other): factor
        for (name, _), each in profiles.items()
        if name == accelerator
        for other, factor in each.interference.items()
    }


def _sharing(items: Iterable[Node]) -> Mapping[str, Sharing]:
    """Returns the sharing of each accelerator, as its first entry with that key states it; faults are left to the
    reading of the entries."""
    found: dict[str, Sharing] = {}
    for item in items:
        section = Section.of(item, "", Faults(""))
        name = None if section is None else section.scalar("accelerator")
        stated = None if section is None else section.scalar("sharing")
        if name is not None and stated is not None and stated.text in list(Sharing):
            found.setdefault(name.text, Sharing(stated.text))
    return found


def _entry(item: Node, where: str, shared: Mapping[str, Sharing], faults: Faults) -> Profiled | None:
    section = Section.of(item, where, faults)
    if section is None:
        return None
    before = len(faults)
    values = _read(section, KEYS, faults)
    measured = _by_number(section, "times", _BATCH, _TIME, faults)
    gain = _by_number(section, "gain", _MEMBERS, _GAIN, faults)
    interference = _factors(section, faults)
    points = _measured(section, values.get("accelerator", ""), faults)
    start = section.section("start")
    phases = None if start is None else _read(start, START, faults)
    if start is not None:
        start.close()
    section.close()
    sharing = values.get("sharing") or shared.get(values.get("accelerator", ""), Sharing.EXCLUSIVE)
    _check(section, values, measured, faults)
    for key, given in (("gain", gain), ("interference", interference)):
        if given and sharing is Sharing.EXCLUSIVE:
            allowed = "with sharing time-multiplexed or mps"
            faults.report(section.path(key), "it with exclusive", allowed, section.node.line)
    if interference and "function" not in values:
        faults.report(
            section.path("interference"), "it without function", "whose executions it slows", section.node.line
        )
    if len(faults) > before:
        return None
    times: Times = (
        Table(measured) if measured else Line(base_s=values["base_s"], per_item_s=values.get("per_item_s", 0.0))
    )
    settings = {name: value for name, value in values.items() if name not in _ON_DEVICE}
    return Profiled(
        accelerator=values["accelerator"],
        function=values.get("function", ""),
        profile=ServiceProfile(times=times, **settings),
        start=None if phases is None else ColdStart(**{"load_s": 0.0, **phases}),
        sharing=sharing,
        gain=gain,
        interference=interference,
        memory_bytes=values.get("memory_bytes"),
        measured=points,
        line=section.node.line,
    )


def _check(
    section: Section,
    values: Mapping[str, Any],
    measured: Mapping[int, float],
    faults: Faults,
) -> None:
    """Checks keys against each other."""
    line, has_times = section.node.line, section.node.get("times") is not None
    if section.node.get("accelerator") is None:
        faults.report(section.path("accelerator"), "nothing", "the name of an accelerator", line)
    if has_times == (section.node.get("base") is not None):
        got = "both" if has_times else "nothing"
        faults.report(section.path("base or times"), got, "one of the two: how long an execution takes", line)
    elif has_times and section.node.get("per-item") is not None:
        faults.report(section.path("per-item"), "it beside times", "with base only", line)
    for key, other, name in (
        ("jitter", "is_exponential", "exponential"),
        ("variation", "is_exponential", "exponential"),
        ("variation", "jitter", "jitter"),
    ):
        if values.get(key) and values.get(other):
            faults.report(section.path(key), f"it beside {name}", "one of the two", line)


def _read(section: Section, rows: tuple[Row, ...], faults: Faults) -> dict[str, Any]:
    """Returns values by target field; percents as shares of 1, except ``full-share``."""
    values: dict[str, Any] = {}
    for row in rows:
        scalar = section.scalar(row.key)
        if scalar is None:
            continue
        try:
            value = row.kind.read(scalar.text)
        except UnreadableError:
            faults.add(section.path(row.key), scalar, row.kind.allowed)
            continue
        is_share = isinstance(row.kind, Percent) and not row.kind.whole
        values[row.field] = value / 100.0 if is_share else value
    return values


def _measured(section: Section, accelerator: str, faults: Faults) -> tuple[ProfilePoint, ...]:
    """Returns the points under ``measured``, each batch and cores once."""
    found: dict[ProfileCell, ProfilePoint] = {}
    for index, item in enumerate(section.items("measured") or ()):
        where = f"{section.path('measured')}[{index}]"
        point = Section.of(item, where, faults)
        if point is None:
            continue
        before = len(faults)
        values = _read(point, MEASURED, faults)
        for row in MEASURED:
            if row.default is None and point.node.get(row.key) is None:
                faults.report(f"{where}.{row.key}", "nothing", row.kind.allowed, point.node.line)
        point.close()
        if len(faults) > before:
            continue
        cell = ProfileCell(accelerator=accelerator, cores=values.pop("cores", 0), batch=values.pop("batch"))
        if cell in found:
            faults.report(where, f"batch {cell.batch} with {cell.cores} cores again", "each once", point.node.line)
        found[cell] = ProfilePoint(cell=cell, **values)
    return tuple(found.values())


def _factors(section: Section, faults: Faults) -> dict[str, float]:
    """Returns the mapping ``interference``: factors by the name of the other function."""
    found: dict[str, float] = {}
    for pair, scalar in section.pairs("interference"):
        where = f"{section.path('interference')}.{pair.key}"
        try:
            found[str(_FUNCTION.read(pair.key))] = float(_SLOWER.read(scalar.text))
        except UnreadableError:
            faults.add(where, scalar, f"{_SLOWER.allowed}, by {_FUNCTION.allowed}")
    return found


def _by_number(section: Section, key: str, keys: Kind, values: Kind, faults: Faults) -> dict[int, float]:
    """Returns a mapping of whole numbers, in rising order, to values."""
    found: dict[int, float] = {}
    node = section.node.get(key)
    if isinstance(node, MapNode) and not node.pairs:
        faults.report(section.path(key), "an empty mapping", f"{values.allowed}, by {keys.allowed}", node.line)
    for pair, scalar in section.pairs(key):
        where = f"{section.path(key)}.{pair.key}"
        try:
            number = int(keys.read(pair.key))
        except UnreadableError:
            faults.add(where, pair.key, keys.allowed, pair.line)
            continue
        if found and number < max(found):
            faults.report(where, f"{number} after {max(found)}", "numbers in rising order", pair.line)
        try:
            found[number] = float(values.read(scalar.text))
        except UnreadableError:
            faults.add(where, scalar, values.allowed)
    return found
