"""What each page shows, from views of the API."""

from dataclasses import replace
from typing import Any

import pytest

from tests.control.api.test_summary import GROUP, REVISION, VIEW
from tidegate.control.console.pages import (
    SlaState,
    accelerators,
    buttons,
    cost,
    function_page,
    overview,
    sla_of,
    tenants,
    waiting,
)
from tidegate.control.costs.report import CostAmounts
from tidegate.control.views.costs import CostView, cost_row
from tidegate.control.views.deployment import AcceleratorView, DeploymentView, TenantView
from tidegate.control.views.functions import (
    ColdStartView,
    ExplainView,
    FunctionView,
    ReplicaView,
    RolloutView,
    SeriesView,
    SharePart,
    SplitView,
    TrafficView,
)
from tidegate.control.views.requests import RolloutAction
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision, GroupDecision, Reason
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.rollout import Phase, Strategy

CPU = AcceleratorView(
    name="cpu", kind="cpu", count=2, in_use=1, memory_bytes=1 << 30, cores=1, price_per_hour=0.04, emulated=False
)


def replica(name: str, **changes: Any) -> ReplicaView:
    made = ReplicaView(
        id=name,
        accelerator="cpu",
        state="ready",
        age_s=5.0,
        limit=4,
        in_flight=1,
        reason=None,
        phases=ColdStartPhases(),
        pids=(7, 8),
        emulated=False,
        adopted=False,
    )
    return replace(made, **changes)


def deployment(*functions: FunctionView, **changes: Any) -> DeploymentView:
    made = DeploymentView(
        version="1",
        pid=7,
        epoch=3,
        since_s=40.0,
        state_directory="/s",
        api="http://127.0.0.1:8081",
        gateway="http://127.0.0.1:8080",
        table="3.1",
        faults=("store: disk full",),
        gateways=(),
        accelerators=(CPU,),
        functions=functions,
    )
    return replace(made, **changes)


def traffic(**counts: Any) -> TrafficView:
    return TrafficView(window_s=60.0, **counts)


def with_replicas(*replicas: ReplicaView, **changes: Any) -> FunctionView:
    return replace(VIEW, revisions=(replace(REVISION, replicas=replicas),), **changes)


@pytest.mark.parametrize(
    ("seen", "state", "attained"),
    [
        ({"answered": 100, "within_sla": 98}, SlaState.MET, 0.98),
        ({"answered": 100, "within_sla": 97}, SlaState.MISSED, 0.97),
        ({"answered": 97, "within_sla": 97, "failed": 1, "refused": 1, "expired": 1}, SlaState.MISSED, 0.97),
        ({"answered": 10, "within_sla": 10, "cancelled": 5}, SlaState.MET, 1.0),
        ({"cancelled": 5}, SlaState.NO_TRAFFIC, None),
        ({}, SlaState.NO_TRAFFIC, None),
    ],
)
def test_the_sla_is_kept_where_its_percentile_of_the_ended_requests_was_in_time(
    seen: dict[str, int], state: SlaState, attained: float | None
) -> None:
    found = sla_of(replace(VIEW, traffic=traffic(**seen)))
    assert (found.state, found.attained) == (state, attained)


def test_without_a_target_none_is_kept_or_missed() -> None:
    found = sla_of(replace(VIEW, latency_s=None, traffic=traffic(answered=9, within_sla=9)))
    assert (found.state, found.attained) == (SlaState.NO_TARGET, None)


def test_the_overview_has_one_line_of_each_problem_and_no_ages() -> None:
    broken = replace(VIEW, name="broken", message="the server exited\n  File x\n  OSError: gone", price_per_hour=0.25)
    page = overview(deployment(VIEW, broken), now=1_000.2)
    assert [each.name for each in page.functions] == ["echo", "broken"]
    assert [each.message for each in page.functions] == [None, "the server exited: OSError: gone"]
    assert (page.since, page.price_per_hour, page.faults) == (960.0, 0.75, ("store: disk full",))
    later = deployment(VIEW, broken, since_s=41.0)
    assert overview(later, now=1_001.2) == page


