"""A plain CSV: the meaning of its columns, unknown cells, and a line for every fault."""

import pytest

from tidegate.autoscaler.replay import report
from tidegate.autoscaler.replay.changes import unrecorded
from tidegate.autoscaler.replay.player import Played
from tidegate.autoscaler.replay.trace import parse, play
from tidegate.errors import InvalidInputError


def played(text: str, policy: str | None = None, *settings: str) -> Played:
    return play(parse(text.splitlines(keepends=True)), unrecorded(policy, settings))


def wanted(found: Played) -> list[int | None]:
    return [moment.replayed.desired for moment in found.moments]


STEPS = "at,lambda_ips,concurrency,waiting,latency_ms,ready,mu_ips\n" + "".join(
    f"{second},{30 if second > 20 else 5},{1.5},0,120,{1 if second < 25 else 4},10\n" for second in range(60)
)


def test_loads_and_rates_are_enough_for_the_sla_policy() -> None:
    found = played(STEPS, None, "latency=200ms")
    assert found.function.scaling.policy == "tide"
    assert set(wanted(found)[:20]) == {2}, "half a replica's work, within twice its execution time"
    assert wanted(found)[25] == 5, "30 a second on replicas of 10"


def test_without_a_column_ready_the_fleet_follows_the_decisions() -> None:
    text = "at,lambda_ips,mu_ips\n" + "".join(f"{second},{30},10\n" for second in range(10))
    found = played(text, "smif", "latency=200ms")
    assert [moment.step.observation.ready for moment in found.moments][:4] == [1, 4, 4, 4]


def test_groups_are_rows_of_one_moment() -> None:
    text = "at,accelerator,lambda_ips,ready,mu_ips,price_per_hour,room\n" + "".join(
        f"{second},cheap,100,1,10,1,2\n{second},dear,,1,50,4,5\n" for second in range(5)
    )
    found = played(text, "smif", "latency=200ms")
    groups = found.moments[-1].replayed.groups
    assert groups is not None
    assert {each.accelerator: each.replicas for each in groups} == {"cheap": 3, "dear": 2}
    assert "cheap 3, dear 2" in report.text(found, is_other=False)


def test_what_a_policy_goes_by_and_does_not_know_makes_it_hold() -> None:
    text = "at,concurrency,ready\n0,3,3\n1,,3\n2,3,3\n"
    found = played(text, "kpa", "concurrency=1")
    assert [moment.step.observation.complete for moment in found.moments] == [True, False, True]
    with pytest.raises(InvalidInputError, match="lambda_ips: got no such column"):
        played(text, "smif", "latency=1s")
    with pytest.raises(InvalidInputError, match="metric:gpu"):
        played(text, "hpa", "policy.metric=gpu")


def test_metrics_by_name() -> None:
    text = "at,ready,metric:gpu\n" + "".join(f"{second},2,90\n" for second in range(40))
    assert wanted(played(text, "hpa", "policy.metric=gpu", "policy.target=30"))[-1] == 6


def test_a_column_desired_is_compared() -> None:
    rows = played(STEPS, None, "latency=200ms")
    lines = ["at,lambda_ips,concurrency,waiting,latency_ms,ready,mu_ips,desired"]
    lines += [f"{line},{desired}" for line, desired in zip(STEPS.splitlines()[1:], wanted(rows), strict=True)]
    same = played("\n".join(lines), None, "latency=200ms")
    assert (same.compared, same.difference) == (60, None)
    lines[31] = lines[31][:-1] + "9"
    other = played("\n".join(lines), None, "latency=200ms")
    assert other.difference is not None
    assert (other.difference.line, other.difference.recorded, other.difference.replayed) == (32, 9, wanted(rows)[30])
    assert f"line 32, 30.000 s: desired differs: recorded 9, replayed {wanted(rows)[30]}" in report.text(
        other, is_other=False
    )


def test_every_fault_of_a_bad_file_is_reported_with_its_line() -> None:
    text = (
        "at,lambda_ips,ready,speed,ready\n"
        "0,x,1,1,1\n"
        "1,nan,1.5,1,1\n"
        "5,-1,1,1,1\n"
        "4,1,1,1,1\n"
        "6,1,1\n"
        "6,inf,1,1,1\n"
        "6,1,1,1,1\n"
    )
    with pytest.raises(InvalidInputError) as raised:
        parse(text.splitlines(keepends=True))
    found = [(fault.where, fault.line) for fault in raised.value.faults]
    assert found == [
        ("column", 1),
        ("column", 1),
        ("column", 1),
        ("lambda_ips", 2),
        ("lambda_ips", 3),
        ("ready", 3),
        ("lambda_ips", 4),
        ("at", 5),
        ("row", 6),
        ("lambda_ips", 7),
        ("accelerator", 8),
    ]


@pytest.mark.parametrize("text", ["", "at\n", "lambda_ips\n1\n", "a,b\n1,2\n", '"at\n', "at,lambda_ips\n\x00,1\n"])
def test_files_of_another_kind(text: str) -> None:
    with pytest.raises(InvalidInputError):
        played(text, "smif", "latency=1s")


def test_the_same_file_gives_the_same_text_byte_for_byte() -> None:
    texts = {report.text(played(STEPS, "smif", "latency=100ms"), is_other=False) for _ in range(3)}
    assert len(texts) == 1
    assert "SLA missed as observed: 59 s (p98 above 100 ms)" in texts.pop()
