"""The plain sentences of ``explain``: what runs, how busy it is, why, and what would change it."""

from dataclasses import replace

import pytest

from tidegate.autoscaler.decisions.reasons import SENTENCES, reason
from tidegate.control.api.summary import KEPT_BY, summary
from tidegate.control.views.functions import (
    CrashView,
    FunctionState,
    FunctionView,
    GroupView,
    IdleView,
    RateSource,
    ReplicaView,
    RevisionView,
    TrafficView,
)
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.roles import Role

GROUP = GroupView(
    accelerator="t4",
    emulated=False,
    wanted=1,
    share=100,
    ready=1,
    starting=0,
    leaving=0,
    room=1,
    price_per_hour=0.5,
    weight=1.0,
    mu_ips=80.0,
    mu_source=RateSource.LEARNT,
    mean_batch=1.0,
    ips=12.0,
    busy=0.15,
    execution_s=0.01,
    tail_s=0.02,
    limit=1,
    limit_reason=None,
)
REVISION = RevisionView(
    id="echo-00001",
    number=1,
    role=Role.SERVING,
    percent=100.0,
    policy="smif",
    desired=1,
    is_dry_run=False,
    ready=1,
    starting=0,
    leaving=0,
    waiting=0,
    reasons=(reason("sla_load", "12 inferences/s"),),
    unplaced=(),
    stuck=None,
    failure=None,
    replicas=(),
    created_at=0.0,
    source="m",
    groups=(GROUP,),
)
VIEW = FunctionView(
    name="echo",
    state=FunctionState.READY,
    revision="echo-00001",
    url=None,
    path_url=None,
    models=("echo",),
    protocol="v2",
    latency_s=0.2,
    percentile=98.0,
    target_ips=None,
    ready=1,
    desired=1,
    price_per_hour=0.5,
    traffic=TrafficView(window_s=60.0, requests_per_s=12.0, inferences_per_s=12.0),
    revisions=(REVISION,),
)


def first(view: FunctionView) -> str:
    return summary(view)[0]


def with_group(**changes: object) -> FunctionView:
    group = replace(GROUP, **changes)  # type: ignore[arg-type]  # fields of the record
    return replace(VIEW, ready=group.ready, revisions=(replace(REVISION, groups=(group,)),))


def test_it_begins_with_one_plain_sentence_and_gives_reasons_without_figures() -> None:
    assert summary(VIEW) == (
        "1 replica: 12 requests/s are 15% of what it can do.",
        "why: the load against the service rates asks for this many replicas.",
        "what would change it: a larger load; or a smaller one, for the whole policy.cooldown and with low latency.",
    )


def test_dropped_requests_are_named_with_what_would_keep_them() -> None:
    traffic = replace(VIEW.traffic, dropped=7)
    assert summary(replace(VIEW, traffic=traffic))[1] == (
        "7 requests of the last 60 s waited for drop-after and were dropped with 503: more replicas, or a larger "
        "drop-after, would keep them."
    )


def test_several_replicas_can_do_so_many_times_as_much() -> None:
    assert first(with_group(ready=3)) == "3 replicas: 12 requests/s are 5% of what they can do."


def test_a_rate_that_is_only_a_bound_says_at_most_and_an_unknown_one_says_so() -> None:
    assert first(with_group(mu_source=RateSource.BOUND)).endswith("are at most 15% of what it can do.")
    assert first(with_group(mu_ips=None)) == "1 replica: 12 requests/s; how much it can do has not been measured yet."


def test_without_a_request_it_says_that() -> None:
    assert (
        first(replace(VIEW, traffic=TrafficView(window_s=60.0)))
        == "1 replica: no request was counted in the last seconds."
    )


NO_PHASES = ColdStartPhases()
IDLE = IdleView(idle_s=6.4, zero_in_s=13.6, kept_by="", is_unused=False)


def without_load(**changes: object) -> FunctionView:
    revision = replace(REVISION, reasons=(reason("mu_unknown"),), **changes)  # type: ignore[arg-type]  # fields
    return replace(VIEW, traffic=TrafficView(window_s=60.0), revisions=(revision,))


def test_an_idle_function_is_kept_by_its_time_and_not_by_a_load() -> None:
    assert summary(without_load(idle=IDLE)) == (
        "1 replica: idle for 6 s; it goes to zero in 14 s unless a request comes (scale-to-zero-after).",
        "why: kept at one replica: not idle for long enough.",
        "what would change it: no request until scale-to-zero-after has passed, or a shorter one.",
    )


