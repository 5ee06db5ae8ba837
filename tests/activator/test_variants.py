"""Which variants may serve requests for another one, and in which order."""

import pytest

from tidegate.activator.variants import FamilyMember, stand_ins
from tidegate.records.route_table import ModelVariant


def member(name: str, accuracy: float | None, loss: float = 0.0, *, family: str = "f", **of: object) -> FamilyMember:
    variant = ModelVariant(family=family, accuracy=accuracy, loss=loss)
    return FamilyMember(name, variant, of.get("interface", "v2"))


OTHERS = (member("r18", 69.8), member("r50", 76.1), member("r200", 80.0), member("unknown", None))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (0.0, ()),
        (1.0, ("r200",)),
        (2.19, ("r200",)),
        (2.25, ("r200", "r50")),
        (8.6, ("r200", "r50", "r18")),
    ],
)
def test_those_within_the_loss_the_most_accurate_first(loss: float, expected: tuple[str, ...]) -> None:
    assert stand_ins((*OTHERS, member("r152", 78.3, loss))).get("r152", ()) == expected


def test_a_variant_of_unknown_accuracy_gives_none_away_and_takes_none() -> None:
    assert stand_ins((member("a", None, 90.0), member("b", 1.0, 90.0))) == {}


def test_equals_are_tried_by_name() -> None:
    assert stand_ins((member("x", 70.0, 1.0), member("b", 70.0), member("a", 70.0))) == {"x": ("a", "b")}


@pytest.mark.parametrize(
    "other", [member("b", 70.0, family="g"), member("b", 70.0, interface="http"), member("b", 68.9)]
)
def test_another_model_another_interface_and_too_little_accuracy_are_no_choice(other: FamilyMember) -> None:
    assert stand_ins((member("a", 70.0, 1.0), other)) == {}
