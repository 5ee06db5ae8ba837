"""What the policies decide in a world of their own, and why, as it was read and committed."""

import pytest

from tests.golden import decisions
from tests.golden.vectors import OWN, load


@pytest.mark.parametrize("case", decisions.CASES)
def test_each_policy_decides_as_committed_and_says_the_same_reasons(case: str) -> None:
    expected = [row for row in load("decisions.jsonl") if row["case"] == case]
    for found, row in zip(decisions.runs(case), expected, strict=True):
        assert found == row


def test_the_cases_end_in_other_sizes_than_they_began_with() -> None:
    """A run in which nothing happens would judge nothing."""
    for case in decisions.CASES:
        sizes = {(row["desired"], row["cores"]) for row in load("decisions.jsonl") if row["case"] == case}
        assert len(sizes) > 3, (case, OWN)
