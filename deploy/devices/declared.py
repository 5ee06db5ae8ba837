"""``accelerators.yaml``: the operator's declaration of this machine's accelerators. Text in, records out; every fault
at once.

An entry may leave out what the machine itself reports (an ``nvidia`` entry with only a price, a ``cpu`` entry without
memory): ``discovered.complete`` fills it in. An emulated one must be complete.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.schema.rows import NAME, Choice, Duration, Number, Percent, Row, Size, Text, Whole, YesNo, allowed_for
from tidegate.schema.units import UnreadableError
from tidegate.schema.yaml_nodes import Faults, Node, Section, load

_CPU, _NVIDIA, _EMULATED = AcceleratorKind.CPU, AcceleratorKind.NVIDIA, AcceleratorKind.EMULATED

KEYS: Final[tuple[Row, ...]] = (
    Row(
        key="name",
        kind=Text(NAME, "1 to 63 lower-case letters, digits and -, a letter or digit at both ends"),
        field="name",
        description="Name in functions and prices.",
    ),
    Row(key="kind", kind=Choice(AcceleratorKind), field="kind", description="Kind of hardware."),
    Row(
        key="count",
        kind=Whole(1, 4096, "units"),
        field="count",
        description="Number of units. A unit is a GPU, or `cores` cores.",
        default_words="cpu: as many as the cores allow; nvidia: as many as are found",
    ),
    Row(
        key="memory",
        kind=Size(1 << 20, 1 << 50),
        field="memory_bytes",
        description="Memory of one unit.",
        default_words="cpu: the machine's, divided by its cores; nvidia: as found",
    ),
    Row(
        key="cores",
        kind=Whole(1, 1024, "cores"),
        field="cores",
        default="1",
        description="Cores of one unit; cpu only.",
    ),
    Row(
        key="quota",
        kind=Percent(1, 100),
        field="quota",
        default="100%",
        description="Part of its cores' time that a replica gets; cpu only, if the system permits a quota.",
    ),
    Row(
        key="price-per-hour",
        kind=Number(0, 1_000_000, "USD"),
        field="price_per_hour",
        default="0",
        description="Price of one unit; cheaper ones are used first.",
    ),
    Row(
        key="start-up",
        kind=Duration(0, 3600),
        field="start_up_s",
        default="0s",
        description="Time until an emulated server is ready.",
    ),
    Row(
        key="sm-count",
        kind=Whole(1, 10_000),
        field="sm_count",
        description="Streaming multiprocessors.",
        default_words="as found, else unknown",
    ),
    Row(
        key="bandwidth",
        kind=Number(0, 1_000_000, "GB/s", above=True),
        field="bandwidth_gb_s",
        description="Memory bandwidth.",
        default_words="unknown",
    ),
    Row(
        key="tdp",
        kind=Number(0, 100_000, "W", above=True),
        field="tdp_w",
        description="Power at full load.",
        default_words="as found, else unknown",
    ),
    Row(
        key="mps",
        kind=YesNo(),
        field="mps",
        default="false",
        description="Replicas may share a unit through MPS, whose daemon is started if none runs.",
    ),
    Row(key="mig", kind=YesNo(), field="mig", default="false", description="It can be partitioned (MIG)."),
)

PROFILE_KEYS: Final[tuple[Row, ...]] = (
    Row(
        key="base",
        kind=Duration(0, 3600),
        field="base_s",
        description="Service time of a batch, before its items.",
    ),
    Row(
        key="per-item",
        kind=Duration(0, 3600),
        field="per_item_s",
        default="0s",
        description="Service time that each item of a batch adds.",
    ),
    Row(
        key="jitter",
        kind=Percent(0, 100),
        field="jitter",
        default="0%",
        description="Service times vary evenly by this much in both directions.",
    ),
)

_NEEDED: Final[Mapping[AcceleratorKind, tuple[str, ...]]] = {
    _CPU: (),
    _NVIDIA: (),
    _EMULATED: ("count", "memory", "profile"),
}
_ONLY_FOR: Final[Mapping[str, AcceleratorKind]] = {
    "cores": _CPU,
    "quota": _CPU,
    "start-up": _EMULATED,
    "profile": _EMULATED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One entry. None means that the entry does not give the value."""

    name: str
    kind: AcceleratorKind
    count: int | None = None
    memory_bytes: int | None = None
    cores: int = 1
    quota: float = 100.0
    price_per_hour: float = 0.0
    start_up_s: float = 0.0
    profile: Profile | None = None
    sm_count: int | None = None
    bandwidth_gb_s: float | None = None
    tdp_w: float | None = None
    mps: bool = False
    mig: bool = False

    def completed(self, count: int, memory_bytes: int) -> Accelerator:
        """Returns the accelerator with the missing values filled in. Only ``cpu`` entries have cores."""
        return Accelerator(
            name=self.name,
            kind=self.kind,
            count=count,
            memory_bytes=memory_bytes,
            cores=self.cores if self.kind is AcceleratorKind.CPU else 0,
            quota=self.quota,
            price_per_hour=self.price_per_hour,
            start_up_s=self.start_up_s,
            profile=self.profile,
            sm_count=self.sm_count,
            bandwidth_gb_s=self.bandwidth_gb_s,
            tdp_w=self.tdp_w,
            mps=self.mps,
            mig=self.mig,
        )


