"""The protocol of a policy: what a row and a recommendation are without more."""

import msgspec

from tests.support.worlds.autoscaling import function
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.hpa import HpaPolicy


def test_a_recommendation_of_a_number_alone() -> None:
    found = Recommendation(desired=3)
    assert (found.desired, found.groups, found.reasons, found.observed) == (3, None, (), {})
    assert not found.is_zero_settled
    assert not found.starts_ahead
    assert found.cores is msgspec.UNSET


def test_a_row_of_a_policy_that_learns_nothing() -> None:
    row = PolicyRow(name="x", sentence="y", build=HpaPolicy, keeps=())
    assert not row.scales_cores
    assert not row.is_by_size
    policy = object()
    row.resume(policy, None, 1.0)
    row.forget(policy)
    assert (row.memory(policy), row.load(policy), row.words(policy), row.warnings(function())) == (None, None, (), ())
