"""Algorithms of the papers against worked cases."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest

from tests.golden import oltunes
from tests.golden.hetsev_levels import service_level, windowed_rates
from tests.golden.histogram_quantile import histogram_quantile
from tests.golden.vectors import IS_OWN, load
from tests.loadgen.simulator.worlds import deployed as simulated
from tests.loadgen.simulator.worlds import fixed
from tests.loadgen.simulator.worlds import function as simulated_function
from tests.loadgen.simulator.worlds import kind as simulated_kind
from tests.loadgen.simulator.worlds import run as run_simulation
from tests.support.worlds.autoscaling import replica_sample, revision
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup
from tidegate.autoscaler.policies.hetsev.exact import is_feasible, solve
from tidegate.autoscaler.policies.hetsev.greedy import scale_in, scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType
from tidegate.autoscaler.policies.hetsev.saturation import RateSample, saturation
from tidegate.autoscaler.policies.hpa import HpaParameters, HpaScaler, rolling_utilization
from tidegate.autoscaler.policies.kpa.parameters import KpaParameters
from tidegate.autoscaler.policies.kpa.policy import KnativeScaler
from tidegate.autoscaler.policies.smif.rule import RuleGroup, RuleParameters, autoscale
from tidegate.autoscaler.policies.themis.fit import fit
from tidegate.autoscaler.policies.themis.forecast import absolute_error_pct, maxima, next_maximum
from tidegate.autoscaler.policies.themis.model import StageProfile, full_queue_ms, queue_ms, speedups
from tidegate.autoscaler.policies.themis.programs import PipelinePlan, Problem, horizontal, joint, vertical
from tidegate.autoscaler.policies.themis.transition import Action
from tidegate.autoscaler.policies.themis.transition import decide as themis_decide
from tidegate.deploy.placement.queues import fair_pick, similarity_queues
from tidegate.deploy.placement.strategies import BEST_FIT, WORST_FIT, Cluster, Device, Free, Instance, Node
from tidegate.flow.dropping import is_dropped
from tidegate.function import Routing
from tidegate.loadgen.arrivals.pace import Ticker
from tidegate.loadgen.metrics.cost import Accounting, memory_cost, monthly_cost
from tidegate.loadgen.metrics.elasticity import Point, elasticity
from tidegate.loadgen.metrics.power import epc
from tidegate.loadgen.metrics.usage import activity
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.scenario import Callers, Scenario
from tidegate.manifest.policy_parameters import Shrinking
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters
from tidegate.records.route_table import Spread
from tidegate.traffic.size_cuts import BatchClass, CutGroup, Mode, route_cuts, split_throughput
from tidegate.traffic.weights import GroupCapacity, split
from tidegate.wire.bodies.v2 import batch_size
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request

CASES = load("papers.jsonl")
IDENTITY = Identity(
    function="resnet", revision="resnet-00001", group="cpu", replica="resnet-00001-aaaaa", incarnation="i1"
)


def smif_split(groups: list[dict[str, Any]], lambda_ips: float) -> dict[str, Any]:
    shares = split([GroupCapacity(each["id"], each["mu_ips"], each["replicas"]) for each in groups], lambda_ips)
    if shares is None:
        return {"fractions": None, "lambdas": None, "weights_pct": None}
    return {
        "fractions": list(shares.fractions),
        "lambdas": list(shares.lambdas),
        "weights_pct": list(shares.weights_pct),
    }


def smif_batch_from_headers(
    headers: dict[str, str], header_name: str, bytes_per_item: float | None, overhead_bytes: float, max_batch: int
) -> dict[str, Any]:
    """Through the gateway's own reader of heads, which refuses a length that is no number: no such field then."""
    kept = {name: value for name, value in headers.items() if name.lower() != "content-length" or is_digits(value)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
    head = parse_request(f"POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n".encode(), 0, HeadRules())
    assert isinstance(head, RequestHead)
    name = header_name.lower().encode()
    batch = batch_size(
        head, b"", header=name, bytes_per_item=bytes_per_item, overhead_bytes=overhead_bytes, max_batch=max_batch
    )
    return {"batch": batch}


def is_digits(value: str) -> bool:
    return value.strip().isascii() and value.strip().isdecimal()


def smif_group_load(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Through collector and observation: one replica of each group is heard of twice, the window apart."""
    loads = []
    for given in groups:
        ready = tuple(f"resnet-00001-{index}" for index in range(given["replicas"]))
        collector, now = Collector(), 100.0
        collector.apply("resnet-00001", now)
        if given["sample"] is not None:
            sample = given["sample"]
            now += sample["window_s"]
            counters = {
                "requests": sample["requests"],
                "inferences": sample["inferences"],
                "execution_s": sample["exec_ms_sum"] / 1e3,
                "queue_s": sample["queue_ms_sum"] / 1e3,
            }
            sampled = "resnet-00001-0"
            collector.replica(replica_sample(sampled, group=given["id"], uptime_s=100.0), 100.0)
            later = replica_sample(sampled, group=given["id"], sequence=2, uptime_s=now, **counters)
            collector.replica(later, now)
        fleet = (FleetGroup(accelerator=given["id"], ready=ready),)
        (seen,) = collector.observe(revision(), fleet, now).groups
        loads.append(
            {
                "id": seen.accelerator,
                "load_ips": seen.ips,
                "load_rps": seen.rps,
                "mean_batch": seen.mean_batch,
                "exec_ms": None if seen.execution_s is None else 1e3 * seen.execution_s,
                "queue_ms": None if seen.queue_s is None else 1e3 * seen.queue_s,
            }
        )
    return {"groups": loads, "total_ips": sum(load["load_ips"] for load in loads)}


def smif_autoscale(slo_ms: float, groups: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    result = autoscale(
        slo_ms / 1e3,
        [
            RuleGroup(
                mu_ips=each["mu_ips"],
                replicas=each["replicas"],
                max_replicas=each["max_replicas"],
                load_ips=each["load_ips"],
                execution_s=seconds(each["exec_ms"]),
                latency_s=seconds(each["p_latency_ms"]),
                below_for_s=each["below_for_s"],
            )
            for each in groups
        ],
        RuleParameters(**{name: value for name, value in params.items() if name != "idle_s"}),
        params["idle_s"],
    )
    ids = [each["id"] for each in groups]
    return {
        "replicas": dict(zip(ids, result.replicas, strict=True)),
        "flags": [flag.value for flag in result.flags],
    }


def seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def smif_histogram_quantile(q: float, buckets: list[list[float | None]]) -> float | None:
    return histogram_quantile(q, [(upper, count or 0) for upper, count in buckets])


def smif_route_cuts(groups: list[dict[str, Any]], classes: list[dict[str, Any]]) -> dict[str, Any]:
    """The optimum, after a check that the assignment keeps the rule and reaches it."""
    kinds = {each["id"]: CutGroup(**each) for each in groups}
    cuts = route_cuts(list(kinds.values()), [BatchClass(each["batch"], each["rate_rps"]) for each in classes])
    if cuts is None:
        return {"objective": None}
    ranks = {group.id: rank for rank, group in enumerate(sorted(kinds.values(), key=lambda g: (g.mu_ips, g.id)))}
    order = [ranks[cuts.assignment[each["batch"]]] for each in sorted(classes, key=lambda each: int(each["batch"]))]
    assert order == sorted(order), "a larger batch never goes to a weaker group"
    work = dict.fromkeys(kinds, 0.0)
    for each in classes:
        work[cuts.assignment[each["batch"]]] += each["rate_rps"] * each["batch"]
    busiest = max((work[id_] / group.capacity for id_, group in kinds.items() if work[id_] > 0), default=0.0)
    assert busiest == pytest.approx(cuts.objective, rel=1e-9)
    return {"objective": cuts.objective}


def smif_split_throughput(
    mode: str, mu_ips: list[float], fractions: list[float], lambda_ips: float = math.inf
) -> float:
    return split_throughput(Mode(mode), mu_ips, fractions, lambda_ips)


def smif_gpu_best_fit(gpus: list[dict[str, Any]], request: dict[str, Any]) -> list[str] | None:
    devices = [
        Device(
            id=each["id"],
            node=each["node"],
            kind=each["model"],
            memory=each["mem_total"],
            free=Free(each["mem_free"], each["core_free"]),
            is_shared=each["mps"],
            is_healthy=each["healthy"],
        )
        for each in gpus
    ]
    instance = Instance(
        id="pod",
        model="resnet",
        memory=request["mem_gb"],
        share=request["core_pct"],
        count=request["count"],
        kind=request["gpu_model"],
        is_exclusive=not request["mps_on"],
    )
    ids = Cluster(devices).assign(BEST_FIT, instance)
    return None if ids is None else list(ids)


def hetsev_place(
    gpus: list[dict[str, Any]], nodes: dict[str, dict[str, float]], instances: list[dict[str, Any]]
) -> list[list[str | None]]:
    devices = [
        Device(
            id=each["id"],
            node=each["node"],
            kind=each["type"],
            memory=each["mem_free"],
            free=Free(each["mem_free"], 100.0, tuple(each["tenants"])),
        )
        for each in gpus
    ]
    cluster = Cluster(devices, {name: Node(each["cpu_free"], each["mem_free"]) for name, each in nodes.items()})
    placed: list[list[str | None]] = []
    for each in instances:
        instance = Instance(
            id=each["id"],
            model=each["model"],
            memory=each["gpu_mem"],
            kind=each["gpu_type"],
            cores=each["cpu"],
            node_memory=each["cpu_mem"],
        )
        ids = cluster.assign(WORST_FIT, instance)
        placed.append([each["id"], None if ids is None else ids[0]])
    return placed


def hetsev_cluster(instances: list[dict[str, Any]], k: int) -> list[list[str]]:
    return similarity_queues(
        [Instance(id=each["id"], model=each["model"], memory=each["gpu_mem"]) for each in instances], k
    )


def hetsev_fair_pick(queues: list[dict[str, Any]], beta: int) -> dict[str, Any]:
    pick = fair_pick([each["waits_s"] for each in queues], beta)
    ids = [each["id"] for each in queues]
    return {
        "take": dict(zip(ids, pick.counts, strict=True)),
        "queue_order": [ids[index] for index in pick.order],
    }


def instance_types(types: list[dict[str, Any]]) -> list[InstanceType]:
    return [
        InstanceType(
            cost=each["C"],
            launch_s=each["O"],
            throughput_ips=each["T"],
            running=each["N"],
            latency_s=seconds(each["L"]),
            needs=each["R"],
        )
        for each in types
    ]


def hetsev_ilp(types: list[dict[str, Any]], W: float, S: float, R_total: dict[str, float], **weight: float) -> Any:  # noqa: N803  # The vectors' names.
    given = instance_types(types)
    found = solve(given, W, S / 1e3, weight["lambda"], R_total)
    if found.change is not None:
        assert is_feasible(found.change, given, W, S / 1e3, R_total)
    return {"feasible": found.change is not None, "objective": found.objective}


def hetsev_saturation(samples: list[list[float]], capacity_ips: float, threshold: float, hold_s: float) -> Any:
    found = saturation([RateSample(*each) for each in samples], capacity_ips, threshold, hold_s)
    return {"saturation": list(found.levels), "trigger": found.is_triggered}


def hetsev_scale_out(
    types: list[dict[str, Any]],
    W: float,  # noqa: N803  # The vectors' names.
    S: float,  # noqa: N803
    R_free: dict[str, float],  # noqa: N803
    saturation: float = 0.8,
    **weight: float,
) -> Any:
    found = scale_out(instance_types(types), W, S / 1e3, weight["lambda"], R_free, saturation)
    return {"X": list(found.launch), "cost": found.cost, "satisfied": found.is_satisfied}


def hetsev_scale_in(
    types: list[dict[str, Any]],
    W: float,  # noqa: N803  # The vectors' name.
    saturation: float,
    now_s: float,
    last_scale_s: float | None,
    cooldown_s: float,
    min_instances: int,
) -> Any:
    index = scale_in(instance_types(types), W, saturation, now_s, last_scale_s, cooldown_s, min_instances)
    return {"remove": None if index is None else types[index]["id"]}


def thesis_hpa(params: dict[str, Any], steps: list[dict[str, Any]], start: int) -> list[int]:
    names = {"min": "low", "max": "high", "mode": "shrinking"}
    given = {names.get(name, name): value for name, value in params.items()}
    scaler = HpaScaler(HpaParameters(**given | {"shrinking": Shrinking(given["shrinking"])}))
    replicas, result = start, []
    for step in steps:
        replicas = scaler.decide(step["t"], replicas, step["metric"])
        result.append(replicas)
    return result


def thesis_rolling_util(samples: list[Any], window_s: float, now_s: float) -> float | None:
    return rolling_utilization(samples, window_s, now_s)


def thesis_kpa(params: dict[str, Any], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decision core on given averages; its bounds are applied outside, as in Knative."""
    scaler = KnativeScaler(
        KpaParameters(
            target_value=params["target"],
            total_value=params["target"],
            panic_threshold=params["panic_threshold"],
            stable_window_s=params["stable_window_s"],
            max_scale_up_rate=params["max_scale_up_rate"],
            max_scale_down_rate=params["max_scale_down_rate"],
        ),
        now=0.0,
        ready=0,
    )
    low, high = params["min_scale"], params["max_scale"] or math.inf

    def one(step: dict[str, Any]) -> dict[str, Any]:
        if step["stable"] is None or step["panic"] is None:
            return {"desired": None, "panic": scaler.in_panic}
        result = scaler.decide(step["t"], step["ready"], step["stable"], step["panic"])
        return {"desired": int(min(max(result.desired, low), high)), "panic": result.in_panic}

    return [one(step) for step in steps]


def thesis_avg_concurrency(requests: list[list[float]], t0: float, t1: float) -> float:
    """The queue_proxy's integral of requests in flight, differenced over the interval as the collector does."""
    measure = ReplicaCounters(IDENTITY, min([t0, *(start for start, _ in requests)]))
    events = [(t0, 1, 0.0), (t1, 1, 0.0)]
    for start, end in requests:
        events += [(start, 0, start), (end, 2, start)]
    integrals = []
    for now, kind, start in sorted(events):
        if kind == 0:
            measure.began(now, inferences=1)
        elif kind == 2:
            measure.ended(now, start, 1, 0.0, None, 200, broke=False)
        else:
            integrals.append(measure.in_flight_request_s(now))
    return (integrals[1] - integrals[0]) / (t1 - t0)


def hetsev_cost(
    intervals: list[dict[str, Any]], price_per_gb: dict[str, float], gpu_mem_gb: dict[str, float], accounting: str
) -> float:
    leases = [
        Lease(accelerator=each["gpu_type"], used_gb=each["used_gb"], start_s=each["start_s"], end_s=each["end_s"])
        for each in intervals
    ]
    return memory_cost(leases, price_per_gb, gpu_mem_gb, Accounting(accounting))


def hetsev_slo_level(resp_ms: list[float], rt_max_ms: float, sl_min_pct: float, failed: int = 0) -> dict[str, Any]:
    level = service_level([each / 1e3 for each in resp_ms], rt_max_ms / 1e3, sl_min_pct, failed)
    return {"attained_pct": level.attained, "ok": level.is_met}


def hetsev_rate_window(arrivals_s: list[float], window_s: float, step_s: float, t_end_s: float) -> list[float]:
    return windowed_rates(sorted(arrivals_s), t_end_s, window_s, step_s)


def thesis_spec_metrics(points: list[list[float]], T_s: float) -> dict[str, float]:  # noqa: N803  # The vectors' name.
    found = elasticity([Point(*point) for point in points], T_s)
    return {
        "theta_U": found.theta_under,
        "theta_O": found.theta_over,
        "tau_U": found.tau_under,
        "tau_O": found.tau_over,
        "theta": found.theta,
        "tau": found.tau,
    }


def thesis_gpu_activity(intervals_s: list[tuple[float, float]], T_s: float) -> float:  # noqa: N803  # As above.
    return activity([(start, end) for start, end in intervals_s], T_s)


def thesis_monthly_cost(run_s: float, nodes: int, price_node_hour: float, runs_per_month: float) -> float:
    return monthly_cost(run_s, nodes, price_node_hour, runs_per_month)


def thesis_closed_loop(
    phases: list[dict[str, Any]], pods: int, pod_concurrency: int, service_s: float, routing: str
) -> dict[str, Any]:
    """In the simulator. Blind routing: no limit, a random replica, and the queue is inside its model server; routing
    that knows the load: a limit, and requests wait for the first pod that is free."""
    is_blind = routing == "random"
    of = simulated_function(
        concurrency=0 if is_blind else pod_concurrency,
        routing=Routing(spread=Spread.RANDOM if is_blind else Spread.MOST_FREE),
    )
    scenario = Scenario(
        kinds=(simulated_kind(count=pods),),
        functions=(simulated(fixed(service_s, width=pod_concurrency), of=of, ready={"t4": pods}),),
        callers=tuple(
            Callers(
                function="f",
                callers=each["workers"],
                requests=each["n"],
                rate=each["qps_per_worker"],
                start_s=each["start_s"],
            )
            for each in phases
        ),
        keeps_scale=True,
    )
    phase_of = [index for index, each in enumerate(phases) for _ in range(each["workers"])]
    ends = [0.0] * len(phases)
    latencies: list[list[float]] = [[] for _ in phases]
    for (_, _, sent_s, _, caller, *_), _, at_s, _, _, end in run_simulation(scenario)[1].ended:
        assert end == "answered" and caller is not None
        latencies[phase_of[caller]].append(at_s - sent_s)
        ends[phase_of[caller]] = at_s
    return {
        f"phase{index + 1}": {"total_s": ends[index] - each["start_s"], "avg_latency_s": fmean(latencies[index])}
        for index, each in enumerate(phases)
    }


def thesis_hey_pace(qps_per_worker: float, latencies_s: list[float]) -> list[float]:
    ticker, free_s, sent = Ticker(qps_per_worker), 0.0, []
    for latency_s in latencies_s:
        sent.append(ticker.next(free_s))
        free_s = sent[-1] + latency_s
    return sent


def themis_profile(given: dict[str, float]) -> StageProfile:
    return StageProfile(gamma=given["gamma"], epsilon=given["epsilon"], delta=given["delta"], eta=given["eta"])


def themis_latency(profile: dict[str, float], b: int, c: int) -> dict[str, float]:
    stage = themis_profile(profile)
    return {"latency_ms": stage.latency_ms(b, c), "throughput_rps": stage.throughput_rps(b, c)}


def themis_queue(b: int, n: int, latency_ms: float, lambda_rps: float) -> dict[str, float]:
    return {
        "q_simple_ms": queue_ms(b, lambda_rps),
        "q_full_ms": full_queue_ms(b, n, latency_ms, lambda_rps),
    }


def themis_amdahl(p: float, r: int) -> dict[str, float]:
    found = speedups(p, r)
    return {
        "speedup": found.one_instance,
        "one_core_instances_speedup": found.one_core_instances,
        "even_split_2": found.even_split,
        "uneven_split_2": found.uneven_split,
    }


def themis_fit_profile(observations: list[tuple[float, float, float]]) -> dict[str, float]:
    found = fit(observations)
    return {"gamma": found.gamma, "epsilon": found.epsilon, "delta": found.delta, "eta": found.eta}


def themis_drop(multiplier: float, age_ms: float, slo_ms: float) -> dict[str, bool]:
    return {"drop": is_dropped(multiplier, age_ms, slo_ms)}


def themis_predictor_window(rps: list[float], now_index: int, prediction: float) -> dict[str, Any]:
    target = next_maximum(rps, now_index)
    return {
        "features": list(maxima(rps, now_index)),
        "target": target,
        "ape_pct": absolute_error_pct(prediction, target),
    }


def themis_problem(
    stages: list[dict[str, float]], slo_ms: float, lambda_rps: float, b_max: int, c_max: int = 1
) -> Problem:
    profiles = tuple(themis_profile(each) for each in stages)
    return Problem(stages=profiles, slo_ms=slo_ms, lambda_rps=lambda_rps, b_max=b_max, c_max=c_max)


def themis_cost(problem: Problem, plan: PipelinePlan | None) -> dict[str, Any]:
    """The optimum, after a check of the plan that reaches it against Eq. 6, in whole milliseconds."""
    if plan is None:
        return {"feasible": False, "cost": None}
    used_ms = 0
    for stage, (n, b, c) in zip(problem.stages, plan.stages, strict=True):
        assert min(n, b, c) >= 1 and b <= problem.b_max and c <= problem.c_max
        assert n * stage.throughput_rps(b, c) >= problem.lambda_rps - 1e-9
        wait = 0.0 if b == 1 else 1000.0 * (b - 1) / problem.lambda_rps
        used_ms += math.ceil(stage.latency_ms(b, c) + wait - 1e-9)
    assert used_ms == plan.latency_ms <= problem.slo_ms
    assert sum(n * c for n, _, c in plan.stages) == plan.cost
    return {"feasible": True, "cost": plan.cost}


def themis_horizontal(**inputs: Any) -> dict[str, Any]:
    problem = themis_problem(**inputs)
    return themis_cost(problem, horizontal(problem))


def themis_joint_ip(**inputs: Any) -> dict[str, Any]:
    problem = themis_problem(**inputs)
    return themis_cost(problem, joint(problem))


def themis_vertical(n: list[int], **inputs: Any) -> dict[str, Any]:
    problem = themis_problem(**inputs)
    found = vertical(problem, n)
    result = themis_cost(problem, found.plan)
    if found.plan is not None:
        assert list(found.plan.instances) == n
        return result
    result["lambda_max"] = found.lambda_max
    if found.lambda_max:
        at_most = themis_problem(**{**inputs, "lambda_rps": found.lambda_max})
        result["cost_at_lambda_max"] = themis_cost(at_most, found.at_lambda_max)["cost"]
    return result


def themis_transition(config: list[tuple[int, int]], lambda_pred_rps: float, **inputs: Any) -> dict[str, Any]:
    found = themis_decide(themis_problem(**inputs), [(n, c) for n, c in config], lambda_pred_rps)
    result: dict[str, Any] = {"action": found.action.value}
    if found.plan is None:
        return result
    if found.action is Action.VERTICAL_PLUS_HORIZONTAL:
        return result | {"supported_rps": found.supported_rps, "remaining_rps": found.remaining_rps}
    result |= {"spawn": list(found.spawn), "retire": list(found.retire)}
    if found.action is Action.VERTICAL:
        return result | {"total_cores": found.plan.cost}
    return result | {"cores": [each.c for each in found.plan.stages]}


BUILT: dict[str, Callable[..., Any]] = {
    "hetsev.cluster": hetsev_cluster,
    "hetsev.cost": hetsev_cost,
    "hetsev.fair_pick": hetsev_fair_pick,
    "hetsev.place": hetsev_place,
    "hetsev.ilp": hetsev_ilp,
    "hetsev.rate_window": hetsev_rate_window,
    "hetsev.saturation": hetsev_saturation,
    "hetsev.scale_in": hetsev_scale_in,
    "hetsev.scale_out": hetsev_scale_out,
    "hetsev.slo_level": hetsev_slo_level,
    "oltunes.affinity": oltunes.oltunes_affinity,
    "oltunes.autotune": oltunes.oltunes_autotune,
    "oltunes.epc": epc,
    "oltunes.fm_grad": oltunes.oltunes_fm_grad,
    "oltunes.fm_predict": oltunes.oltunes_fm_predict,
    "oltunes.form_batch": oltunes.oltunes_form_batch,
    "oltunes.ftrl": oltunes.oltunes_ftrl,
    "oltunes.kernel_ratio": oltunes.oltunes_kernel_ratio,
    "oltunes.objective": oltunes.oltunes_objective,
    "oltunes.order": oltunes.oltunes_order,
    "oltunes.window": oltunes.oltunes_window,
    "smif.autoscale": smif_autoscale,
    "smif.batch_from_headers": smif_batch_from_headers,
    "smif.gpu_best_fit": smif_gpu_best_fit,
    "smif.group_load": smif_group_load,
    "smif.histogram_quantile": smif_histogram_quantile,
    "smif.route_cuts": smif_route_cuts,
    "smif.split": smif_split,
    "smif.split_throughput": smif_split_throughput,
    "themis.amdahl": themis_amdahl,
    "themis.drop": themis_drop,
    "themis.fit_profile": themis_fit_profile,
    "themis.horizontal": themis_horizontal,
    "themis.joint_ip": themis_joint_ip,
    "themis.latency": themis_latency,
    "themis.predictor_window": themis_predictor_window,
    "themis.queue": themis_queue,
    "themis.transition": themis_transition,
    "themis.vertical": themis_vertical,
    "thesis.avg_concurrency": thesis_avg_concurrency,
    "thesis.closed_loop": thesis_closed_loop,
    "thesis.gpu_activity": thesis_gpu_activity,
    "thesis.hey_pace": thesis_hey_pace,
    "thesis.hpa": thesis_hpa,
    "thesis.kpa": thesis_kpa,
    "thesis.monthly_cost": thesis_monthly_cost,
    "thesis.rolling_util": thesis_rolling_util,
    "thesis.spec_metrics": thesis_spec_metrics,
}


def deep(actual: Any, expected: Any, rtol: float) -> bool:
    """Same structure, same keys; numbers within ``rtol``, everything else exactly; a boolean is never a number."""
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(deep(actual[key], value, rtol) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(deep(a, e, rtol) for a, e in zip(actual, expected, strict=True))
        )
    if isinstance(expected, bool) or isinstance(actual, bool) or not isinstance(expected, int | float):
        return type(actual) is type(expected) and bool(actual == expected)
    if not isinstance(actual, int | float):
        return False
    if isinstance(expected, int) and isinstance(actual, int):
        return actual == expected
    return abs(actual - expected) <= max(rtol * abs(expected), 1e-9)


def within(actual: Any, bands: Any) -> bool:
    """Same structure, and each number inside the band [lowest, highest] that stands in its place."""
    if isinstance(bands, dict):
        return actual.keys() == bands.keys() and all(within(actual[key], band) for key, band in bands.items())
    return bool(bands[0] <= actual <= bands[1])


def test_every_algorithm_is_built() -> None:
    named = {case["algo"] for case in CASES}
    assert named <= BUILT.keys()
    assert not IS_OWN or named == BUILT.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_worked_cases(case: dict[str, Any]) -> None:
    actual = BUILT[case["algo"]](**case["inputs"])
    expected = case["expect"]
    if case["compare"] == "band":
        assert within(actual, expected), (actual, expected)
        return
    if case["compare"] == "objective":
        # Any optimum counts; ours was checked on the way.
        named = ("feasible", "cost", "objective", "lambda_max", "cost_at_lambda_max")
        expected = {name: expected[name] for name in named if name in expected}
        actual = {name: actual.get(name) for name in expected}
    else:
        assert case["compare"] == "deep"
    if case["algo"] == "smif.batch_from_headers":
        expected = {"batch": expected["batch"]}  # Which rule gave the number is not reported.
    assert deep(actual, expected, case["rtol"]), (actual, expected)


def _batch(headers: dict[str, str], per_item: float | None = 100) -> dict[str, Any]:
    return {
        "headers": headers,
        "header_name": "x-batch",
        "bytes_per_item": per_item,
        "overhead_bytes": 0,
        "max_batch": 8,
    }


ONE_GROUP = [{"id": "t4", "mu_ips": 65.25, "replicas": 1}]
WORKED_BY_HAND: list[tuple[str, dict[str, Any], Any]] = [
    ("smif.batch_from_headers", _batch({"content-length": " 600 "}), {"batch": 6}),
    ("smif.batch_from_headers", _batch({"content-length": "-600"}), {"batch": 1}),
    ("smif.batch_from_headers", _batch({"X-Batch": "\uff13", "Content-Length": "200"}), {"batch": 2}),
    ("smif.batch_from_headers", _batch({"Content-Length": "\u0663"}), {"batch": 1}),
    ("smif.route_cuts", {"groups": ONE_GROUP, "classes": [{"batch": 4, "rate_rps": 0}]}, {"objective": 0.0}),
    ("smif.route_cuts", {"groups": ONE_GROUP, "classes": []}, {"objective": 0.0}),
    ("smif.route_cuts", {"groups": [], "classes": [{"batch": 4, "rate_rps": 1}]}, {"objective": None}),
]
"""What the rules say of cases that no vector has."""


@pytest.mark.parametrize(("algorithm", "inputs", "expected"), WORKED_BY_HAND)
def test_cases_that_no_vector_has(algorithm: str, inputs: dict[str, Any], expected: Any) -> None:
    assert BUILT[algorithm](**inputs) == expected


def test_a_quantile_of_cumulative_buckets_without_observations() -> None:
    assert histogram_quantile(0.5, []) is None
    assert histogram_quantile(0.5, [(1.0, 0), (None, 0)]) is None
    assert histogram_quantile(0.5, [(1.0, float("nan")), (None, float("nan"))]) is None
