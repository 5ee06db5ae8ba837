"""Replays: the recorded policy decides the same, bit for bit, from any part on; another one is shown beside it."""

import json

import pytest

from tests.support.worlds.autoscaling import T0, revision
from tests.support.worlds.recorded import SECONDS, recording
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.replay import report
from tidegate.autoscaler.replay.changes import changed
from tidegate.autoscaler.replay.player import again, instead
from tidegate.autoscaler.replay.recording import FORMAT, Header, Line, Step, read, to_line
from tidegate.errors import Fault, InvalidInputError


def parsed(text: str) -> list[tuple[int, Line]]:
    faults: list[Fault] = []
    lines = list(read(text.splitlines(), faults))
    assert not faults, faults
    return lines


@pytest.fixture(params=registry.names())
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_recorded_policy_decides_the_same_bit_for_bit(policy: str) -> None:
    text = recording(policy)
    lines = parsed(text)
    assert sum(isinstance(line, Header) for _, line in lines) > 3
    played = again(lines)
    assert (played.compared, played.difference) == (SECONDS, None)
    assert len({moment.replayed.desired for moment in played.moments}) > 2, "the load made no difference"
    assert any(moment.step.activation is not None for moment in played.moments)


def test_a_recording_that_lost_its_beginning_still_does(policy: str) -> None:
    lines = parsed(recording(policy))
    headers = [(index, line) for index, (_, line) in enumerate(lines) if isinstance(line, Header)]
    telling = [index for index, line in headers if line.state is not None]
    assert 1 < len(telling) < len(headers), "every few of them say what is remembered"
    for index, _ in headers[1:]:
        start = next((each for each in telling if each >= index), None)
        if start is not None:
            played = again(lines[index:])
            assert played.difference is None
            assert played.compared == sum(isinstance(line, Step) for _, line in lines[start:])


def test_a_part_that_is_missing_is_not_taken_for_silence(policy: str) -> None:
    lines = parsed(recording(policy))
    headers = [(index, line) for index, (_, line) in enumerate(lines) if isinstance(line, Header)]
    missing = next(at for at in range(1, len(headers) - 1) if headers[at + 1][1].state is None)
    until = next(index for index, line in headers[missing + 1 :] if line.state is not None)
    played = again([*lines[: headers[missing][0]], *lines[headers[missing + 1][0] :]])
    assert played.difference is None
    kept = [*lines[: headers[missing][0]], *lines[until:]]
    assert played.compared == sum(isinstance(line, Step) for _, line in kept), "from the next one that tells"


def test_one_header_is_enough_as_long_as_nothing_is_missing(policy: str) -> None:
    lines = parsed(recording(policy))
    kept = [lines[0], *(each for each in lines if isinstance(each[1], Step))]
    assert again(kept).difference is None


def test_the_first_difference_is_named() -> None:
    rows = [json.loads(line) for line in recording("smif").splitlines()]
    index = next(i for i, row in enumerate(rows) if i > 100 and row.get("decision") and row["decision"]["desired"])
    rows[index]["decision"]["groups"][0]["replicas"] += 1
    played = again(parsed("\n".join(json.dumps(row) for row in rows)))
    assert played.difference is not None
    assert (played.difference.line, played.difference.where) == (index + 1, "groups[0].replicas")
    assert played.difference.recorded == played.difference.replayed + 1  # type: ignore[operator]  # numbers both
    assert f"line {index + 1}, 2023-11-14 22:1" in report.text(played, is_other=False)


def test_a_changed_observation_shows_in_the_decisions() -> None:
    rows = [json.loads(line) for line in recording("kpa").splitlines()]
    for row in rows[20:]:
        if "observation" in row:
            row["observation"]["concurrency"] *= 3.0
    assert again(parsed("\n".join(json.dumps(row) for row in rows))).difference is not None


def test_another_policy_stands_beside_what_was_done() -> None:
    lines = parsed(recording("kpa"))
    header = lines[0][1]
    assert isinstance(header, Header)
    function = changed(header.function, "smif", ["policy.cooldown=5s", "max-scale=3", "latency=100ms"])
    assert function.scaling.parameters == {"cooldown": "5s"}, "the other policy's parameters are not taken over"
    played = instead(lines, function)
    assert {moment.replayed.policy for moment in played.moments} == {"smif"}
    assert max(moment.replayed.desired or 0 for moment in played.moments) == 3
    text = report.text(played, is_other=True)
    assert "recorded: policy kpa; replayed: policy smif (cooldown 5s)" in text
    assert text == report.text(instead(parsed(recording("kpa")), function), is_other=True)
    given = ["policy.cooldown=5s", "max-scale=3", "latency=100ms"]
    head = report.text(played, is_other=True, given=given).splitlines()[1]
    assert "policy smif (cooldown 5s) with max-scale=3, latency=100ms, on the same" in head
    plain = report.plain(played, is_other=True)
    assert plain["recorded"].policy == "kpa"
    assert plain["replayed"].most == 3
    assert len(plain["moments"]) == SECONDS


