"""The store of jobs: one SQLite file of all gateway workers of a machine.

::

    jobs/jobs.db      records and answers (mode 0600)
    jobs/OWNER.lock   held (flock) by the worker process OWNER for as long as it lives, however it ends

A record of a job that is not over names its owner. An owner whose lock is free has ended, so its jobs have failed:
the next worker that reads such a record writes that down. Transactions keep the bounds exact over all workers. The
file grows to
``JobBounds.total_bytes`` and what the records take, and shrinks again as answers are dropped.

Writes survive the end of every process; a power cut may lose the last ones.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidegate.gateway.jobs.records import (
    FILE,
    Job,
    JobBounds,
    JobState,
    JobStoreError,
    KeptAnswer,
    StoreFull,
    StoreUse,
    store_full,
)
from tidegate.records.codec import decode, encode

PAGE_BYTES: Final = 4096
RECORD_PAGES: Final = 2
"""Pages of the file that one job takes besides its answer, generously."""
SPARE_PAGES: Final = 1024
BUSY_S: Final = 5.0
"""Time for which another worker's transaction is waited for."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, tenant TEXT, is_over INTEGER NOT NULL, is_fetched INTEGER NOT NULL,
    ended REAL, expires REAL, bytes INTEGER NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, status INTEGER NOT NULL, content_type TEXT NOT NULL, fields TEXT NOT NULL,
    body BLOB NOT NULL);
