"""Command line and environment of a replica's two processes, computed from records alone.

Children get a *minimal* environment: the few variables that programs need to find themselves (:data:`INHERITED`),
Tidegate's settings, the function's variables, and its secrets. Nothing else of the control process's own environment
reaches them.

Placement is in the environment too: threads and cores on a CPU; on an NVIDIA device ``CUDA_VISIBLE_DEVICES`` and, with
MPS, the percentage of its threads and the memory limit. The function cannot override these, since the ledger would then
be wrong. It can override thread counts.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.aio import log_stream
from tidegate.deploy.placement.ledger import WHOLE, Accelerator, AcceleratorKind, Assignment, Profile
from tidegate.function import Batching, Cancel, Function, ModelFormat, Protocol, Revision, ServerKind
from tidegate.records.replica_state import ColdStartPhases
from tidegate.runtime import confine
from tidegate.schema.units import plain

INHERITED: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
    }
)
"""Variables of the control process that its children may see, besides ``LC_*``."""

_BODY_BYTES: Final = 256 << 20
"""The shipped runtime's own limit of a request body; another one is passed on."""

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables that set the threads of numerical libraries. By default these start as many as the *machine* has cores."""

OUR_READINESS: Final = "/v2/health/ready"
"""Readiness path of the shipped runtime. It answers REST and gRPC at one port, which accepts before its model is
loaded. An emulated replica runs it whatever server its function names."""

OUR_METRICS: Final = "/metrics"
"""Metrics path of the shipped runtime, on the address where it listens. The manifest's path is for other servers."""

QUEUE_PROXY: Final = ("-P", "-m", "tidegate.queue_proxy.main")
MAPPED: Final = "TIDEGATE_RUNTIME_MAPPED"
"""Variable with the folder of an ONNX file's mapped forms, which exists when the server starts."""
RUNTIME: Final = ("-P", "-m", "tidegate.runtime.main")
ASGI: Final = ("-P", "-m", "tidegate.runtime.asgi.main")
TRITON: Final = ("-P", "-m", "tidegate.runtime.triton.main")
FORK_SERVER: Final = ("-P", "-m", "tidegate.runtime.fork.main")

_NO_TELEMETRY: Final = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime 1.31 reports its use to its maker unless this is set, by a thread that it starts when it is imported."""


PRELOADS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue_proxy": ("tidegate.queue_proxy.main", "uvloop"),
    "runtime": ("tidegate.runtime.main",),
    "emulated": ("tidegate.runtime.main", "tidegate.runtime.execute.emulated", "uvloop"),
    "handler": ("tidegate.runtime.main", "tidegate.runtime.execute.handler", "uvloop"),
    "arrays": ("tidegate.runtime.main", "tidegate.runtime.execute.handler", "uvloop", "numpy"),
    "onnx": ("tidegate.runtime.main", "tidegate.runtime.formats.onnx", "uvloop", "numpy", "onnxruntime"),
}
"""Modules that a fork server imports, by its name. ``runtime`` has our own alone: packages of another interpreter are
the function's, and are imported when the process is confined."""

# fmt: off
READ_AT_START: Final = (
    "PYTHON", "LD_", "DYLD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "ORT_", "NPY_", "UV_",
    "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_", "VECLIB_",
)
# fmt: on
"""Beginnings of variables that interpreters and libraries read once. A function that sets one has its servers
spawned."""

