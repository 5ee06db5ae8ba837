"""Records of processes on disk, and what a survey makes of them."""

import json
from dataclasses import replace
from pathlib import Path

from tidegate.deploy.local.records import ProcessKind, ProcessRecord, RecordStore, ReplicaDetails, Unreadable
from tidegate.deploy.local.recovery import pair_up, sort_traces
from tidegate.deploy.placement.ledger import Assignment
from tidegate.function import Function, Revision, Server, ServerKind

BOOT = "boot"


def details(name: str = "f-00001-aaaaa", revision: str = "f-00001", created_at: float = 1.0) -> ReplicaDetails:
    return ReplicaDetails(
        id=name,
        function="f",
        revision=revision,
        assignment=Assignment(accelerator="cpu-1core", unit=0, memory_bytes=0, share=100, cores=(0,)),
        address="unix:/q",
        admin="unix:/a",
        upstream="unix:/m",
        created_at=created_at,
    )


def record(kind: ProcessKind, of: ReplicaDetails | None = None, pid: int | None = 1) -> ProcessRecord:
    of = of or details()
    suffix = "proxy" if kind is ProcessKind.QUEUE_PROXY else "server"
    return ProcessRecord(
        id=f"{of.id}.{suffix}",
        kind=kind,
        boot_id=BOOT,
        epoch=3,
        program="python -P",
        log="/log",
        pid=pid,
        start_time=None if pid is None else 99,
        replica=of,
    )


PROXY, SERVER = record(ProcessKind.QUEUE_PROXY, pid=10), record(ProcessKind.MODEL_SERVER, pid=11)
REVISIONS = {"f-00001": Revision(Function(name="f", server=Server(kind=ServerKind.COMMAND, argv=("x",))), 1)}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    before = replace(PROXY, pid=None, start_time=None)
    store.write(before)
    assert store.read_all() == ([before], [])
    store.write(PROXY)
    assert store.read_all() == ([PROXY], [])
    store.delete(PROXY.id)
    store.delete(PROXY.id)
    assert store.read_all() == ([], [])


def test_only_its_owner_reads_it_and_nothing_half_written_is_seen(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(PROXY)
    assert store.path(PROXY.id).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [f"{PROXY.id}.json"]


def test_what_is_no_record_is_distinguished(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(PROXY)
    (tmp_path / "half.json").write_text('{"id": "half", "ki')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "copy.json").write_bytes(store.path(PROXY.id).read_bytes())
    (tmp_path / "notes.txt").write_text("not looked at")
    records, unreadable = store.read_all()
    assert records == [PROXY]
    assert [each.path.name for each in unreadable] == ["copy.json", "empty.json", "half.json", "list.json"]


def test_a_record_of_a_later_version_can_be_read(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(PROXY)
    content = json.loads(store.path(PROXY.id).read_text())
    content["colour"] = "blue"
    store.path(PROXY.id).write_text(json.dumps(content))
    assert store.read_all() == ([PROXY], [])


def test_traces_are_sorted_into_living_strangers_and_stale(tmp_path: Path) -> None:
    """Living: recorded and alive, with what it started. Stranger: marked, but its record does not say so."""
    store = RecordStore(tmp_path)
    incomplete = replace(SERVER, id="f-00001-bbbbb.server", pid=None, start_time=None)
    dead = replace(SERVER, id="f-00001-ccccc.server")
    half = Unreadable(tmp_path / "half.json", "cut off")
    marked = [
        (10, str(store.path(PROXY.id))),
        (20, str(store.path(PROXY.id))),
        (30, str(store.path(incomplete.id))),
        (31, str(store.path(dead.id))),
        (32, str(half.path)),
        (33, str(store.path("never-written"))),
    ]
    found = sort_traces([PROXY, incomplete, dead], [half], marked, store.path, lambda each: each is PROXY)
    assert found.living == (PROXY,)
    assert found.strangers == (30, 31, 32, 33)
    assert found.stale == (store.path(incomplete.id), store.path(dead.id), half.path)


def test_whole_replicas_of_known_revisions_are_adopted() -> None:
    younger = details("f-00001-zzzzz", created_at=0.5)
    also = [record(ProcessKind.QUEUE_PROXY, younger), record(ProcessKind.MODEL_SERVER, younger)]
    gateway = replace(PROXY, id="gateway-g0", kind=ProcessKind.GATEWAY, replica=None)
    found = pair_up([PROXY, gateway, SERVER, *also], REVISIONS)
    assert [pair.details.id for pair in found.pairs] == ["f-00001-zzzzz", "f-00001-aaaaa"], "in order of creation"
    assert found.ends == (), "gateways are not this room's"
    assert (found.pairs[1].proxy, found.pairs[1].server) == (PROXY, SERVER)


def test_halves_stopping_ones_and_unknown_revisions_are_ended() -> None:
    assert pair_up([PROXY], REVISIONS).ends == (PROXY,)
    assert pair_up([SERVER], REVISIONS).ends == (SERVER,)
    stopping = replace(SERVER, stopping=True)
    assert pair_up([PROXY, stopping], REVISIONS).ends == (PROXY, stopping)
    assert pair_up([PROXY, SERVER], {}).ends == (PROXY, SERVER)