"""


class SqliteJobs:
    """The store in one file (a ``JobStore``). Used by one thread at a time."""

    def __init__(self, folder: Path, owner: str, bounds: JobBounds, *, max_pages: int | None = None) -> None:
        """Makes the folder and the file if they are absent. ``max_pages`` bounds the file; by default by ``bounds``.

        Raises JobStoreError.
        """
        self._folder = folder
        self._owner = owner
        self._bounds = bounds
        self._lock = -1
        self.fault: str | None = None
        """Why the last write failed; None if it did not."""
        if max_pages is None:
            max_pages = 2 * bounds.total_bytes // PAGE_BYTES + RECORD_PAGES * bounds.jobs + SPARE_PAGES
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._connection = self._open(max_pages)
        except (OSError, sqlite3.Error) as error:
            self._unlock()
            raise JobStoreError(_reason(error)) from error

    def close(self) -> None:
        """Gives the lock back: jobs of this worker that are not over have failed from now on."""
        self._connection.close()
        self._lock_file(self._owner).unlink(missing_ok=True)
        self._unlock()

    def _open(self, max_pages: int) -> sqlite3.Connection:
        """Opens the file and takes this worker's lock, one worker after the other: two that set the file up at once
        would refuse each other, and a lock that is not held yet looks like one of a worker that has ended."""
        turn = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # SQLite gives its other files the mode of this one.
            os.close(os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for path in self._folder.glob("*.lock"):
                if self._has_ended(path.stem):
                    path.unlink(missing_ok=True)
            self._lock = os.open(self._lock_file(self._owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            return _connect(self._folder / FILE, max_pages)
        finally:
            os.close(turn)

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _lock_file(self, owner: str) -> Path:
        return self._folder / f"{owner}.lock"

    # --- JobStore ---------------------------------------------------------------------------------------------------

    def add(self, job: Job, now: float) -> StoreFull | None:
        with self._writing() as db:
            _drop_expired(db, now)
            full = self._full(db, now, None)
            if full is None and job.tenant is not None:
                full = self._full(db, now, job.tenant)
            if full is None:
                db.execute(
                    "INSERT INTO jobs VALUES (?, ?, ?, 0, 0, NULL, NULL, 0, ?)",
                    (job.id, job.owner, job.tenant, encode(job)),
                )
            return full

    def _full(self, db: sqlite3.Connection, now: float, tenant: str | None) -> StoreFull | None:
        """Makes room by dropping an answer that a client has got. Returns why there is none, else None."""
        full = store_full(_use(db, tenant), self._bounds, now, tenant)
        if full is not None and _drop_first_fetched(db, tenant):
            full = store_full(_use(db, tenant), self._bounds, now, tenant)
        return full

    def running(self, job: Job) -> None:
        with self._writing() as db:
            db.execute("UPDATE jobs SET record = ? WHERE id = ? AND NOT is_over", (encode(job), job.id))

    def finish(self, job: Job, answer: KeptAnswer | None, now: float) -> bool:
        with self._writing() as db:
            if db.execute("SELECT 1 FROM jobs WHERE id = ?", (job.id,)).fetchone() is None:
                return True
            _drop_expired(db, now)
            size = 0 if answer is None else len(answer.body)
            while size and _use(db).bytes + size > self._bounds.total_bytes:
                if not _drop_first_fetched(db):
                    return False
            _write_end(db, job)
            if answer is not None:
                db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", (job.id, *answer))
            return True

    def find(self, job_id: str, now: float) -> Job | None:
        with self._reading() as db:
            row = db.execute("SELECT record, expires FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None or (row[1] is not None and now >= row[1]):
            return None
        job = decode(row[0], Job)
        if job.state.is_over or job.owner == self._owner or not self._has_ended(job.owner):
            return job
        with self._writing() as db:
            self._fail_jobs_of(db, job.owner, now)
        with self._reading() as db:
            row = db.execute("SELECT record FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else decode(row[0], Job)

    def answer(self, job_id: str) -> KeptAnswer | None:
        with self._writing() as db:
            row = db.execute(
                "SELECT status, content_type, fields, body FROM answers WHERE id = ?", (job_id,)
            ).fetchone()
            if row is not None:
                db.execute("UPDATE jobs SET is_fetched = 1 WHERE id = ? AND NOT is_fetched", (job_id,))
        return None if row is None else KeptAnswer(*row)

    def forget(self, job_id: str) -> None:
        with self._writing() as db:
            _delete(db, [job_id])

    def deleted(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        with self._reading() as db:
            kept = {row[0] for row in db.execute("SELECT id FROM jobs WHERE owner = ?", (self._owner,))}
        return tuple(job_id for job_id in job_ids if job_id not in kept)

    def sweep(self, now: float) -> StoreUse:
        with self._reading() as db:
            owners = [row[0] for row in db.execute("SELECT DISTINCT owner FROM jobs WHERE NOT is_over")]
            is_due = db.execute("SELECT 1 FROM jobs WHERE expires <= ? LIMIT 1", (now,)).fetchone() is not None
        ended = [owner for owner in owners if owner != self._owner and self._has_ended(owner)]
        if is_due or ended:
            with self._writing() as db:
                _drop_expired(db, now)
                for owner in ended:
                    self._fail_jobs_of(db, owner, now)
            with self._reading() as db:
                db.execute("PRAGMA incremental_vacuum").fetchall()
        with self._reading() as db:
            return _use(db)

    # --- owners -----------------------------------------------------------------------------------------------------

    def _has_ended(self, owner: str) -> bool:
        """Returns whether no process holds the owner's lock."""
        try:
            descriptor = os.open(self._lock_file(owner), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise JobStoreError(_reason(error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _fail_jobs_of(self, db: sqlite3.Connection, owner: str, now: float) -> None:
        """Writes the end of the jobs of a worker that has ended."""
        name = owner.partition(".")[0]
        for row in db.execute("SELECT record FROM jobs WHERE owner = ? AND NOT is_over", (owner,)).fetchall():
            job = decode(row[0], Job)
            what = "a replica had it" if job.state is JobState.RUNNING else "it waited"
            reason = f"the gateway worker {name} ended (killed, or crashed) while {what}: its answer is lost"
            _write_end(db, job.lost(now, self._bounds, reason))
        self._lock_file(owner).unlink(missing_ok=True)

    # --- statements -------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reads. Raises JobStoreError for what SQLite raises."""
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise JobStoreError(_reason(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is rolled back on any exception. Raises as :meth:`_reading`."""
        db = self._connection
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self.fault = _reason(error)
            raise JobStoreError(self.fault) from error
        finally:
            if db.in_transaction:  # Also when the commit itself meets a full disk.
                db.execute("ROLLBACK")
        self.fault = None

    def __repr__(self) -> str:
        return f"<SqliteJobs {self._folder} of {self._owner}>"


def _reason(error: OSError | sqlite3.Error) -> str:
    """Returns the reason without a path: clients read it."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def _connect(path: Path, max_pages: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA max_page_count={max_pages:d}")
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _use(db: sqlite3.Connection, tenant: str | None = None) -> StoreUse:
    """Returns what is kept; with ``tenant``: of this one."""
    query = "SELECT count(*), coalesce(sum(bytes), 0), min(expires) FROM jobs WHERE ? IS NULL OR tenant = ?"
    return StoreUse(*db.execute(query, (tenant, tenant)).fetchone())


def _write_end(db: sqlite3.Connection, job: Job) -> None:
    db.execute(
        "UPDATE jobs SET is_over = 1, ended = ?, expires = ?, bytes = ?, record = ? WHERE id = ?",
        (job.ended, job.expires, job.bytes, encode(job), job.id),
    )


def _drop_expired(db: sqlite3.Connection, now: float) -> None:
    _delete(db, [row[0] for row in db.execute("SELECT id FROM jobs WHERE expires <= ?", (now,))])


def _drop_first_fetched(db: sqlite3.Connection, tenant: str | None = None) -> bool:
    """Drops the oldest job (of a tenant) whose answer a client has got. Returns False if there is none. An answer that
    no client has got is kept for its time."""
    query = "SELECT id FROM jobs WHERE is_fetched AND (? IS NULL OR tenant = ?) ORDER BY ended LIMIT 1"
    row = db.execute(query, (tenant, tenant)).fetchone()
    _delete(db, [] if row is None else [row[0]])
    return row is not None


def _delete(db: sqlite3.Connection, job_ids: list[str]) -> None:
    names = [(job_id,) for job_id in job_ids]
    db.executemany("DELETE FROM jobs WHERE id = ?", names)
    db.executemany("DELETE FROM answers WHERE id = ?", names)
