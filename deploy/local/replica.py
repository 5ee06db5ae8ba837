"""The state of one replica on this machine, and the start of its two processes."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.environment import MAPPED, Endpoints, Host, Launch, proxy_launch, server_argv, server_launch
from tidegate.deploy.failures import failure_text
from tidegate.deploy.local import sockets
from tidegate.deploy.local.admin_link import ProxyLink
from tidegate.deploy.local.fork_servers import ForkServers
from tidegate.deploy.local.limits.memory import amount
from tidegate.deploy.local.proc import set_affinity
from tidegate.deploy.local.processes import Child, Exit, ProcessTable, SpawnError
from tidegate.deploy.local.records import ProcessKind, ReplicaDetails
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.deploy.process.replica import FollowedReplica
from tidegate.function import Function, Revision
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlaces:
    """The folders of the state directory that replicas need. All exist and belong to this user."""

    run: Path
    """Folder of the sockets."""
    logs: Path

    def logs_of(self, function: str) -> Path:
        return self.logs / function

    def server_log(self, function: str, replica_id: str) -> Path:
        return self.logs / function / f"{replica_id}.server.log"

    def proxy_log(self, function: str, replica_id: str) -> Path:
        return self.logs / function / f"{replica_id}.proxy.log"


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class LocalReplica(FollowedReplica):
    """One replica and its two processes."""

    accelerator: Accelerator
    details: ReplicaDetails
    link: ProxyLink
    proxy: Child | None = None
    server: Child | None = None
    falls_asleep: bool = False
    """It is to fall asleep when it has drained, in place of its end."""
    paused: tuple[int, ...] = ()
    """Processes of its model server while it sleeps."""
    woken_at: float = 0.0
    """Time of the monotonic clock at which its last wake began."""
    borrowed: tuple[int, ...] = ()
    """Cores that its model server has beyond its own."""

    @property
    def children(self) -> tuple[Child, ...]:
        """The processes that were started: queue_proxy, model server."""
        return tuple(child for child in (self.proxy, self.server) if child is not None)

    @property
    def output(self) -> list[str]:
        """The last lines of the model server's own output."""
        return self.server.last_output() if self.server is not None else []

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory that its model server may use. None if there is no limit."""
        return None if self.accelerator.is_emulated else self.revision.function.resources.memory_bytes


def new_replica(
    details: ReplicaDetails, revision: Revision, kind: Accelerator, cores: tuple[int, ...], *, adopted: bool
) -> LocalReplica:
    """Returns a replica that starts, without its processes. ``cores``: those that its unit holds."""
    status = ReplicaStatus(
        id=details.id,
        function=details.function,
        revision=details.revision,
        accelerator=kind.name,
        state=ReplicaState.STARTING,
        address=details.address,
        admin=details.admin,
        created_at=details.created_at,
        cores=cores,
        unit=details.assignment.unit,
        more_units=details.assignment.more,
        devices=details.assignment.devices,
        share=details.assignment.share,
        threads=details.threads,
        emulated=kind.is_emulated,
        adopted=adopted,
    )
    return LocalReplica(status, revision, accelerator=kind, details=details, link=ProxyLink(details.admin))


def addresses(
    places: ReplicaPlaces, revision: Revision, replica_id: str, shipped: bool, taken: set[int]
) -> tuple[str, str, str]:
    """Returns the addresses of queue_proxy, its admin endpoint and the model server."""
    run, function = places.run, revision.function
    proxy = f"unix:{sockets.socket_path(run, replica_id, sockets.PROXY)}"
    admin = f"unix:{sockets.socket_path(run, replica_id, sockets.ADMIN)}"
    if not shipped and function.socket is not None:
        upstream = f"unix:{Path(function.workdir) / function.socket.replace('{replica}', replica_id)}"
    elif shipped or any("{socket}" in word for word in function.server.argv):
        upstream = f"unix:{sockets.model_socket(run, replica_id)}"
    else:
        upstream = f"127.0.0.1:{sockets.choose_port(function.port, taken)}"
    return proxy, admin, upstream


def metrics_port(function: Function, shipped: bool, taken: set[int]) -> int | None:
    """Returns the port of the model server's own metrics.

    It is any free port if its command contains ``{metrics_port}``, else the one that the manifest names. Returns None
    if the metrics are at the listening address.
    """
    wanted = None if function.metrics is None else function.metrics.port
    if shipped or not any("{metrics_port}" in word for word in server_argv(function, "python")):
        return None if shipped else wanted
    return sockets.choose_port(wanted, taken)


def spawn_pair(
    table: ProcessTable,
    places: ReplicaPlaces,
    host: Host,
    replica: LocalReplica,
    phases: Callable[[], ColdStartPhases],
    forks: ForkServers,
) -> None:
    """Starts the model server (its load is the long part), then its queue_proxy, which gets the ``phases`` so far.

    Raises SpawnError or OSError; ``replica`` then holds the processes that were started.
    """
    details, revision, accelerator = replica.details, replica.revision, replica.accelerator
    listener = sockets.listen(Path(details.address.removeprefix("unix:")))
    try:
        endpoints = Endpoints(
            listen_fd=listener.fileno(),
            admin=details.admin,
            upstream=details.upstream,
            metrics_port=details.metrics_port,
        )
        for address in (details.admin, details.upstream):
            sockets.unlink(address)
        sockets.make_folder(details.upstream)
        batching = revision.function.batching
        launch = server_launch(
            revision, accelerator, details.assignment, endpoints, host, batching, details.threads, details.id
        )
        if MAPPED in launch.env:
            try:
                Path(launch.env[MAPPED]).mkdir(mode=0o700, exist_ok=True)
            except OSError:  # A full disk, say: it reads the file itself.
                launch = replace(launch, env={name: each for name, each in launch.env.items() if name != MAPPED})
        replica.server = server = _spawn(table, ProcessKind.MODEL_SERVER, details, launch, places, None, forks)
        launch = proxy_launch(details.id, revision, accelerator, endpoints, host, phases())
        replica.proxy = _spawn(table, ProcessKind.QUEUE_PROXY, details, launch, places, listener, forks)
    finally:
        listener.close()
    if details.assignment.cores:
        # Not before the second spawn: the model server would start on the core that this process runs on.
        set_affinity(server.pid, details.assignment.cores)


def _spawn(
    table: ProcessTable,
    kind: ProcessKind,
    details: ReplicaDetails,
    launch: Launch,
    places: ReplicaPlaces,
    listener: socket.socket | None,
    forks: ForkServers,
) -> Child:
    is_server = kind is ProcessKind.MODEL_SERVER
    log = (places.server_log if is_server else places.proxy_log)(details.function, details.id)
    wrapper = launch.wrapper if launch.wrapper and _is_there(launch) else ()
    server = forks.of(launch)
    return table.spawn(
        kind,
        f"{details.id}.{'server' if is_server else 'proxy'}",
        (*wrapper, *launch.argv),
        program=launch.argv,
        env={**read_secrets(launch.secrets), **launch.env},
        log=log,
        cwd=launch.cwd,
        fds=() if listener is None else (listener.fileno(),),
        replica=details,
        fork=None if server is None else partial(server.fork, launch.argv[-1], launch.cwd),
    )


def _is_there(launch: Launch) -> bool:
    """Returns whether the program exists, as the system would look for it."""
    program = launch.argv[0] if launch.argv else ""
    if "/" in program:
        return os.access(Path(launch.cwd or ".") / program, os.X_OK)
    return shutil.which(program, path=launch.env.get("PATH")) is not None


def read_secrets(files: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of the secrets, without the newline that editors leave at the end of a file."""
    values = {}
    for name, path in files.items():
        try:
            values[name] = Path(path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            # The error's own text may quote bytes of the value.
            raise SpawnError(f"secret {name} cannot be read from {path} ({type(error).__name__})") from None
    return values


def exit_text(
    replica: LocalReplica, child: Child, how: Exit, cause: FailureCause, age_s: float, lost_port: str | None
) -> str:
    """Returns why the end of one of its processes is a failure, for people. ``lost_port``: the hint of a fixed port
    that its server did not get."""
    age = f"{age_s:.1f} s after its start"
    if child is not replica.server:
        words = "\n".join(f"  {line}" for line in child.last_output())
        return f"its queue_proxy {how} {age}" + (f"; its last output:\n{words}" if words else "")
    if cause is FailureCause.MEMORY:
        used = f"the model server used the {amount(replica.memory_limit_bytes or 0)} that resources.memory allows"
        return failure_text(f"{used}, and the kernel ended it {age}", replica.output)
    doubt = " (out of memory?)" if how.signal == signal.SIGKILL else ""
    return failure_text(f"the model server {how}{doubt} {age}", replica.output, lost_port)
