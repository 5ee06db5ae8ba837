"""The function: what a developer deploys, parsed and frozen.

A :class:`Function` is the meaning of one manifest (``tidegate.manifest.reader``); nothing in it is text that still
has to be understood. A :class:`Revision` is an immutable snapshot of a function, and traffic is split between
revisions. Durations are in seconds (``_s``), sizes in bytes, rates in inferences per second (``_ips``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.records.cold_rules import ColdRules
from tidegate.records.replica_state import ConcurrencyUnit as ConcurrencyUnit
from tidegate.records.rollout import RolloutPlan
from tidegate.records.route_table import Binding, Hedging, OutlierRules, QueueOrder, RouteMatch, Spread
from tidegate.records.tenants import AccessRule


class Protocol(StrEnum):
    """What clients and the model server speak."""

    V2 = "v2"
    OPENAI = "openai"
    HTTP = "http"
    GRPC = "grpc"


class Cancel(StrEnum):
    """What becomes of the slot of a running request whose client has gone or whose deadline has passed."""

    CLOSE = "close"
    """The connection to the model server is closed and the slot is free: the server stops when it is told so."""
    HOLD = "hold"
    """The server computes on regardless: the slot is held until it has answered, and the answer is dropped."""


class Quantization(StrEnum):
    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class TaskClass(StrEnum):
    """Urgency class of a function's work."""

    LATENCY_CRITICAL = "latency-critical"
    THROUGHPUT_ORIENTED = "throughput-oriented"


class SizeRouting(StrEnum):
    """Whether larger requests go to stronger groups."""

    AUTO = "auto"
    """Where the figures say that it helps."""
    OFF = "off"


class ServerKind(StrEnum):
    MODEL = "model"
    HANDLER = "handler"
    COMMAND = "command"
    IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The model server: exactly one of four kinds.

    ``model``: absolute path of an ONNX file; ``handler``: ``/absolute/file.py:Class``; ``command``: argv with
    ``{port}`` placeholders; ``image``: container image (Kubernetes only). The value of the kind that is not
    ``command`` is ``target``; ``argv`` is empty except for ``command`` (and for an image whose manifest overrides the
    image's own command).
    """

    kind: ServerKind
    target: str = ""
    argv: tuple[str, ...] = ()
    copy: str | None = None
    """Name of the copy of the model or handler that was made at the deploy; None: the file itself is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """What the developer promises: a target, not a deadline."""

    latency_s: float | None = None
    percentile: float = 98.0
    target_ips: float | None = None
    target_tps: float | None = None
    """Tokens per second."""
    drop_after: float | None = None
    """A request that waited this many times ``latency_s`` is dropped; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Which policy decides, with which parameters, inside which bounds."""

    policy: str = "kpa"
    parameters: Mapping[str, str] = field(default_factory=dict)
    min_scale: int = 0
    max_scale: int = 0
    """0: no limit but the accelerators'."""
    initial_scale: int = 1
    scale_to_zero_after_s: float = 60.0
    min_scale_windows: str = ""
    """Windows of time with a minimum scale of their own (``tidegate.schema.time_windows``)."""
    dry_run: bool = False
    """The policy decides, logs and exports; nothing of it is carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """How many inferences a request carries (specs: SMIF S4)."""

    header: str = "tidegate-batch-size"
    bytes_per_item: float | None = None
    overhead_bytes: float = 0.0
    max_batch: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Dynamic batching in the shipped model server. ``max_size`` 1: none."""

    max_size: int = 1
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """When a model server counts as ready: a GET of ``path`` answers 2xx, within ``start_timeout_s`` of its start.

    ``path`` is None for servers that are ready when their port accepts a connection.
    """

    path: str | None = "/v2/health/ready"
    start_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of the function's waiting room, over all gateway workers together."""

    requests: int = 1000
    bytes: int = 256 * 1024 * 1024
    max_wait_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which replica takes a request, who goes first, what is sent again (``tidegate.records.FunctionRoute``)."""

    spread: Spread = Spread.MOST_FREE
    hash_on: str = "client"
    """As ``FunctionRoute.hash_on``; means something with ``Spread.HASH``."""
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    binding: Binding = Binding.LATE
    priority: int = 5
    """Of requests that state none, 0 (first) to 9."""
    retry_percent: float = 20.0
    hedging: Hedging | None = None
    outlier: OutlierRules = field(default_factory=OutlierRules)
    matches: tuple[RouteMatch, ...] = ()
    """Ways to name the function beside its host, prefix and models."""
    size_routing: SizeRouting = SizeRouting.AUTO
    group_weights: Mapping[str, float] | None = None
    """Split over the groups by accelerator, given by hand; empty: equal; None: by what the groups can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """The model server's own Prometheus endpoint; ``port`` None: its serving port."""

    path: str = "/metrics"
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    memory_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeeds:
    """SMIF's GPU annotations. ``model`` None: any."""

    model: str | None = None
    memory_gb: float | None = None
    mps: bool = False
    core_percentage: int = 100
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DnnModel:
    """Key into the model repository; ``name`` None: the function brings its own server."""

    name: str | None = None
    quantization: Quantization = Quantization.FP32
    batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One deployable function. Build it with ``tidegate.manifest.reader``, which checks every bound."""

    name: str
    server: Server
    protocol: Protocol = Protocol.V2
    port: int | None = None
    """A fixed port for the model server; None: any free one."""
    socket: str | None = None
    """A unix socket path on which the model server listens instead of a port."""
    models: tuple[str, ...] = ()
    """Model names it answers to; never empty once parsed (default: its own name)."""
    concurrency: int | None = None
    """Slots per replica; 0: no limit; None: ``auto``."""
    concurrency_unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS
    sla: Sla = field(default_factory=Sla)
    scaling: Scaling = field(default_factory=Scaling)
    batch_rule: BatchRule = field(default_factory=BatchRule)
    batching: Batching = field(default_factory=Batching)
    readiness: Readiness = field(default_factory=Readiness)
    warmup: str | None = None
    """Absolute path of a file with a request body, sent once before ready."""
    timeout_s: float = 300.0
    queue: QueueBounds = field(default_factory=QueueBounds)
    metrics: MetricsEndpoint | None = None
    accelerators: tuple[str, ...] = ()
    """Accelerator kinds it may use; empty: all that fit."""
    resources: Resources = field(default_factory=Resources)
    gpu: GpuNeeds = field(default_factory=GpuNeeds)
    dnn: DnnModel = field(default_factory=DnnModel)
    task_class: TaskClass = TaskClass.LATENCY_CRITICAL
    user_metrics: bool = False
    volume_mounts: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment name to absolute path of the file that holds the value."""
    workdir: str = "."
    """Absolute once parsed: the folder in which the model server runs."""
    python: str | None = None
    """Absolute path of the interpreter for ``handler`` and ``model`` servers; None: Tidegate's own."""
    cancel: Cancel = Cancel.CLOSE
    idempotent: bool = False
    """Whether a request may be sent twice (retry after it was started)."""
    routing: Routing = field(default_factory=Routing)
    cold: ColdRules = field(default_factory=ColdRules)
    """What its clients are told while it wakes."""
    rollout: RolloutPlan = field(default_factory=RolloutPlan)
    """How a new revision gets the traffic of the one before."""
    access: AccessRule | None = None
    """Who may call it; None: everybody."""


@dataclass(frozen=True, slots=True)
class Revision:
    """An immutable snapshot of a function."""

    function: Function
    number: int

    @property
    def id(self) -> str:
        """``NAME-00001``: unique in a deployment, a DNS label."""
        return f"{self.function.name}-{self.number:05d}"
