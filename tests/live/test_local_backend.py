"""The local backend with real processes: crashes, wrong servers, what is left behind and who finds it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.deadline import Patience, starved_s
from tests.support.live.backends import (
    MODEL,
    PHASES,
    TWO_CORES,
    LocalBench,
    directory,
    local_bench,
    revision,
    status_of,
)
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.local.admin_link import COMMAND_TIMEOUT_S, LinkError, ProxyLink, ProxyState
from tidegate.deploy.local.proc import ProcessHandle, boot_id, is_same, session_members, start_time, with_variable
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import MARK, ProcessKind, ProcessRecord, RecordStore
from tidegate.deploy.local.recovery import end_all, end_processes
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Revision
from tidegate.records.replica_state import ReplicaState

pytestmark = pytest.mark.live

A, B = "resnet-00001-aaaaa", "resnet-00001-bbbbb"


def play(scenario: Callable[[LocalBench], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with local_bench(**options) as bench:  # type: ignore[arg-type]  # options of local_bench
            await scenario(bench)

    asyncio.run(run())


async def ready(bench: LocalBench, replica_id: str = A, of: Revision | None = None) -> ReplicaStatus:
    made = of or revision()
    await bench.backend.create(replica_id, made, "cpu-1core", PHASES)
    await bench.until(lambda: state(bench, replica_id) is ReplicaState.READY)
    return known(bench, replica_id)


async def failed(bench: LocalBench, of: Revision, name: str | None = None) -> str:
    """The reason with which a replica of the revision fails."""
    name = name or f"{of.id}-aaaaa"
    await bench.backend.create(name, of, "cpu-1core", PHASES)
    await bench.until(lambda: state(bench, name) is ReplicaState.FAILED)
    return known(bench, name).reason or ""


def known(bench: LocalBench, replica_id: str) -> ReplicaStatus:
    found = status_of(bench.backend, replica_id)
    assert found is not None
    return found


def state(bench: LocalBench, replica_id: str) -> ReplicaState | None:
    found = status_of(bench.backend, replica_id)
    return None if found is None else found.state


def is_gone(pid: int) -> bool:
    return start_time(pid) is None


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def cores_of_threads(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]


def descriptors(pid: int) -> set[str]:
    return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def standard_input(pid: int) -> str:
    return str(Path(f"/proc/{pid}/fd/0").readlink())


def marked(bench: LocalBench) -> list[int]:
    folder = str(bench.directory)
    return [pid for pid, _ in with_variable(MARK, lambda path: path.startswith(folder))]


# --- a replica's life ---


def test_a_request_goes_through_the_pair() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        assert (await bench.ask(A, "GET /hello")).startswith(b"HTTP/1.1 200")

    play(scenario)


def test_processes_have_sessions_logs_and_records_of_their_own() -> None:
    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench)
        for pid in status.pids:
            assert os.getsid(pid) == pid, "Ctrl-C in the terminal does not reach it"
            assert standard_input(pid) == "/dev/null"
        records, unreadable = bench.table.store.read_all()
        assert not unreadable
        assert {record.kind for record in records} == {ProcessKind.QUEUE_PROXY, ProcessKind.MODEL_SERVER}
        for record in records:
            assert record.pid in status.pids
            assert is_same(record.pid or 0, record.start_time or 0, record.boot_id)
            assert record.replica is not None
            assert record.replica.address == status.address
        log = bench.directory / "logs" / "resnet" / f"{A}.server.log"
        assert log.read_text() == "model server listens\n"
        await bench.backend.remove(A)
        await bench.until(lambda: not bench.local.replicas() and bench.backend.room(revision())["cpu-1core"].free == 2)
        assert bench.table.store.read_all() == ([], [])
        assert list((bench.directory / "run").iterdir()) == []
        assert all(is_gone(pid) for pid in status.pids)

    play(scenario)


def test_the_model_server_sees_little_and_its_secrets() -> None:
    async def scenario(bench: LocalBench) -> None:
        secret = bench.directory / "secret"
        secret.write_text("s3cret\n")
        function = replace(revision(env={"MODE": "fast"}).function, secrets={"TOKEN": str(secret)})
        status = await ready(bench, of=Revision(function, 1))
        server = environment_of(status.pids[1])
        names = {entry.partition(b"=")[0].decode() for entry in server if entry}
        assert b"TOKEN=s3cret" in server
        assert b"MODE=fast" in server
        assert "PASSWORD" not in names
        assert {"PATH", "PORT", "OMP_NUM_THREADS", MARK} <= names
        proxy = b" ".join(environment_of(status.pids[0]))
        assert b"s3cret" not in proxy
        assert b"PASSWORD" not in proxy
        for path in (bench.directory / "processes").iterdir():
            assert "s3cret" not in path.read_text()

    play(scenario, environment={"PATH": os.environ["PATH"], "PASSWORD": "hunter2"})


def test_a_secret_cannot_change_where_its_server_is_placed() -> None:
    async def scenario(bench: LocalBench) -> None:
        secret = bench.directory / "secret"
        secret.write_text("7\n")
        named = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "PORT", "LANG"), str(secret))
        status = await ready(bench, of=Revision(replace(revision().function, secrets=named), 1))
        server = environment_of(status.pids[1])
        assert b"CUDA_VISIBLE_DEVICES=" in server
        assert b"PORT=7" not in server
        assert b"LANG=7" in server, "what is merely inherited gives way"

    play(scenario, environment={"PATH": os.environ["PATH"], "LANG": "C"})


def test_no_descriptor_of_the_control_process_reaches_a_child() -> None:
    """Not even one that the control process itself was given by what started it."""
    mine, theirs = os.pipe()
    os.set_inheritable(mine, True)
    os.set_inheritable(theirs, True)
    pipe = os.readlink(f"/proc/self/fd/{mine}")  # noqa: PTH115 - a link to no file

    async def scenario(bench: LocalBench) -> None:
        for pid in (await ready(bench)).pids:
            assert pipe not in descriptors(pid)

    try:
        play(scenario)
    finally:
        os.close(mine)
        os.close(theirs)


def test_replicas_are_bound_to_cores_of_their_own() -> None:
    async def scenario(bench: LocalBench) -> None:
        first, second = await ready(bench, A), await ready(bench, B)
        cores = sorted(os.sched_getaffinity(0))
        assert (first.cores, second.cores) == ((cores[0],), (cores[1],))
        assert os.sched_getaffinity(first.pids[1]) == {cores[0]}
        assert os.sched_getaffinity(second.pids[1]) == {cores[1]}
        assert os.sched_getaffinity(first.pids[0]) == set(cores), "the queue_proxy goes where there is time"

    if len(os.sched_getaffinity(0)) >= 2:
        play(scenario)


def test_a_resize_binds_every_thread() -> None:
    two = Accelerator(name="cpu-1core", kind=AcceleratorKind.CPU, count=1, memory_bytes=1 << 30, cores=2)

    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench)
        assert status.threads == 2
        resized = await bench.backend.resize(A, threads=1)
        assert len(resized.cores) == 1
        assert all(cores == set(resized.cores) for cores in cores_of_threads(status.pids[1]))
        records, _ = bench.table.store.read_all()
        assert all(each.replica is not None and each.replica.threads == 1 for each in records), "an adopter knows"
        assert len((await bench.backend.resize(A, threads=2)).cores) == 2

    if len(os.sched_getaffinity(0)) >= 2:
        play(scenario, accelerators=[two])


def test_a_drain_lets_the_running_request_end() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        reader, writer = await bench.request(A, "GET /hold")
        await bench.ask(A, "GET /anything")
        await bench.backend.remove(A)
        await asyncio.sleep(0.1)
        assert state(bench, A) is ReplicaState.DRAINING
        await bench.ask_server(A, "POST /release")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await bench.until(lambda: state(bench, A) is None)

    play(scenario)


def test_a_drain_ends_at_the_functions_timeout() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench, of=revision(timeout_s=0.3))
        await bench.hold(A)
        await bench.backend.remove(A)
        patience = Patience(8.0)
        await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 2)
        assert patience.passed_s > 0.25 and not patience.is_over

    play(scenario)


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench, of=revision(arguments=["--ignore-sigterm"]))
        await bench.backend.close(stop_replicas=True, grace_s=0.5)
        assert all(is_gone(pid) for pid in status.pids)

    play(scenario)


# --- what goes wrong ---


@pytest.mark.parametrize("which", [0, 1])
def test_the_death_of_either_process_ends_the_other_at_once(which: int) -> None:
    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench)
        patience = Patience(0.5)
        os.kill(status.pids[which], signal.SIGKILL)
        await bench.until(lambda: state(bench, A) is ReplicaState.FAILED)
        assert not patience.is_over
        reason = known(bench, A).reason or ""
        assert ("its queue_proxy was killed by SIGKILL", "the model server was killed by SIGKILL")[which] in reason
        await bench.until(lambda: known(bench, A).pids == ())
        assert all(is_gone(pid) for pid in status.pids)
        assert bench.backend.room(revision())["cpu-1core"].free == 2

    play(scenario)


def test_a_dying_server_is_quoted() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await bench.ask(A, "GET /die")
        await bench.until(lambda: state(bench, A) is ReplicaState.FAILED)
        reason = known(bench, A).reason or ""
        assert "the model server exited with status 3" in reason
        assert reason.endswith("  model server listens\n  Traceback: the weights are cursed")

    play(scenario)


def test_what_a_dead_server_started_dies_with_it() -> None:
    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench, of=revision(arguments=["--child"]))
        started = [pid for pid in session_members(status.pids[1]) if pid != status.pids[1]]
        assert len(started) == 1
        os.kill(status.pids[1], signal.SIGKILL)
        await bench.until(lambda: is_gone(started[0]))

    play(scenario)


def test_what_hides_in_a_session_of_its_own_is_found() -> None:
    async def scenario(bench: LocalBench) -> None:
        status = await ready(bench, of=revision(arguments=["--daemon"]))
        hidden = [pid for pid in marked(bench) if pid not in status.pids]
        assert len(hidden) == 1
        assert hidden[0] not in session_members(status.pids[1])
        await bench.backend.close(stop_replicas=True)
        assert is_gone(hidden[0])

    play(scenario)


def test_a_server_that_never_gets_ready() -> None:
    async def scenario(bench: LocalBench) -> None:
        reason = await failed(bench, revision(arguments=["--ready-after", "60"], start_timeout_s=2.5))
        assert "not ready within 2.5 s" in reason
        assert "503" in reason
        assert "model server listens" in reason

    play(scenario)


def test_a_server_on_the_wrong_port_is_reported_where_it_listens() -> None:
    async def scenario(bench: LocalBench) -> None:
        wrong = bench.free_port()
        command = (sys.executable, MODEL, "--listen", f"127.0.0.1:{wrong}")
        reason = await failed(bench, revision(command=command, start_timeout_s=0.7))
        assert "not ready within 0.7 s" in reason
        assert f"it listens on port {wrong}, " in reason
        assert "was expected (PORT, {port})" in reason

    play(scenario)


def test_a_server_that_prints_garbage_is_quoted_safely() -> None:
    async def scenario(bench: LocalBench) -> None:
        code = r"import sys; sys.stdout.buffer.write(b'\x1b[2J\xff\x00' * 3 + b'\nend\n'); sys.exit(7)"
        reason = await failed(bench, revision(command=(sys.executable, "-c", code)))
        assert "exited with status 7" in reason
        assert reason.endswith("end")
        assert "\x1b" not in reason
        assert "\x00" not in reason

    play(scenario)


def test_a_program_that_is_not_there() -> None:
    async def scenario(bench: LocalBench) -> None:
        reason = await failed(bench, revision(command=("/no/such/program",)))
        assert reason == "cannot start /no/such/program: No such file or directory"
        await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 2)
        assert marked(bench) == []

    play(scenario)


def test_a_queue_proxy_that_cannot_be_started_takes_its_server_with_it() -> None:
    async def scenario(bench: LocalBench) -> None:
        assert "cannot start /no/queue_proxy" in await failed(bench, revision())
        assert bench.local.room(revision())["cpu-1core"].free == 1, "its unit is held until the server has ended"
        await bench.until(lambda: bench.local.room(revision())["cpu-1core"].free == 2)
        assert marked(bench) == []

    play(scenario, queue_proxy=("/no/queue_proxy",))


def test_a_log_that_cannot_be_written_fails_the_replica_and_leaves_no_record() -> None:
    async def scenario(bench: LocalBench) -> None:
        (bench.directory / "logs" / "resnet").write_text("a file where the folder should be")
        assert "cannot write" in await failed(bench, revision())
        assert bench.table.store.read_all() == ([], [])

    play(scenario)


def test_a_fixed_port_that_is_taken_is_replaced() -> None:
    """Two replicas on one machine with one fixed port: the second gets another, in PORT and {port}."""

    async def scenario(bench: LocalBench) -> None:
        port = bench.free_port()
        made = revision(port=port)
        await ready(bench, A, made)
        await ready(bench, B, made)
        assert bench.upstream(A) == f"127.0.0.1:{port}"
        assert bench.upstream(B) != f"127.0.0.1:{port}"

    play(scenario)


def test_a_socket_of_its_own_serves_one_replica() -> None:
    async def scenario(bench: LocalBench) -> None:
        command = (sys.executable, MODEL, "--listen", "unix:{socket}")
        made = revision(command=command, socket=str(bench.directory / "model.sock"))
        await ready(bench, A, made)
        assert "write {replica} in the function's `socket`" in await failed(bench, made, B)
        await bench.backend.remove(B)
        assert (await bench.ask(A, "GET /hello")).startswith(b"HTTP/1.1 200"), "the first one is not disturbed"
        apart = revision("apart", command=command, socket=str(bench.directory / "{replica}.sock"))
        await ready(bench, "apart-00001-aaaaa", apart)
        assert (bench.directory / "apart-00001-aaaaa.sock").exists()

    play(scenario)


def test_a_revive_whose_caller_goes_away_is_whole_all_the_same() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        await bench.hold(A)
        await bench.backend.remove(A)
        await asyncio.sleep(0.05)
        caller = asyncio.get_running_loop().create_task(bench.backend.revive(A))
        await asyncio.sleep(0)
        caller.cancel()
        await bench.until(lambda: state(bench, A) is ReplicaState.READY)
        await bench.release(A)
        assert (await bench.ask(A, "GET /hello")).startswith(b"HTTP/1.1 200")

    play(scenario)


@pytest.mark.timeout(60)
def test_a_revive_that_is_obeyed_too_late_does_not_leave_it_serving() -> None:
    """The queue_proxy hangs for longer than a command waits, then reads revive and drain: it must not serve while the
    backend waits for its drain, which would last for the function's whole timeout."""

    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        replica = bench.local._registry.present[A]
        assert replica.proxy is not None
        await bench.hold(A)
        await bench.backend.remove(A)
        await asyncio.sleep(0.1)
        replica.proxy.send(signal.SIGSTOP)
        revived = asyncio.get_running_loop().create_task(bench.backend.revive(A))
        await asyncio.sleep(COMMAND_TIMEOUT_S + 1.0)
        replica.proxy.send(signal.SIGCONT)
        assert not await revived
        await bench.release(A)
        await bench.until(lambda: state(bench, A) is None)

    play(scenario)


