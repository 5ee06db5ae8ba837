"""ReplicaCalls: calls that a gateway worker makes to replicas in the background, for itself and for no client."""

from collections.abc import Callable

from tidegate.aio.admin.client import FetchError, connect_once, fetch
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.gateway.resilience.resilience import PROBE_TIMEOUT_S

COPY_TIMEOUT_S = 5.0


class ReplicaCalls:
    """Copies model metadata and probes replicas."""

    __slots__ = ("_tasks", "_token")

    def __init__(self, tasks: TaskOwner, token: str) -> None:
        self._tasks = tasks
        self._token = token

    def copy(self, address: str, path: str, name: str, done: Callable[[bytes | None], None]) -> None:
        """Fetches a copy of model metadata, for answers while the function is scaled to zero. ``done`` gets its body,
        or None."""
        self._tasks.spawn(self._copy(address, path, done), name=f"copy-{name}")

    async def _copy(self, address: str, path: str, done: Callable[[bytes | None], None]) -> None:
        body = None
        try:
            reply = await fetch(address, "GET", path, timeout_s=COPY_TIMEOUT_S)
            body = reply.body if reply.status == 200 else None
        except FetchError:
            pass  # Asked again at the next request for it.
        finally:
            done(body)

    def probe(self, replica: str, address: str, path: str | None, done: Callable[[str, bool], None]) -> None:
        """Probes a replica: its probe path must answer below 400; without a path a connection is enough. ``done``
        gets the replica and whether it passed."""
        self._tasks.spawn(self._probe(replica, address, path, done), name=f"probe-{replica}")

    async def _probe(self, replica: str, address: str, path: str | None, done: Callable[[str, bool], None]) -> None:
        ok = False
        token = ("tidegate-token", self._token)
        try:
            if path is None:
                await connect_once(address, timeout_s=PROBE_TIMEOUT_S)
                ok = True
            else:
                ok = (await fetch(address, "GET", path, headers=[token], timeout_s=PROBE_TIMEOUT_S)).status < 400
        except FetchError:
            pass  # That is the answer.
        finally:
            done(replica, ok)

    def __repr__(self) -> str:
        return "<ReplicaCalls>"
