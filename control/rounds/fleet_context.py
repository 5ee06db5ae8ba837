"""What the autoscaler asks of the control round about a revision."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.control.views.views import Role

if TYPE_CHECKING:
    from tidegate.control.rounds.round import Round


class RoundContext:
    """The autoscaler's ``FleetContext``: answers from the parts of a round."""

    def __init__(self, rounds: "Round") -> None:
        self._round = rounds

    def weights(self, revision: str) -> Mapping[str, float]:
        return self._round.weights(revision)

    def is_carried_out(self, revision: str) -> bool:
        tracked = self._round.find(revision)
        return tracked is None or tracked.role is not Role.RETIRED

    def is_rolled_out(self, revision: str) -> bool:
        return self._round.rollouts.is_rolled_out(revision)

    def is_taking_over(self, revision: str) -> bool:
        return self._round.succession.is_ahead(revision)

    def device_metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        cpus, gpus = self._round.cpus, self._round.gpus
        return {**cpus.metrics(revision, accelerator), **gpus.metrics(revision, accelerator)}

    def __repr__(self) -> str:
        return f"<RoundContext of {self._round!r}>"