def test_emulated_replicas_are_counted_apart() -> None:
    groups = tuple(replace(each, emulated=True, ready=1) for each in REVISION.groups)
    (row,) = overview(deployment(replace(VIEW, revisions=(replace(REVISION, groups=groups),))), now=0.0).functions
    assert (row.ready, row.emulated) == (1, 1)


def test_each_unit_of_an_accelerator_shows_what_is_placed_on_it() -> None:
    here = (replica("a", unit=1, share=50), replica("b", unit=1, share=50), replica("c", state="failed"))
    (card,) = accelerators(deployment(with_replicas(*here))).accelerators
    assert [[each.replica for each in unit.placed] for unit in card.units] == [[], ["a", "b"]]
    assert (card.units[1].placed[0].share, card.failed) == (50, 1)


def test_a_unit_that_the_accelerator_no_longer_has_is_shown_while_it_is_held() -> None:
    (card,) = accelerators(deployment(with_replicas(replica("a", unit=5)))).accelerators
    assert [unit.index for unit in card.units] == [0, 1, 5]


def test_the_longest_wait_comes_first_and_several_revisions_are_listed() -> None:
    old = replace(VIEW, name="old", ready=0, message="no room", traffic=traffic(waiting=2, oldest_waiting_s=3.0))
    several = replace(VIEW, name="two", revisions=(REVISION, replace(REVISION, id="two-00001", waiting=4, ready=0)))
    page = waiting(deployment(several, old))
    assert [(row.function, row.revision) for row in page.rows] == [
        ("old", None),
        ("two", None),
        ("two", REVISION.id),
        ("two", "two-00001"),
    ]
    assert (page.waiting, page.oldest_s) == (2, 3.0)
    assert (page.rows[0].why, page.rows[1].why, page.rows[3].waiting) == ("no room", None, 4)


def test_the_price_of_an_inference_is_that_of_the_present_rate() -> None:
    view = with_replicas(replica("a"), replica("b", state="failed"), price_per_hour=3.6)
    idle = replace(VIEW, name="idle", traffic=traffic())
    page = cost(deployment(replace(view, traffic=traffic(inferences_per_s=2.0)), idle), HOUR, HOUR)
    assert page.rows[0].price_per_1k == pytest.approx(0.5)
    assert page.rows[0].replicas == {"cpu": 1}
    assert page.rows[1].price_per_1k is None
    assert page.functions is HOUR


HOUR = CostView(
    by=GroupBy.FUNCTION,
    function=None,
    tenant=None,
    spread=False,
    since=0.0,
    until=3600.0,
    rows=(),
    total=cost_row("total", CostAmounts()),
)


def test_tenants_are_those_of_the_api() -> None:
    view = TenantView(
        name="a", keys=1, weight=1.0, priority=None, functions=(), quotas={}, requests=1, inferences=2, tokens=3,
        refused=0,
    )  # fmt: skip
    assert tenants([view]).tenants == (view,)


SPLIT = SplitView(
    function="echo",
    is_pinned=False,
    parts=(
        SharePart(revision="echo-00001", percent=95.0, tags=(), shadow_percent=0.0, ready=True),
        SharePart(revision="echo-00002", percent=5.0, tags=(), shadow_percent=0.0, ready=True),
    ),
    kept=("echo-00001", "echo-00002"),
    candidate="echo-00002",
    is_returning=False,
)
ALONE = replace(
    SPLIT,
    parts=(SharePart(revision="echo-00002", percent=100.0, tags=(), shadow_percent=0.0, ready=True),),
    candidate=None,
)
ROLLOUT = RolloutView(
    function="echo",
    strategy=Strategy.CANARY,
    phase=Phase.RUNNING,
    candidate="echo-00002",
    base="echo-00001",
    percent=5.0,
    steps=(5.0, 50.0),
    step=1,
    window_s=60.0,
    window_left_s=10.0,
    duration_s=None,
    shadow_percent=0.0,
    verdict="",
    new=None,
    old=None,
    shadow=None,
    began_at=0.0,
    events=(),
)


