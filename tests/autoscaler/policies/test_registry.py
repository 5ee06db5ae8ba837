"""The registry: every policy by its name, and what is measured for which."""

import pytest

from tests.support.worlds.autoscaling import T0, function
from tidegate.autoscaler.policies import registry
from tidegate.errors import InvalidInputError
from tidegate.function import Scaling


def test_every_policy_is_listed_by_name() -> None:
    known = registry.names()
    assert {"hetsev-greedy", "hetsev-ilp", "hpa", "k8s-baseline", "kpa", "oltunes", "smif", "themis", "tide"} <= set(
        known
    )
    assert list(known) == sorted(known)
    assert all(registry.row(name).name == name for name in known)


def test_an_unknown_one_is_an_error_that_lists_them() -> None:
    with pytest.raises(InvalidInputError, match=r"'magic'.*one of hetsev-greedy, hetsev-ilp, "):
        registry.row("magic")


def test_sizes_and_cores_are_measured_for_policies_that_read_them() -> None:
    assert registry.by_size() == {"hetsev-greedy", "hetsev-ilp", "k8s-baseline", "tide"}
    assert registry.by_cores() == {"horizontal-only", "themis", "vertical-only"}


@pytest.mark.parametrize("name", registry.names())
def test_a_policy_is_built_for_a_function(name: str) -> None:
    built = registry.build(function(scaling=Scaling(policy=name)), T0, 0)
    assert type(built) in registry.row(name).keeps
    assert built.activation_scale == 1
    assert built.retention_s == 0.0
