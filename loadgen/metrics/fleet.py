"""Usage and cost of devices and replicas, added up as a run goes on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.loadgen.metrics.cost import Accounting, memory_cost
from tidegate.loadgen.metrics.power import IDLE_W, Device, PowerMeter, PowerSample, watts
from tidegate.loadgen.metrics.usage import Occupancy, variation
from tidegate.loadgen.simulator.lease import Lease


@dataclass(slots=True)
class _Unit:
    busy_s: float = 0.0
    held: Occupancy = field(default_factory=Occupancy)
    is_held: bool = False


class FleetTally:
    """Totals of a fleet. Memory grows with the number of devices, and for shared devices with the times that they were
    free."""

    def __init__(
        self,
        accelerators: Iterable[Accelerator],
        *,
        idle_w: float = IDLE_W,
        power: Callable[[PowerSample], None] | None = None,
    ) -> None:
        """``idle_w``: the draw of an idle unit; ``power`` receives each sample."""
        self._kinds = {each.name: each for each in accelerators}
        self._idle_w = idle_w
        self._units = {(name, unit): _Unit() for name, kind in self._kinds.items() for unit in range(kind.count)}
        self._meter = PowerMeter(
            {device: tdp_w for device in self._units if (tdp_w := self._kinds[device[0]].tdp_w)},
            idle_w=idle_w,
            on_sample=power,
        )
        self._replica_s = dict.fromkeys(self._kinds, 0.0)
        self._core_s = 0.0
        self._memory_dollars = dict.fromkeys(self._kinds, 0.0)
        self._unknown_memory: set[str] = set()
        """Kinds with a lease of unknown memory use."""

    def busy(self, spans: Sequence[tuple[str, int, float, float]]) -> None:
        """Adds (accelerator, unit, since, until) of times in which units worked."""
        for accelerator, number, since, until in spans:
            self._units[accelerator, number].busy_s += until - since
        self._meter.busy(spans)

    def second(self, at_s: float) -> None:
        """Ends a second: everything before ``at_s`` has been reported."""
        self._meter.advance(at_s)

    def lease(self, lease: Lease) -> None:
        """Adds a lease that ends now."""
        kind, span_s = self._kinds[lease.accelerator], lease.end_s - lease.start_s
        unit = self._units[lease.accelerator, lease.unit]
        unit.is_held = True
        unit.held.add(lease.start_s, lease.end_s, is_alone=lease.share >= 100)
        self._replica_s[kind.name] += span_s
        self._core_s += lease.cores * span_s
        if kind.memory_bytes and lease.used_gb:
            per_gb_s = kind.price_per_hour / 3600.0 / (kind.memory_bytes / 1e9)
            self._memory_dollars[kind.name] += memory_cost([lease], {kind.name: per_gb_s}, {}, Accounting.FOOTPRINT)
        else:
            self._unknown_memory.add(kind.name)

    def figures(self, inferences: int, duration_s: float) -> dict[str, float]:
        """Returns the figures. ``inferences`` counts answered ones. Figures of a kind end in its name, those of a unit
        also in its number. Figures that need a fact missing in the scenario (price, TDP, memory, cores) are absent."""
        if duration_s <= 0.0:
            return {}
        return {
            "replica_seconds": sum(self._replica_s.values()),
            **{f"replica_seconds.{kind}": span_s for kind, span_s in self._replica_s.items()},
            **self._cores(),
            **self._usage(duration_s),
            **self._cost(inferences),
            **self._power(duration_s),
        }

    def _of(self, kind: str) -> Iterator[tuple[Device, _Unit]]:
        return ((device, unit) for device, unit in self._units.items() if device[0] == kind)

    def _cores(self) -> dict[str, float]:
        has_cores = any(kind.kind is AcceleratorKind.CPU for kind in self._kinds.values())
        return {"core_seconds": self._core_s} if has_cores else {}

    def _usage(self, duration_s: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self._kinds:
            units = [unit for _, unit in self._of(name)]
            held_s, busy_s = sum(unit.held.seconds for unit in units), sum(unit.busy_s for unit in units)
            if units:
                found[f"activity_percent.{name}"] = 100.0 * busy_s / (duration_s * len(units))
            if held_s:
                found[f"utilisation_percent.{name}"] = 100.0 * busy_s / held_s
        held = {device: unit for device, unit in self._units.items() if unit.is_held and unit.held.seconds}
        for (name, number), unit in held.items():
            found[f"activity_percent.{name}.{number}"] = 100.0 * unit.busy_s / duration_s
            found[f"utilisation_percent.{name}.{number}"] = 100.0 * unit.busy_s / unit.held.seconds
        balances = {
            "activity_variation": [unit.busy_s for unit in self._units.values()],
            "utilisation_variation": [unit.busy_s / unit.held.seconds for unit in held.values()],
        }
        return found | {name: spread for name, each in balances.items() if (spread := variation(each)) is not None}

    def _cost(self, inferences: int) -> dict[str, float]:
        """Returns the cost of whole devices while they are held, and the cost by used memory."""
        held_s = {name: sum(unit.held.seconds for _, unit in self._of(name)) for name in self._kinds}
        used = {name: kind for name, kind in self._kinds.items() if held_s[name]}
        priced = {name: kind.price_per_hour for name, kind in used.items() if kind.price_per_hour}
        by_device = {name: price * held_s[name] / 3600.0 for name, price in priced.items()}
        by_memory = {name: self._memory_dollars[name] for name in priced if name not in self._unknown_memory}
        found: dict[str, float] = {}
        for what, dollars in (("", by_device), ("memory_", by_memory)):
            found |= {f"{what}cost_dollars.{name}": each for name, each in dollars.items()}
            if used and dollars.keys() == used.keys():
                total = found[f"{what}cost_dollars"] = sum(dollars.values())
                if total:
                    found[f"inferences_per_{what}dollar"] = inferences / total
        return found

    def _power(self, duration_s: float) -> dict[str, float]:
        """Returns the power of all units, held or not. Watts are linear in the utilisation, so the mean over the
        samples is the draw at the mean utilisation."""
        found: dict[str, float] = {}
        total_w = 0.0
        for name, kind in self._kinds.items():
            if not kind.tdp_w:
                continue
            drawn = {
                device: watts(unit.busy_s / duration_s, kind.tdp_w, self._idle_w) for device, unit in self._of(name)
            }
            kind_w = sum(drawn.values())
            total_w += kind_w
            found |= {f"mean_watts.{name}": kind_w, f"energy_joules.{name}": kind_w * duration_s}
            found |= {f"mean_watts.{name}.{number}": each for (_, number), each in drawn.items()}
        if self._kinds and all(kind.tdp_w for kind in self._kinds.values()):
            found |= {"mean_watts": total_w, "energy_joules": total_w * duration_s, "most_watts": self._meter.most_w}
        return found
