"""The example that reads pictures: boxes, strips and texts, without its models."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ocr"


@pytest.fixture
def pictures() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLE))
    yield importlib.import_module("pictures")
    sys.path.remove(str(EXAMPLE))
    sys.modules.pop("pictures", None)


def test_a_picture_is_seen_in_multiples_of_a_step_and_no_longer_than_its_limit(pictures: Any) -> None:
    found = pictures.detector_input(np.full((100, 2000, 3), 255, np.uint8))
    assert found.shape == (1, 3, 64, 960) and found.dtype == np.float32
    assert found.max() == pytest.approx(1.0) and found.min() == pytest.approx(1.0), "white is 1"


def test_boxes_are_the_sure_places_grown_to_whole_lines_from_the_top_down(pictures: Any) -> None:
    probability = np.zeros((64, 128), np.float32)
    probability[40:50, 10:60] = 0.9
    probability[8:16, 70:110] = 0.8
    probability[30:32, 100:110] = 0.9  # too low
    probability[20:28, 10:30] = 0.35  # not sure
    found = pictures.boxes_of(probability, 128, 256)
    assert len(found) == 2
    (_, top, _, _), (left, upper, right, lower) = found
    assert top < 16 and upper > 16
    grown = 1.6 * 10 * 50 / 120
    assert (left, upper) == (int((10 - grown) * 2), int((40 - grown) * 2))
    assert right - left == pytest.approx((50 + 2 * grown) * 2, abs=2) and lower > 100


def test_lines_stand_beside_each_other_and_come_back_in_batches_of_like_width(pictures: Any) -> None:
    picture = np.zeros((200, 400, 3), np.uint8)
    picture[100:120, :200] = (255, 0, 0)
    boxes = [(0, 0, 40, 20), (0, 100, 200, 120), *[(0, 150, 60, 170)] * 8]
    strip, ends = pictures.strip_of(picture, boxes)
    assert strip.shape == (48, ends[-1], 3) and ends[:2] == [96, 96 + 480]
    batches = list(pictures.batches_of(strip, ends))
    assert [len(chosen) for chosen, _ in batches] == [8, 2]
    assert sorted(each for chosen, _ in batches for each in chosen) == list(range(10))
    chosen, lines = batches[-1]
    assert chosen[-1] == 1 and lines.shape == (2, 3, 48, 480)
    assert lines[1, 2].min() > 0.9 and lines[1, 0].max() < -0.9, "red is the last channel"
    assert (lines[0, :, :, 144:] == 0.0).all(), "nothing beside the shorter one"


def test_runs_of_a_character_are_one_and_blanks_part_them(pictures: Any) -> None:
    best = [0, 1, 1, 0, 1, 2, 2, 0]
    scores = np.full((2, len(best), 3), 0.1, np.float32)
    for at, each in enumerate(best):
        scores[0, at, each] = 0.8
    scores[1, :, 0] = 0.9
    assert pictures.texts_of(scores, "ab") == [("aab", pytest.approx(0.8)), ("", 0.0)]