def test_drained_that_is_read_after_the_revive_does_not_end_the_next_drain() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        replica = bench.local._registry.present[A]
        bench.local._lifecycle._on_reported(replica, ProxyState(state=ReplicaState.DRAINED))
        bench.local._lifecycle._on_reported(replica, ProxyState(state=ReplicaState.READY))
        await bench.hold(A)
        await bench.backend.remove(A)
        await asyncio.sleep(0.2)
        assert state(bench, A) is ReplicaState.DRAINING, "it has work"
        await bench.release(A)
        await bench.until(lambda: state(bench, A) is None)

    play(scenario)


def test_a_queue_proxy_that_talks_nonsense_is_ended() -> None:
    nonsense = (
        "import os,socket;s=socket.socket(socket.AF_UNIX);s.bind(os.environ['TIDEGATE_ADMIN'][5:]);s.listen();"
        "c=s.accept()[0];c.recv(9999);c.sendall(b'HTTP/1.1 200 .\\r\\n\\r\\n<html>\\n');c.recv(1)"
    )

    async def scenario(bench: LocalBench) -> None:
        assert "sends an unreadable state" in await failed(bench, revision())
        await bench.until(lambda: marked(bench) == [])

    play(scenario, queue_proxy=(sys.executable, "-c", nonsense))


