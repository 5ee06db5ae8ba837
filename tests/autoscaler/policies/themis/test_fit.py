"""The fit of a stage's latency."""

import math
import random

import pytest

from tidegate.autoscaler.policies.themis.fit import fit, r_squared
from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.errors import InvalidInputError

TRUE = StageProfile(gamma=35.0, epsilon=-4.0, delta=15.0, eta=31.0)
GRID = [(b, c) for b in (1, 2, 4) for c in (1, 2, 4)]


def test_points_without_noise_give_their_profile_back() -> None:
    points = [(b, c, TRUE.latency_ms(b, c)) for b, c in GRID]
    found = fit(points)
    assert [found.gamma, found.epsilon, found.delta, found.eta] == pytest.approx([35.0, -4.0, 15.0, 31.0])
    assert r_squared(found, points) == pytest.approx(1.0)


def test_noise_of_five_percent_leaves_a_good_fit() -> None:
    rng = random.Random(1)
    points = [(b, c, TRUE.latency_ms(b, c) * rng.gauss(1.0, 0.05)) for b, c in GRID for _ in range(4)]
    assert r_squared(fit(points), points) > 0.95


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([(1, 1, 5.0), (1, 2, 4.0), (2, 1, 6.0)], "at least 4"),
        ([(1, 1, 5.0), (2, 1, 4.0), (4, 1, 6.0), (8, 1, 9.0)], "each at two numbers of cores"),
        ([(1, 1, 5.0), (1, 2, 4.0), (1, 4, 6.0), (1, 8, 9.0)], "at least two batch sizes"),
        ([(1, 1, 5.0), (1, 2, -4.0), (2, 1, 6.0), (2, 2, float("nan"))], "points[3]"),
    ],
)
def test_points_that_determine_no_profile_are_refused(points: list[tuple[float, float, float]], text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        fit(points)
    assert text in str(error.value)


def test_the_fit_explains_a_share_of_the_variance() -> None:
    points = [(1, 1, 80.0), (1, 2, 60.0), (2, 1, 120.0), (2, 2, 84.0)]
    found = r_squared(TRUE, points)
    left = sum((ms - TRUE.fitted_ms(b, c)) ** 2 for b, c, ms in points)
    total = sum((ms - 86.0) ** 2 for _, _, ms in points)
    assert found == pytest.approx(1.0 - left / total)
    assert r_squared(TRUE, [(1, 1, 5.0), (1, 2, 5.0)]) == 1.0, "nothing varies"


@pytest.mark.parametrize("bad", [(0.5, 1, 5.0), (1, 0, 5.0), (1, 1, 0.0), (math.inf, 1, 5.0), (1, math.nan, 5.0)])
def test_impossible_figures_are_named_by_their_place(bad: tuple[float, float, float]) -> None:
    points = [(b, c, TRUE.latency_ms(b, c)) for b, c in GRID]
    with pytest.raises(InvalidInputError) as error:
        fit([*points, bad])
    assert "points[9]" in str(error.value)
    assert "points[8]" not in str(error.value)
