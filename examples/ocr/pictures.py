"""What the detector and the recogniser of text make of a picture: arrays in, boxes and texts out.

The models are those of PP-OCRv4 (PaddlePaddle) in ONNX, as the package `rapidocr-onnxruntime` has them. Their steps
before and after are written here in numpy: the package's own need OpenCV.
"""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Picture = NDArray[np.uint8]
"""Rows, columns, and red, green, blue."""
Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""

LONGEST = 960
"""Longest side of the picture that the detector sees."""
STEP = 32
"""Its sides are multiples of this."""
TEXT = 0.3
"""Probability from which on a pixel is text."""
SURE = 0.5
"""Mean probability of a box that counts."""
GROWTH = 1.6
"""The detector finds the kernel of a line; its box is larger by this times area over circumference."""
SMALLEST = 4
HEIGHT = 48
"""Height of a line for the recogniser."""
WIDEST = 1600
TOGETHER = 8
"""Lines that the recogniser reads in one step."""


PACKAGE = "rapidocr_onnxruntime"


def model(name: str) -> Any:
    """Returns a session of one of the package's models, on one core. The package is read as files, never imported."""
    import onnxruntime

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed: see README.md of this example")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(Path(spec.origin).parent / "models" / name), options)


def detector_input(picture: Picture) -> Floats:
    """Returns a picture as the detector takes it."""
    rows, columns = picture.shape[:2]
    scale = min(1.0, LONGEST / max(rows, columns))
    size = (_multiple(rows * scale), _multiple(columns * scale))
    return _normal(_resized(picture, *size))[None]


def boxes_of(probability: Floats, rows: int, columns: int) -> list[Box]:
    """Returns the boxes of lines, from the top down, in the pixels of a picture of this size."""
    marked, _ = ndimage.label(probability > TEXT)
    up, left = rows / probability.shape[0], columns / probability.shape[1]
    found = []
    for index, (ys, xs) in enumerate(ndimage.find_objects(marked), 1):
        height, width = ys.stop - ys.start, xs.stop - xs.start
        inside = marked[ys, xs] == index
        if min(height, width) < SMALLEST or float(probability[ys, xs][inside].mean()) < SURE:
            continue
        grown = GROWTH * height * width / (2 * (height + width))
        found.append(
            (
                max(0, math.floor((xs.start - grown) * left)),
                max(0, math.floor((ys.start - grown) * up)),
                min(columns, math.ceil((xs.stop + grown) * left)),
                min(rows, math.ceil((ys.stop + grown) * up)),
            )
        )
    return sorted(found, key=lambda box: (box[1], box[0]))


def strip_of(picture: Picture, boxes: Sequence[Box]) -> tuple[Picture, list[int]]:
    """Returns the lines in the recogniser's height, one beside the other, and where each ends."""
    lines = []
    for left, top, right, bottom in boxes:
        width = min(WIDEST, max(HEIGHT, round(HEIGHT * (right - left) / (bottom - top))))
        lines.append(_resized(picture[top:bottom, left:right], HEIGHT, width))
    ends = np.cumsum([line.shape[1] for line in lines])
    return np.concatenate(lines, axis=1), [int(end) for end in ends]


def batches_of(strip: Picture, ends: Sequence[int]) -> Iterator[tuple[list[int], Floats]]:
    """Yields (which lines, these lines as the recogniser takes them), lines of similar width together."""
    starts = [0, *ends[:-1]]
    widths = [end - start for start, end in zip(starts, ends, strict=True)]
    order = sorted(range(len(ends)), key=widths.__getitem__)
    for first in range(0, len(order), TOGETHER):
        chosen = order[first : first + TOGETHER]
        found = np.zeros((len(chosen), 3, HEIGHT, max(HEIGHT, *(widths[each] for each in chosen))), np.float32)
        for at, each in enumerate(chosen):
            found[at, :, :, : widths[each]] = _normal(strip[:, starts[each] : ends[each]])
        yield chosen, found


def texts_of(scores: Floats, characters: Sequence[str]) -> list[tuple[str, float]]:
    """Returns (text, mean certainty) of each line: of each run of the same character one, blanks none."""
    found = []
    for line in scores:
        best = line.argmax(axis=1)
        is_new = np.concatenate(([True], best[1:] != best[:-1])) & (best > 0)
        text = "".join(characters[each - 1] for each in best[is_new])
        found.append((text, float(line.max(axis=1)[is_new].mean()) if text else 0.0))
    return found


def _multiple(size: float) -> int:
    return max(STEP, round(size / STEP) * STEP)


def _resized(picture: Picture, rows: int, columns: int) -> Picture:
    """Returns the picture in another size: the mean of what falls on a pixel where it shrinks, else between pixels."""
    factors = (rows / picture.shape[0], columns / picture.shape[1])
    smooth = [max(0.0, (1.0 / each - 1.0) / 2.0) for each in factors]
    softened = ndimage.gaussian_filter(picture, (*smooth, 0)) if any(smooth) else picture
    ys = (np.arange(rows) + 0.5) / factors[0] - 0.5
    xs = (np.arange(columns) + 0.5) / factors[1] - 0.5
    grid = np.meshgrid(ys, xs, indexing="ij")
    found = [ndimage.map_coordinates(softened[..., each], grid, order=1, mode="nearest") for each in range(3)]
    return np.stack(found, axis=-1)


def _normal(picture: Picture) -> Floats:
    """Returns channels first, blue before red, from -1 to 1."""
    channels = picture[..., ::-1].transpose(2, 0, 1).astype(np.float32)
    return channels / np.float32(127.5) - np.float32(1.0)
