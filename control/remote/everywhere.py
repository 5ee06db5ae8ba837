"""All gateway workers of a deployment: those of this machine, and those of remote gateways."""

from collections.abc import Awaitable, Callable, Mapping

from tidegate.control.remote.links import RemoteGateways
from tidegate.control.views.deployment import GatewayView
from tidegate.control.workers.supervisor import Supervisor
from tidegate.records.route_table import RouteTable


class EveryGateway:
    """The workers of both, as the control round and the API use them."""

    def __init__(self, here: Supervisor, remote: RemoteGateways | None) -> None:
        """``remote``: None with the embedded store, which no other machine reaches."""
        self._here = here
        self._remote = remote

    @property
    def url(self) -> str:
        """Base URL of a front door: of this machine, or where it has none, of a remote gateway."""
        remote = None if self._remote is None or self._here.views() else self._remote.front
        return self._here.url if remote is None else f"{self._here.url.partition(':')[0]}://{remote}"

    @property
    def certificate(self) -> str | None:
        return self._here.certificate

    def views(self) -> tuple[GatewayView, ...]:
        return self._here.views() + (() if self._remote is None else self._remote.views())

    def versions(self) -> tuple[tuple[int, int], ...]:
        return self._here.versions() + (() if self._remote is None else self._remote.versions())

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        return {**self._here.sources(), **({} if self._remote is None else self._remote.sources())}

    async def expositions(self) -> dict[str, bytes | None]:
        remote = {} if self._remote is None else await self._remote.expositions()
        return {**await self._here.expositions(), **remote}

    async def publish(self, table: RouteTable) -> None:
        if self._remote is not None:
            self._remote.publish(table)
        await self._here.publish(table)

    async def linked(self, limit_s: float) -> bool:
        return await self._here.linked(limit_s)

    async def reload(self) -> Mapping[str, str | None]:
        return await self._here.reload()

    def __repr__(self) -> str:
        return f"<EveryGateway {self._here!r} {self._remote!r}>"
