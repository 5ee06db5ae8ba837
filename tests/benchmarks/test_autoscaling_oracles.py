"""What experiments compare with: best splits, quantiles of an exposition, the configuration of a peer."""

import itertools
import math
import random

import pytest

from benchmarks.autoscaling.age import buckets, difference, quantile_bound
from benchmarks.autoscaling.haproxy import config
from benchmarks.autoscaling.lab import Kind, series
from benchmarks.autoscaling.sizes import KINDS, LARGE, SHARE_LARGE, SMALL, mixed, oracle_rps
from tidegate.loadgen.clients.call import Request
from tidegate.traffic.size_cuts import BatchClass, CutGroup, route_cuts

AGES = """
tidegate_decision_age_seconds_bucket{function="a",le="0.5"} 90
tidegate_decision_age_seconds_bucket{function="a",le="1.0"} 99
tidegate_decision_age_seconds_bucket{function="a",le="+Inf"} 100
tidegate_decision_age_seconds_bucket{function="b",le="0.5"} 10
tidegate_decision_age_seconds_bucket{function="b",le="1.0"} 10
tidegate_decision_age_seconds_bucket{function="b",le="+Inf"} 10
tidegate_decision_age_seconds_count{function="b"} 10
"""


def test_the_oracle_of_two_equal_groups_is_twice_one() -> None:
    equal = (Kind(name="a", base_s=0.01), Kind(name="b", base_s=0.01))
    assert oracle_rps(equal, 0.5)[0] == pytest.approx(200.0)


def test_the_oracle_keeps_sizes_apart_where_that_is_best_and_cuts_come_near_it() -> None:
    best, small, large = oracle_rps(KINDS, SHARE_LARGE)
    assert small == 1.0, "the weak group takes the small ones"
    assert large <= 0.05
    weak, strong = KINDS
    cut_rps = 1.0 / max((1 - SHARE_LARGE) / weak.mu_ips(SMALL), SHARE_LARGE * LARGE / strong.mu_ips(LARGE))
    assert cut_rps >= 0.95 * best, "so the bound of 95 % can be met by one cut"


def test_cuts_of_those_sizes_are_the_oracles() -> None:
    weak, strong = KINDS
    groups = [CutGroup("weak", weak.mu_ips(LARGE), 1), CutGroup("strong", strong.mu_ips(LARGE), 1)]
    classes = [BatchClass(SMALL, 0.8), BatchClass(LARGE, 0.2)]
    cuts = route_cuts(groups, classes)
    assert cuts is not None
    assert dict(cuts.assignment) == {SMALL: "weak", LARGE: "strong"}


def test_the_mix_of_sizes_is_exact_and_not_in_order() -> None:
    shots = list(itertools.islice(mixed(Request(b"", SMALL), Request(b"", LARGE), random.Random(1)), 200))
    assert sum(shot.inferences == LARGE for shot in shots) == 200 * SHARE_LARGE
    assert [shot.inferences for shot in shots[:20]] != [shot.inferences for shot in shots[20:40]]


def test_quantiles_of_all_series_together_less_what_was_there_before() -> None:
    counts = buckets(AGES)
    assert counts == {0.5: 100.0, 1.0: 109.0, math.inf: 110.0}
    assert (quantile_bound(counts, 0.9), quantile_bound(counts, 0.99)) == (0.5, 1.0)
    assert quantile_bound(difference(counts, counts), 0.99) is None
    assert quantile_bound(buckets("nothing 1\n"), 0.99) is None


def test_series_add_up_over_the_labels_that_are_not_asked_for() -> None:
    text = 'busy_total{group="t4",replica="a"} 1.5\nbusy_total{group="t4",replica="b"} 2\nother{group="t4"} 9\n'
    assert series(text, "busy_total", "group") == {"t4": 3.5}


def test_haproxy_reaches_queue_proxies_by_socket_and_by_port() -> None:
    text = config(8000, "random(2)", ["unix:/run/a.q", "127.0.0.1:9000"])
    assert "balance random(2)" in text
    assert "server replica0 unix@/run/a.q\n  server replica1 127.0.0.1:9000" in text
