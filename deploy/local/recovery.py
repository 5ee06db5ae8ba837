"""Processes that an earlier control process left behind: found, sorted, adopted or ended.

Two traces lead to a process: its record, and the mark that it and its descendants carry in their environment. A
complete record of a living process is *living*; the caller that knows its kind adopts or ends it. A marked process
without such a record is a *stranger* and is ended: the control process died between spawn and record, or a model server
died and left its workers. Every other file is stale and is deleted.
"""

import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from tidegate.deploy.local.proc import ProcessHandle, continue_sessions, is_same, with_variable
from tidegate.deploy.local.records import MARK, ProcessKind, ProcessRecord, RecordStore, ReplicaDetails, Unreadable
from tidegate.deploy.local.sockets import unlink
from tidegate.function import Revision

DOWN_GRACE_S: Final = 30.0
"""Time for work under way when everything is ended without a control process."""

_ORDER = (ProcessKind.GATEWAY, ProcessKind.QUEUE_PROXY, ProcessKind.MODEL_SERVER, ProcessKind.FORK_SERVER)
"""Order in which kinds are ended: gateways first, so that no new request follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    living: tuple[ProcessRecord, ...] = ()
    strangers: tuple[int, ...] = ()
    """Pids of marked processes without a complete record."""
    stale: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One process that was ended."""

    id: str
    pid: int
    killed: bool
    """True if it did not obey SIGTERM."""


def sort_traces(
    records: Iterable[ProcessRecord],
    unreadable: Iterable[Unreadable],
    marked: Iterable[tuple[int, str]],
    path_of: Callable[[str], Path],
    is_alive: Callable[[ProcessRecord], bool],
) -> Survey:
    """Sorts the traces. ``marked`` is (pid, path of the record that it carries)."""
    living = tuple(record for record in records if is_alive(record))
    good = {str(path_of(record.id)) for record in living}
    stale = [path_of(record.id) for record in records if record not in living]
    stale += [each.path for each in unreadable]
    strangers = tuple(pid for pid, path in marked if path not in good)
    return Survey(living=living, strangers=strangers, stale=tuple(stale))


@dataclass(frozen=True, slots=True)
class ProcessPair:
    """Both processes of one replica, alive and recorded."""

    details: ReplicaDetails
    proxy: ProcessRecord
    server: ProcessRecord


@dataclass(frozen=True, slots=True)
class Adoption:
    """Living processes of replicas, sorted into pairs to adopt and processes to end."""

    pairs: tuple[ProcessPair, ...]
    """In order of creation."""
    ends: tuple[ProcessRecord, ...]
    """Single halves, stopping processes, and processes of unknown revisions."""


def pair_up(living: Iterable[ProcessRecord], revisions: Mapping[str, Revision]) -> Adoption:
    """Sorts the living processes of replicas. Other kinds (gateways) are left out."""
    halves: dict[str, dict[ProcessKind, ProcessRecord]] = {}
    for record in living:
        if record.replica is not None:
            halves.setdefault(record.replica.id, {})[record.kind] = record
    pairs: list[ProcessPair] = []
    ends: list[ProcessRecord] = []
    for found in halves.values():
        proxy, server = found.get(ProcessKind.QUEUE_PROXY), found.get(ProcessKind.MODEL_SERVER)
        if proxy is not None and server is not None and proxy.replica is not None:
            known = proxy.replica.revision in revisions
            if known and not (proxy.stopping or server.stopping):
                pairs.append(ProcessPair(proxy.replica, proxy, server))
                continue
        ends += found.values()
    pairs.sort(key=lambda pair: (pair.details.created_at, pair.details.id))
    return Adoption(tuple(pairs), tuple(ends))


def survey(store: RecordStore) -> Survey:
    """Reads the records and scans the machine's processes."""
    records, unreadable = store.read_all()
    folder = f"{store.directory}/"
    marked = with_variable(MARK, lambda path: path.startswith(folder))
    return sort_traces(records, unreadable, marked, store.path, _is_alive)


def _is_alive(record: ProcessRecord) -> bool:
    if record.pid is None or record.start_time is None:
        return False
    return is_same(record.pid, record.start_time, record.boot_id)