def test_a_burst_of_output_stays_bounded() -> None:
    async def scenario(bench: LocalBench) -> None:
        await ready(bench)
        log = bench.directory / "logs" / "resnet" / f"{A}.server.log"
        with log.open("ab") as file:
            file.write(b"x" * (5 << 20))
        bench.table.trim_logs()
        assert log.stat().st_size == 0
        kept = log.with_name(log.name + ".1").read_bytes()
        assert kept.startswith(b"-- tidegate: cut 1, ")
        assert len(kept.partition(b"\n")[2]) == 2 << 20

    play(scenario)


# --- what is left behind ---


async def abandoned(path: Path, *names: str) -> dict[str, ReplicaStatus]:
    """What a control process that was killed leaves in ``path``: ready replicas."""
    bench = LocalBench(path, [TWO_CORES], epoch=1)
    await bench.start()
    found = {name: await ready(bench, name) for name in names}
    await bench.abandon()
    return found


def after_a_crash(
    scenario: Callable[[LocalBench, dict[str, ReplicaStatus]], Awaitable[None]],
    *names: str,
    between: Callable[[Path, dict[str, ReplicaStatus]], None] = lambda path, left: None,
    revisions: tuple[Revision, ...] = (revision(),),
) -> None:
    """Leaves ready replicas behind, lets ``between`` happen, starts the next backend and plays the scenario."""

    async def run() -> None:
        async with directory() as path:
            left = await abandoned(path, *names)
            between(path, left)
            bench = LocalBench(path, [TWO_CORES], epoch=2)
            await bench.start(*revisions)
            try:
                await scenario(bench, left)
            finally:
                await bench.close()

    asyncio.run(run())


