"""Timelines of the batcher: what starts when. Time is in milliseconds here, to be read at a glance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.runtime.execute.batcher import Batch, Batcher, BatchItem

MS = 0.001


def item(name: str, rows: int = 1, signature: str | None = "s") -> BatchItem[str]:
    return BatchItem(name, rows, signature)


def names(batches: list[Batch[str]]) -> list[str]:
    return ["".join(entry.value for entry in batch.items) for batch in batches]


def test_an_idle_model_is_never_held_back() -> None:
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    (batch,) = batcher.add(item("a"), 0 * MS)
    assert names([batch]) == ["a"]
    assert batcher.finished(batch, 10 * MS) == []
    assert names(batcher.add(item("b"), 30 * MS)) == ["b"]


def test_a_lone_caller_in_a_loop_is_never_held_back() -> None:
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    now = 0.0
    for name in "abcdef":
        (batch,) = batcher.add(item(name), now)
        now += 10 * MS
        assert batcher.finished(batch, now) == []
        now += 0.1 * MS


def test_requests_gather_while_a_batch_runs() -> None:
    batcher: Batcher[str] = Batcher(8, 0)
    (first,) = batcher.add(item("a"), 0)
    assert [batcher.add(item(name), 1 * MS) for name in "bcd"] == [[], [], []]
    assert batcher.waiting == 3
    assert names(batcher.finished(first, 10 * MS)) == ["bcd"]
    assert batcher.waiting == 0


def test_a_full_batch_starts_at_once_and_the_rest_waits() -> None:
    batcher: Batcher[str] = Batcher(2, 5 * MS)
    (first,) = batcher.add(item("a"), 0)
    for name in "bcd":
        batcher.add(item(name), 0)
    (second,) = batcher.finished(first, 10 * MS)
    assert names([second]) == ["bc"]
    assert batcher.waiting == 1


def test_callers_that_come_back_are_waited_for() -> None:
    # "a" went alone and "bc" gathered. Starting "bc" at once would split the three callers for ever.
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    (first,) = batcher.add(item("a"), 0)
    batcher.add(item("b"), 0)
    batcher.add(item("c"), 0)
    assert batcher.finished(first, 10 * MS) == []
    assert batcher.next_wakeup() == 15 * MS
    (second,) = batcher.add(item("A"), 10.5 * MS)
    assert names([second]) == ["bcA"]
    # All three come back again: the batch stays whole, and starts with the third, not at the end of the delay.
    assert batcher.finished(second, 20 * MS) == []
    assert batcher.add(item("B"), 20.2 * MS) == []
    assert batcher.add(item("C"), 20.3 * MS) == []
    assert names(batcher.add(item("D"), 20.4 * MS)) == ["BCD"]


def test_a_hold_ends_with_the_delay_at_the_latest() -> None:
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    (first,) = batcher.add(item("a"), 0)
    batcher.add(item("b"), 0)
    assert batcher.finished(first, 10 * MS) == []
    assert batcher.on_wakeup(14.9 * MS) == []
    assert names(batcher.on_wakeup(15 * MS)) == ["b"]
    assert batcher.next_wakeup() is None


def test_holds_that_bring_none_become_short_and_recover() -> None:
    batcher: Batcher[str] = Batcher(8, 8 * MS)
    now = 0.0
    lengths = []
    (batch,) = batcher.add(item("a"), now)
    for _ in range(4):
        batcher.add(item("b"), now)
        now += 10 * MS
        assert batcher.finished(batch, now) == []
        wakeup = batcher.next_wakeup()
        assert wakeup is not None
        lengths.append(round((wakeup - now) / MS, 6))
        now = wakeup
        (batch,) = batcher.on_wakeup(now)
    assert lengths == [8, 4, 2, 1]
    batcher.add(item("c"), now)
    now += 10 * MS
    batcher.finished(batch, now)
    (batch,) = batcher.add(item("d"), now)  # one came: the next hold may be longer
    batcher.finished(batch, now)
    batcher.add(item("e"), now)
    wakeup = batcher.next_wakeup()
    assert wakeup is not None
    assert round((wakeup - now) / MS, 6) == 1.0


def test_other_signatures_form_their_own_batches_oldest_first() -> None:
    batcher: Batcher[str] = Batcher(8, 0)
    (first,) = batcher.add(item("x", signature="other"), 0)
    for name, signature in (("a", "s"), ("b", "t"), ("c", "s"), ("d", "t")):
        batcher.add(item(name, signature=signature), 1 * MS)
    (second,) = batcher.finished(first, 2 * MS)
    (third,) = batcher.finished(second, 3 * MS)
    assert names([second, third]) == ["ac", "bd"]


def test_a_hold_for_one_signature_does_not_stop_another() -> None:
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    (first,) = batcher.add(item("a"), 0)
    batcher.add(item("b"), 0)
    assert batcher.finished(first, 10 * MS) == []
    assert names(batcher.add(item("x", signature="other"), 11 * MS)) == ["x"]


def test_without_a_signature_requests_run_alone() -> None:
    batcher: Batcher[str] = Batcher(8, 5 * MS)
    (first,) = batcher.add(item("a", signature=None), 0)
    batcher.add(item("b", signature=None), 0)
    batcher.add(item("c", signature=None), 0)
    (second,) = batcher.finished(first, 1 * MS)
    assert names([second]) == ["b"]
    assert names(batcher.finished(second, 2 * MS)) == ["c"]


def test_a_failed_batch_runs_again_one_by_one_before_the_others() -> None:
    batcher: Batcher[str] = Batcher(8, 0)
    (first,) = batcher.add(item("a"), 0)
    for name in "bc":
        batcher.add(item(name), 0)
    (pair,) = batcher.finished(first, 1 * MS)
    batcher.add(item("d"), 1 * MS)
    (again,) = batcher.failed(pair, 2 * MS)
    assert names([again]) == ["b"]
    (again,) = batcher.finished(again, 3 * MS)
    assert names([again]) == ["c"]
    assert names(batcher.finished(again, 4 * MS)) == ["d"]


def test_a_cancelled_request_leaves_its_queue() -> None:
    batcher: Batcher[str] = Batcher(8, 0)
    running = item("a")
    (first,) = batcher.add(running, 0)
    waiting, alone, stranger = item("b"), item("c", signature=None), item("x")
    batcher.add(waiting, 0)
    batcher.add(alone, 0)
    assert not batcher.cancel(running)
    assert not batcher.cancel(stranger)
    assert batcher.cancel(waiting)
    assert batcher.cancel(alone)
    assert batcher.finished(first, 1 * MS) == []
    assert repr(batcher) == "<Batcher 0/1 running, 0 waiting, max 8 rows>"


def test_a_cancelled_request_does_not_run_again() -> None:
    batcher: Batcher[str] = Batcher(8, 0)
    (first,) = batcher.add(item("a"), 0)
    kept, gone = item("b"), item("c")
    batcher.add(kept, 0)
    batcher.add(gone, 0)
    (pair,) = batcher.finished(first, 1 * MS)
    (again,) = batcher.failed(pair, 2 * MS)
    assert names([again]) == ["b"]
    assert batcher.cancel(gone)
    assert batcher.finished(again, 3 * MS) == []


def test_several_runners_work_at_a_time_without_holds() -> None:
    batcher: Batcher[str] = Batcher(1, 0, runners=2)
    (first,) = batcher.add(item("a"), 0)
    (_second,) = batcher.add(item("b"), 0)
    assert batcher.add(item("c"), 0) == []
    assert batcher.running == 2
    assert names(batcher.finished(first, 1 * MS)) == ["c"]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["s", "t", None]), st.integers(0, 9), st.booleans())),
    st.integers(1, 6),
    st.integers(0, 10),
    st.integers(1, 3),
)
def test_nothing_is_lost_doubled_or_reordered_within_a_signature(
    arrivals: list[tuple[int, str | None, int, bool]], most: int, delay: int, runners: int
) -> None:
    batcher: Batcher[str] = Batcher(most, delay * MS, runners)
    running: list[Batch[str]] = []
    started: list[BatchItem[str]] = []
    now = 0.0

    def begin(batches: list[Batch[str]]) -> None:
        for batch in batches:
            assert batch.rows <= most or len(batch.items) == 1
            assert len({entry.signature for entry in batch.items}) == 1
            running.append(batch)
            started.extend(batch.items)
        assert len(running) <= runners
        assert batcher.running == len(running)

    added = []
    for rows, signature, step, finish in arrivals:
        now += step * MS
        entry = item("x", rows, signature)
        added.append(entry)
        begin(batcher.add(entry, now))
        if finish and running:
            begin(batcher.finished(running.pop(0), now))
    while running or batcher.waiting:
        if running:
            now += MS
            begin(batcher.finished(running.pop(0), now))
        else:  # a free runner and somebody waiting: there is a time when it ends
            wakeup = batcher.next_wakeup()
            assert wakeup is not None
            now = max(now, wakeup)
            begin(batcher.on_wakeup(now))
    assert sorted(map(id, started)) == sorted(map(id, added))
    for signature in ("s", "t"):
        assert [id(x) for x in started if x.signature == signature] == [
            id(x) for x in added if x.signature == signature
        ]


def test_a_shorter_delay_ends_a_hold_that_began_with_a_longer_one() -> None:
    batcher: Batcher[str] = Batcher(8, 50 * MS)
    (first,) = batcher.add(item("a"), 0)
    batcher.add(item("b"), 0)
    assert batcher.finished(first, 10 * MS) == []
    assert batcher.next_wakeup() == pytest.approx(60 * MS)
    assert batcher.set_limits(8, 2 * MS, 11 * MS) == []
    assert batcher.next_wakeup() == pytest.approx(13 * MS)
    assert names(batcher.on_wakeup(13.1 * MS)) == ["b"]


def test_a_smaller_batch_that_is_full_now_starts_at_once() -> None:
    batcher: Batcher[str] = Batcher(8, 50 * MS)
    (first,) = batcher.add(item("a"), 0)
    batcher.add(item("b"), 0)
    batcher.add(item("c"), 0)
    assert batcher.finished(first, 10 * MS) == []
    assert names(batcher.set_limits(2, 50 * MS, 11 * MS)) == ["bc"]
