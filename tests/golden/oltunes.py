"""The vectors' call forms of OLTunes' algorithms."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate.autoscaler.oltunes.affinity import affinity
from tidegate.autoscaler.oltunes.autotune import TunableTask, TuningRecord, autotune
from tidegate.autoscaler.oltunes.batches import BatchRules, form
from tidegate.autoscaler.oltunes.character import kernel_ratio
from tidegate.autoscaler.oltunes.objective import TuningRow, objective
from tidegate.autoscaler.oltunes.prediction import machine
from tidegate.autoscaler.oltunes.prediction.ftrl import Form, Ftrl
from tidegate.autoscaler.oltunes.queues import next_window_ms, order
from tidegate.autoscaler.oltunes.task import BatchTask, JobClass, QueuedTask, Variant


def oltunes_kernel_ratio(compute_kernels: int, memory_kernels: int) -> dict[str, Any]:
    found = kernel_ratio(compute_kernels, memory_kernels)
    return {"ratio": found.ratio, "kind": found.kind.value}


def sparse(x: Sequence[float]) -> list[tuple[int, float]]:
    return [(position, value) for position, value in enumerate(x) if value != 0.0]


def oltunes_fm_predict(w0: float, w: list[float], V: list[list[float]], x: list[float]) -> float:  # noqa: N803
    return machine.predict(w0, w, V, sparse(x))


def oltunes_fm_grad(
    w0: float,
    w: list[float],
    V: list[list[float]],  # noqa: N803
    x: list[float],
    y: float,
) -> dict[str, Any]:
    """Dense again: features that are zero have no gradient."""
    found = machine.gradient(w0, w, V, sparse(x), y)
    g_w = [0.0] * len(x)
    g_v = [[0.0] * len(row) for row in V]
    for (position, _), of_w, of_v in zip(sparse(x), found.w, found.v, strict=True):
        g_w[position], g_v[position] = of_w, of_v
    return {"g_w0": found.w0, "g_w": g_w, "g_V": g_v}


def oltunes_ftrl(
    mode: str, eta: float, zeta: float, lambda1: float, lambda2: float, grads: list[float], w_init: float
) -> list[dict[str, float]]:
    ftrl = Ftrl(form=Form(mode), eta=eta, zeta=zeta, lambda1=lambda1, lambda2=lambda2)
    z, n, w = ftrl.start(w_init), 0.0, w_init
    steps = []
    for each in grads:
        z, n, w = ftrl.step(z, n, w, each)
        steps.append({"z": z, "n": n, "w": w})
    return steps


def task(given: dict[str, Any]) -> BatchTask:
    variant = given["variant"]
    return BatchTask(
        id=given.get("id", ""),
        memory_gb=given.get("mem", 0.0),
        ratio=given["ratio"],
        variant=None if variant is None else Variant(variant),
        devices=given.get("opt_gpus", ()),
    )


def oltunes_affinity(new: dict[str, Any], batch: list[dict[str, Any]], threshold: float) -> dict[str, Any]:
    found = affinity(task(new), [task(each) for each in batch], threshold)
    return {
        "aff_workload": found.workload,
        "aff_variant": found.variant,
        "affinity": found.total,
        "high": found.is_high,
    }


def oltunes_objective(
    rows: list[dict[str, Any]], alpha: float, beta: float, deadline_s: float, **class_weight: float
) -> dict[str, Any]:
    found = objective(
        [
            TuningRow(
                device=each["gpu"],
                combination=each["k"],
                latency_s=each["lat_s"],
                throughput=each["thr"],
                epc=each["epc"],
            )
            for each in rows
        ],
        class_weight=class_weight["lambda"],
        alpha=alpha,
        beta=beta,
        deadline_s=deadline_s,
    )
    return {
        "f": list(found.values),
        "top_gpus": list(found.devices),
        "D": {device: list(kept) for device, kept in found.combinations.items()},
    }


def oltunes_window(len_lc: int, len_to: int, W_ms: float) -> float:  # noqa: N803
    return next_window_ms(W_ms, len_lc, len_to)


def oltunes_order(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    queues = order(
        QueuedTask(
            id=each["id"],
            class_weight=each["lambda"],
            deadline_s=each["deadline_s"],
            average_latency_s=each["avg_latency_s"],
        )
        for each in tasks
    )
    return {
        "lc": [each.id for each in queues.latency_critical],
        "to": [each.id for each in queues.throughput_oriented],
    }


def oltunes_form_batch(
    gpu: dict[str, Any],
    lc: list[dict[str, Any]],
    to: list[dict[str, Any]],
    batch: list[dict[str, Any]],
    opened_s: float | None,
    now_s: float,
    W_ms: float,  # noqa: N803
    size_max: int,
    min_mem: float,
    threshold: float,
) -> dict[str, Any]:
    found = form(
        gpu["id"],
        gpu["mem"],
        [task(each) for each in lc],
        [task(each) for each in to],
        [task(each) for each in batch],
        open_for_s=0.0 if opened_s is None else now_s - opened_s,
        rules=BatchRules(window_ms=W_ms, max_tasks=size_max, least_free_gb=min_mem, threshold=threshold),
    )
    return {
        "batch": [each.id for each in found.batch],
        "lc_left": [each.id for each in found.latency_critical],
        "to_left": [each.id for each in found.throughput_oriented],
        "submit": None if found.submit is None else found.submit.value,
    }


def record(given: dict[str, Any]) -> TuningRecord:
    return TuningRecord(batch=given["b"], memory_gb=given["mem"], latency_s=given["lat_s"], throughput=given["thr"])


def oltunes_autotune(gpu_mem: float, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    found = autotune(
        gpu_mem,
        [
            TunableTask(
                id=each["id"],
                job_class=JobClass(each["kind"]),
                current=record(each["current"]),
                records=[record(of) for of in each["records"]],
            )
            for each in tasks
        ],
    )
    if found is None:
        return {"task": None, "record": None}
    names = {"batch": "b", "memory_gb": "mem", "latency_s": "lat_s", "throughput": "thr"}
    return {"task": found[0].id, "record": {names[name]: value for name, value in asdict(found[1]).items()}}
