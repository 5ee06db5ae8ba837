"""Running: rows in their order, the same with every number of jobs, kept by an interruption."""

from tidegate.loadgen.experiments.championship.report import record
from tidegate.loadgen.experiments.championship.row import Cell, Entrant
from tidegate.loadgen.experiments.championship.run import ChampionshipResult, ChampionshipRow, run
from tidegate.loadgen.experiments.championship.traces import Lengths
from tidegate.records.codec import encode

CELLS = [
    Cell(trace=trace, groups=1, start_up_s=5.0, seed=1, lengths=Lengths(learn_s=0.0, judged_s=10.0))
    for trace in ("constant", "diurnal")
]
ENTRANTS = [Entrant(policy="kpa"), Entrant(policy="tide")]


class Heard:
    """A listener that interrupts after so many tasks."""

    def __init__(self, tasks: int | None = None) -> None:
        self.rows: list[ChampionshipRow] = []
        self.tasks: list[str] = []
        self._left = tasks

    def task(self, cell: Cell, policy: str | None) -> None:
        self.tasks.append(f"{cell.trace} {policy}")
        if len(self.tasks) == self._left:
            raise KeyboardInterrupt

    def row(self, row: ChampionshipRow) -> None:
        self.rows.append(row)


def made(jobs: int = 1, has_bound: bool = True, tasks: int | None = None) -> tuple[Heard, ChampionshipResult]:
    heard = Heard(tasks)
    return heard, run(CELLS, ENTRANTS, heard, jobs=jobs, has_bound=has_bound)


def test_every_policy_plays_in_every_cell_and_shares_its_bound() -> None:
    heard, result = made()
    assert [(row.cell.trace, row.policy) for row in result.rows] == [
        ("constant", "kpa"),
        ("constant", "tide"),
        ("diurnal", "kpa"),
        ("diurnal", "tide"),
    ]
    assert tuple(heard.rows) == result.rows and not result.missing
    assert heard.tasks[0] == "constant None"
    assert result.rows[0].bound is result.rows[1].bound is not None


def test_rows_do_not_depend_on_the_number_of_jobs() -> None:
    assert [encode(record(row)) for row in made()[1].rows] == [encode(record(row)) for row in made(jobs=3)[1].rows]


def test_without_bounds_there_are_costs_alone() -> None:
    heard, result = made(has_bound=False)
    assert heard.tasks == ["constant kpa", "constant tide", "diurnal kpa", "diurnal tide"]
    assert record(result.rows[0])["cost_over_b0"] is None
    assert record(result.rows[0])["cost_dollars"] > 0.0


def test_an_interruption_keeps_the_rows_that_are_done() -> None:
    heard, result = made(tasks=2)
    assert [row.policy for row in result.rows] == ["kpa"] == [row.policy for row in heard.rows]
    assert result.missing == 3
