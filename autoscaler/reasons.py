"""The words a decision gives as reasons, each with the sentence that ``tidegate explain`` prints.

One table: a code that is not here cannot be made into a reason.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tidegate.records import Reason

SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        # the policy
        "load": "the load asks for this many replicas",
        "panic_enter": "panic starts: the short window asks for at least the panic threshold times the ready replicas",
        "panic": "panic goes on: the size does not shrink",
        "panic_leave": "panic ends: the short window has been calm for a stable window",
        "rate_limited_up": "growth in one step is limited",
        "rate_limited_down": "shrinking in one step is limited",
        "activation_scale": "a revision that wakes gets its activation scale",
        "scale_down_delay": "held at the largest recent size by the scale-down delay",
        "utilization": "the mean utilisation against its target asks for this many replicas",
        # the SLA policy
        "sla_load": "the load against the service rates asks for this many replicas",
        "sla_missed": "the latency percentile misses the target",
        "slo_infeasible": "no accelerator kind can meet the target: the fastest serves, more replicas do not help",
        "hetero_up": "another accelerator kind takes what the first cannot serve, or cannot serve in time",
        "no_capacity": "the accelerators that are left cannot carry the load",
        "settling": "a recent change of replicas is still in the latency window: the percentile is not judged yet",
        "scale_in": "the others carry the load inside the target",
        "scale_in_held": "taking a replica away would put the target at risk",
        "mu_unknown": "the service rate is not known yet",
        "park_on_cheapest": "idle: one replica is left, on the cheapest accelerator that meets the target",
        "scale_to_zero": "idle for the scale-to-zero time",
        "hold": "idle, but not for long",
        "zero": "at zero, no load",
        "target_ips": "the rate to provide is above the load",
        "backlog": "what waits is more than the replicas serve within the target",
        # the concurrency limit
        "limit_kept": "no limit measured so far does better",
        "limit_measuring": "the limit is being measured: it needs time with every slot taken",
        "limit_tried": "one step more is tried: every slot is taken",
        "limit_no_gain": "more slots bring no more throughput",
        "limit_too_small": "fewer slots bring less throughput",
        "limit_no_room": "execution takes too much of the latency target",
        # data
        "hold_no_metric": "nobody tells the metric that is scaled by: hold",
        "hold_no_data": "no measurements in the window: hold",
        "hold_stale_metrics": "measurements are missing, so no replica is taken away",
        # bounds
        "initial_scale": "the first deployment starts the initial scale",
        "raised_to_min": "raised to the minimum scale",
        "capped_by_max": "capped by the maximum scale",
        "capped_by_capacity": "capped by the accelerators that are left",
        "no_accelerator": "no accelerator can take a replica of this function",
        # zero
        "idle": "no arrivals, nothing waiting, nothing running for the scale-to-zero time",
        "not_idle_yet": "kept at one replica: not idle for long enough",
        "one_before_zero": "goes to one replica before zero",
        "starting": "kept while it starts",
        "asleep": "at zero, and nothing asks for it",
        # activation
        "activation": "a request waits and no replica is ready",
        "already_starting": "a request waits and a replica starts already",
        "already_ready": "a request waits and a replica is ready: the gateway will find it",
        "activating": "kept until the replica that an activation asked for is seen",
        # dry run
        "dry_run_start": "dry run: only this much is carried out, the policy's wish is not",
        # our bug
        "policy_failed": "the policy failed on this observation: hold",
    }
)


def reason(code: str, detail: str = "") -> Reason:
    """A reason from the table; raises KeyError for a word that is not in it."""
    SENTENCES[code]
    return Reason(code=code, detail=detail)


def figure(value: float) -> str:
    """A number as people read it: three significant digits, no exponent for everyday sizes."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
