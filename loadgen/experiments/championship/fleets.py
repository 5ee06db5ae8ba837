"""The functions of the championship and the accelerators that they may use."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import Line, ServiceProfile

QUANTILE: Final = 0.99
"""Share of the requests that must be in time."""
UNITS: Final = 100
"""Devices of each group: more than any policy needs."""
VARIATION: Final = 0.15
"""Coefficient of variation of the lognormal service times."""
WORK_UNIT_S: Final = 0.01
"""Work of a request with tokens is rounded down to a multiple of it for the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGroup:
    """One group: price in dollars an hour, and service times relative to the single group's."""

    name: str
    price_per_hour: float
    times: Line
    """Of a request by its inferences."""
    factor: float = 1.0
    """For requests with tokens: time over that of the single group."""


FLEETS: Final[Mapping[int, tuple[FleetGroup, ...]]] = MappingProxyType(
    {
        1: (FleetGroup(name="gpu", price_per_hour=0.53, times=Line(base_s=0.030, per_item_s=0.070)),),
        3: (
            FleetGroup(name="k80", price_per_hour=0.53, times=Line(base_s=0.110, per_item_s=0.075), factor=1.85),
            FleetGroup(name="t4", price_per_hour=0.80, times=Line(base_s=0.065, per_item_s=0.035)),
            FleetGroup(name="v100", price_per_hour=3.50, times=Line(base_s=0.027, per_item_s=0.009), factor=0.36),
        ),
    }
)
"""Groups by their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetService:
    """What a request takes, and how soon it must be answered."""

    latency_s: float
    slots: int = 1
    """Requests that a replica runs at once."""
    base_s: float = 0.0
    per_prompt_token_s: float = 0.0
    per_completion_token_s: float = 0.0
    mean_s: float = 0.0
    """Mean service time of a request with tokens; 0: requests have inferences instead."""

    def profile(self, group: FleetGroup) -> ServiceProfile:
        """Returns the service times of a group."""
        if not self.mean_s:
            return ServiceProfile(times=group.times, variation=VARIATION)
        return ServiceProfile(
            times=Line(base_s=self.base_s * group.factor),
            per_prompt_token_s=self.per_prompt_token_s * group.factor,
            per_completion_token_s=self.per_completion_token_s * group.factor,
            variation=VARIATION,
        )

    def kind(self, group: FleetGroup) -> DeviceKind:
        """Returns the group's accelerator. It is emulated: policies know its rate as of a live emulated one."""
        known = Line(base_s=self.mean_s * group.factor / self.slots) if self.mean_s else group.times
        return DeviceKind(
            accelerator=Accelerator(
                name=group.name,
                kind=AcceleratorKind.EMULATED,
                count=UNITS,
                memory_bytes=16 * 10**9,
                price_per_hour=group.price_per_hour,
                profile=Profile(base_s=known.base_s, per_item_s=known.per_item_s),
            )
        )

    def work(self, arrival: Arrival) -> int:
        """Returns the size of a request in the bound's terms (:meth:`bound_times`)."""
        if not self.mean_s:
            return arrival.inferences
        work_s = self.base_s
        work_s += (
            self.per_prompt_token_s * arrival.prompt_tokens + self.per_completion_token_s * arrival.completion_tokens
        )
        return max(1, int(work_s / WORK_UNIT_S))

    def bound_times(self, group: FleetGroup) -> Line:
        """Returns the group's seconds by :meth:`work`."""
        return Line(base_s=0.0, per_item_s=WORK_UNIT_S * group.factor) if self.mean_s else group.times

    def work_s(self, arrival: Arrival, group: FleetGroup) -> float:
        """Returns the nominal service time of a request on a group."""
        return self.bound_times(group).seconds(self.work(arrival))


IMAGE: Final = FleetService(latency_s=0.3)
BATCHES: Final = FleetService(latency_s=1.7)
CHAT: Final = FleetService(
    latency_s=15.0, slots=4, base_s=0.15, per_prompt_token_s=0.0001, per_completion_token_s=0.012, mean_s=2.8
)
"""Four answers at a time, of a replica whose speed they do not change."""