_ROOM: Final = 1024
"""Bytes of a variable that a fork server has for the environments of what comes from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Properties of the machine and the deployment that children need."""

    python: str
    """Absolute path of Tidegate's own interpreter."""
    source_root: str | None
    """Folder that holds the package ``tidegate`` if it is not installed into ``site-packages``; else None."""
    token_file: str
    """File with the deployment's token."""
    epoch: int
    inherited: Mapping[str, str]
    """The control process's environment. Only :data:`INHERITED` is passed on."""
    queue_proxy: tuple[str, ...] = ()
    """Command of another queue_proxy (Knative's, in a benchmark). Empty for Tidegate's own."""
    copies: str = ""
    """Folder of the copies that functions name."""
    hidden: tuple[str, ...] = ()
    """Folders that model servers are kept from (``tidegate.runtime.confine``). Empty if they are not confined."""
    fork_servers: bool = False
    """Whether replicas may come from fork servers."""
    sleeps: bool = True
    """Whether replicas may sleep."""
    json_logs: bool = False
    """Whether each line that these processes log is a JSON object."""
    mps_pipes: str = ""
    """Folder of the pipes of the MPS daemon. Empty: CUDA's default."""
    limits: Mapping[str, int | float] = field(default_factory=dict)
    """The gateways' limits of requests, by the names of ``tidegate.aio.proxy.limits.Limits``. A request that passes
    them must not fail at the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses on which a replica's processes listen."""

    listen_fd: int
    """Inherited listening socket of the queue_proxy."""
    admin: str
    upstream: str
    """``unix:/path`` or ``host:port`` of the model server."""
    metrics_port: int | None = None
    """Port of the model server's own metrics. None if they are at its listening address, or nowhere."""

    @property
    def port(self) -> int | None:
        """The model server's port. None if it listens on a unix socket."""
        return None if self.upstream.startswith("unix:") else int(self.upstream.rpartition(":")[2])

    @property
    def socket(self) -> str | None:
        return self.upstream.removeprefix("unix:") if self.upstream.startswith("unix:") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    """File with the value, by variable name. It is read at the spawn and never kept. ``env`` wins."""
    wrapper: tuple[str, ...] = ()
    """Words that come before ``argv`` if its program exists. The error of a missing one is then the system's."""
    preload: str | None = None
    """Name in :data:`PRELOADS` of the fork server that it may come from. None if it is always spawned."""


def is_shipped(function: Function, accelerator: Accelerator) -> bool:
    """Returns True if the model server is Tidegate's own runtime: models (but for Triton's), handlers, and everything
    emulated."""
    if accelerator.is_emulated or function.server.kind is ServerKind.HANDLER:
        return True
    return function.server.kind is ServerKind.MODEL and not function.server.is_triton


def is_ours(function: Function, accelerator: Accelerator) -> bool:
    """Returns True if the process is Tidegate's own: the shipped runtime, or the one that serves an ASGI application.
    It listens where it is made to."""
    return is_shipped(function, accelerator) or function.server.kind is ServerKind.ASGI


def server_argv(function: Function, python: str) -> tuple[str, ...]:
    """Returns the words of a command, with placeholders for addresses; empty for Tidegate's own servers. ``python`` is
    the interpreter that looks for Triton."""
    server = function.server
    if not server.is_triton:
        return server.argv
    protocol = "grpc" if function.protocol is Protocol.GRPC else "http"
    metrics = ("{metrics_port}",) if function.metrics is not None else ()
    return (python, *TRITON, server.target, protocol, "{port}", *metrics)


def can_borrow(function: Function, accelerator: Accelerator) -> bool:
    """Returns whether more cores than its own let the model server run more at a time: ONNX files on a CPU, whose
    concurrency the function leaves open. A class's calls run one after the other, and a stated concurrency is kept."""
    is_whole = accelerator.kind is AcceleratorKind.CPU and accelerator.quota >= WHOLE
    return _is_onnx(function) and is_whole and function.concurrency is None


def batching_refusal(function: Function, accelerator: Accelerator, batching: Batching) -> str | None:
    """Returns why a running model server of the function cannot form such batches; None if it can."""
    if not is_shipped(function, accelerator):
        return f"its server is a {function.server.kind.value}, which takes no orders about batches"
    most = function.batching.max_size
    if not 1 <= batching.max_size <= most:
        allowed = f"1 to {most} (batching.max)" if most > 1 else "1: batching.max of the function is 1"
        return f"a batch of {batching.max_size}; allowed: {allowed}"
    return None


def _is_onnx(function: Function) -> bool:
    return function.server.kind is ServerKind.MODEL and function.server.format is ModelFormat.ONNX


def threads_of(function: Function, accelerator: Accelerator) -> int | None:
    """Returns the threads of the model server: as the function asks, at most the unit's cores. Returns None if the
    library chooses."""
    if accelerator.kind is not AcceleratorKind.CPU:
        return function.resources.threads
    return min(function.resources.threads or accelerator.cores, accelerator.cores)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of the control process's environment that children may see."""
    return {name: value for name, value in environment.items() if name in INHERITED or name.startswith("LC_")}


def search_path(function: Function, host: Host) -> str:
    """Returns ``PATH`` of the model server. The folder of its interpreter comes first, as if that environment were
    activated, so that a command may begin with ``python``."""
    interpreter = function.python or host.python
    return _joined_path(interpreter.rpartition("/")[0], host.inherited.get("PATH") or "/usr/bin:/bin")


