"""Small route tables for tests of the waiting room."""

from collections.abc import Mapping, Sequence

from tidegate.records.route_table import (
    Binding,
    FailureKind,
    FunctionRoute,
    GroupRoute,
    QueueOrder,
    ReplicaRoute,
    RevisionRoute,
    RouteTable,
    Spread,
)


def function(
    replicas: Sequence[tuple[str, str]],
    *,
    name: str = "f",
    revision: str | None = None,
    weights: Mapping[str, float] | None = None,
    mu_ips: Mapping[str, float] | None = None,
    unit_inferences: bool = False,
    limited: bool = True,
    failure: str | None = None,
    failure_kind: FailureKind = FailureKind.START_FAILED,
    spread: Spread = Spread.MOST_FREE,
    queue_requests: int = 10_000,
    queue_bytes: int = 1 << 30,
    max_wait_s: float = 300.0,
    drop_after_s: float | None = None,
    sizes: Mapping[str, tuple[int, int | None]] | None = None,
    queue_order: QueueOrder = QueueOrder.ARRIVAL,
    binding: Binding = Binding.LATE,
    asleep: Sequence[str] = (),
) -> FunctionRoute:
    """A function with one revision; ``replicas`` are (id, accelerator), weights equal unless given.

    ``sizes``: fewest and most inferences of the requests that a group serves, by accelerator.
    """
    kinds = list(dict.fromkeys([*(kind for _, kind in replicas), *(weights or {})]))
    groups = tuple(
        GroupRoute(
            accelerator=kind,
            weight=1 / len(kinds) if weights is None else weights[kind],
            mu_ips=None if mu_ips is None else mu_ips.get(kind),
            smallest=1 if sizes is None else sizes[kind][0],
            largest=None if sizes is None else sizes[kind][1],
            replicas=tuple(ReplicaRoute(id=one, address=f"unix:/{one}") for one, of in replicas if of == kind),
            asleep=tuple(one for one, of in replicas if of == kind and one in asleep),
        )
        for kind in kinds
    )
    return FunctionRoute(
        name=name,
        models=(name,),
        protocol="v2",
        timeout_s=300.0,
        latency_s=None,
        queue_requests=queue_requests,
        queue_bytes=queue_bytes,
        max_wait_s=max_wait_s,
        drop_after_s=drop_after_s,
        batch_header="tidegate-batch-size",
        bytes_per_item=None,
        overhead_bytes=0.0,
        max_batch=1024,
        spread=spread,
        queue_order=queue_order,
        binding=binding,
        revisions=(
            RevisionRoute(
                id=revision or f"{name}-00001",
                percent=100.0,
                unit_inferences=unit_inferences,
                limited=limited,
                groups=groups,
                failure=failure,
                failure_kind=failure_kind,
            ),
        ),
    )


def table(
    replicas: Sequence[tuple[str, str]] = (),
    *,
    number: int = 1,
    workers: int = 1,
    functions: Sequence[FunctionRoute] | None = None,
    weights: Mapping[str, float] | None = None,
    unit_inferences: bool = False,
    **settings: object,
) -> RouteTable:
    """A table with one function ``f`` unless ``functions`` are given."""
    if functions is None:
        functions = [function(replicas, weights=weights, unit_inferences=unit_inferences, **settings)]  # type: ignore[arg-type]  # passed on as given
    return RouteTable(epoch=1, number=number, workers=workers, functions=tuple(functions))
