"""Leads a deployment by the Lease of its namespace, and says how long what it says still holds.

A leader that cannot renew the Lease stops writing before another one may lead: it is *unsure*. It goes on where it was
if its next renewal succeeds, since none has led in between then; if another one has, it is deposed for good.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.clock import monotonic
from tidegate.deploy.kubernetes.pods.template import label
from tidegate.deploy.kubernetes.process.api import (
    CONFLICT,
    NOT_FOUND,
    ClusterError,
    KubernetesApi,
    Object,
    RefusedError,
)
from tidegate.deploy.kubernetes.process.retries import Note, Sleep
from tidegate.deploy.kubernetes.resources.leases import (
    NAME,
    Candidate,
    Verdict,
    deployment_of,
    epoch_of,
    holder_of,
    judge,
    released,
    renewed,
    taken,
)

SUBJECT: Final = "Lease"


class HeldError(ClusterError):
    """Another control process holds the Lease, and this one cannot wait for it."""


class Leadership:
    """The Lease of one candidate: :meth:`lead` comes first, :meth:`keep` runs from then on. It is the fence of what
    this process writes."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        me: Candidate,
        *,
        stamp: Callable[[], str],
        note: Note,
        now: Callable[[], float] = monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """``stamp`` returns the wall clock as an RFC 3339 time with microseconds."""
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._me = me
        self._stamp = stamp
        self._note = note
        self._now = now
        self._sleep = sleep
        self._lease: Object = {}
        self._until = -1.0
        self._deposed: str | None = None
        self.deposed = asyncio.Event()
        """Set when another process leads."""

    # --- the fence ---

    @property
    def epoch(self) -> int:
        """The epoch of this leader; 0 before it leads."""
        return epoch_of(self._lease) if self._lease else 0

    def left_s(self) -> float:
        """Returns how long this process may still write."""
        return 0.0 if self._deposed is not None else self._until - self._now()

    @property
    def why(self) -> str:
        """Why nothing may be written."""
        return self._deposed or f"the Lease {NAME} could not be renewed for {self._me.stops_s:g} s"

    # --- leading ---

    async def lead(self, at_least: int, waiting: Callable[[str], None], *, may_wait: bool) -> int:
        """Waits until no other process leads, and takes the Lease. Returns the epoch, which is ``at_least`` so high.

        ``waiting`` is called with the leader's name. Raises HeldError if the leader is of another deployment or, unless
        ``may_wait``, of this one, once it has been seen to live; and ClusterError if the API server refuses."""
        seen: str | None = None
        since = self._now()
        while True:
            lease = await self._found()
            version = None if lease is None else str(lease["metadata"]["resourceVersion"])
            lives = seen is not None and version is not None and version != seen
            if version != seen:
                seen, since = version, self._now()
            if judge(lease, self._me, self._now() - since) is Verdict.TAKE:
                if await self._take(lease, max(at_least, epoch_of(lease) + 1)):
                    return self.epoch
                await self._sleep(self._me.renews_s)
                continue
            assert lease is not None
            if lives:
                self._check_may_wait(lease, may_wait=may_wait)
            waiting(holder_of(lease))
            await self._sleep(self._me.renews_s)

    def _check_may_wait(self, lease: Object, *, may_wait: bool) -> None:
        other, where = deployment_of(lease), f"namespace {self._namespace}"
        if other != label(self._me.deployment):
            raise HeldError(
                f"{where} is used by the deployment {other} ({holder_of(lease)} holds its Lease {NAME}); end that one,"
                " or choose another namespace with --kubernetes-namespace"
            )
        if not may_wait:
            raise HeldError(
                f"{holder_of(lease)} leads this deployment in {where}, and has its records in its own state directory;"
                " several control processes need one store for their records: --store-url redis://..."
            )

    async def _found(self) -> Object | None:
        """Returns the Lease; None if there is none. Waits while the API server does not answer."""
        while True:
            try:
                lease = await self._call("GET", NAME)
            except RefusedError as error:
                if error.status == NOT_FOUND:
                    return None
                if not error.is_passing:
                    raise
                self._note(SUBJECT, str(error))
            except ClusterError as error:
                self._note(SUBJECT, str(error))
            else:
                self._note(SUBJECT, None)
                return lease
            await self._sleep(self._me.renews_s)

    async def _take(self, lease: Object | None, epoch: int) -> bool:
        """Takes the Lease as it was seen. Returns False if it has changed since, or the API server did not answer."""
        asked = self._now()
        wanted = taken(lease, self._me, epoch, self._stamp())
        try:
            self._lease = await (self._call("POST", "", wanted) if lease is None else self._call("PUT", NAME, wanted))
        except RefusedError as error:
            if error.status != CONFLICT and not error.is_passing:
                raise
            if error.is_passing:
                self._note(SUBJECT, f"it cannot be taken: {error}")
            return False
        except ClusterError as error:
            self._note(SUBJECT, f"it cannot be taken: {error}")
            return False  # It may have arrived: the next look shows it.
        self._note(SUBJECT, None)
        self._until = asked + self._me.stops_s
        return True

    async def keep(self) -> None:
        """Renews the Lease, until another process leads."""
        while self._deposed is None:
            await self._sleep(self._me.renews_s)
            asked = self._now()
            try:
                await self._renew()
            except ClusterError as error:
                if self.left_s() <= 0.0:
                    self._note(SUBJECT, f"{self.why}, so nothing is created, deleted or scaled: {error}")
            else:
                self._until = asked + self._me.stops_s
                self._note(SUBJECT, None)

    async def _renew(self) -> None:
        try:
            self._lease = await self._call("PUT", NAME, renewed(self._lease, self._me, self._stamp()))
        except RefusedError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            await self._look()

    async def _look(self) -> None:
        """Handles a Lease that is not as this leader wrote it: deleted, labelled, or held by another one."""
        try:
            found = await self._call("GET", NAME)
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            self._lease = await self._call("POST", "", taken(None, self._me, self.epoch, self._stamp()))
            return
        if holder_of(found) != self._me.identity or epoch_of(found) != self.epoch:
            self.depose(f"{holder_of(found) or 'no process'} leads by epoch {epoch_of(found)}")
            return
        self._lease = await self._call("PUT", NAME, renewed(found, self._me, self._stamp()))

    @property
    def uid(self) -> str:
        """Uid of the Lease that was taken; empty if none was."""
        return str(self._lease.get("metadata", {}).get("uid", ""))

    async def sure(self) -> None:
        """Waits until this process may write. Raises HeldError if another one leads."""
        while self.left_s() <= 0.0:
            if self._deposed is not None:
                raise HeldError(self._deposed)
            await self._sleep(self._me.renews_s)

    def depose(self, why: str) -> None:
        """Ends this leadership for good: nothing is written from now on."""
        if self._deposed is None:
            self._deposed = f"another control process leads: {why}"
            self.deposed.set()

    async def release(self) -> None:
        """Gives the Lease back, so that another one leads at once. It runs out by itself where that fails."""
        if self._deposed is not None or not self._lease:
            return
        self._deposed = "the Lease has been given back"
        try:
            found = await self._call("GET", NAME)  # A renewal that was cut off may have arrived.
            if holder_of(found) == self._me.identity and epoch_of(found) == self.epoch:
                await self._call("PUT", NAME, released(found, self._stamp()))
        except ClusterError as error:
            self._note(SUBJECT, f"it is not given back, and runs out in {self._me.lasts_s} s: {error}")

    async def _call(self, method: str, name: str, body: Object | None = None) -> Object:
        path = f"{self._path}/{name}" if name else self._path
        return await self._api.call(method, path, body, limit_s=self._me.stops_s / 2)

    def __repr__(self) -> str:
        return f"<Leadership of {self._me.identity}, epoch {self.epoch}, {self.left_s():.1f} s left>"