def server_launch(
    revision: Revision,
    accelerator: Accelerator,
    assignment: Assignment,
    endpoints: Endpoints,
    host: Host,
    batching: Batching,
    threads: int | None,
    replica_id: str = "",
) -> Launch:
    """Returns the launch of a replica's model server."""
    function, batching = _as_stored(revision.function, accelerator, batching)
    env = inherited(host.inherited)
    env["PATH"] = search_path(function, host)
    env["PYTHONUNBUFFERED"] = "1"
    if threads is not None:
        env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    shipped = is_shipped(function, accelerator)
    if shipped:
        env |= _NO_TELEMETRY
    env.update(function.env)
    for name in function.secrets:
        env.pop(name, None)
    if shipped:
        env.update(_runtime_variables(function, accelerator, endpoints, batching, threads))
        if not accelerator.is_emulated:
            env |= _copy_variables(function, host)
            env |= _mapped_variable(function, accelerator, host)
        elif function.server.kind is ServerKind.HANDLER and function.server.copy is not None:
            env["TIDEGATE_RUNTIME_COPY"] = f"{host.copies}/{function.server.copy}"
    if endpoints.port is not None:
        env["PORT"] = str(endpoints.port)
    if endpoints.metrics_port is not None:
        env["METRICS_PORT"] = str(endpoints.metrics_port)
    if shipped and assignment.cores:
        env["TIDEGATE_RUNTIME_CORES"] = str(len(assignment.cores))
    env.update(_placement_variables(function, accelerator, assignment, host.mps_pipes))
    if is_ours(function, accelerator):
        if not shipped:
            env["TIDEGATE_RUNTIME_ASGI"] = function.server.target
            env["TIDEGATE_RUNTIME_LISTEN"] = endpoints.upstream
            env |= _copy_variables(function, host)
        argv: tuple[str, ...] = (interpreter_of(function, accelerator, host), *(RUNTIME if shipped else ASGI))
        env |= _log_variable("model-server", revision, replica_id, host)
    else:
        argv = tuple(_with_addresses(word, endpoints) for word in server_argv(function, host.python))
    if host.source_root is not None and (is_ours(function, accelerator) or function.server.is_triton):
        env["PYTHONPATH"] = _joined_path(host.source_root, env.get("PYTHONPATH"))
    wrapper: tuple[str, ...] = ()
    if host.hidden:
        is_own = is_ours(function, accelerator)
        shown = _shown(function, env, () if is_own else argv, endpoints, host)
        wanted = json.dumps({"hide": host.hidden, "show": shown})
        if is_own:
            env[confine.VARIABLE] = wanted
        else:
            wrapper = (host.python, "-I", "-S", confine.__file__, wanted)
    return Launch(
        argv=argv,
        env=env,
        cwd=function.workdir,
        secrets=dict(function.secrets),
        wrapper=wrapper,
        preload=preload_of(function, accelerator, host),
    )


def _copy_variables(function: Function, host: Host) -> dict[str, str]:
    """Returns where the runtime finds the copies of a function's file and of its modules."""
    found = {"TIDEGATE_RUNTIME_COPY": function.server.copy, "TIDEGATE_RUNTIME_MODULES": function.server.modules}
    return {name: f"{host.copies}/{copy}" for name, copy in found.items() if copy is not None}


def _mapped_variable(function: Function, accelerator: Accelerator, host: Host) -> dict[str, str]:
    """Returns where the runtime keeps the mapped forms of an ONNX file. None for what runs on a GPU, and for what has
    a limit of memory, which would include that of the process that writes the form."""
    server, limit = function.server, function.resources.memory_bytes
    is_onnx = server.kind is ServerKind.MODEL and server.format is ModelFormat.ONNX and server.copy is not None
    if not is_onnx or accelerator.kind is not AcceleratorKind.CPU or limit is not None:
        return {}
    return {MAPPED: f"{host.copies}/{mapped_name(function.name, server.copy or '')}"}


def mapped_name(function: str, copy: str) -> str:
    """Returns the name of the folder of mapped forms, beside the copy. Each function has its own: what its servers
    write there, those of no other function read."""
    return f"{copy.partition('.')[0]}.{function}.mapped"


