"""Times at which something has to be looked at; what no longer matters is skipped and does not pile up."""

from tidegate.activator.timers import MAX_DEAD, Timers


def test_entries_come_in_the_order_of_their_times_and_those_that_do_not_matter_never() -> None:
    dead: set[str] = set()
    timers: Timers[str] = Timers(lambda entry: entry not in dead)
    for when, entry in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (2.0, "also b")):
        timers.at(when, entry)
    dead.add("a")
    assert timers.first() == 2.0
    assert timers.due(1.9) is None
    assert [timers.due(2.5) for _ in range(3)] == ["b", "also b", None]
    assert timers.first() == 3.0
    dead.add("c")
    assert timers.first() is None
    assert len(timers) == 0


def test_dead_entries_do_not_pile_up() -> None:
    last = 0

    def matters(entry: int) -> bool:
        return entry == last

    timers: Timers[int] = Timers(matters)
    for last in range(20_000):
        timers.at(float(last % 7), last)
    assert len(timers) <= MAX_DEAD + 2
