"""Power of devices.

Two measures. *Watts* of a unit follow its utilisation linearly from idle to its thermal design power; over time they
are energy. *EPC* is OLTunes' estimate (Eq. 7), by which its tuner ranks the accelerators for one task: watts and
watt-seconds in one sum, so it compares and does not measure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

IDLE_W: Final = 60.0
"""Draw of an idle unit (OLTunes, table 4: P_base)."""
PERIOD_S: Final = 2.0
"""Seconds between two samples (OLTunes, section 4)."""

Device = tuple[str, int]
"""(accelerator, unit)."""


def epc(*, p_base_w: float, tdp_w: float, sm: float, mem_used_gb: float, mem_total_gb: float, lat_s: float) -> float:
    """Returns OLTunes' Eq. 7: ``p_base + (tdp - p_base) * sm * mem_used / mem_total * lat``; ``sm`` is the share of the
    SMs, 0..1.

    Raises ValueError for a device without memory.
    """
    if not mem_total_gb > 0.0:
        raise ValueError(f"a device with {mem_total_gb} GB; it has some")
    return p_base_w + (tdp_w - p_base_w) * sm * mem_used_gb / mem_total_gb * lat_s


def watts(utilisation: float, tdp_w: float, idle_w: float = IDLE_W) -> float:
    """Returns the draw of a unit that is busy for this share (0..1) of the time. A unit whose TDP is below ``idle_w``
    always draws its TDP."""
    idle_w = min(idle_w, tdp_w)
    return idle_w + (tdp_w - idle_w) * utilisation


class PowerSample(NamedTuple):
    """One sampling period of all units together."""

    until_s: float
    total_w: float
    working_w: Mapping[Device, float]
    """Watts of the units that worked; every other unit draws its idle power."""


class PowerMeter:
    """Samples power every ``PERIOD_S`` and passes each sample on; only the largest is kept."""

    def __init__(
        self,
        tdp_w: Mapping[Device, float],
        *,
        idle_w: float = IDLE_W,
        on_sample: Callable[[PowerSample], None] | None = None,
    ) -> None:
        """``tdp_w`` lists all units, working or not."""
        self._tdp_w = tdp_w
        self._idle_w = idle_w
        self._on_sample = on_sample
        self._busy: dict[int, dict[Device, float]] = {}
        """Busy seconds by period and unit."""
        self._period = 0
        """The period that is not over."""
        self._all_idle_w = sum(watts(0.0, each, idle_w) for each in tdp_w.values())
        self.most_w = 0.0
        """Largest draw of all units together over one period."""

    def busy(self, spans: Sequence[tuple[str, int, float, float]]) -> None:
        """Adds (accelerator, unit, since, until) of times in which units worked; those of one unit do not overlap."""
        for accelerator, unit, since, until in spans:
            device = (accelerator, unit)
            if device not in self._tdp_w:
                continue
            while since < until:
                period = int(since // PERIOD_S)
                border = min(until, (period + 1) * PERIOD_S)
                within = self._busy.setdefault(period, {})
                within[device] = within.get(device, 0.0) + border - since
                since = border

    def advance(self, now: float) -> None:
        """Turns the periods that end before ``now`` into samples; everything before ``now`` has been reported."""
        while (self._period + 1) * PERIOD_S <= now:
            self._sample(self._busy.pop(self._period, {}))
            self._period += 1

    def _sample(self, busy: Mapping[Device, float]) -> None:
        working = {each: watts(span_s / PERIOD_S, self._tdp_w[each], self._idle_w) for each, span_s in busy.items()}
        total_w = self._all_idle_w + sum(
            drawn - watts(0.0, self._tdp_w[each], self._idle_w) for each, drawn in working.items()
        )
        self.most_w = max(self.most_w, total_w)
        if self._on_sample is not None:
            self._on_sample(PowerSample((self._period + 1) * PERIOD_S, total_w, working))

    def __repr__(self) -> str:
        return f"<PowerMeter {len(self._tdp_w)} units, {self.most_w:g} W at most>"