def parse(text: str, *, source: str) -> tuple[Declared, ...]:
    """Returns the accelerators that ``text`` declares, in its order. Raises InvalidInputError with every fault."""
    faults = Faults(source)
    documents = load(text, faults)
    faults.raise_any()
    if len(documents) != 1:
        faults.report("document", f"{len(documents)} documents", "one, with a list under `accelerators`")
        faults.raise_any()
    top = Section.of(documents[0], "", faults)
    if top is None:
        raise faults.error()
    entries = _entries(top, faults)
    top.close()
    faults.raise_any()
    return entries


def _entries(top: Section, faults: Faults) -> tuple[Declared, ...]:
    items = top.items("accelerators")
    if not items:
        faults.report("accelerators", "nothing", "a list of at least one accelerator", top.node.line)
        return ()
    found: dict[str, Declared] = {}
    for index, item in enumerate(items):
        entry = _entry(item, f"accelerators[{index}]", found.keys(), faults)
        if entry is not None:
            found[entry.name] = entry
    return tuple(found.values())


def _entry(item: Node, where: str, names: Collection[str], faults: Faults) -> Declared | None:
    section = Section.of(item, where, faults)
    if section is None:
        return None
    values = _read(section, KEYS, faults)
    profile = section.section("profile")
    if profile is not None:
        values["profile"] = _profile(profile, faults)
    section.close()
    for key in ("name", "kind"):
        if section.node.get(key) is None:
            faults.report(section.path(key), "nothing", "required", section.node.line)
    kind = values.get("kind")
    if isinstance(kind, AcceleratorKind):
        _check_kind(section, kind, faults)
    name = values.get("name")
    if name is None or kind is None:
        return None
    if name in names:
        faults.report(section.path("name"), f"`{name}` again", "each name once", section.node.line)
        return None
    return Declared(**values)


def _read(section: Section, rows: tuple[Row, ...], faults: Faults) -> dict[str, Any]:
    """Returns the values of the keys that are present and readable, by field."""
    values: dict[str, Any] = {}
    for row in rows:
        scalar = section.scalar(row.key)
        if scalar is None:
            continue
        try:
            values[row.field] = row.kind.read(scalar.text)
        except UnreadableError:
            faults.add(section.path(row.key), scalar, allowed_for(row.kind, scalar.text))
    return values


def _profile(section: Section, faults: Faults) -> Profile | None:
    values = _read(section, PROFILE_KEYS, faults)
    section.close()
    if section.node.get("base") is None:
        faults.report(section.path("base"), "nothing", PROFILE_KEYS[0].kind.allowed, section.node.line)
        return None
    if "base_s" not in values:
        return None
    jitter = values.get("jitter", 0.0) / 100
    return Profile(base_s=values["base_s"], per_item_s=values.get("per_item_s", 0.0), jitter=jitter)


def _check_kind(section: Section, kind: AcceleratorKind, faults: Faults) -> None:
    for key in _NEEDED[kind]:
        if section.node.get(key) is None:
            faults.report(section.path(key), "nothing", f"required for kind {kind.value}", section.node.line)
    for key, only in _ONLY_FOR.items():
        node = section.node.get(key)
        if node is not None and kind is not only:
            faults.add(section.path(key), node, f"kind {only.value} only, this is {kind.value}")
