"""What the API needs of the rest of the control process, and the faults it turns into answers."""

from collections.abc import AsyncGenerator, Iterator
from typing import Protocol

from tidegate.control.views.views import (
    ColdStartView,
    DecisionView,
    DeploymentView,
    DeployRequest,
    DeployView,
    ExplainView,
    FunctionView,
    ReloadView,
    RestartView,
    RollbackRequest,
    RolloutRequest,
    RolloutView,
    SeriesView,
    SplitRequest,
    SplitView,
    TenantView,
)
from tidegate.errors import TidegateError


class UnknownFunctionError(TidegateError):
    """No function of that name is deployed; the message names those that are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        listed = ", ".join(known) if known else "none"
        super().__init__(f"no function {name!r} is deployed (deployed: {listed})")


class CannotRunError(TidegateError):
    """What is to be deployed cannot run on this machine: a command or a model that is not here."""


class RefusedError(TidegateError):
    """What was asked for does not fit what is there; the message says why."""


class LeavingError(TidegateError):
    """The control process is shutting down and takes nothing new."""


class Service(Protocol):
    """A deployment as its API sees it."""

    def view(self) -> DeploymentView: ...

    def functions(self) -> tuple[FunctionView, ...]: ...

    def function(self, name: str) -> FunctionView:
        """Raises UnknownFunctionError."""
        ...

    def changes(self, name: str | None) -> AsyncGenerator[DeploymentView | FunctionView, None]:
        """The view now and after every change, at most a few times a second; ends with the function or the process."""
        ...

    async def deploy(self, request: DeployRequest) -> DeployView:
        """Raises InvalidInputError with all faults, CannotRunError, StoreError."""
        ...

    async def delete(self, name: str) -> None: ...

    def split(self, name: str) -> SplitView:
        """Who has which part of the traffic."""
        ...

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        """Raises InvalidInputError with all faults, StoreError."""
        ...

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        """Raises InvalidInputError, RefusedError, StoreError."""
        ...

    def rollout(self, name: str) -> RolloutView:
        """The rollout under way, or the last one. Raises RefusedError where there was none."""
        ...

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        """Raises InvalidInputError with all faults, RefusedError, StoreError."""
        ...

    def explain(self, name: str, last: int) -> ExplainView: ...

    def decisions(self, name: str, last: int) -> tuple[DecisionView, ...]: ...

    async def recording(self, name: str, revision: str | None) -> Iterator[bytes]:
        """What was seen and decided of the serving (or that) revision, in pieces of whole JSON lines. Raises
        UnknownFunctionError, InvalidInputError (revision)."""
        ...

    def series(self, name: str, *, metric: str | None, group: str | None, since_s: float, step_s: float) -> SeriesView:
        """What it did in the last seconds. Raises UnknownFunctionError, InvalidInputError (metric, group)."""
        ...

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]: ...

    def logs(
        self, name: str, *, tail: int, follow: bool, replica: str | None, source: str
    ) -> AsyncGenerator[bytes, None]:
        """Lines as NDJSON: ``{"replica": ..., "source": "server", "line": ...}``."""
        ...

    async def metrics(self) -> bytes: ...

    async def restart(self) -> RestartView:
        """Replaces the gateway workers, with the settings as they are now, while they serve. Raises InvalidInputError
        with all faults of the settings, RestartError."""
        ...

    def tenants(self) -> tuple[TenantView, ...]:
        """The tenants in force, and what they have used."""
        ...

    async def reload(self) -> ReloadView:
        """Reads settings, accelerators, tenants and certificate. Raises InvalidInputError with every fault."""
        ...

    def shut_down(self) -> None:
        """Begins an orderly end and returns."""
        ...
