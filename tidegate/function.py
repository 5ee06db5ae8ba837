"""The function: the unit that a developer deploys, parsed and frozen.

A :class:`Function` is the meaning of one manifest (``tidegate.manifest.reader``); none of its texts needs further
parsing. A :class:`Revision` is an immutable snapshot of a function, and traffic is split between revisions. Durations
are in seconds (``_s``), sizes in bytes, rates in inferences per second (``_ips``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tidegate.records.cold_rules import ColdRules
from tidegate.records.payload_rules import PayloadRules
from tidegate.records.pipeline import Stage
from tidegate.records.replica_state import ConcurrencyUnit as ConcurrencyUnit
from tidegate.records.rollout import RolloutPlan
from tidegate.records.route_table import (
    Binding,
    Hedging,
    ModelVariant,
    OutlierRules,
    QueueOrder,
    RouteMatch,
    Spread,
)
from tidegate.records.tenants import AccessRule


class Protocol(StrEnum):
    """Protocol of clients and the model server."""

    V2 = "v2"
    OPENAI = "openai"
    HTTP = "http"
    GRPC = "grpc"


class Cancel(StrEnum):
    """Handling of a running request after its client has disconnected or its deadline has passed."""

    AUTO = "auto"
    """The shipped server: as ``close``, but the slot is held while the server reports that the call goes on. Others:
    ``close``."""
    CLOSE = "close"
    """The connection to the model server is closed and the slot is freed: the server stops at the closed connection."""
    HOLD = "hold"
    """The server computes on regardless: the slot is held until it has answered, and the response is dropped."""


class Quantization(StrEnum):
    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class TaskClass(StrEnum):
    """Urgency class of a function's work."""

    LATENCY_CRITICAL = "latency-critical"
    THROUGHPUT_ORIENTED = "throughput-oriented"


class SizeRouting(StrEnum):
    """Routing of larger requests to stronger groups."""

    AUTO = "auto"
    """Only where measurements show a benefit."""
    OFF = "off"


class ServerKind(StrEnum):
    MODEL = "model"
    HANDLER = "handler"
    ASGI = "asgi"
    COMMAND = "command"
    IMAGE = "image"
    STAGES = "stages"
    """No server: a pipeline of other functions (``kind: Pipeline``)."""


class ModelFormat(StrEnum):
    """Format of a model's file or folder. The words are those of KServe's ``modelFormat`` where it has them."""

    ONNX = "onnx"
    SKLEARN = "sklearn"
    """An estimator in a pickle (joblib) or a skops file."""
    XGBOOST = "xgboost"
    TORCHSCRIPT = "torchscript"
    HUGGINGFACE = "huggingface"
    """A folder that ``save_pretrained`` wrote."""
    TRITON = "triton"
    """A model repository, served by the user's own Triton."""


