"""The measuring objects of one control process, together: the round feeds them, views and metrics read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate.autoscaler.measure.history import History
from tidegate.control.costs.live import Costs
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.control.watch.cpus import Cpus
from tidegate.control.watch.devices import DeviceWatch
from tidegate.control.watch.failures import ReplicaFailures
from tidegate.control.watch.gpus import Gpus
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.control.watch.units import UnitMeter


def _unobserved(seconds: float) -> None:
    """Ignores a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    traffic: TrafficMeter
    """Requests, as the gateway workers report them."""
    cold_starts: ColdStarts
    gpus: Gpus = field(default_factory=lambda: Gpus(None))
    cpus: Cpus = field(default_factory=lambda: Cpus(lambda pid: None))
    failures: ReplicaFailures = field(default_factory=ReplicaFailures)
    """Failures of replicas."""
    costs: Costs = field(default_factory=Costs)
    """Device time and its price."""
    devices: DeviceWatch | None = None
    """Health of the NVIDIA devices."""
    units: UnitMeter | None = None
    """Utilisation and power of the accelerators' units, if they are this machine's."""
    history: History = field(default_factory=History)
    """Recent time series of each function and group."""
    round_took: Callable[[float], object] = _unobserved
    """Observes the duration of a round."""
    sample_age: Callable[[float], object] = _unobserved
    """Observes the age of the oldest sample of a decision."""

    def device_metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        """Returns the present metrics of the devices of a revision's group."""
        return {**self.cpus.metrics(revision, accelerator), **self.gpus.metrics(revision, accelerator)}
