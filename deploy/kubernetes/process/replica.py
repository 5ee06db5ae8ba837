"""The replicas that are Pods: what is known of each."""

import asyncio
from dataclasses import dataclass, field

from tidegate.deploy.kubernetes.pods.template import Object
from tidegate.deploy.local.admin_link import ProxyLink
from tidegate.deploy.process.registry import FollowedRegistry
from tidegate.deploy.process.replica import FollowedReplica


@dataclass(slots=True, eq=False, repr=False)
class PodReplica(FollowedReplica):
    """One replica and its Pod."""

    uid: str | None = None
    """Of its Pod; None before the API server has answered."""
    version: str | None = None
    """Of its Pod, as it was last seen."""
    pod: Object | None = None
    """Its Pod, as the watch last reported it."""
    is_foreign: bool = False
    """A Pod that was not made for it has its name."""
    waits: bool = False
    """Its reason is why its Pod waits."""
    link: ProxyLink | None = None
    """To its queue_proxy; None while the Pod has no address."""
    bound_at: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the watch reports its Pod."""


PodRegistry = FollowedRegistry[PodReplica]
