"""Erlang's formula."""

import math
from typing import NamedTuple

import pytest

from tests.support.worlds.autoscaling import group
from tidegate.autoscaler.measure.observation import GroupObservation
from tidegate.autoscaler.policies.smif.waiting import alone_s, erlang_c, spread_of, waiting_s, waits_too_long

ONE_SLOT = group("cpu", limit=1, tail_s=0.4)


class Facts(NamedTuple):
    group: GroupObservation = ONE_SLOT
    mu_ips: float = 2.5
    replicas: int = 2
    execution_s: float | None = 0.4
    is_stream: bool = False


def test_erlang_against_known_values() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7), "one server: the chance to find it busy"
    assert erlang_c(2, 0.75) == pytest.approx(0.642857, rel=1e-5)
    assert erlang_c(10, 0.8) == pytest.approx(0.409180, rel=1e-5)


def test_waiting_of_a_single_queue() -> None:
    """M/M/1 at 70 %: P(wait > t) = 0.7 exp(-0.3 t / s); the 98th percentile is ln(35) / 0.3 service times."""
    assert waiting_s(1, 0.7, 0.1, 1.0, 0.98) == pytest.approx(0.1 * math.log(35) / 0.3)
    assert waiting_s(1, 0.7, 0.1, 0.0, 0.98) == pytest.approx(0.05 * math.log(35) / 0.3), "equal times: half of it"
    assert waiting_s(20, 0.3, 0.1, 1.0, 0.98) == 0.0
    assert waiting_s(1, 1.0, 0.1, 1.0, 0.98) == math.inf


def test_the_spread_is_read_from_the_tail() -> None:
    assert (spread_of(0.1, 0.1), spread_of(0.1, 0.5), spread_of(0.0, 0.1)) == (0.0, 1.0, 0.0)
    assert spread_of(0.1, 0.39) == pytest.approx(1.0)


def test_two_replicas_at_seventy_percent_wait_too_long_three_do_not() -> None:
    two = Facts()
    assert waits_too_long([two], 3.5, 0.6, 0.95)
    assert not waits_too_long([two], 1.5, 0.6, 0.95)
    assert not waits_too_long([two._replace(replicas=3)], 3.5, 0.6, 0.95)
    assert not waits_too_long([two, two._replace(replicas=20)], 3.5, 0.6, 0.95), "the others serve too"


def test_where_execution_alone_leaves_no_time_or_is_unknown_nothing_is_expected() -> None:
    assert not waits_too_long([Facts(execution_s=0.7)], 2.0, 0.6, 0.95)
    assert not waits_too_long([Facts(execution_s=None)], 3.5, 0.6, 0.95)
    assert not waits_too_long([Facts(is_stream=True)], 3.5, 0.6, 0.95)
    assert not waits_too_long([], 3.5, 0.6, 0.95)


def test_the_tail_is_of_requests_alone_only_with_one_slot() -> None:
    assert alone_s(Facts(group=group("cpu", limit=1, tail_s=0.5))) == 0.5
    assert alone_s(Facts(group=group("cpu", limit=4, tail_s=0.5))) == 0.4