def _as_stored(function: Function, accelerator: Accelerator, batching: Batching) -> tuple[Function, Batching]:
    """Returns the function with the file of its model repository for this accelerator, and batches of at most the size
    that the file was built for."""
    form, server = function.server.form_on(accelerator.name), function.server.on(accelerator.name)
    if form is None or server is None:
        return function, batching
    return replace(function, server=server), replace(batching, max_size=min(batching.max_size, form.batch_size))


def preload_of(function: Function, accelerator: Accelerator, host: Host) -> str | None:
    """Returns the fork server that the model server may come from, by its name in :data:`PRELOADS`.

    Returns None if it has to be spawned: fork servers are off, the server is not the shipped one, a variable of the
    function would come too late, or the accelerator is a GPU (its libraries take seconds anyway).
    """
    variables = (*function.env, *function.secrets)
    is_late = any(name.startswith(READ_AT_START) for name in variables)
    if not host.fork_servers or not is_shipped(function, accelerator) or is_late:
        return None
    if accelerator.is_emulated:
        return "emulated"
    if accelerator.kind is not AcceleratorKind.CPU:
        return None
    if function.python not in (None, host.python):
        return "runtime"
    if function.server.kind is ServerKind.MODEL and function.server.format is ModelFormat.ONNX:
        return "onnx"
    # The threads of numpy are fixed when it is imported.
    return "arrays" if threads_of(function, accelerator) == 1 else "handler"


def fork_launch(preload: str, python: str, host: Host) -> Launch:
    """Returns the launch of a fork server. The word ``{fd}`` stands for the number of its socket."""
    env = inherited(host.inherited)
    env["PYTHONUNBUFFERED"] = "1"
    env.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # It must not have threads.
    env |= _NO_TELEMETRY
    env["TIDEGATE_FORK_ROOM"] = "-" * _ROOM
    if host.source_root is not None:
        env["PYTHONPATH"] = host.source_root
    return Launch(argv=(python, *FORK_SERVER, "{fd}", *PRELOADS[preload]), env=env)


def _shown(
    function: Function, env: Mapping[str, str], argv: tuple[str, ...], endpoints: Endpoints, host: Host
) -> list[str]:
    """Returns the paths that a confined server needs, as far as they lie in hidden folders: its socket's folder, its
    copies, its working folder, and what its command, model and interpreter name."""
    variables = ("TIDEGATE_RUNTIME_COPY", "TIDEGATE_RUNTIME_MODULES", MAPPED, "CUDA_MPS_PIPE_DIRECTORY")
    named = [*(env.get(name) for name in variables), function.workdir, *argv]
    if endpoints.socket is not None:
        named.append(endpoints.socket.rpartition("/")[0])
    if function.python is not None:  # environment/bin/python
        named.append(function.python.rpartition("/")[0].rpartition("/")[0])
    if function.server.kind in (ServerKind.HANDLER, ServerKind.ASGI):
        named.append(function.server.target.rpartition("/")[0])
    elif function.server.kind is ServerKind.MODEL:
        named.append(function.server.target)
    return [path for path in named if path is not None and any(path.startswith(f"{each}/") for each in host.hidden)]