ANY_ACCELERATOR: Final = "any"
"""Folder of a model repository with the forms for every kind of accelerator that has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredForm:
    """One file of a model repository: a model as one kind of accelerator runs it."""

    accelerator: str
    """Name of the accelerator, its model (``t4``), or :data:`ANY_ACCELERATOR`."""
    path: str
    format: ModelFormat
    quantization: Quantization = Quantization.FP32
    batch_size: int = 1
    """Largest batch that the form was built for, in inferences."""
    copy: str | None = None
    """As ``Server.copy``."""

    def __str__(self) -> str:
        """``t4/int8/b16``."""
        return f"{self.accelerator}/{self.quantization.value}/b{self.batch_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The model server: exactly one of five kinds; or the stages of a pipeline, which has none.

    ``model``: absolute path of a model's file or folder, in ``format``; ``handler``: ``/absolute/file.py:Class``;
    ``asgi``: the same with an ASGI application; ``command``: argv with ``{port}`` placeholders; ``image``: container
    image (Kubernetes only). The value of a kind other than ``command`` is
    ``target``; ``argv`` is empty except for ``command`` (and for an image with a command of its own in the manifest).
    """

    kind: ServerKind
    target: str = ""
    argv: tuple[str, ...] = ()
    format: ModelFormat = ModelFormat.ONNX
    """Format of a ``model``; of no meaning to other kinds."""
    copy: str | None = None
    """Name of the copy of the model or handler made at the deploy. None if the file itself is read."""
    modules: str | None = None
    """Name of the bundle of the modules beside a handler that it imports, made at the deploy. None if there are none,
    or their files are read."""
    stages: tuple[Stage, ...] = ()
    """Stages of a pipeline, in their order; empty for every other kind."""
    forms: tuple[StoredForm, ...] = ()
    """The form for each kind of accelerator, if ``target`` is a model repository. Empty for every other
    server."""

    def form_on(self, accelerator: str) -> StoredForm | None:
        """Returns the stored form that an accelerator runs: the one with the longest name that is the accelerator's or
        its model's (``h100`` for ``h100-80gb-hbm3``), else the one for any. Returns None if there is none."""
        name = f"{accelerator.lower()}-"
        own = [form for form in self.forms if name.startswith(f"{form.accelerator.lower()}-")]
        own = own or [form for form in self.forms if form.accelerator == ANY_ACCELERATOR]
        return max(own, key=lambda form: len(form.accelerator), default=None)

    def on(self, accelerator: str) -> "Server | None":
        """Returns the server of a replica on an accelerator: with a model repository that of its stored form, None if
        it has none; else this server."""
        if not self.forms:
            return self
        form = self.form_on(accelerator)
        return None if form is None else replace(self, target=form.path, format=form.format, copy=form.copy, forms=())

    @property
    def is_triton(self) -> bool:
        """True if the model server is the user's own Triton."""
        return self.kind is ServerKind.MODEL and self.format is ModelFormat.TRITON


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """The developer's promise: a target, not a deadline."""

    latency_s: float | None = None
    percentile: float = 98.0
    per_token_s: float | None = None
    """Of a stream: mean seconds per output token behind the first; ``latency_s`` is then for the first one."""
    target_ips: float | None = None
    target_tps: float | None = None
    """Tokens per second."""
    drop_after: float | None = None
    """A request that has waited this many times ``latency_s`` is dropped. None if requests are never dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The scaling policy, its parameters, and its bounds."""

    policy: str = "kpa"
    parameters: Mapping[str, str] = field(default_factory=dict)
    min_scale: int = 0
    max_scale: int = 0
    """Maximum replicas; 0: no limit but the accelerators'."""
    initial_scale: int = 1
    scale_to_zero_after_s: float = 60.0
    min_scale_windows: str = ""
    """Time windows with their own minimum scale (``tidegate.schema.time_windows``)."""
    dry_run: bool = False
    """The policy decides, and its decisions are logged and exported, but not carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """Derivation of the number of inferences in a request (specs: SMIF S4)."""

    header: str = "tidegate-batch-size"
    bytes_per_item: float | None = None
    overhead_bytes: float = 0.0
    max_batch: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Dynamic batching in the shipped model server. ``max_size`` 1: no batching."""

    max_size: int = 1
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Readiness of a model server: a GET of ``path`` answers 2xx, within ``start_timeout_s`` of its start.

    With ``path`` None a server is ready when its port accepts a connection.
    """

    path: str | None = "/v2/health/ready"
    start_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The probe of a ready model server, as Kubernetes has it; ``path`` None: no probe, ``tcp``: a connection."""

    path: str | None = None
    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of the function's waiting room, over all gateway workers together."""

    requests: int = 1000
    bytes: int = 256 * 1024 * 1024
    max_wait_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Choice of a replica, order of waiting requests, and retries (``tidegate.records.FunctionRoute``)."""

    spread: Spread = Spread.MOST_FREE
    hash_on: str = "client"
    """As ``FunctionRoute.hash_on``; used with ``Spread.HASH`` only."""
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    binding: Binding = Binding.LATE
    priority: int = 5
    """Priority of requests without one, 0 (first) to 9."""
    retry_percent: float = 20.0
    hedging: Hedging | None = None
    outlier: OutlierRules = field(default_factory=OutlierRules)
    matches: tuple[RouteMatch, ...] = ()
    """Ways to address the function in addition to its host, prefix and models."""
    size_routing: SizeRouting = SizeRouting.AUTO
    group_weights: Mapping[str, float] | None = None
    """Explicit split over the groups by accelerator; empty for an equal split, None for a split by measured
    capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """The model server's own Prometheus endpoint; ``port`` None stands for its serving port."""

    path: str = "/metrics"
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    memory_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeeds:
    """SMIF's GPU annotations; ``model`` None stands for any GPU."""

    model: str | None = None
    memory_gb: float | None = None
    mps: bool = False
    core_percentage: int = 100
    count: int = 1
    time_slices: int = 1
    """Replicas that may take turns on one GPU without MPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DnnModel:
    """Key into the model repository; with ``name`` None the function brings its own server."""

    name: str | None = None
    quantization: Quantization = Quantization.FP32
    batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One deployable function. It is built by ``tidegate.manifest.reader``, which checks every bound."""

    name: str
    server: Server
    protocol: Protocol = Protocol.V2
    port: int | None = None
    """A fixed port of the model server. None if any free port is used."""
    socket: str | None = None
    """A unix socket path on which the model server listens instead of a port."""
    models: tuple[str, ...] = ()
    """Names of the models that it serves; never empty once parsed (default: its own name)."""
    concurrency: int | None = None
    """Slots per replica; 0: no limit. None if ``auto``."""
    concurrency_unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS
    sla: Sla = field(default_factory=Sla)
    scaling: Scaling = field(default_factory=Scaling)
    batch_rule: BatchRule = field(default_factory=BatchRule)
    batching: Batching = field(default_factory=Batching)
    readiness: Readiness = field(default_factory=Readiness)
    liveness: Liveness = field(default_factory=Liveness)
    warmup: str | None = None
    """Absolute path of a file with a request body, sent once before ready."""
    timeout_s: float = 300.0
    queue: QueueBounds = field(default_factory=QueueBounds)
    metrics: MetricsEndpoint | None = None
    accelerators: tuple[str, ...] = ()
    """Kinds of accelerators that it may use; empty: all that fit."""
    resources: Resources = field(default_factory=Resources)
    body_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of a request body that the shipped model server takes, decompressed."""
    gpu: GpuNeeds = field(default_factory=GpuNeeds)
    dnn: DnnModel = field(default_factory=DnnModel)
    variant: ModelVariant = field(default_factory=ModelVariant)
    task_class: TaskClass = TaskClass.LATENCY_CRITICAL
    task_deadline_s: float | None = None
    """Time after its arrival at which a request is due. None if that is the latency of the SLA, or its own deadline
    without one."""
    user_metrics: bool = False
    volume_mounts: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    """Arguments of a handler's class, or of the loader of a model's format: a JSON value each, or a text."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment name to absolute path of the file that holds the value."""
    workdir: str = "."
    """Absolute once parsed: the folder in which the model server runs."""
    python: str | None = None
    """Absolute path of the interpreter for ``handler`` and ``model`` servers. None if it is Tidegate's own."""
    cancel: Cancel = Cancel.AUTO
    unresponsive_after_s: float | None = 30.0
    """Time for which calls without a client may go on while no request ends; then the replica is replaced. None: for
    ever."""
    idempotent: bool = False
    """True if a request may run twice (it is then retried after it was started)."""
    request_buffering: bool = True
    """True if a request gets a slot when its body is there (or 256 KB of it); False: with its first bytes."""
    routing: Routing = field(default_factory=Routing)
    cold: ColdRules = field(default_factory=ColdRules)
    """Rules for its clients during a cold start."""
    payload: PayloadRules = field(default_factory=PayloadRules)
    """Sampling of the bodies of its requests and answers."""
    rollout: RolloutPlan = field(default_factory=RolloutPlan)
    """Plan by which a new revision takes over the traffic of the previous one."""
    access: AccessRule | None = None
    """Access rule. None if the function is public."""

    @property
    def is_pipeline(self) -> bool:
        """True if other functions serve its requests, one after the other."""
        return self.server.kind is ServerKind.STAGES

    @property
    def has_port(self) -> bool:
        """Returns whether its own command listens on a TCP port, which every user of the machine can call."""
        in_words = any("{socket}" in word for word in self.server.argv)
        return self.server.kind is ServerKind.COMMAND and self.socket is None and not in_words


@dataclass(frozen=True, slots=True)
class Revision:
    """An immutable snapshot of a function."""

    function: Function
    number: int

    @property
    def id(self) -> str:
        """``NAME-00001``: unique in a deployment, a DNS label."""
        return f"{self.function.name}-{self.number:05d}"