def clear(found: Survey, grace_s: float) -> None:
    """Ends strangers and deletes stale records. Blocks up to ``grace_s`` seconds and a little."""
    handles = [handle for pid in found.strangers if (handle := ProcessHandle.open(pid)) is not None]
    end_processes(handles, grace_s)
    for path in found.stale:
        path.unlink(missing_ok=True)


def end_hidden(paths: Collection[str]) -> None:
    """Kills the processes that ended processes of these records left behind, in whatever session they are. Blocks
    briefly."""
    found = with_variable(MARK, lambda path: path in paths)
    handles = [handle for pid, _ in found if (handle := ProcessHandle.open(pid)) is not None]
    for handle in handles:
        handle.send(signal.SIGKILL)
    _wait_for_end(handles, 5.0)
    for handle in handles:
        handle.close()


def end_all(processes: Path, *, grace_s: float = DOWN_GRACE_S) -> tuple[Ended, ...]:
    """Ends all processes of the records in ``processes``: for ``tidegate down`` without a living control process.

    Gateways first, then queue_proxies (they answer their requests), then model servers. Each kind gets SIGTERM, and
    SIGKILL after ``grace_s`` seconds. Only processes that match their record or carry its mark are signalled. Blocks;
    the caller holds the lock of the state directory.
    """
    store = RecordStore(processes)
    found = survey(store)
    ended: list[Ended] = []
    living = sorted(found.living, key=lambda record: _ORDER.index(record.kind))
    _continue_stopped(living)
    for _, group in groupby(living, key=lambda record: record.kind):
        ended += _end_records(list(group), grace_s)
    for record in living:
        store.delete(record.id)
        _unlink_sockets(record)
    clear(survey(store), min(grace_s, 5.0))
    return tuple(ended)


def _continue_stopped(records: Sequence[ProcessRecord]) -> None:
    """Continues stopped processes (SIGSTOP), or others would wait for their answers."""
    handles = _handles(records).values()
    for handle in handles:
        handle.send(signal.SIGCONT)
    continue_sessions({handle.pid for handle in handles})  # Each leads one, in which all are paused when it sleeps.
    for handle in handles:
        handle.close()


def _handles(records: Sequence[ProcessRecord]) -> dict[str, ProcessHandle]:
    """Returns the handles of those that live, by id."""
    handles: dict[str, ProcessHandle] = {}
    for record in records:
        if record.pid is not None:
            handle = ProcessHandle.open(record.pid, record.start_time, record.boot_id)
            if handle is not None:
                handles[record.id] = handle
    return handles


def _end_records(records: Sequence[ProcessRecord], grace_s: float) -> list[Ended]:
    handles = _handles(records)
    stubborn = end_processes(handles.values(), grace_s)
    return [Ended(id=name, pid=each.pid, killed=each.pid in stubborn) for name, each in handles.items()]


def _unlink_sockets(record: ProcessRecord) -> None:
    if record.replica is None:
        return
    for address in record.replica.addresses:
        unlink(address)


def end_processes(handles: Iterable[ProcessHandle], grace_s: float) -> set[int]:
    """Sends SIGTERM, then SIGKILL after ``grace_s``, and closes the handles. Returns the pids that had to be killed.
    Blocks."""
    alive = [handle for handle in handles if handle.send(signal.SIGTERM)]
    for handle in alive:
        handle.send(signal.SIGCONT)  # What is stopped could not obey.
    _wait_for_end(alive, grace_s)
    stubborn = {handle.pid for handle in alive if handle.is_alive() and handle.send(signal.SIGKILL)}
    _wait_for_end(alive, 5.0)
    for handle in alive:
        handle.close()
    return stubborn


def _wait_for_end(handles: Sequence[ProcessHandle], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    for handle in handles:
        while handle.is_alive() and (left := end - time.monotonic()) > 0:
            if handle.fd is None:
                time.sleep(min(0.05, left))
                continue
            poll = select.poll()
            poll.register(handle.fd, select.POLLIN)
            poll.poll(left * 1000)