def test_living_replicas_are_adopted_as_they_are() -> None:
    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        assert {each.id for each in bench.backend.replicas()} == {A, B}
        for name, before in left.items():
            now = known(bench, name)
            assert now.state is ReplicaState.READY, "reported before the first round"
            assert now.adopted
            assert (now.pids, now.address, now.unit, now.cores) == (
                before.pids,
                before.address,
                before.unit,
                before.cores,
            )
        assert bench.backend.room(revision())["cpu-1core"].free == 0
        assert (await bench.ask(A, "GET /hello")).startswith(b"HTTP/1.1 200")
        await bench.backend.remove(A)
        await bench.until(lambda: all(is_gone(pid) for pid in left[A].pids))
        assert not is_gone(left[B].pids[0])

    after_a_crash(scenario, A, B)


def test_an_adopted_replica_that_dies_is_seen_too() -> None:
    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        os.kill(left[A].pids[1], signal.SIGKILL)
        await bench.until(lambda: state(bench, A) is ReplicaState.FAILED)
        assert "the model server ended" in (known(bench, A).reason or "")
        await bench.until(lambda: all(is_gone(pid) for pid in left[A].pids))

    after_a_crash(scenario, A)


def test_an_adopted_queue_proxy_no_longer_obeys_the_old_epoch() -> None:
    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        link = ProxyLink(left[A].admin)
        await bench.until(lambda: known(bench, A).adopted)
        await asyncio.sleep(0.1)
        with pytest.raises(LinkError, match="409"):
            await link.command("drain", {"epoch": 1})
        await link.close()

    after_a_crash(scenario, A)


