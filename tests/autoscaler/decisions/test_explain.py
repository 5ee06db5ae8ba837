"""Decisions in words, and which ones a log keeps."""

import math
import re
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tests.support.worlds.autoscaling import T0, group, observation
from tidegate.autoscaler.decisions.explain import (
    DecisionFilter,
    digest,
    explain,
    explain_all,
    explain_now,
    is_change,
    logged,
)
from tidegate.autoscaler.decisions.reasons import CHANGES, LIMITS, SENTENCES, limits, reason
from tidegate.autoscaler.policies.smif.rule import Flag
from tidegate.records.codec import decode, encode
from tidegate.records.decision import Decision, GroupDecision, Reason

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


def test_the_decision_in_force_with_age_weights_limits_and_what_would_change_it() -> None:
    assert explain_now(DECISION, {"v100": 0.64, "t4": 0.36}, DECISION.at + 0.5) == [
        "",
        "now, resnet-00001: 3 replicas (t4 2, v100 1), 1 ready",
        "    decided 0.5 s ago by policy kpa; 2.1 in flight and waiting, 12 inferences/s, latency 150 ms",
        "    weights in force: t4 36 %, v100 64 %",
        "    limits that bit: capped_by_max",
        "    load: the load asks for this many replicas (concurrency 2.1)",
        "    capped_by_max: capped by the maximum scale",
        "        what would change it: a larger max-scale",
    ]


def test_a_dry_run_and_an_age_stand_in_the_headline() -> None:
    (line, *_) = explain(replace(DECISION, is_dry_run=True, weights={"t4": 0.5, "v100": 0.5}), DECISION.at + 300.0)
    assert line == (
        "2023-11-14 22:13:20.250 (5 min ago) resnet-00001 kpa: 3 replicas (t4 2, v100 1), 1 ready, "
        "dry run: not carried out; 2.1 in flight and waiting, 12 inferences/s, latency 150 ms; "
        "weights t4 50 %, v100 50 %"
    )
    assert is_change(DECISION, replace(DECISION, is_dry_run=True))


def test_a_line_of_the_log_has_digest_weights_and_limits() -> None:
    seen = observation(group(ready=1), at=T0, concurrency=2.1)
    line = logged(DECISION, seen, {"t4": 1.0})
    assert (line.weights, line.limits, len(line.digest)) == ({"t4": 1.0}, ("capped_by_max",), 16)
    assert decode(encode(line), Decision) == line
    assert digest(seen) == digest(decode(encode(seen), type(seen))) == line.digest, "also of one that was written down"
    assert digest(structs.replace(seen, concurrency=math.nextafter(2.1, 3.0))) != line.digest


def test_limits_come_once_each_and_in_order() -> None:
    given = [reason("capped_by_max"), reason("load"), reason("panic"), reason("capped_by_max", "again")]
    assert limits(given) == ("capped_by_max", "panic")


def test_every_code_that_is_used_has_a_sentence_and_every_sentence_is_used() -> None:
    """Codes are literals: ``reason("code"`` here, ``Reason(code="code"`` where the table cannot be imported."""
    root = Path(__file__).resolve().parents[3]
    texts = [
        path.read_text(encoding="utf-8")
        for room in ("autoscaler", "control", "traffic", "deploy")
        for path in (root / room).rglob("*.py")
        if path.name != "reasons.py"
    ]
    literal = re.compile(r'[rR]eason\(\s*(?:code=)?"([a-z_0-9]+)"')
    used = {code for text in texts for code in literal.findall(text)} | {flag.value for flag in Flag}
    assert used <= SENTENCES.keys()
    quoted = {code for text in texts for code in re.findall(r'"([a-z_0-9]+)"', text)}
    assert SENTENCES.keys() <= used | quoted, "a sentence that nothing says"
    assert SENTENCES.keys() >= LIMITS
    assert CHANGES.keys() <= SENTENCES.keys()
    for words in (*SENTENCES.values(), *CHANGES.values()):
        assert words == words.strip()
        assert not words.endswith(".")
