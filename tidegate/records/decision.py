"""Decisions of the autoscaler with their reasons, as deploy, `tidegate explain` and replay read them."""

from dataclasses import dataclass, field

# --- autoscaler -> deploy, explain, replay --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a decision is what it is: a known word (``panic_enter``, ``capped_by_max``) and the numbers behind it."""

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    accelerator: str
    replicas: int
    share: int = 100
    """Percent of a device per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the autoscaler wants for one revision at one moment. ``groups`` None: hold what is there."""

    function: str
    revision: str
    at: float
    """``now`` of the deciding process, Unix seconds."""
    policy: str
    ready: int
    desired: int | None
    """Replicas over all groups; None: hold."""
    groups: tuple[GroupDecision, ...] | None
    reasons: tuple[Reason, ...]
    observed: dict[str, float] = field(default_factory=dict)
    """The figures decided upon, by metric name (``stable_concurrency``, ``lambda_ips``, ...)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Fraction of the revision's inferences by accelerator at that moment; empty: none is ready."""
    digest: str = ""
    """Of the observation decided upon, in hexadecimal; empty where it was not kept."""
    limits: tuple[str, ...] = ()
    """Codes of the reasons that are limits which bit: without them the policy's wish would be carried out."""
    is_dry_run: bool = False
    """True: logged and exported, never carried out."""