def test_half_a_replica_is_ended() -> None:
    def kill_proxy(path: Path, left: dict[str, ReplicaStatus]) -> None:
        handle = ProcessHandle.open(left[A].pids[0])
        assert handle is not None
        end_processes([handle], 5.0)

    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        assert [each.id for each in bench.backend.replicas()] == [B]
        assert is_gone(left[A].pids[1])
        assert bench.backend.room(revision())["cpu-1core"].free == 1
        assert not list((bench.directory / "run").glob(f"{A}*"))

    after_a_crash(scenario, A, B, between=kill_proxy)


def test_replicas_of_a_revision_that_is_gone_are_ended() -> None:
    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        assert bench.backend.replicas() == ()
        assert all(is_gone(pid) for pid in left[A].pids)
        assert bench.table.store.read_all() == ([], [])

    after_a_crash(scenario, A, revisions=(revision("other"),))


def test_a_record_written_before_a_spawn_that_was_never_completed_leads_to_its_process() -> None:
    """The control process died between the two: the mark in the environment finds what the record cannot name."""

    def forget_who(path: Path, left: dict[str, ReplicaStatus]) -> None:
        for file in (path / "processes").glob(f"{A}*"):
            record = json.loads(file.read_text())
            record["pid"] = record["start_time"] = None
            file.write_text(json.dumps(record))

    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        assert [each.id for each in bench.backend.replicas()] == [B]
        assert all(is_gone(pid) for pid in left[A].pids)

    after_a_crash(scenario, A, B, between=forget_who)


def test_sockets_that_none_listens_on_any_more_are_removed() -> None:
    def leave(path: Path, left: dict[str, ReplicaStatus]) -> None:
        (path / "run" / "gone-00001-aaaaa.q").touch()
        (path / "run" / "g0.sock").touch()

    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        names = {path.name for path in (bench.directory / "run").iterdir()}
        assert names == {f"{A}.q", f"{A}.a", "g0.sock"}, "a gateway's are its supervisor's"

    after_a_crash(scenario, A, between=leave)