def test_the_same_policy_with_another_parameter() -> None:
    lines = parsed(recording("kpa"))
    header = lines[0][1]
    assert isinstance(header, Header)
    function = changed(header.function, None, ["policy.window=30s"])
    assert function.scaling.parameters["scale-down-delay"] == "20s", "the rest stays"
    instead(lines, function)
    assert changed(header.function, "kpa", []) == header.function


def test_wrong_settings_are_all_named() -> None:
    with pytest.raises(InvalidInputError) as raised:
        changed(revision().function, "kpa", ["x", "policy.windw=3s", "policy.window=1s", "max-scale=-1", "port=3"])
    assert len(raised.value.faults) == 5
    with pytest.raises(
        InvalidInputError,
        match="one of hetsev-greedy, hetsev-ilp, horizontal-only, hpa, k8s-baseline, kpa, oltunes",
    ):
        changed(revision().function, "tid", [])
    with pytest.raises(InvalidInputError, match="at most max-scale, which is 2"):
        changed(revision().function, None, ["max-scale=2", "min-scale=3"])
    with pytest.raises(InvalidInputError, match="unless a latency is given"):
        changed(revision().function, "smif", ["latency=none"])


def test_faults_of_a_recording_carry_their_lines() -> None:
    good = to_line(Header(function=revision().function, revision=1, at=T0)).decode()
    cases = {
        "": "a first line",
        '{"observation": {}}': "line 1: line",
        good.replace(FORMAT, "other"): FORMAT,
        good.replace('"version":1', '"version":2'): "the version of this program",
        good + "{": "line 2",
        good + "[]": "line 2",
        good + '{"observation": {"function": "resnet", "revision": 3}}': "line 2",
    }
    for text, expected in cases.items():
        faults: list[Fault] = []
        list(read(text.splitlines(), faults))
        assert expected in str(InvalidInputError("recording", faults)), text
    faults = []
    list(read(["{"] * 5000, faults))
    assert len(faults) == 101, "the faults of a file of another kind are not listed line by line"


def test_a_state_that_is_none_is_a_fault() -> None:
    rows = [json.loads(line) for line in recording("smif").splitlines()]
    for state in ({}, {"is_initial": True, "up_since": None, "activating_until": None, "kept": 0, "policy": 3}):
        rows[0]["state"] = state
        with pytest.raises(InvalidInputError, match="line 1: state"):
            again(parsed("\n".join(json.dumps(row) for row in rows)))
    rows[0]["state"] = None
    with pytest.raises(InvalidInputError, match="a header that says what the policy remembered"):
        again(parsed("\n".join(json.dumps(row) for row in rows if row.get("format") is None or row is rows[0])))


def test_what_another_version_remembered_is_left_out_up_to_the_next_state() -> None:
    rows = [json.loads(line) for line in recording("smif").splitlines()]
    telling = [index for index, row in enumerate(rows) if row.get("state") is not None]
    policy = json.loads(json.dumps(rows[telling[0]]["state"]["policy"]))
    (name,) = policy
    rows[telling[0]]["state"]["policy"] = {name: policy[name] | {"_long_gone": 1}}
    played = again(parsed("\n".join(json.dumps(row) for row in rows)))
    later = sum("observation" in row for row in rows[telling[1] :])
    assert (played.compared, played.difference) == (later, None)
    assert played.left_out == SECONDS - later
    assert f"{played.left_out} more are left out" in report.text(played, is_other=False)
    for index in telling[1:]:
        rows[index]["state"]["policy"] = {name: policy[name] | {"_long_gone": 1}}
    with pytest.raises(InvalidInputError, match=r"line 1: state.*another version.*with --policy"):
        again(parsed("\n".join(json.dumps(row) for row in rows)))


def test_steps_before_a_header_or_back_in_time_are_faults() -> None:
    rows = recording("kpa").splitlines()
    faults: list[Fault] = []
    list(read(rows[1:3], faults))
    assert "a header before the first step" in str(faults[0])
    faults = []
    list(read([rows[0], rows[5], rows[4]], faults))
    assert "not before the step above" in str(faults[0])


def test_a_wall_clock_set_back_while_none_decided_is_no_fault() -> None:
    rows = recording("kpa").splitlines()
    played = again(parsed("\n".join([*rows, *rows])))  # a part of number 1 begins anew
    assert (played.compared, played.difference) == (2 * SECONDS, None)
    once, twice = (report.plain(each, is_other=False) for each in (again(parsed("\n".join(rows))), played))
    assert twice["replayed"].mean == pytest.approx(once["replayed"].mean), "no second counts backwards"
