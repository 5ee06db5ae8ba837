"""The latency model of the policy ``themis``, fitted to what was measured."""

from collections.abc import Iterator

from tidegate.autoscaler.policies.themis.fit import fit
from tidegate.errors import InvalidInputError
from tidegate.loadgen.profiling.points import Measured
from tidegate.schema.units import plain


def themis_fits(measured: Measured) -> Iterator[tuple[str, str]]:
    """Yields (accelerator, ``GAMMA,EPSILON,DELTA,ETA`` in milliseconds), fitted to the p95; of accelerators that were
    measured with at least two batches and two numbers of cores."""
    for accelerator in sorted({cell.accelerator for cell in measured.points}):
        points = [
            (float(cell.batch), float(cell.cores), 1e3 * point.p95_s)
            for cell, point in measured.points.items()
            if cell.accelerator == accelerator and cell.cores > 0
        ]
        try:
            found = fit(points)
        except InvalidInputError:
            continue
        yield (
            accelerator,
            ",".join(plain(round(each, 4)) for each in (found.gamma, found.epsilon, found.delta, found.eta)),
        )