@pytest.mark.parametrize("codes", [("level", "replica_held"), ("level", "cover", "replica_held", "mix")])
def test_an_idle_function_that_is_held_is_not_explained_by_the_load_now_nor_by_its_kinds(
    codes: tuple[str, ...],
) -> None:
    held = replace(IDLE, zero_in_s=None, kept_by=codes[-1])
    revision = replace(REVISION, reasons=tuple(reason(code) for code in codes), idle=held)
    assert summary(replace(VIEW, traffic=TrafficView(window_s=60.0), revisions=(revision,))) == (
        "1 replica: idle for 6 s; kept for as long as starting it again would cost.",
        "why: kept for as long as starting it again would cost.",
        "what would change it: it passes by itself, unless more is asked for.",
    )


def test_a_function_without_a_request_since_its_deploy_says_who_started_it() -> None:
    assert first(without_load(idle=replace(IDLE, is_unused=True))) == (
        "1 replica: no request since its deploy, started by initial-scale; it goes to zero in 14 s "
        "unless a request comes (scale-to-zero-after)."
    )


@pytest.mark.parametrize(("code", "words"), KEPT_BY.items())
def test_an_idle_function_that_does_not_go_to_zero_names_what_keeps_it(code: str, words: str) -> None:
    view = without_load(idle=replace(IDLE, zero_in_s=None, kept_by=code))
    assert first(view) == f"1 replica: idle for 6 s; {words}."
    assert summary(view)[1] == f"why: {SENTENCES[code]}."


def test_several_idle_replicas_keep_the_reason_of_their_policy() -> None:
    view = without_load(idle=IDLE, ready=2)
    assert summary(view)[1] == "why: the service rate is not known yet."


def test_calls_under_way_and_calls_that_go_on_are_the_work_of_a_function_without_new_requests() -> None:
    replica = ReplicaView(
        id="r1", accelerator="t4", state="ready", age_s=60.0, limit=4, in_flight=1, held=1, held_s=12.2,
        reason="", phases=NO_PHASES, pids=(), emulated=False, adopted=False,
    )  # fmt: skip
    assert first(without_load(replicas=(replica,))) == (
        "1 replica: 1 slot is held by a call that goes on 12 s after its client was gone."
    )
    hung = replace(replica, in_flight=3, held=0)
    assert first(without_load(replicas=(hung,))) == (
        "1 replica: 3 requests are under way, none was answered in the last 60 s."
    )


def test_a_function_that_sleeps_says_since_when_and_why_and_what_wakes_it() -> None:
    def asleep(**changes: object) -> str:
        return first(replace(without_load(ready=0, **changes), state=FunctionState.ASLEEP, ready=0))

    wakes = "the next request starts a replica."
    assert asleep(asleep_s=200.0, zero_after_s=20.0) == (
        f"Asleep for 3 min, because no request came for 20 s (scale-to-zero-after); {wakes}"
    )
    assert asleep(asleep_s=200.0, zero_after_s=20.0, sleeping=1) == (
        "Asleep for 3 min, because no request came for 20 s (scale-to-zero-after); "
        "1 replica is paused with what it loaded, and the next request wakes one."
    )
    view = replace(REVISION, reasons=(reason("place_given_up"),), asleep_s=4.0, ready=0)
    assert first(replace(VIEW, state=FunctionState.ASLEEP, ready=0, revisions=(view,))) == (
        f"Asleep for 4 s: its idle replica made room for another function; {wakes}"
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            FunctionState.ASLEEP,
            "Asleep: no replica has run since its deploy or the last `tidegate up`; the next request starts a replica.",
        ),
        (FunctionState.STARTING, "1 replica is starting, none is ready; 1 request waits."),
        (FunctionState.FAILED, "No replica is ready, because its last start failed; 1 request waits."),
        (
            FunctionState.UNPLACED,
            "No replica is ready, because no accelerator has a place for it; 1 request waits.",
        ),
        (
            FunctionState.DRAINING,
            "Its last replica finishes its work and stops; a request revives it; 1 request waits.",
        ),
    ],
)
def test_each_state_has_its_sentence(state: FunctionState, text: str) -> None:
    assert first(replace(VIEW, state=state, ready=0, traffic=TrafficView(window_s=60.0, waiting=1))) == text


def test_what_keeps_it_from_serving_comes_last() -> None:
    assert summary(VIEW, ["echo-00002 does not start: its last start failed"])[-1].startswith("echo-00002 does not")


def test_a_dry_run_is_said() -> None:
    view = replace(VIEW, revisions=(replace(REVISION, is_carried_out=False),))
    assert "dry run: nothing of the policy's wish is carried out." in summary(view)


def test_a_crash_is_said_with_its_cause() -> None:
    crash = CrashView(count=1, age_s=12.3, replica="r", cause="killed", reason="the model server was killed by SIGABRT")
    view = replace(VIEW, revisions=(replace(REVISION, crash=crash),))
    assert "1 crash in the last hour, 12 s ago: the model server was killed by SIGABRT." in summary(view)
    view = replace(VIEW, revisions=(replace(REVISION, crash=replace(crash, count=3, age_s=300.0)),))
    assert any(line.startswith("3 crashes in the last hour, the last one 5 min ago: ") for line in summary(view))
