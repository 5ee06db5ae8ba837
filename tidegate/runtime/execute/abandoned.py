"""Requests that go on in a model without a client: a thread cannot be interrupted."""


class AbandonedRuns:
    """The requests whose clients are gone and that the model still runs."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: set[object] = set()

    @property
    def count(self) -> int:
        return len(self._runs)

    def began(self, run: object) -> None:
        """The client of a running request is gone."""
        self._runs.add(run)

    def ended(self, run: object) -> None:
        """The model has ended a request; without effect for one that kept its client."""
        self._runs.discard(run)

    def __repr__(self) -> str:
        return f"<AbandonedRuns {len(self._runs)}>"
