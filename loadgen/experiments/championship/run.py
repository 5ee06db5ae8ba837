"""Runs the championship: bounds and rows in several processes; an interruption keeps what is done."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from tidegate.loadgen.bound.clairvoyant import Bound
from tidegate.loadgen.experiments.championship.row import Cell, Entrant, Failed, Played, bound, play
from tidegate.loadgen.experiments.pool import finished

Task = tuple[Cell, Entrant | None]
"""A simulation of the entrant; without one the bound of the cell, which its rows share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionshipRow:
    """One row. ``bound`` is None if it was not asked for."""

    cell: Cell
    policy: str
    played: Played | Failed
    bound: Bound | Failed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionshipResult:
    rows: tuple[ChampionshipRow, ...]
    missing: int
    """Rows that an interruption left out."""


class RowListener(Protocol):
    """Receives progress while the championship runs."""

    def task(self, cell: Cell, policy: str | None) -> None:
        """Takes a finished simulation, or without a policy a bound."""
        ...

    def row(self, row: ChampionshipRow) -> None:
        """Takes a finished row, in the order of the table."""
        ...


def run(
    cells: Sequence[Cell], entrants: Sequence[Entrant], listener: RowListener, *, jobs: int, has_bound: bool
) -> ChampionshipResult:
    """Plays every entrant in every cell. Rows come as soon as they and the ones before them are finished, and do not
    depend on ``jobs``. KeyboardInterrupt ends it early: rows that are finished follow, whatever their place."""
    order = [(cell, entrant) for cell in cells for entrant in entrants]
    tasks: list[Task] = []
    for cell in cells:
        tasks += [(cell, None)] if has_bound else []
        tasks += [(cell, entrant) for entrant in entrants]
    bounds: dict[Cell, Bound | Failed] = {}
    played: dict[tuple[Cell, Entrant], Played | Failed] = {}
    rows: list[ChampionshipRow] = []

    def is_ready(cell: Cell, entrant: Entrant) -> bool:
        return (cell, entrant) in played and (not has_bound or cell in bounds)

    def emit(places: Iterable[tuple[Cell, Entrant]]) -> None:
        for cell, entrant in places:
            row = ChampionshipRow(
                cell=cell, policy=entrant.policy, played=played[cell, entrant], bound=bounds.get(cell)
            )
            rows.append(row)
            listener.row(row)

    with closing(finished(_task, tasks, jobs)) as stream:
        try:
            for index, result in stream:
                cell, entrant = tasks[index]
                if entrant is None:
                    assert not isinstance(result, Played)
                    bounds[cell] = result
                else:
                    assert not isinstance(result, Bound)
                    played[cell, entrant] = result
                listener.task(cell, None if entrant is None else entrant.policy)
                while len(rows) < len(order) and is_ready(*order[len(rows)]):
                    emit([order[len(rows)]])
        except KeyboardInterrupt:
            emit([place for place in order[len(rows) :] if is_ready(*place)])
    return ChampionshipResult(rows=tuple(rows), missing=len(order) - len(rows))


def _task(cell: Cell, entrant: Entrant | None) -> Played | Bound | Failed:
    return bound(cell) if entrant is None else play(cell, entrant)
