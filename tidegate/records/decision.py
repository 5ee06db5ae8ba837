"""Decisions of the autoscaler with their reasons, as deploy, `tidegate explain` and replay read them."""

from collections.abc import Callable
from dataclasses import dataclass, field

# --- autoscaler -> deploy, explain, replay --------------------------------------------------------------------------


class _Worded:
    """Has the function that words a reason's detail, until it is read."""

    __slots__ = ("_word",)
    _word: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(_Worded):
    """A reason of a decision: a known code (``panic_enter``, ``capped_by_max``) and the numbers behind it."""

    code: str
    detail: str = ""

    @classmethod
    def worded(cls, code: str, word: Callable[[], str]) -> "Reason":
        """Returns a reason whose detail is ``word()``, called when it is first read: a decision a second is made, and
        one a minute is read. What ``word`` refers to must not change."""
        made = cls.__new__(cls)
        object.__setattr__(made, "code", code)
        object.__setattr__(made, "_word", word)
        return made

    def __getattr__(self, name: str) -> str:
        """Words the detail: it is called for an attribute that is not there."""
        if name != "detail":
            raise AttributeError(name)
        detail: str = self._word()
        object.__setattr__(self, "detail", detail)
        object.__delattr__(self, "_word")
        return detail


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    accelerator: str
    replicas: int
    share: int = 100
    """Percent of a device per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The desired state of one revision at one moment. With ``groups`` None the present state is held."""

    function: str
    revision: str
    at: float
    """``now`` of the deciding process, Unix seconds."""
    policy: str
    ready: int
    desired: int | None
    """Replicas over all groups. None to hold the present number."""
    groups: tuple[GroupDecision, ...] | None
    reasons: tuple[Reason, ...]
    observed: dict[str, float] = field(default_factory=dict)
    """Figures that the decision was based on, by metric name (``stable_concurrency``, ``lambda_ips``, ...)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Fraction of the revision's inferences by accelerator at that moment; empty if no group is ready."""
    digest: str = ""
    """Digest of the observation that the decision was based on, in hexadecimal; empty if the observation was not
    kept."""
    limits: tuple[str, ...] = ()
    """Codes of the reasons that are binding limits: without them the policy's recommendation would be carried out."""
    cores: int | None = None
    """Cores that each ready replica is to have. None: the policy orders none."""
    is_dry_run: bool = False
    """True if the decision is logged and exported, but never carried out."""
