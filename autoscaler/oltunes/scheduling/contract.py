"""What all schedulers share: the tasks that wait, the devices as they are now, and what a device is given.

A scheduler is a core: it is called with the time and with what is known of the devices, and holds nothing but the tasks
that wait. The simulator that runs it carries out what it returns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate.autoscaler.oltunes.autotune import TuningRecord
from tidegate.autoscaler.oltunes.character import Bound
from tidegate.autoscaler.oltunes.task import BatchTask, JobClass


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """A task that is to be run once."""

    task: BatchTask
    """Its ``devices`` are kinds of devices, and its memory is the most that it needs on one of them."""
    class_weight: float
    job_class: JobClass
    due_s: float
    """Time by which it is to be answered."""
    average_latency_s: float
    """Mean of its predicted latencies."""
    character: Bound
    is_large: bool
    """Whether its model belongs on a reserved device (reserve and pack)."""
    records: Mapping[str, Sequence[TuningRecord]]
    """Ways to run it by kind of device, the best first."""


class DeviceView(NamedTuple):
    """A device, or a partition of one, which is a device of its own, as it is now."""

    id: str
    kind: str
    memory_gb: float
    free_gb: float
    utilisation: float
    """Mean of the latest seconds, 0..1."""
    running: Sequence[WaitingTask] = ()
    done: float = 1.0
    """Part of its longest task that is over; 1 for an idle device."""
    free_in_s: float = 0.0
    """Expected time until its last task has ended."""

    @property
    def is_idle(self) -> bool:
        return not self.running


class Placed(NamedTuple):
    """A task and how it is to run."""

    task: WaitingTask
    record: TuningRecord


class Submission(NamedTuple):
    """Tasks that begin together on a device."""

    device: str
    tasks: tuple[Placed, ...]


class TaskScheduler(Protocol):
    """A scheduler of tasks. Nothing it returns is undone: a submission that its device refuses comes back through
    ``refused``."""

    def add(self, task: WaitingTask) -> None:
        """Takes a task that has arrived."""
        ...

    def step(self, now: float, devices: Sequence[DeviceView]) -> Submission | None:
        """Returns the next submission; None if nothing can be submitted now. It is called until it returns None, and
        again when a task arrives or ends, and at :attr:`wakes_s`."""
        ...

    def refused(self, submission: Submission) -> None:
        """Takes back the tasks of a submission that its device has refused."""
        ...

    def served(self) -> None:
        """Notes that a submission was accepted and has ended."""
        ...

    @property
    def wakes_s(self) -> float | None:
        """Time at which :meth:`step` has something to do without any event; None without one."""
        ...

    @property
    def waiting(self) -> int:
        """Tasks that wait."""
        ...