def proxy_launch(
    replica_id: str,
    revision: Revision,
    accelerator: Accelerator,
    endpoints: Endpoints,
    host: Host,
    phases: ColdStartPhases,
) -> Launch:
    """Returns the launch of a replica's queue_proxy."""
    function = revision.function
    env = inherited(host.inherited)
    if host.source_root is not None:
        env["PYTHONPATH"] = host.source_root
    auto = function.concurrency is None
    env |= {
        "CONTAINER_CONCURRENCY": str(function.concurrency or 0),
        "TIDEGATE_CONCURRENCY": "auto" if auto else str(function.concurrency),
        "TIDEGATE_CONCURRENCY_UNIT": function.concurrency_unit.value,
        "REVISION_TIMEOUT_SECONDS": plain(function.timeout_s),
        "SERVING_NAMESPACE": "default",
        "SERVING_SERVICE": function.name,
        "SERVING_CONFIGURATION": function.name,
        "SERVING_REVISION": revision.id,
        "SERVING_POD": replica_id,
        "TIDEGATE_REPLICA": replica_id,
        "TIDEGATE_FUNCTION": function.name,
        "TIDEGATE_GROUP": accelerator.name,
        "TIDEGATE_LISTEN_FD": str(endpoints.listen_fd),
        "TIDEGATE_UPSTREAM": endpoints.upstream,
        "TIDEGATE_ADMIN": endpoints.admin,
        "TIDEGATE_TOKEN_FILE": host.token_file,
        "TIDEGATE_EPOCH": str(host.epoch),
        "TIDEGATE_READINESS_PATH": _readiness_path(function, accelerator),
        "TIDEGATE_START_TIMEOUT_SECONDS": plain(function.readiness.start_timeout_s),
        "TIDEGATE_BATCH_HEADER": function.batch_rule.header,
        "TIDEGATE_BATCH_OVERHEAD_BYTES": plain(function.batch_rule.overhead_bytes),
        "TIDEGATE_CANCEL": _cancel(function, accelerator),
        "TIDEGATE_MAX_BATCH": str(function.batch_rule.max_batch),
        "TIDEGATE_PHASES": phases_text(phases),
    }
    env |= _log_variable("queue_proxy", revision, replica_id, host)
    env |= _metrics_variables(function, accelerator, endpoints)
    env |= _liveness_variables(function, accelerator)
    if host.limits:
        env["TIDEGATE_LIMITS"] = json.dumps(dict(host.limits))
    if endpoints.port is not None:
        env["USER_PORT"] = str(endpoints.port)
    if function.batch_rule.bytes_per_item is not None:
        env["TIDEGATE_BYTES_PER_ITEM"] = plain(function.batch_rule.bytes_per_item)
    if function.warmup is not None and (function.protocol is not Protocol.GRPC or is_shipped(function, accelerator)):
        env["TIDEGATE_WARMUP_FILE"] = function.warmup
        env["TIDEGATE_WARMUP_PATH"] = warmup_path(function)
    if function.protocol is Protocol.GRPC and not is_shipped(function, accelerator):
        env["TIDEGATE_PROTOCOL"] = "grpc"
    preload = "queue_proxy" if host.fork_servers and not host.queue_proxy else None
    return Launch(argv=host.queue_proxy or (host.python, *QUEUE_PROXY), env=env, preload=preload)


def _log_variable(logger: str, revision: Revision, replica_id: str, host: Host) -> dict[str, str]:
    """Returns what makes each line of the process a JSON object; empty if lines are text."""
    if not host.json_logs:
        return {}
    fields = {"logger": logger, "function": revision.function.name, "revision": revision.id, "replica": replica_id}
    return {log_stream.VARIABLE: json.dumps(fields)}


def _cancel(function: Function, accelerator: Accelerator) -> str:
    """Returns how the queue_proxy learns the end of a call without a client: ``ask``, ``hold`` or ``close`` (not)."""
    if function.cancel is not Cancel.AUTO:
        return function.cancel.value
    return "ask" if is_shipped(function, accelerator) else Cancel.CLOSE.value


def _liveness_variables(function: Function, accelerator: Accelerator) -> dict[str, str]:
    """Returns when the queue_proxy gives a ready model server up."""
    env = {}
    if function.unresponsive_after_s is not None:
        env["TIDEGATE_UNRESPONSIVE_SECONDS"] = plain(function.unresponsive_after_s)
    liveness = function.liveness
    if liveness.path is not None and not accelerator.is_emulated:
        env["TIDEGATE_LIVENESS_PATH"] = liveness.path
        env["TIDEGATE_LIVENESS_PERIOD_SECONDS"] = plain(liveness.period_s)
        env["TIDEGATE_LIVENESS_TIMEOUT_SECONDS"] = plain(liveness.timeout_s)
        env["TIDEGATE_LIVENESS_FAILURES"] = str(liveness.failures)
    return env


def _metrics_variables(function: Function, accelerator: Accelerator, endpoints: Endpoints) -> dict[str, str]:
    """Returns where the queue_proxy reads the model server's own metrics. Empty if the function declares none."""
    if function.metrics is None:
        return {}
    shipped = is_shipped(function, accelerator)
    env = {"TIDEGATE_METRICS_PATH": OUR_METRICS if shipped else function.metrics.path}
    env["TIDEGATE_MODELS"] = ",".join(function.models)
    if endpoints.metrics_port is not None:
        env["TIDEGATE_METRICS_ADDRESS"] = f"127.0.0.1:{endpoints.metrics_port}"
    return env


def phases_text(phases: ColdStartPhases) -> str:
    """Returns ``decide=0.0018,schedule=0.004``, in seconds. Unknown phases are left out."""
    known = (("decide", phases.decide_s), ("schedule", phases.schedule_s), ("pull", phases.pull_s))
    return ",".join(f"{name}={plain(round(value, 6))}" for name, value in known if value is not None)


