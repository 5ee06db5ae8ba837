"""The two predictors that OLTunes is compared with: a random forest and a matrix factorisation. Only experiments use
them.

Both learn the standardised logarithms of the two targets from a whole history, and neither learns online.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tidegate.autoscaler.oltunes.prediction.predictor import Sample

TREES: Final = 100
BINS: Final = 32
"""Thresholds of a number."""
RANK: Final = 8
EPOCHS: Final = 60
RATE: Final = 0.02
SHRINKAGE: Final = 0.02

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class RandomForest:
    """Regression trees, grown fully on bootstraps of the rows; their mean is the prediction (Breiman).

    A split is "this category or another" for names and the values of table 3, and "up to a threshold" for numbers. That
    is what a tree does with the one-hot features of :mod:`tidegate.autoscaler.oltunes.prediction.features`.
    """

    def __init__(self, rng: np.random.Generator, trees: int = TREES) -> None:
        self._rng = rng
        self._number = trees
        self._codes: list[dict[object, int]] = []
        self._borders: list[Floats] = []
        self._trees: list[_Tree] = []

    def fit(self, samples: Sequence[Sample], targets: Floats) -> None:
        """Learns ``targets``, one row for each sample."""
        self._codes = [
            {value: code for code, value in enumerate(sorted(set(column), key=str))}
            for column in zip(*(_categories(each) for each in samples), strict=True)
        ]
        numbers = np.array([_numbers(each) for each in samples])
        self._borders = [np.unique(np.quantile(column, np.linspace(0.0, 1.0, BINS + 1)[1:-1])) for column in numbers.T]
        codes = self._encode(samples)
        widths = [len(each) for each in self._codes] + [len(each) + 1 for each in self._borders]
        rows = len(samples)
        self._trees = []
        for _ in range(self._number):
            drawn = self._rng.integers(0, rows, rows)
            self._trees.append(_Tree(codes[drawn], targets[drawn], widths, len(self._codes)))

    def predict(self, samples: Sequence[Sample]) -> Floats:
        """Returns the predicted targets, one row for each sample."""
        codes = self._encode(samples)
        found: Floats = np.mean([tree.predict(codes) for tree in self._trees], axis=0)
        return found

    def _encode(self, samples: Sequence[Sample]) -> Ints:
        categories = [
            [codes.get(value, -1) for codes, value in zip(self._codes, _categories(each), strict=True)]
            for each in samples
        ]
        numbers = np.array([_numbers(each) for each in samples])
        binned = [np.searchsorted(border, column) for border, column in zip(self._borders, numbers.T, strict=True)]
        return np.column_stack([np.array(categories, dtype=np.int64), *binned]).astype(np.int64)


class _Tree:
    """A tree that grows level by level, all nodes of a level at once."""

    def __init__(self, codes: Ints, targets: Floats, widths: Sequence[int], categorical: int) -> None:
        self._categorical = categorical
        starts = np.concatenate([[0], np.cumsum(widths)])
        total = int(starts[-1])
        feature_of = np.repeat(np.arange(len(widths)), widths)
        is_number = feature_of >= categorical
        self.feature: list[Ints] = []
        self.bin: list[Ints] = []
        self.left: list[Ints] = []
        self.values: list[Floats] = []
        columns = targets.shape[1]
        node = np.zeros(len(codes), dtype=np.int64)
        rows = np.arange(len(codes))
        nodes = 1
        while nodes:
            places = codes[rows] + starts[:-1]
            flat = (node[:, None] * total + places).ravel()
            counts = np.bincount(flat, minlength=nodes * total).reshape(nodes, total).astype(float)
            sums = np.stack(
                [
                    np.bincount(
                        flat, np.repeat(targets[rows, column], codes.shape[1]), minlength=nodes * total
                    ).reshape(nodes, total)
                    for column in range(columns)
                ],
                axis=2,
            )
            for feature in range(categorical, len(widths)):
                part = slice(starts[feature], starts[feature + 1])
                counts[:, part] = np.cumsum(counts[:, part], axis=1)
                sums[:, part] = np.cumsum(sums[:, part], axis=1)
            size = np.bincount(node, minlength=nodes).astype(float)
            all_sums = np.stack(
                [np.bincount(node, targets[rows, column], minlength=nodes) for column in range(columns)], axis=1
            )
            rest = size[:, None] - counts
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = (sums**2).sum(axis=2) / counts + ((all_sums[:, None] - sums) ** 2).sum(axis=2) / rest
            gain[(counts < 0.5) | (rest < 0.5)] = -np.inf
            best = np.argmax(gain, axis=1)
            before = (all_sums**2).sum(axis=1) / size
            splits = gain[np.arange(nodes), best] > before + 1e-9
            left = np.where(splits, 2 * (np.cumsum(splits) - 1), -1)
            feature, border = feature_of[best], best - starts[feature_of[best]]
            self.feature.append(feature)
            self.bin.append(border)
            self.left.append(left)
            self.values.append(all_sums / size[:, None])
            rows, node = self._descend(codes, rows, node, is_number[best])
            nodes = 2 * int(splits.sum())

    def predict(self, codes: Ints) -> Floats:
        found = np.empty((len(codes), self.values[0].shape[1]))
        rows, node = np.arange(len(codes)), np.zeros(len(codes), dtype=np.int64)
        for level, values in enumerate(self.values):
            found[rows] = values[node]
            left = self.left[level][node]
            goes_on = left >= 0
            rows, node, left = rows[goes_on], node[goes_on], left[goes_on]
            feature, border = self.feature[level][node], self.bin[level][node]
            value = codes[rows, feature]
            is_left = np.where(feature >= self._categorical, value <= border, value == border)
            node = left + np.where(is_left, 0, 1)
        return found

    def _descend(self, codes: Ints, rows: Ints, node: Ints, is_number: Any) -> tuple[Ints, Ints]:
        """Returns the rows that are not in a leaf, and their nodes on the next level."""
        left = self.left[-1][node]
        goes_on = left >= 0
        rows, node, left = rows[goes_on], node[goes_on], left[goes_on]
        value = codes[rows, self.feature[-1][node]]
        border = self.bin[-1][node]
        is_left = np.where(is_number[node], value <= border, value == border)
        return rows, left + np.where(is_left, 0, 1)


class MatrixFactorisation:
    """Biased matrix factorisation (Koren et al.): rows are models, columns are configurations without the model.

    A column that the history does not contain is predicted by the bias of its row alone.
    """

    def __init__(self, rng: np.random.Generator, rank: int = RANK) -> None:
        self._rng = rng
        self._rank = rank
        self._rows: dict[object, int] = {}
        self._columns: dict[object, int] = {}
        self._mean: Floats = np.zeros(0)
        self._biases: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
        self._factors: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))

    def fit(self, samples: Sequence[Sample], targets: Floats) -> None:
        """Learns ``targets``, one row for each sample, by gradient descent over the known cells."""
        for each in samples:
            self._rows.setdefault(each.configuration.model, len(self._rows))
            self._columns.setdefault(_column(each), len(self._columns))
        outputs = targets.shape[1]
        self._mean = targets.mean(axis=0)
        self._biases = (np.zeros((len(self._rows), outputs)), np.zeros((len(self._columns), outputs)))
        self._factors = (
            self._rng.normal(0.0, 0.05, (len(self._rows), self._rank, outputs)),
            self._rng.normal(0.0, 0.05, (len(self._columns), self._rank, outputs)),
        )
        (of_row, of_column), (p, q) = self._biases, self._factors
        cells = [
            (self._rows[each.configuration.model], self._columns[_column(each)], target)
            for each, target in zip(samples, targets, strict=True)
        ]
        for _ in range(EPOCHS):
            for index in self._rng.permutation(len(cells)):
                row, column, target = cells[index]
                error = target - self._mean - of_row[row] - of_column[column] - (p[row] * q[column]).sum(axis=0)
                of_row[row] += RATE * (error - SHRINKAGE * of_row[row])
                of_column[column] += RATE * (error - SHRINKAGE * of_column[column])
                before = p[row].copy()
                p[row] += RATE * (error * q[column] - SHRINKAGE * p[row])
                q[column] += RATE * (error * before - SHRINKAGE * q[column])

    def predict(self, samples: Sequence[Sample]) -> Floats:
        """Returns the predicted targets, one row for each sample."""
        found = []
        for each in samples:
            row, column = self._rows.get(each.configuration.model), self._columns.get(_column(each))
            value = self._mean.copy()
            if row is not None:
                value += self._biases[0][row]
            if column is not None:
                value += self._biases[1][column]
            if row is not None and column is not None:
                value += (self._factors[0][row] * self._factors[1][column]).sum(axis=0)
            found.append(value)
        return np.array(found)


def _categories(sample: Sample) -> tuple[object, ...]:
    of = sample.configuration
    return of.model, of.device, of.batch, of.share_pct, of.memory_gb, of.device_memory_gb


def _numbers(sample: Sample) -> tuple[float, ...]:
    return sample.configuration.input_size, sample.configuration.parameters


def _column(sample: Sample) -> object:
    of = sample.configuration
    return of.device, of.batch, of.share_pct
