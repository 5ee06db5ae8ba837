"""The file of device time: what is added is read again, old buckets are joined and dropped."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.control.costs import store as store_of
from tidegate.control.costs.ledger import Batch, Caller, DeviceTime, Place, TenantTime
from tidegate.control.costs.store import BUCKET_S, FINE_S, HOUR_S, KEPT_S, MAX_BUCKETS, CostStore

T0 = 1_800_000_000
DAY_S = 24 * HOUR_S


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[CostStore]:
    store = CostStore(tmp_path / "costs.db")
    yield store
    store.close()


def batch(seconds: float, tenant: str = "acme") -> Batch:
    time = DeviceTime(seconds, 2 * seconds, 3 * seconds, 4.0, 5.0, 6.0, 7, 8)
    return Batch({Place("f", "gpu"): time}, {Caller("f", tenant): TenantTime(seconds, 2, 3, 4)})


def busy_s(found: dict[int, Batch]) -> float:
    return sum(time.busy_s for each in found.values() for time in each.devices.values())


def test_batches_of_one_bucket_add_up_and_are_read_again_with_the_checkpoint(tmp_path: Path) -> None:
    store = CostStore(tmp_path / "costs.db")
    assert store.checkpoint() is None
    store.add(batch(1.0), b"one", T0)
    store.add(batch(2.0), b"two", T0 + 10)
    store.close()
    store = CostStore(tmp_path / "costs.db")
    assert store.checkpoint() == b"two"
    (found,) = store.read(T0 - 60, T0 + 20).values()
    assert found.devices == {Place("f", "gpu"): DeviceTime(3.0, 6.0, 9.0, 8.0, 10.0, 12.0, 14, 16)}
    assert found.tenants == {Caller("f", "acme"): TenantTime(3.0, 4, 6, 8)}
    store.close()


def test_a_report_has_few_buckets_however_long_it_is(kept: CostStore) -> None:
    for number in range(200):
        kept.add(batch(1.0), b"", T0 + number * BUCKET_S)
    now = T0 + 200 * BUCKET_S
    assert len(kept.read(now - 3 * BUCKET_S, now)) == 3
    found = kept.read(T0, now)
    assert len(found) <= MAX_BUCKETS + 1
    assert busy_s(found) == pytest.approx(200.0)


def test_buckets_older_than_a_day_are_joined_to_hours_and_nothing_is_lost(kept: CostStore, tmp_path: Path) -> None:
    for number in range(2 * DAY_S // BUCKET_S):
        kept.add(batch(1.0), b"", T0 + number * BUCKET_S)
    now = T0 + 2 * DAY_S
    assert busy_s(kept.read(T0 - HOUR_S, now)) == pytest.approx(2 * DAY_S / BUCKET_S)
    with sqlite3.connect(tmp_path / "costs.db") as db:
        (rows,) = db.execute("SELECT COUNT(*) FROM devices").fetchone()
    db.close()
    assert rows <= DAY_S // HOUR_S + 1 + (FINE_S + HOUR_S) // BUCKET_S


def test_buckets_are_dropped_after_31_days(kept: CostStore) -> None:
    kept.add(batch(1.0), b"", T0)
    kept.add(batch(1.0), b"", T0 + KEPT_S - HOUR_S)
    assert busy_s(kept.read(0, T0 + KEPT_S)) == pytest.approx(2.0)
    kept.add(batch(1.0), b"", T0 + KEPT_S + HOUR_S)
    assert busy_s(kept.read(0, T0 + KEPT_S)) == pytest.approx(2.0)


def test_rows_are_bounded_and_the_oldest_go_first(kept: CostStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_of, "MAX_ROWS", 3)
    for number in range(6):
        kept.add(batch(float(number)), b"", T0 + number * BUCKET_S)
    assert busy_s(kept.read(T0, T0 + DAY_S)) == pytest.approx(3.0 + 4.0 + 5.0)


def test_a_clock_that_is_set_back_loses_nothing(kept: CostStore) -> None:
    kept.add(batch(1.0), b"", T0)
    kept.add(batch(2.0), b"", T0 - 2 * HOUR_S)
    now = T0 - 2 * HOUR_S
    assert busy_s(kept.read(now - HOUR_S, now)) == pytest.approx(3.0)


def test_a_batch_that_cannot_be_written_leaves_the_file_as_it_was(kept: CostStore, tmp_path: Path) -> None:
    kept.add(batch(1.0), b"one", T0)
    bad = batch(1.0)
    bad.tenants[Caller("f", "x")] = TenantTime(slot_s=object())  # type: ignore[arg-type]  # SQLite refuses it
    with pytest.raises(sqlite3.Error):
        kept.add(bad, b"two", T0)
    assert kept.checkpoint() == b"one"
    assert busy_s(kept.read(T0, T0)) == pytest.approx(1.0)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "costs.db").write_bytes(b"no database, but longer than a page of one" * 200)
    with pytest.raises(sqlite3.DatabaseError):
        CostStore(tmp_path / "costs.db")
