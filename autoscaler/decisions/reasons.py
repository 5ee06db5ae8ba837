"""Reason codes of decisions, each with the sentence that ``tidegate explain`` prints.

One table: a code that is not in it cannot be made into a reason.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tidegate.records.decision import Reason

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
        "missed_idle": "the target is missed, but not for want of replicas: they are idle most of the time",
        "slo_infeasible": "execution alone misses the target: the fastest kind serves, more replicas do not help",
        "late_alone": "execution alone takes longer than the target for too many requests: replicas do not help these",
        "too_busy": "the replicas carry the load, but so busy that requests wait too long for the target",
        "hetero_up": "another accelerator kind takes what the first cannot serve, or cannot serve in time",
        "no_capacity": "the remaining accelerators cannot carry the load",
        "kind_tried": "one replica of a kind of unknown rate is asked for, to measure it",
        "settling": "a recent change of replicas is still in the latency window: the percentile is not judged yet",
        "scale_in": "the others carry the load inside the target",
        "scale_in_held": "taking a replica away would put the target at risk",
        "mu_unknown": "the service rate is not known yet",
        "park_on_cheapest": "idle: one replica is left, on the cheapest accelerator that meets the target",
        "scale_to_zero": "idle for the scale-to-zero time",
        "hold": "idle, but not for long",
        "zero": "at zero, no load",
        "target_ips": "the rate to provide is above the load",
        "backlog": "more requests wait than the replicas serve within the target",
        "level": "the load now, and the least capacity that keeps it inside the target",
        "cover": "capacity for what may come while a replica starts is worth its price",
        "drain": "what waits cannot be served in time by what runs",
        "replica_held": "kept for as long as starting it again would cost",
        "mix": "the cheapest replicas over the accelerator kinds",
        "token_pace": "a replica is to run fewer streams at a time, so that their output tokens come in time",
        "effort_limit": "the target is not kept at the most that it may cost (policy.sla-effort)",
        # HetSev
        "saturated": "more than the threshold of the capacity has been in use for the hold time",
        "unsaturated": "nothing is launched: the capacity has not been in use above the threshold for the hold time",
        "launched": "the accelerator kinds that carry the load for the least cost, launch latency weighed in",
        "surplus": "the others carry the load below the threshold, since the cool-down",
        "program_infeasible": "no mix of the accelerators carries the load: the greedy rule launches what fits",
        "program_unproved": "the solver's time limit came before the proof that nothing is cheaper",
        # OLTunes and its rivals
        "tuned": "the accelerator kinds that the tuning objective prefers, as many replicas as the load needs",
        "first_with_room": "the first accelerator kinds with room, as many replicas as the load needs",
        "packed": "reserved accelerator kinds for large models, the fullest of the others for the rest",
        # cores
        "cores_fit": "the replicas carry the load with their cores",
        "cores_for_burst": "more cores at once: with them the replicas carry the load",
        "cores_not_enough": "all their cores do not carry the load",
        "to_one_core": "the load is stable: replicas of one core take over from more cores",
        "other_stage": "held, as another stage of the pipeline cannot be decided about yet",
        # the concurrency limit
        "limit_kept": "no limit measured so far does better",
        "limit_measuring": "the limit is being measured: it needs time with every slot taken",
        "limit_tried": "another limit is tried: every slot is taken",
        "limit_no_gain": "more slots bring no more throughput",
        "limit_too_small": "fewer slots bring less throughput",
        "limit_no_room": "execution takes too much of the latency target",
        # data
        "hold_no_metric": "no source reports the metric that is scaled by: hold",
        "hold_no_data": "no measurements in the window: hold",
        "hold_stale_metrics": "measurements are missing, so no replica is taken away",
        # bounds
        "initial_scale": "the first deployment starts the initial scale",
        "raised_to_min": "raised to the minimum scale",
        "capped_by_max": "capped by the maximum scale",
        "capped_by_total": "capped by the limit on the replicas of all functions",
        "place_given_up": "a replica of it was given up for a function that had no place",
        "window_minimum": "raised to the minimum of a window of time",
        "capped_by_capacity": "capped by the remaining accelerator capacity",
        "accelerator_shrunk": "an accelerator has become smaller: replicas leave it as others become ready",
        "passed_over": "a start goes elsewhere: one inference alone takes longer than the target there",
        "no_accelerator": "no accelerator can take a replica of this function",
        "uneven_group": "two successive samples of a group differ by more than a factor of two: a replica may be slow",
        "start_revoked": "starts on a kind stayed pending or failed for long: revoked, another kind is tried",
        # zero
        "idle": "no arrivals, nothing waiting, nothing running for the scale-to-zero time",
        "not_idle_yet": "kept at one replica: not idle for long enough",
        "one_before_zero": "goes to one replica before zero",
        "starting": "kept while it starts",
        "zero_protocol": "the averages are 0: Knative's steps to zero",
        "asleep": "at zero, and no request waits",
        "ahead": "at zero: started ahead of the first request",
        "restart": "the last replica broke before it was idle for the scale-to-zero time: another one is started",
        # activation
        "activation": "a request waits and no replica is ready",
        "already_starting": "a request waits and a replica starts already",
        "already_ready": "a request waits and a replica is ready: the gateway will find it",
        "activating": "kept until the replica that an activation asked for is seen",
        # the control round
        "cores_borrowed": "requests wait: a replica that runs has got idle cores of the machine until more are ready",
        "cores_returned": "the burst is over: a replica has given borrowed cores back",
        "put_to_sleep": "a replica that is not needed sleeps: its place is free, its memory is held",
        "woken": "a sleeping replica was woken",
        "sleep_over": "a sleeping replica ended",
        "replica_broke": "a replica broke after it had been ready",
        "makes_room": "gives up a replica for a new revision",
        "rollout_awake": "a revision that is being rolled out, or returns, is kept ready",
        "retired": "another revision serves, so this one ends",
        # dry run
        "dry_run_start": "dry run: only this number is carried out, the policy's recommendation is not",
        # traffic
        "sizes_cut": "requests go to groups by their size",
        "sizes_by_weights": "every group serves all sizes, by weights",
        # what was learnt
        "memory_forgotten": "what the policy had learnt was deleted by hand: it learns again",
        "memory_left_out": "what the policy had learnt cannot be read: it learns again",
        # our bug
        "policy_failed": "the policy failed on this observation: hold",
    }
)


LIMITS: frozenset[str] = frozenset(
    {
        "rate_limited_up",
        "rate_limited_down",
        "activation_scale",
        "scale_down_delay",
        "panic",
        "no_capacity",
        "scale_in_held",
        "target_ips",
        "hold_stale_metrics",
        "initial_scale",
        "raised_to_min",
        "capped_by_max",
        "capped_by_capacity",
        "accelerator_shrunk",
        "no_accelerator",
        "not_idle_yet",
        "one_before_zero",
        "starting",
        "start_revoked",
        "capped_by_total",
        "place_given_up",
        "window_minimum",
        "makes_room",
        "dry_run_start",
    }
)
"""Codes of limits: something stood between the number that the load asks for and the decided one."""

CHANGES: Mapping[str, str] = MappingProxyType(
    {
        "panic": "it ends once the short window has stayed below the panic threshold for a whole stable window",
        "rate_limited_up": "more replicas become ready, or a larger policy.max-scale-up-rate",
        "rate_limited_down": "the next decisions go on from here, or a larger policy.max-scale-down-rate",
        "scale_down_delay": "the delay passes without a larger recommendation, or a shorter policy.scale-down-delay",
        "slo_infeasible": "a larger latency target, a faster accelerator in spec.accelerators, or a faster model",
        "late_alone": "a larger latency target, a faster accelerator in spec.accelerators, or a faster model",
        "missed_idle": "a larger latency target, fewer cold starts (min-scale), or smaller bursts",
        "no_capacity": "more places on an accelerator it may use, or less load",
        "kind_tried": "its rate is known after its first requests",
        "program_infeasible": "more places on an accelerator it may use, or less load",
        "unsaturated": "more load, or for longer, or a smaller policy.saturation",
        "saturated": "less load, or a larger policy.saturation",
        "surplus": "more load before the next step",
        "tuned": "another load, or other times and rates of the accelerators",
        "first_with_room": "another load, or other places on the accelerators",
        "packed": "another load, other places on the accelerators, or another policy.reserved or policy.large",
        "settling": "it passes by itself within a minute of the last change",
        "sla_load": "a larger load; or a smaller one, for the whole policy.cooldown and with low latency",
        "level": "another load, latency target or percentile",
        "cover": "the larger load becomes less likely, or a smaller policy.sla-effort",
        "drain": "the waiting requests have been served",
        "replica_held": "it passes by itself, unless more is asked for",
        "effort_limit": "a larger policy.sla-effort or latency target, or quicker starts",
        "scale_in_held": "the load falls further, or the remembered miss is forgotten after some hours",
        "mu_unknown": "requests that fill a replica's slots: service rates are learnt there",
        "cores_fit": "another load, or a stable one that replicas of one core carry for policy.stabilization",
        "cores_for_burst": "the load falls, or stays as it is for policy.stabilization",
        "cores_not_enough": "further replicas become ready; more cores in policy.max-cores, or less load",
        "to_one_core": "the replicas of one core are ready, or the load changes",
        "other_stage": "that stage is ready and measured: see its own `tidegate explain`",
        "hold": "a request comes, or it stays idle",
        "hold_no_metric": "the model server or device reports it, or another policy.metric",
        "hold_no_data": "samples arrive again: see `tidegate status` for sources that do not answer",
        "hold_stale_metrics": "samples arrive again: see `tidegate status` for sources that do not answer",
        "raised_to_min": "a smaller min-scale",
        "capped_by_max": "a larger max-scale",
        "capped_by_total": "a larger scaling.max-replicas, or other functions that need less",
        "place_given_up": "the next request starts it again; more places, or min-scale: 1, keep it awake",
        "window_minimum": "the end of the window, or another min-scale-windows",
        "capped_by_capacity": "more places on an accelerator it may use: see `tidegate status`",
        "accelerator_shrunk": "replicas elsewhere become ready, or the accelerators file gives the places back",
        "no_accelerator": "an accelerator that fits it: compare its annotations with `tidegate status`",
        "start_revoked": "a replica there becomes ready: the kind is tried again after the stated time",
        "not_idle_yet": "no request until scale-to-zero-after has passed, or a shorter one",
        "park_on_cheapest": "no request until scale-to-zero-after has passed: then zero",
        "one_before_zero": "it stays idle: then zero",
        "starting": "its model server becomes ready or fails: see `tidegate logs`",
        "already_starting": "its model server becomes ready or fails: see `tidegate logs`",
        "activating": "its model server becomes ready or fails: see `tidegate logs`",
        "asleep": "the next request starts it",
        "ahead": "no work for as long as it has been expected",
        "restart": "no request until scale-to-zero-after has passed since the last one: then zero",
        "zero": "the next request starts it",
        "dry_run_start": "dry-run: false carries the policy's recommendation out",
        "policy_failed": "report it with the recording of this function (`tidegate record`)",
    }
)
"""The change that would lead to another decision, by code; a code without an entry explains itself."""


def limits(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Returns the codes of the limits that bit, each once, in order."""
    return tuple(dict.fromkeys(each.code for each in reasons if each.code in LIMITS))


def reason(code: str, detail: str | Callable[[], str] = "") -> Reason:
    """Returns a reason of the table; raises KeyError for an unknown code. A detail that takes time to word is given as
    a function: :meth:`Reason.worded`."""
    SENTENCES[code]
    return Reason(code=code, detail=detail) if isinstance(detail, str) else Reason.worded(code, detail)


def figure(value: float) -> str:
    """Formats a number for people: three significant digits, no exponent for everyday sizes."""
    return f"{value:.3g}" if -1000.0 < value < 1000.0 else f"{value:.0f}"
