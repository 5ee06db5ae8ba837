"""The bodies of the API's requests."""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.records.profile_point import ProfilePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """``split``: percent by revision (id, number or tag), with a sum of 100; empty: unchanged. ``follow``: ends a split
    by hand; the newest revision takes over. ``tags``: revision by tag."""

    split: dict[str, float] = field(default_factory=dict)
    follow: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    untag: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """``to``: id, number or tag of a kept revision; None: the one that served before."""

    to: str | None = None


class RolloutAction(StrEnum):
    BEGIN = "begin"
    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """``begin`` takes a ``plan`` in the terms of the annotations (``canary-steps``: ``1,5,25``) and the revision. None:
    the revision of the rollout under way, else the newest."""

    action: RolloutAction
    to: str | None = None
    plan: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """``cores``: of each running replica. ``max_batch``, ``batch_delay`` (a duration): the batches that its model
    server forms. None: unchanged. ``reset``: back to what the function says."""

    cores: int | None = None
    max_batch: int | None = None
    batch_delay: str | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """A manifest as text; ``base`` is the absolute folder of its relative paths."""

    manifest: str
    base: str
    source: str = "manifest"
    flags: dict[str, str] = field(default_factory=dict)
    """Annotations from outside the text, without prefix (``latency``): they take precedence over the text."""
    origin: str | None = None
    """Absolute path of the manifest or model file, with the class; None if there is none. A function that came from
    another one is replaced only with ``replace``."""
    replace: bool = False
    measured: tuple[ProfilePoint, ...] = ()
    """What `tidegate profile` measured: first decisions go by it until the function has figures of its own."""
