"""Decisions in words, and which ones a log keeps."""

from dataclasses import replace

from autoscaler.explain import DecisionFilter, explain, explain_all, is_change
from autoscaler.reasons import reason
from tidegate.records import Decision, GroupDecision, Reason

DECISION = Decision(
    function="resnet",
    revision="resnet-00001",
    at=1_700_000_000.25,
    policy="kpa",
    ready=1,
    desired=3,
    groups=(GroupDecision(accelerator="t4", replicas=2), GroupDecision(accelerator="v100", replicas=1)),
    reasons=(reason("load", "concurrency 2.1"), reason("capped_by_max")),
    observed={"concurrency": 2.1, "lambda_ips": 12.0, "latency_s": 0.15, "waiting": 0.0},
)


def test_a_decision_in_words() -> None:
    assert explain(DECISION) == [
        "2023-11-14 22:13:20.250 resnet-00001 kpa: 3 replicas (t4 2, v100 1), 1 ready; "
        "2.1 in flight and waiting, 12 inferences/s, latency 150 ms",
        "    load: the load asks for this many replicas (concurrency 2.1)",
        "    capped_by_max: capped by the maximum scale",
    ]


def test_hold_zero_and_words_of_a_newer_version() -> None:
    hold = replace(DECISION, desired=None, groups=None, reasons=(Reason(code="moonlight", detail="full"),), observed={})
    assert explain(hold) == ["2023-11-14 22:13:20.250 resnet-00001 kpa: hold, 1 ready", "    moonlight (full)"]
    none = replace(DECISION, desired=0, groups=(GroupDecision(accelerator="t4", replicas=0),), reasons=(), observed={})
    one = replace(none, desired=1, groups=(GroupDecision(accelerator="t4", replicas=1),))
    assert [line.split("kpa: ")[1] for line in explain_all([none, one])] == [
        "0 replicas, 1 ready",
        "1 replica (t4 1), 1 ready",
    ]


def test_a_change_is_another_wish_or_other_reasons_not_other_figures() -> None:
    other_figures = replace(
        DECISION, at=DECISION.at + 1, reasons=(reason("load", "concurrency 2.2"), DECISION.reasons[1])
    )
    assert not is_change(DECISION, other_figures)
    assert is_change(None, DECISION)
    assert is_change(DECISION, replace(DECISION, desired=2))
    assert is_change(DECISION, replace(DECISION, reasons=()))


def test_the_log_keeps_changes_and_one_line_a_minute() -> None:
    log = DecisionFilter()
    kept = [second for second in range(180) if log.keeps(replace(DECISION, at=DECISION.at + second))]
    assert kept == [0, 60, 120]
    assert log.keeps(replace(DECISION, at=DECISION.at + 180.5, desired=2))
    assert not log.keeps(replace(DECISION, at=DECISION.at + 181.5, desired=2))
    assert log.keeps(replace(DECISION, at=DECISION.at + 181.6, revision="resnet-00002"))
    log.forget("resnet-00001")
    assert log.keeps(replace(DECISION, at=DECISION.at + 182, desired=2))
    assert repr(log) == "<DecisionFilter 2 revisions, every 60 s>"
