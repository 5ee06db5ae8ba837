"""The file of device time, ``costs.db`` in the state directory: one row for each place or tenant and bucket of time.

Buckets are of five minutes, of an hour after a day, and are dropped after 31 days. A write adds a batch to the bucket
of now and replaces the checkpoint, in one transaction. The bucket is that of the wall clock; amounts are not measured
by it, so a clock that is set back moves rows and loses none. Rows up to a day ahead of the clock are read.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidegate.control.costs.ledger import Batch, Caller, DeviceTime, Place, TenantTime

BUCKET_S: Final = 300
HOUR_S: Final = 3600
FINE_S: Final = 24 * HOUR_S
"""Time for which buckets of five minutes are kept."""
KEPT_S: Final = 31 * 24 * HOUR_S
MAX_ROWS: Final = 500_000
"""Rows of each table; the oldest buckets go first. About 60 MB of file. Our choice."""
MAX_BUCKETS: Final = 48
"""Buckets of one report; a longer one reads wider buckets."""

_DEVICE_SUMS: Final = (
    "busy_s",
    "idle_s",
    "starting_s",
    "busy_cost",
    "idle_cost",
    "starting_cost",
    "requests",
    "inferences",
)
_TENANT_SUMS: Final = ("slot_s", "requests", "inferences", "tokens")
_TABLES: Final = (("devices", "accelerator", _DEVICE_SUMS), ("tenants", "tenant", _TENANT_SUMS))
_SCHEMA: Final = (
    "".join(
        f"CREATE TABLE IF NOT EXISTS {table} (bucket INTEGER, function TEXT, {key} TEXT, "
        f"{', '.join(f'{each} REAL' for each in sums)}, PRIMARY KEY (bucket, function, {key})) WITHOUT ROWID;"
        for table, key, sums in _TABLES
    )
    + "CREATE TABLE IF NOT EXISTS state (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), value BLOB NOT NULL);"
)


class CostStore:
    """The open file. All methods block; one thread at a time. Each raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        self._tidied: int | None = None
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
        except BaseException:
            self._db.close()
            raise

    def checkpoint(self) -> bytes | None:
        """Returns the last checkpoint; None before the first."""
        row = self._db.execute("SELECT value FROM state").fetchone()
        return None if row is None else bytes(row[0])

    def add(self, batch: Batch, checkpoint: bytes, now: float) -> None:
        """Adds a batch to the bucket of ``now`` (Unix seconds) and replaces the checkpoint."""
        bucket = int(now) // BUCKET_S * BUCKET_S
        devices = (
            (bucket, *place, *(getattr(time, each) for each in _DEVICE_SUMS)) for place, time in batch.devices.items()
        )
        tenants = (
            (bucket, *caller, *(getattr(use, each) for each in _TENANT_SUMS)) for caller, use in batch.tenants.items()
        )
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for (table, key, sums), rows in zip(_TABLES, (devices, tenants), strict=True):
                self._db.executemany(_upsert(table, key, sums), rows)
            self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (checkpoint,))
            if self._tidied != bucket:
                self._tidy(int(now))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._tidied = bucket

    def read(self, since: float, now: float) -> dict[int, Batch]:
        """Returns the batches from the bucket of ``since`` on, in Unix seconds, by the start of their buckets."""
        first = int(since) // BUCKET_S * BUCKET_S
        width = BUCKET_S * max(1, -(-int(now - first) // (BUCKET_S * MAX_BUCKETS)))
        found: dict[int, Batch] = {}
        for bucket, function, accelerator, *sums in self._sums(
            "devices", "accelerator", _DEVICE_SUMS, width, first, now
        ):
            time = DeviceTime(sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], int(sums[6]), int(sums[7]))
            found.setdefault(bucket, Batch()).devices[Place(function, accelerator)] = time
        for bucket, function, tenant, *sums in self._sums("tenants", "tenant", _TENANT_SUMS, width, first, now):
            use = TenantTime(sums[0], int(sums[1]), int(sums[2]), int(sums[3]))
            found.setdefault(bucket, Batch()).tenants[Caller(function, tenant)] = use
        return found

    def _sums(
        self, table: str, key: str, sums: tuple[str, ...], width: int, first: int, now: float
    ) -> Iterable[tuple[int, str, str, *tuple[float, ...]]]:
        columns = ", ".join(f"SUM({each})" for each in sums)
        query = (
            f"SELECT bucket / {width} * {width}, function, {key}, {columns} FROM {table}"
            " WHERE bucket >= ? AND bucket <= ? GROUP BY 1, 2, 3"
        )
        return self._db.execute(query, (first, int(now) + FINE_S)).fetchall()

    def _tidy(self, now: int) -> None:
        """Joins old buckets to hours and drops the oldest ones."""
        fine_until = (now - FINE_S) // HOUR_S * HOUR_S
        for table, key, sums in _TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE bucket < ?", (now - KEPT_S,))
            columns = ", ".join(f"SUM({each})" for each in sums)
            hours = self._db.execute(
                f"SELECT bucket / {HOUR_S} * {HOUR_S}, function, {key}, {columns} FROM {table}"
                f" WHERE bucket < ? AND bucket % {HOUR_S} != 0 GROUP BY 1, 2, 3",
                (fine_until,),
            ).fetchall()
            self._db.execute(f"DELETE FROM {table} WHERE bucket < ? AND bucket % {HOUR_S} != 0", (fine_until,))
            self._db.executemany(_upsert(table, key, sums), hours)
            while self._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] > MAX_ROWS:
                self._db.execute(f"DELETE FROM {table} WHERE bucket = (SELECT MIN(bucket) FROM {table})")

    def close(self) -> None:
        self._db.close()

    def __repr__(self) -> str:
        return "<CostStore>"


def _upsert(table: str, key: str, sums: tuple[str, ...]) -> str:
    marks = ", ".join("?" for _ in range(3 + len(sums)))
    grown = ", ".join(f"{each} = {each} + excluded.{each}" for each in sums)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT (bucket, function, {key}) DO UPDATE SET {grown}"
