"""Shares of a revision's groups: learnt rates before measured ones, and nothing of a revision that was forgotten."""

import pytest

from tests.support.worlds.autoscaling import function, replica_sample
from tidegate.traffic.shares import GroupShares

REVISION = "resnet-00001"


def measured(shares: GroupShares, accelerator: str, ips: float) -> None:
    before = replica_sample(inferences=0, busy_s=0.0)
    shares.measured(
        before, replica_sample(inferences=int(10 * ips), busy_s=10.0, in_flight_request_s=10.0), accelerator
    )


def test_a_learnt_rate_counts_before_a_measured_one() -> None:
    learnt = {(REVISION, "t4"): 40.0}
    shares = GroupShares(lambda revision, accelerator: learnt.get((revision, accelerator)))
    assert shares.mu_ips(REVISION, "v100") is None
    measured(shares, "t4", 10.0)
    measured(shares, "v100", 20.0)
    assert (shares.mu_ips(REVISION, "t4"), shares.mu_ips(REVISION, "v100")) == (40.0, 20.0)
    assert GroupShares().mu_ips(REVISION, "t4") is None


def test_shares_follow_rates_times_ready_replicas() -> None:
    shares = GroupShares()
    assert shares.weights(REVISION) == {}
    measured(shares, "t4", 10.0)
    measured(shares, "v100", 30.0)
    found = shares.of(REVISION, function(), {"t4": 3, "v100": 1, "cpu": 0}, 0.0)
    assert found.weights == {"t4": pytest.approx(0.5), "v100": pytest.approx(0.5), "cpu": 0.0}
    assert (found.mu_ips, found.sizes) == ({"t4": 10.0, "v100": 30.0}, {})
    assert shares.weights(REVISION) == found.weights
    assert "t4" in repr(shares)


def test_without_a_ready_replica_there_are_no_shares() -> None:
    found = GroupShares().of(REVISION, function(), {"t4": 0}, 0.0)
    assert found == ({}, {}, {})


def test_a_revision_is_forgotten_with_its_rates() -> None:
    shares = GroupShares()
    measured(shares, "t4", 10.0)
    shares.of(REVISION, function(), {"t4": 1}, 0.0)
    shares.forget("other")
    assert shares.mu_ips(REVISION, "t4") == 10.0
    shares.forget(REVISION)
    assert (shares.mu_ips(REVISION, "t4"), shares.weights(REVISION)) == (None, {})
