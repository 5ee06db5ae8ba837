"""What each page of the console shows: pure functions from the API's views to records.

The figures are those of the views, so those of ``tidegate status``. Records of pages that many browsers read hold no
ages, only points in time: they stay equal while nothing changes, and an unchanged page is not sent again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate.autoscaler.decisions.explain import sentence
from tidegate.control.api.summary import summary
from tidegate.control.views.costs import CostView
from tidegate.control.views.deployment import AcceleratorView, DeploymentView, GatewayView, TenantView
from tidegate.control.views.functions import (
    ColdStartView,
    ExplainView,
    FunctionView,
    ReplicaView,
    RevisionView,
    RolloutView,
    SeriesView,
    SplitView,
    TrafficView,
)
from tidegate.control.views.requests import RolloutAction
from tidegate.records.decision import Decision
from tidegate.records.rollout import Phase


class SlaState(StrEnum):
    """The SLA of a function over the last minute, in one word."""

    MET = "met"
    MISSED = "missed"
    NO_TRAFFIC = "no traffic"
    NO_TARGET = "no target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """The latency target of a function and how it was kept in the last minute."""

    state: SlaState
    latency_s: float | None
    percentile: float
    per_token_s: float | None
    attained: float | None
    """Part of the ended requests that were answered within the target, 0..1. Cancelled ones do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRow:
    """One function of the overview."""

    name: str
    state: str
    revision: str
    sla: Sla
    ready: int
    emulated: int
    """Ready replicas whose service times come from a profile."""
    starting: int
    sleeping: int
    desired: int | None
    traffic: TrafficView
    price_per_hour: float
    rollout: str | None
    """Candidate of the rollout under way."""
    message: str | None
    """The present problem in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage:
    version: str
    epoch: int
    since: float
    """Start of the control process, Unix seconds."""
    gateway: str
    api: str
    faults: tuple[str, ...]
    gateways: tuple[GatewayView, ...]
    price_per_hour: float
    functions: tuple[FunctionRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutButtons:
    """What can be done about the revisions of a function now."""

    actions: tuple[RolloutAction, ...]
    rollback_to: tuple[str, ...]
    """Kept revisions, newest first, that do not serve alone already. Empty during a rollout, which is aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision with its reasons in words."""

    at: float
    revision: str
    policy: str
    ready: int
    desired: int | None
    """None: hold the present replicas."""
    groups: dict[str, int]
    """Replicas by accelerator; empty: hold."""
    reasons: tuple[str, ...]
    is_dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """The replicas of one group that have no work now, and what the states take and hold in which they may be."""

    accelerator: str
    revision: str
    now: str
    """``1 ready without work, 2 asleep``; ``cold`` if there is no replica."""
    states: str | None
    """Measured times of starts and wakes and what sleep holds, as in ``explain``; None before the first start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPage:
    """One function. ``series`` holds the points since the browser's last ones."""

    function: FunctionView
    sla: Sla
    summary: tuple[str, ...]
    decisions: tuple[DecisionRow, ...]
    """Newest first."""
    cold_starts: tuple[ColdStartView, ...]
    """Newest first."""
    idle: tuple[IdleRow, ...]
    """Groups that have replicas, or have had one."""
    split: SplitView
    rollout: RolloutView | None
    """The rollout under way, or the last one."""
    buttons: RolloutButtons
    series: SeriesView


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A replica on a unit of an accelerator."""

    replica: str
    function: str
    revision: str
    state: str
    share: int
    """Percent of the unit."""
    cores: int
    in_flight: int | None
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit of an accelerator, counted from 0."""

    index: int
    placed: tuple[Placed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorCard:
    accelerator: AcceleratorView
    units: tuple[Unit, ...]
    """All units, empty ones included; also units that the accelerator no longer has and that still hold replicas."""
    failed: int
    """Replicas that failed and hold no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorsPage:
    accelerators: tuple[AcceleratorCard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """The waiting room of one revision, or of a function (revision None)."""

    function: str
    revision: str | None
    waiting: int
    ready: int
    starting: int
    desired: int | None
    why: str | None
    """Why no replica is ready, in one line; None if one is."""
    traffic: TrafficView | None
    """Of the function; None in the rows of its revisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPage:
    waiting: int
    """Requests of all functions that wait now."""
    oldest_s: float
    rows: tuple[WaitingRow, ...]
    """Functions by their oldest request; each is followed by its revisions if there are several."""
    gateways: tuple[GatewayView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsPage:
    tenants: tuple[TenantView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The price of what runs now."""

    function: str
    replicas: dict[str, int]
    """Replicas by accelerator, starting and leaving ones included."""
    price_per_hour: float
    inferences_per_s: float
    price_per_1k: float | None
    """Present price over the present rate, per 1,000 inferences; None without traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPage:
    price_per_hour: float
    rows: tuple[CostRow, ...]
    functions: CostView
    """Cost of the last hour by function, as ``tidegate cost`` reports it."""
    tenants: CostView


# --- the SLA ---


def sla_of(view: FunctionView) -> Sla:
    """Returns the SLA of the last minute: the part of requests answered in time against its percentile."""
    traffic = view.traffic
    ended = traffic.answered + traffic.failed + traffic.refused + traffic.expired
    attained = traffic.within_sla / ended if ended else None
    if view.latency_s is None:
        state, attained = SlaState.NO_TARGET, None
    elif attained is None:
        state = SlaState.NO_TRAFFIC
    else:
        state = SlaState.MET if attained >= view.percentile / 100.0 - 1e-9 else SlaState.MISSED
    return Sla(
        state=state,
        latency_s=view.latency_s,
        percentile=view.percentile,
        per_token_s=view.per_token_s,
        attained=attained,
    )


# --- the pages ---


def overview(view: DeploymentView, now: float) -> OverviewPage:
    """Returns the overview. ``now``: Unix seconds."""
    return OverviewPage(
        version=view.version,
        epoch=view.epoch,
        since=float(round(now - view.since_s)),
        gateway=view.gateway,
        api=view.api,
        faults=view.faults,
        gateways=view.gateways,
        price_per_hour=sum(each.price_per_hour for each in view.functions),
        functions=tuple(_row(each) for each in view.functions),
    )


def _row(view: FunctionView) -> FunctionRow:
    groups = [group for revision in view.revisions for group in revision.groups]
    return FunctionRow(
        name=view.name,
        state=view.state.value,
        revision=view.revision,
        sla=sla_of(view),
        ready=view.ready,
        emulated=sum(group.ready for group in groups if group.emulated),
        starting=sum(each.starting for each in view.revisions),
        sleeping=sum(each.sleeping for each in view.revisions),
        desired=view.desired,
        traffic=view.traffic,
        price_per_hour=view.price_per_hour,
        rollout=None if view.rollout is None else view.rollout.candidate,
        message=_short(view.message),
    )


def _short(message: str | None) -> str | None:
    """Returns a problem in one line: the first line, and the last one of the server's output."""
    if not message:
        return None
    first, *output = message.splitlines()
    return f"{first}: {output[-1].strip()}" if output else first


def function_page(
    view: FunctionView,
    explained: ExplainView,
    starts: Sequence[ColdStartView],
    split: SplitView,
    rollout: RolloutView | None,
    series: SeriesView,
) -> FunctionPage:
    """Returns the page of one function. ``rollout``: the one under way, or the last one."""
    return FunctionPage(
        function=replace(view, last_log=()),
        sla=sla_of(view),
        summary=explained.summary or summary(view),
        decisions=tuple(_decision(each) for each in reversed(explained.decisions)),
        cold_starts=tuple(reversed(starts)),
        idle=tuple(row for each in view.revisions for row in _idle(each)),
        split=split,
        rollout=rollout,
        buttons=buttons(split, rollout),
        series=series,
    )


def _idle(revision: RevisionView) -> Iterator[IdleRow]:
    for group in revision.groups:
        here = [each for each in revision.replicas if each.accelerator == group.accelerator and each.state != "failed"]
        if not here and group.idle_states is None:
            continue
        ready = sum(each.state == "ready" and each.in_flight == 0 for each in here)
        asleep = sum(each.state == "asleep" for each in here)
        counts = ((ready, "ready without work"), (asleep, "asleep"))
        now = ", ".join(f"{count} {word}" for count, word in counts if count)
        yield IdleRow(
            accelerator=group.accelerator,
            revision=revision.id,
            now=now or ("none is idle" if here else "cold"),
            states=group.idle_states,
        )


def _decision(decision: Decision) -> DecisionRow:
    return DecisionRow(
        at=decision.at,
        revision=decision.revision,
        policy=decision.policy,
        ready=decision.ready,
        desired=decision.desired,
        groups={each.accelerator: each.replicas for each in decision.groups or ()},
        reasons=tuple(sentence(each) for each in decision.reasons),
        is_dry_run=decision.is_dry_run,
    )


def buttons(split: SplitView, rollout: RolloutView | None) -> RolloutButtons:
    """Returns what ``tidegate rollout`` and ``tidegate rollback`` would accept now."""
    actions: list[RolloutAction] = []
    back: tuple[str, ...] = ()
    if rollout is not None and rollout.phase in (Phase.STARTING, Phase.RUNNING, Phase.PAUSED):
        if any(each.revision == rollout.candidate and each.ready for each in split.parts):
            actions.append(RolloutAction.PROMOTE)
        if rollout.phase is Phase.RUNNING:
            actions.append(RolloutAction.PAUSE)
        if rollout.phase is Phase.PAUSED:
            actions.append(RolloutAction.RESUME)
        actions.append(RolloutAction.ABORT)
    else:
        alone = next((each.revision for each in split.parts if each.percent >= 100.0), None)
        back = tuple(each for each in sorted(split.kept, reverse=True) if each != alone)
    return RolloutButtons(actions=tuple(actions), rollback_to=back)


def accelerators(view: DeploymentView) -> AcceleratorsPage:
    """Returns each accelerator with the replicas on its units."""
    replicas = [
        (function.name, revision.id, replica)
        for function in view.functions
        for revision in function.revisions
        for replica in revision.replicas
    ]
    return AcceleratorsPage(
        accelerators=tuple(
            _card(each, [found for found in replicas if found[2].accelerator == each.name])
            for each in view.accelerators
        )
    )


def _card(accelerator: AcceleratorView, here: Iterable[tuple[str, str, ReplicaView]]) -> AcceleratorCard:
    units: dict[int, list[Placed]] = {index: [] for index in range(accelerator.count)}
    failed = 0
    for function, revision, replica in here:
        if replica.state == "failed":
            failed += 1
            continue
        placed = Placed(
            replica=replica.id,
            function=function,
            revision=revision,
            state=replica.state,
            share=replica.share,
            cores=replica.cores,
            in_flight=replica.in_flight,
            limit=replica.limit,
        )
        for unit in (replica.unit, *replica.more_units):
            units.setdefault(unit, []).append(placed)
    return AcceleratorCard(
        accelerator=accelerator,
        units=tuple(Unit(index=index, placed=tuple(held)) for index, held in sorted(units.items())),
        failed=failed,
    )


def waiting(view: DeploymentView) -> WaitingPage:
    """Returns the requests that wait, by function and revision."""
    rows: list[WaitingRow] = []
    for each in sorted(view.functions, key=lambda each: (-each.traffic.oldest_waiting_s, -each.traffic.waiting)):
        rows.append(
            WaitingRow(
                function=each.name,
                revision=None,
                waiting=each.traffic.waiting,
                ready=each.ready,
                starting=sum(revision.starting for revision in each.revisions),
                desired=each.desired,
                why=None if each.ready else _short(each.message),
                traffic=each.traffic,
            )
        )
        if len(each.revisions) > 1:
            rows += [
                WaitingRow(
                    function=each.name,
                    revision=revision.id,
                    waiting=revision.waiting,
                    ready=revision.ready,
                    starting=revision.starting,
                    desired=revision.desired,
                    why=None if revision.ready else (revision.stuck or next(iter(revision.unplaced), None)),
                    traffic=None,
                )
                for revision in each.revisions
            ]
    return WaitingPage(
        waiting=sum(each.traffic.waiting for each in view.functions),
        oldest_s=max((each.traffic.oldest_waiting_s for each in view.functions), default=0.0),
        rows=tuple(rows),
        gateways=view.gateways,
    )


def tenants(views: Sequence[TenantView]) -> TenantsPage:
    """Returns the tenants with their usage."""
    return TenantsPage(tenants=tuple(views))


def cost(view: DeploymentView, functions: CostView, tenants: CostView) -> CostPage:
    """Returns the price of what runs now, and the cost of the last hour by function and by tenant."""
    return CostPage(
        price_per_hour=sum(each.price_per_hour for each in view.functions),
        rows=tuple(_cost(each) for each in view.functions),
        functions=functions,
        tenants=tenants,
    )


def _cost(view: FunctionView) -> CostRow:
    held: dict[str, int] = {}
    for revision in view.revisions:
        for replica in revision.replicas:
            if replica.state != "failed":
                held[replica.accelerator] = held.get(replica.accelerator, 0) + 1
    rate = view.traffic.inferences_per_s
    return CostRow(
        function=view.name,
        replicas=held,
        price_per_hour=view.price_per_hour,
        inferences_per_s=rate,
        price_per_1k=view.price_per_hour / 3600.0 / rate * 1000.0 if rate > 0.0 else None,
    )
