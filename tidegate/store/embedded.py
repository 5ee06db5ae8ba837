"""The embedded store: one SQLite file, owned by one process.

Every statement runs on one thread of its own, so the event loop never waits for a disk; write-ahead logging with
full synchronisation means that a write that was confirmed survives a power cut. A full or read-only disk turns every
write into a StoreFaultError and sets :attr:`EmbeddedStore.fault`; reads and watches go on.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tidegate.store.records import Change, ConflictError, Record, StoreFaultError, check_key, check_value

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""


class EmbeddedStore:
    """A store in one SQLite file. Open with :meth:`open`; close with :meth:`close`, which ends all watches."""

    def __init__(self, path: Path, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._path = path
        self._connection = connection
        self._thread = thread
        self._watches: set[_Watch] = set()
        self._fault: str | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, max_pages: int | None = None) -> "EmbeddedStore":
        """Opens the store in the file ``path``, made if absent.

        ``max_pages`` bounds the file (pages of 4 KiB). Raises StoreFaultError if the file is no database or cannot be
        written.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path, max_pages)
        except sqlite3.Error as error:
            thread.shutdown(wait=False)
            raise StoreFaultError(f"{path}: {error}") from error
        return cls(path, connection, thread)

    @property
    def place(self) -> str:
        return str(self._path)

    @property
    def fault(self) -> str | None:
        return self._fault

    async def get(self, key: str) -> Record | None:
        check_key(key)
        return await self._run(lambda: _get(self._connection, key))

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> Record:
        check_key(key)
        check_value(value)
        record = await self._write(lambda: _put(self._connection, key, value, expect))
        self._notify(Change(key, record.version, record))
        return record

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        check_key(key)
        version = await self._write(lambda: _delete(self._connection, key, expect))
        if version is None:
            return False
        self._notify(Change(key, version, None))
        return True

    async def list(self, prefix: str = "") -> tuple[Record, ...]:
        return await self._run(lambda: _list(self._connection, prefix))

    async def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        watch = _Watch(prefix)
        self._watches.add(watch)
        try:
            for record in await self.list(prefix):
                watch.notify(Change(record.key, record.version, record))
            while not self._closed or watch.has_news:
                for change in await watch.news():
                    yield change
        finally:
            self._watches.discard(watch)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in self._watches:
            watch.end()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    async def _run(self, action: Callable[[], T]) -> T:
        if self._closed:
            raise StoreFaultError(f"{self._path}: the store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, action)
        except sqlite3.Error as error:
            raise StoreFaultError(f"{self._path}: {error}") from error

    async def _write(self, action: Callable[[], T]) -> T:
        try:
            result = await self._run(action)
        except StoreFaultError as error:
            self._fault = str(error)
            raise
        self._fault = None
        return result

    def _notify(self, change: Change) -> None:
        for watch in self._watches:
            if change.key.startswith(watch.prefix):
                watch.notify(change)

    def __repr__(self) -> str:
        return f"<EmbeddedStore {self._path}, {len(self._watches)} watches, fault {self._fault}>"


class _Watch:
    """The changes that one watcher has not read: the newest one of each key, so it never grows beyond the keys."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._news: dict[str, Change] = {}
        self._delivered: dict[str, int] = {}
        self._wake = asyncio.Event()

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def notify(self, change: Change) -> None:
        if change.version <= self._delivered.get(change.key, 0):
            return
        self._delivered[change.key] = change.version
        self._news.pop(change.key, None)
        self._news[change.key] = change
        self._wake.set()

    def end(self) -> None:
        self._wake.set()

    async def news(self) -> list[Change]:
        await self._wake.wait()
        self._wake.clear()
        changes, self._news = list(self._news.values()), {}
        return changes


def _connect(path: Path, max_pages: int | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if max_pages is not None:
            connection.execute(f"PRAGMA max_page_count={max_pages:d}")
        connection.executescript(_SCHEMA)
        path.chmod(0o600)
    except BaseException:
        connection.close()
        raise
    return connection


def _get(connection: sqlite3.Connection, key: str) -> Record | None:
    row = connection.execute("SELECT key, value, version FROM records WHERE key = ?", (key,)).fetchone()
    return None if row is None else Record(*row)


def _list(connection: sqlite3.Connection, prefix: str) -> tuple[Record, ...]:
    rows = connection.execute(
        "SELECT key, value, version FROM records WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
    )
    return tuple(Record(*row) for row in rows)


def _put(connection: sqlite3.Connection, key: str, value: bytes, expect: int | None) -> Record:
    with _Transaction(connection):
        _compare(connection, key, expect)
        version = _next_version(connection)
        connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (key, value, version))
    return Record(key, value, version)


def _delete(connection: sqlite3.Connection, key: str, expect: int | None) -> int | None:
    with _Transaction(connection):
        if _compare(connection, key, expect) == 0:
            return None
        version = _next_version(connection)
        connection.execute("DELETE FROM records WHERE key = ?", (key,))
    return version


def _compare(connection: sqlite3.Connection, key: str, expect: int | None) -> int:
    row = connection.execute("SELECT version FROM records WHERE key = ?", (key,)).fetchone()
    found: int = 0 if row is None else row[0]
    if expect is not None and expect != found:
        raise ConflictError(key, expect, found)
    return found


def _next_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("UPDATE counter SET version = version + 1 RETURNING version").fetchone()[0]
    return version


class _Transaction:
    """BEGIN IMMEDIATE ... COMMIT, rolled back on any exception (also when the commit itself meets a full disk)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