def warmup_path(function: Function) -> str:
    """Returns the path of the warm-up request: that of a first real request of the protocol."""
    model = function.models[0] if function.models else function.name
    if function.protocol in (Protocol.V2, Protocol.GRPC):  # gRPC: the shipped server only, by REST
        return f"/v2/models/{model}/infer"
    return "/v1/chat/completions" if function.protocol is Protocol.OPENAI else "/"


def profile_text(profile: Profile, start_up_s: float) -> str:
    """Returns the runtime's setting: ``{"base_s": 0.00905, "per_item_s": 0.00553, "jitter": 0.05, "start_s": 5.0}``."""
    return json.dumps(
        {
            "base_s": profile.base_s,
            "per_item_s": profile.per_item_s,
            "jitter": profile.jitter,
            "start_s": start_up_s,
        }
    )


def _runtime_variables(
    function: Function, accelerator: Accelerator, endpoints: Endpoints, batching: Batching, threads: int | None
) -> dict[str, str]:
    env = {
        "TIDEGATE_RUNTIME_NAME": ",".join(function.models or (function.name,)),
        "TIDEGATE_RUNTIME_LISTEN": endpoints.upstream,
        "TIDEGATE_RUNTIME_MAX_BATCH": str(batching.max_size),
        "TIDEGATE_RUNTIME_BATCH_DELAY": plain(batching.delay_s),
    }
    if threads is not None:
        env["TIDEGATE_RUNTIME_THREADS"] = str(threads)
    if function.body_bytes != _BODY_BYTES:
        env["TIDEGATE_RUNTIME_BODY_BYTES"] = str(function.body_bytes)
    if accelerator.profile is not None:
        env["TIDEGATE_RUNTIME_EMULATED"] = profile_text(accelerator.profile, accelerator.start_up_s)
    elif function.server.kind is ServerKind.MODEL:
        env["TIDEGATE_RUNTIME_MODEL"] = function.server.target
        env["TIDEGATE_RUNTIME_FORMAT"] = function.server.format.value
    if function.server.kind is ServerKind.HANDLER:  # of an emulated server: its inputs and outputs
        env["TIDEGATE_RUNTIME_HANDLER"] = function.server.target
    if function.args:
        env["TIDEGATE_RUNTIME_ARGS"] = json.dumps(dict(function.args))
    if accelerator.kind is AcceleratorKind.NVIDIA:
        env["TIDEGATE_RUNTIME_PROVIDERS"] = "CUDAExecutionProvider,CPUExecutionProvider"
    return env


def _placement_variables(
    function: Function, accelerator: Accelerator, assignment: Assignment, mps_pipes: str
) -> dict[str, str]:
    """Returns the variables that bind the server to its unit. Only ``nvidia`` accelerators make a device visible."""
    if accelerator.kind is not AcceleratorKind.NVIDIA:
        return {"CUDA_VISIBLE_DEVICES": ""}
    devices = accelerator.devices
    visible = [devices[unit] if unit < len(devices) else str(unit) for unit in assignment.units]
    env = {"CUDA_VISIBLE_DEVICES": ",".join(visible), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if function.gpu.mps and accelerator.mps:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(assignment.share, WHOLE))
        if mps_pipes:
            env["CUDA_MPS_PIPE_DIRECTORY"] = mps_pipes
        if assignment.memory_bytes:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={math.ceil(assignment.memory_bytes / 2**20)}M"
    return env


def _readiness_path(function: Function, accelerator: Accelerator) -> str:
    if accelerator.is_emulated:
        return OUR_READINESS
    path = function.readiness.path
    if path is None and function.protocol is Protocol.GRPC and is_shipped(function, accelerator):
        return OUR_READINESS
    return path or ""


def interpreter_of(function: Function, accelerator: Accelerator, host: Host) -> str:
    """Returns the interpreter of the shipped model server."""
    return host.python if accelerator.is_emulated else function.python or host.python


def _joined_path(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def _with_addresses(word: str, endpoints: Endpoints) -> str:
    """Replaces ``{port}``, ``{metrics_port}`` and ``{socket}``. Other braces stay."""
    if endpoints.metrics_port is not None:
        word = word.replace("{metrics_port}", str(endpoints.metrics_port))
    if endpoints.port is not None:
        word = word.replace("{port}", str(endpoints.port))
    if endpoints.socket is not None:
        word = word.replace("{socket}", endpoints.socket)
    return word