def test_half_written_and_missing_records_too() -> None:
    def damage(path: Path, left: dict[str, ReplicaStatus]) -> None:
        (path / "processes" / f"{A}.proxy.json").write_text('{"id": "resn')
        (path / "processes" / f"{A}.server.json").unlink()

    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        assert [each.id for each in bench.backend.replicas()] == [B]
        assert all(is_gone(pid) for pid in left[A].pids)

    after_a_crash(scenario, A, B, between=damage)


def test_a_process_that_merely_has_the_recorded_pid_is_left_alone() -> None:
    """A record of a process that died long ago, whose pid belongs to somebody else now."""

    async def run() -> None:
        async with directory() as path:
            innocent = await asyncio.create_subprocess_exec("sleep", "30")
            (path / "processes").mkdir()
            store = RecordStore(path / "processes")
            for name, boot, started in (("a", boot_id(), 1), ("b", "another boot", start_time(innocent.pid))):
                store.write(
                    ProcessRecord(
                        id=name,
                        kind=ProcessKind.MODEL_SERVER,
                        boot_id=boot,
                        epoch=1,
                        program="x",
                        log="/log",
                        pid=innocent.pid,
                        start_time=started,
                    )
                )
            table = ProcessTable(store, 2)
            assert await table.recover() == ()
            assert store.read_all() == ([], [])
            assert end_all(path / "processes") == ()
            assert innocent.returncode is None
            assert not is_gone(innocent.pid)
            innocent.kill()
            await innocent.wait()

    asyncio.run(run())


@pytest.mark.parametrize("adopted", [False, True])
def test_without_pidfds_an_end_is_seen_a_little_later(monkeypatch: pytest.MonkeyPatch, adopted: bool) -> None:
    """As on macOS and old kernels: children are asked for four times a second."""
    monkeypatch.delattr(os, "pidfd_open")

    async def scenario(bench: LocalBench, left: dict[str, ReplicaStatus]) -> None:
        victim = A if adopted else B
        if not adopted:
            await ready(bench, B)
        pids = known(bench, victim).pids
        os.kill(pids[1], signal.SIGKILL)
        await bench.until(lambda: state(bench, victim) is ReplicaState.FAILED)
        assert ("SIGKILL" in (known(bench, victim).reason or "")) is not adopted
        await bench.until(lambda: all(is_gone(pid) for pid in pids))

    after_a_crash(scenario, A)


def test_down_without_a_control_process_ends_everything() -> None:
    async def run() -> None:
        async with directory() as path:
            left = await abandoned(path, A, B)
            ended = await asyncio.to_thread(end_all, path / "processes", grace_s=5.0)
            assert {each.pid for each in ended} == {pid for status in left.values() for pid in status.pids}
            assert [each.id.rpartition(".")[2] for each in ended] == ["proxy", "proxy", "server", "server"]
            assert not any(each.killed for each in ended)
            assert all(is_gone(pid) for status in left.values() for pid in status.pids)
            assert list((path / "processes").iterdir()) == []
            assert list((path / "run").iterdir()) == []

    asyncio.run(run())


def test_down_kills_what_does_not_obey() -> None:
    async def run() -> None:
        async with directory() as path:
            bench = LocalBench(path, [TWO_CORES])
            await bench.start()
            status = await ready(bench, A, revision(arguments=["--ignore-sigterm", "--child"]))
            family = session_members(status.pids[1])
            assert len(family) == 2
            await bench.abandon()
            ended = await asyncio.to_thread(end_all, path / "processes", grace_s=0.5)
            assert {each.pid for each in ended if each.killed} == {status.pids[1]}
            assert all(is_gone(pid) for pid in family)

    asyncio.run(run())


# --- how fast ---


@pytest.mark.alone
def test_two_processes_are_spawned_well_within_the_budget() -> None:
    """The first request at zero reaches the spawn within 20 ms; half of that is this backend's. The best of five, and
    without the time in which the machine had no processor for somebody: it has other things to do."""

    async def scenario(bench: LocalBench) -> None:
        took = []
        for number in range(5):
            name = f"resnet-00001-aaaa{number}"
            began, starved = time.perf_counter(), starved_s()
            await bench.backend.create(name, revision(), "cpu-1core", PHASES)
            took.append(time.perf_counter() - began - (starved_s() - starved))
            await bench.until(lambda: all(each.state is ReplicaState.READY for each in bench.backend.replicas()))
            await bench.backend.remove(name)
            await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 2)
        assert min(took) < 0.010

    play(scenario)
