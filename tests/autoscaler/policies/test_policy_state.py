"""The state of policies as plain data, and back: the copy goes on exactly like the original."""

import json
import math
from collections import deque

import pytest

from tests.support.worlds.autoscaling import T0, function, group, observation, revision
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.observation import ArrivalCounts, Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.policy_state import Plain, StateError, restored, snapshot
from tidegate.autoscaler.policies.smif.scale_in import ScaleInTimer
from tidegate.function import Scaling


def at(second: int) -> Observation:
    """A load that rises and falls, on two groups, with misses of the target and seconds of silence."""
    load = 20.0 + 15.0 * math.sin(second / 20.0)
    is_late = 40 < second < 70
    ready = 1 + second // 30
    groups = (
        group(
            "cpu", ready=ready, sampled=ready, limit=1, concurrency=load / 9.0, rps=load, ips=load, busy=0.7 * ready,
            mu_ips=11.0, is_mu_learnt=True, execution_s=0.09, min_execution_s=0.08, tail_s=0.1,
            latency_s=0.4 if is_late else 0.1, answers=300, late=100 if is_late else 0,
        ),
        group("gpu", ready=1, sampled=1, mu_ips=40.0, price_per_hour=3.0),
    )  # fmt: skip
    waiting = int(load) if is_late else 0
    now = T0 + second
    arrived = sum(round(20.0 + 15.0 * math.sin(each / 20.0)) for each in range(second))
    counts = ArrivalCounts(((1.0, float(arrived)),), 3.0 * max(0, min(second, 70) - 40))
    return observation(
        *groups, at=now, complete=second % 17 != 0, lambda_ips=load, rps=load, concurrency=load / 9.0, waiting=waiting,
        counts=counts,
    )  # fmt: skip


@pytest.mark.parametrize("policy", registry.names())
@pytest.mark.parametrize(
    "parameters", [{}, {"metric-aggregation-algorithm": "weighted-exponential", "zero-protocol": "knative"}]
)
def test_a_copy_made_at_any_second_decides_like_the_original(policy: str, parameters: dict[str, str]) -> None:
    if policy == "kpa":
        parameters = parameters | {"scale-down-delay": "20s"}
    elif parameters:
        parameters = {"cooldown": "20s"}
    spec = revision(scaling=Scaling(policy=policy, parameters=parameters))
    original = Decider()
    original.apply(spec, T0)
    copies: list[Decider] = []
    seen = set()
    for second in range(150):
        decisions = [each.tick(T0 + second, at(second)) for each in (original, *copies)]
        assert all(decision == decisions[0] for decision in decisions), second
        seen.add(decisions[0].desired)
        if second % 40 == 5:
            copy = Decider()
            copy.restore(spec, json.loads(json.dumps(original.snapshot(spec.id))))
            copies.append(copy)
    assert len(seen) > 2, "the load made no difference: nothing was tested"


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    spec = function()
    calm = ScaleInTimer()
    calm.below_for_s(T0, 1)
    value = {
        "a": (1, 2.5, None, True),
        3: deque([(T0, 1)]),
        "last": deque([1, 2], maxlen=2),
        "x": [math.inf, -math.inf, "word"],
        "calm": calm,
        "f": spec,
    }
    plain = json.loads(json.dumps(snapshot(value, spec, (ScaleInTimer,))))
    copy = restored(plain, spec, (ScaleInTimer,))
    assert copy["f"] is spec
    assert repr(copy.pop("calm")) == repr(calm)
    assert copy == {key: each for key, each in value.items() if key != "calm"}
    assert (copy[3].maxlen, copy["last"].maxlen) == (None, 2)
    assert [type(each) for each in copy["a"]] == [int, float, type(None), bool]


def test_a_recording_keeps_the_names_that_it_was_made_with() -> None:
    assert snapshot(ScaleInTimer(), function(), (ScaleInTimer,)).keys() == {"Calm"}


class Kept:
    """``double`` follows from ``value``."""

    __slots__ = ("double", "value")
    UNRECORDED = ("double",)

    def __init__(self, value: int) -> None:
        self.value = value
        self.double: int | None = 2 * value


def test_what_follows_from_the_rest_is_not_recorded_and_not_known_in_the_copy() -> None:
    plain = snapshot(Kept(3), function(), (Kept,))
    assert plain == {"Kept": {"value": 3}}
    copy = restored(plain, function(), (Kept,))
    assert (copy.value, copy.double) == (3, None)


def test_nothing_but_the_named_classes_is_written_or_made() -> None:
    spec = function()
    with pytest.raises(StateError, match="ScaleInTimer is not among"):
        snapshot(ScaleInTimer(), spec, ())
    wrong: list[Plain] = [
        {"Calm": {}},
        {"Path": {}},
        {"tuple": 3},
        {"dict": [1]},
        {"float": "x"},
        {"bounded": [1, 2, 3]},
        {"a": 1, "b": 1},
        {},
    ]
    for plain in wrong:
        with pytest.raises(StateError):
            restored(plain, spec, (ScaleInTimer,))
    decider = Decider()
    for plain in (None, {}, {"is_initial": True}):
        with pytest.raises(StateError):
            decider.restore(revision(), plain)