def test_buttons_are_what_the_commands_would_accept() -> None:
    promote, pause, resume, abort = (
        RolloutAction.PROMOTE,
        RolloutAction.PAUSE,
        RolloutAction.RESUME,
        RolloutAction.ABORT,
    )
    assert buttons(SPLIT, ROLLOUT).actions == (promote, pause, abort)
    assert buttons(SPLIT, replace(ROLLOUT, phase=Phase.PAUSED)).actions == (promote, resume, abort)
    unready = replace(SPLIT, parts=(SPLIT.parts[0], replace(SPLIT.parts[1], ready=False)))
    assert buttons(unready, replace(ROLLOUT, phase=Phase.STARTING)).actions == (abort,)
    assert buttons(SPLIT, ROLLOUT).rollback_to == ()


def test_after_a_rollout_each_kept_revision_but_the_serving_one_can_be_returned_to() -> None:
    for last in (None, replace(ROLLOUT, phase=Phase.PROMOTED)):
        found = buttons(ALONE, last)
        assert (found.actions, found.rollback_to) == ((), ("echo-00001",))
    assert buttons(SPLIT, None).rollback_to == ("echo-00002", "echo-00001")


def test_a_functions_page_has_its_decisions_in_words_newest_first() -> None:
    def decision(at: float, desired: int) -> Decision:
        group = GroupDecision(accelerator="cpu", replicas=desired)
        reasons = (Reason(code="capped_by_max", detail="3 wanted"),)
        return Decision(
            function="echo", revision="echo-00001", at=at, policy="tide", ready=1, desired=desired, groups=(group,),
            reasons=reasons,
        )  # fmt: skip

    def start(at: float) -> ColdStartView:
        return ColdStartView(
            function="echo", revision="echo-00001", replica="r", accelerator="cpu", at=at, from_zero=True,
            phases=ColdStartPhases(load_s=1.0), total_s=1.0,
        )  # fmt: skip

    page = function_page(
        replace(VIEW, last_log=("line",)),
        ExplainView(function="echo", text="", decisions=(decision(1.0, 1), decision(2.0, 2)), summary=("why",)),
        (start(1.0), start(2.0)),
        ALONE,
        None,
        SeriesView(function="echo", step_s=1, lines=(), refused=0),
    )
    assert [(each.at, each.groups) for each in page.decisions] == [(2.0, {"cpu": 2}), (1.0, {"cpu": 1})]
    assert page.decisions[0].reasons[0].startswith("capped_by_max: ") and "3 wanted" in page.decisions[0].reasons[0]
    assert [each.at for each in page.cold_starts] == [2.0, 1.0]
    assert (page.function.last_log, page.summary) == ((), ("why",))


def test_a_functions_page_has_the_state_of_its_idle_replicas_by_group_with_what_was_measured() -> None:
    measured = "a start takes 2.1 s: surplus ones sleep (a wake takes 12.5 ms, holds 0.23 % of a place) for 16.3 min"
    idle, busy, unseen = (replica(f"r{count}", in_flight=count) for count in (0, 1, None))
    paused, broken = replica("s", state="asleep", in_flight=None), replica("b", state="failed")

    def rows(*replicas: ReplicaView, states: str | None = measured) -> list[tuple[str, str, str, str | None]]:
        groups = (replace(GROUP, accelerator="cpu", idle_states=states), replace(GROUP, accelerator="t4"))
        view = replace(VIEW, revisions=(replace(REVISION, replicas=replicas, groups=groups),))
        explained = ExplainView(function="echo", text="", decisions=(), summary=())
        page = function_page(
            view, explained, (), ALONE, None, SeriesView(function="echo", step_s=1, lines=(), refused=0)
        )
        return [(each.accelerator, each.revision, each.now, each.states) for each in page.idle]

    def row(now: str, states: str | None = measured) -> list[tuple[str, str, str, str | None]]:
        return [("cpu", "echo-00001", now, states)]

    assert rows(idle, busy, paused, paused) == row("1 ready without work, 2 asleep")
    assert rows(paused) == row("1 asleep")
    assert rows(busy, unseen) == row("none is idle")
    assert rows(broken) == rows() == row("cold")
    assert rows(idle, states=None) == row("1 ready without work", None)
    assert rows(states=None) == [], "nothing has started there"
