"""Settings of a deployment: ``tidegate.toml`` and the flags of ``tidegate up``, one table for both.

A key ``head-bytes`` of section ``[limits]`` is the flag ``--limits-head-bytes``; a flag overrides the file. Nothing is
read here from the disk or the environment: the command line does that and passes texts.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tidegate.errors import Fault
from tidegate.schema.files import absolute
from tidegate.schema.rows import (
    NAME,
    Address,
    Choice,
    Duration,
    Listen,
    Networks,
    Number,
    Row,
    Size,
    Text,
    Whole,
    WholeSeconds,
    WordOr,
    Words,
    YesNo,
    allowed_for,
    assemble,
)
from tidegate.schema.units import UnreadableError, plain
from tidegate.schema.yaml_nodes import Faults, nearest, shown

MAX_BYTES: Final = 256 * 1024
"""Maximum size of a settings file."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 8080))
    workers: int | None = None
    """None if ``auto``: one less than the machine's cores, at least one."""
    domain: str = "localhost"
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted_proxies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """What pages of browsers may do at the front door; nothing is sent if ``origins`` is empty."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("GET", "HEAD", "POST")
    headers: tuple[str, ...] = ("*",)
    max_age_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 8081))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    directory: str | None = None
    """None if ``auto``: ``tidegate`` in the user's state folder (``$XDG_STATE_HOME``, else ``~/.local/state``)."""


class PlacementStrategy(StrEnum):
    """Which of the units that fit a replica gets; the rows are in ``deploy/placement/strategies.py``."""

    BEST_FIT = "best-fit"
    WORST_FIT = "worst-fit"
    WORST_FIT_SOFT = "worst-fit-soft"
    LEAST_INTERFERENCE = "least-interference"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    file: str | None = None
    """None if the accelerators are those found on the machine."""
    placement: PlacementStrategy = PlacementStrategy.BEST_FIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The surroundings of model servers."""

    confine: bool = True
    fork: bool = True
    """Whether replicas come from processes that have imported their libraries."""
    sleep: bool = True
    """Whether replicas that are not needed may sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits of one connection and one request at the front door and in the queue_proxies."""

    head_bytes: int = 16 * 1024
    headers: int = 100
    target_bytes: int = 8 * 1024
    body_bytes: int = 2**30
    head_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    body_idle_timeout_s: float = 30.0
    body_min_rate: int | None = 500
    """Bytes per second; None if ``off``."""
    waiting_body_bytes: int = 256 * 2**20
    """Of each gateway worker."""
    stream_idle_timeout_s: float = 300.0
    connections: int | None = None
    """Of each gateway worker. None if ``auto``: what its descriptors allow."""
    connections_per_client: int | None = None
    """None if ``auto``: half of ``connections``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What is kept of jobs: requests with ``Prefer: respond-async``."""

    limit: int = 1000
    """0: no jobs; the preference is ignored."""
    bytes: int = 256 * 2**20
    body_bytes: int = 16 * 2**20
    keep_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """A cluster whose Pods are the replicas."""

    image: str | None = None
    """None if replicas are processes of this machine."""
    context: str | None = None
    """None if ``auto``: the account of the Pod in which Tidegate runs, else kubeconfig's current context."""
    namespace: str | None = None
    """None if ``auto``: that of the context."""
    token_secret: str = "tidegate-link"
    service_account: str | None = None
    """None: Pods run as the namespace's default account."""
    front_door: str | None = None
    """``[SCHEME://]HOST[:PORT]`` of the front door for others; None if ``auto``: the gateway's own address."""
    lease_s: float = 15.0
    python: str = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    max_replicas: int = 0
    """Over all functions together; 0: no limit but the accelerators'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    url: str = "embedded"
    name: str | None = None
    """None if ``auto``: a unique name, kept in the state directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings:
    file: str | None = None
    """None if there are no tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.TEXT
    access_sampling: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    http_server: bool = False
    listen: Address | None = None
    """None if metrics are at the API alone."""
    token_file: str | None = None
    """None if ``listen`` asks for no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    endpoint: str | None = None
    """None if nothing is traced."""
    sample_ratio: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    cors: CorsSettings = field(default_factory=CorsSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    state: StateSettings = field(default_factory=StateSettings)
    accelerators: AcceleratorSettings = field(default_factory=AcceleratorSettings)
    servers: ServerSettings = field(default_factory=ServerSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    tenants: TenantSettings = field(default_factory=TenantSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each given value came from, by key: a flag, or the file with its line."""
    overridden: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Values of the file that a flag overrides by another one, a sentence each."""

    def origin(self, key: str) -> str:
        """Returns where the value of ``gateway.listen`` came from, in words: a flag, a line of the file, the
        default."""
        return self.origins.get(key, "the default")

    def sourced(self, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Returns the faults; each of a setting's value without a line says where the value came from."""
        return tuple(
            replace(each, value=f"{each.value}, from {self.origin(each.where)}")
            if each.where in _ROWS and each.line is None
            else each
            for each in faults
        )


_PATH: Final = Text(r"[^\x00-\x1f\x7f]{1,4096}", "a path")
_IMAGE: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", "an image reference (registry/name:tag)")
_LABEL: Final = Text(NAME, "a DNS label: 1 to 63 of a-z, 0-9 and -, neither end a -")
_DOMAIN: Final = Text(r"[a-z0-9](?:[a-z0-9.-]{0,188}[a-z0-9])?", "a domain in lower case, at most 190 characters")
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_ORIGINS: Final = Words(
    r"\*|[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?",
    "* for any, or origins as browsers send them (https://app.example, http://localhost:3000; no path)",
)
_STORE: Final = Text(r"embedded|rediss?://[!-~]{1,500}", "embedded, redis://HOST:PORT/N or rediss://...")
_COLLECTOR: Final = Text(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?(?:/[!-~]{0,500})?",
    "an http or https URL without credentials, such as http://127.0.0.1:4318",
)
_FRONT_DOOR: Final = Text(
    r"(?:https?://)?[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?::[1-9][0-9]{0,4})?",
    "HOST, HOST:PORT, or either after http:// or https://",
)
_IDLE: Final = Duration(0.1, 86_400)
PATHS: Final = frozenset(
    {
        "gateway.tls_cert",
        "gateway.tls_key",
        "state.directory",
        "accelerators.file",
        "tenants.file",
        "metrics.token_file",
    }
)
PRIVATE: Final = frozenset({"store.url"})
"""Settings that may contain a password: no fault shows their values."""

SETTINGS: Final[tuple[Row, ...]] = (
    Row(
        key="gateway.listen",
        kind=Listen(),
        field="gateway.listen",
        default="127.0.0.1:8080",
        description="Address of the front door.",
    ),
    Row(
        key="gateway.workers",
        kind=WordOr("auto", Whole(0, 256, "processes")),
        field="gateway.workers",
        default="auto",
        description="Gateway workers; auto: one less than the cores, at least one. 0: none here, only remote gateways.",
    ),
    Row(
        key="gateway.domain",
        kind=_DOMAIN,
        field="gateway.domain",
        default="localhost",
        description="Domain of the host names NAME.DOMAIN of functions.",
    ),
    Row(
        key="gateway.tls-cert",
        kind=WordOr("none", _PATH),
        field="gateway.tls_cert",
        default="none",
        description="File with the certificate chain (PEM); the front door then speaks HTTPS only.",
    ),
    Row(
        key="gateway.tls-key",
        kind=WordOr("none", _PATH),
        field="gateway.tls_key",
        default="none",
        description="File with the private key (PEM); requires tls-cert.",
    ),
    Row(
        key="gateway.trusted-proxies",
        kind=Networks(),
        field="gateway.trusted_proxies",
        default="",
        description="Peers whose forwarding headers are kept, and that may send the HTTP/2 resets of many clients.",
    ),
    Row(
        key="cors.origins",
        kind=_ORIGINS,
        field="cors.origins",
        default="",
        description="Origins whose pages may call the front door from a browser; empty: no CORS at all.",
    ),
    Row(
        key="cors.methods",
        kind=Words(_TOKEN, "methods (GET, POST), or *", may_be_empty=False),
        field="cors.methods",
        default="GET, HEAD, POST",
        description="Methods that such pages may use.",
    ),
    Row(
        key="cors.headers",
        kind=Words(_TOKEN, "names of header fields (authorization, content-type), or *"),
        field="cors.headers",
        default="*",
        description="Header fields that such pages may send; *: all that a preflight names.",
    ),
    Row(
        key="cors.max-age",
        kind=Duration(0, 86_400),
        field="cors.max_age_s",
        default="10m",
        description="Time for which a browser keeps the answer to a preflight.",
    ),
    Row(
        key="control.listen",
        kind=Listen(),
        field="control.listen",
        default="127.0.0.1:8081",
        description="Address of the control API and its console.",
    ),
    Row(
        key="state.directory",
        kind=WordOr("auto", _PATH),
        field="state.directory",
        default="auto",
        description="State directory; auto: tidegate in the user's state folder.",
    ),
    Row(
        key="accelerators.file",
        kind=WordOr("none", _PATH),
        field="accelerators.file",
        default="none",
        description="File that declares the accelerators; none: those found on the machine.",
    ),
    Row(
        key="accelerators.placement",
        kind=Choice(PlacementStrategy),
        field="accelerators.placement",
        default="best-fit",
        description="Unit that a replica gets: best-fit: the fullest that it fits on; worst-fit: an empty one, then the"
        " one with the most free memory, and never two replicas of one model on a unit; worst-fit-soft: two of them"
        " only where nothing else is left; least-interference: the one where it and its neighbours slow each other the"
        " least, by what was learnt.",
    ),
    Row(
        key="servers.confine",
        kind=YesNo(),
        field="servers.confine",
        default="true",
        description="Whether model servers are kept from the state directory and from other processes where the system "
        "allows it.",
    ),
    Row(
        key="servers.fork",
        kind=YesNo(),
        field="servers.fork",
        default="true",
        description="Whether replicas of the shipped server are forked from processes that have imported what they "
        "need, on Linux.",
    ),
    Row(
        key="servers.sleep",
        kind=YesNo(),
        field="servers.sleep",
        default="true",
        description="Whether a replica that is not needed may sleep in place of its end where that saves a second of "
        "its next start: its processes are paused, its place is free, its memory is held.",
    ),
    Row(
        key="kubernetes.image",
        kind=WordOr("none", _IMAGE),
        field="kubernetes.image",
        default="none",
        description="Image with Tidegate, whose Pods are the replicas; none: they are processes of this machine.",
    ),
    Row(
        key="kubernetes.context",
        kind=WordOr("auto", Text(r"[!-~]{1,253}", "the name of a context")),
        field="kubernetes.context",
        default="auto",
        description="Context of kubeconfig; auto: the account of the Pod in which Tidegate runs, else the current one.",
    ),
    Row(
        key="kubernetes.namespace",
        kind=WordOr("auto", _LABEL),
        field="kubernetes.namespace",
        default="auto",
        description="Namespace of the Pods; auto: that of the context.",
    ),
    Row(
        key="kubernetes.token-secret",
        kind=_LABEL,
        field="kubernetes.token_secret",
        default="tidegate-link",
        description="Secret that Tidegate writes, with the token by which queue_proxies know their deployment.",
    ),
    Row(
        key="kubernetes.service-account",
        kind=WordOr("default", _LABEL),
        field="kubernetes.service_account",
        default="default",
        description="Service account of the Pods: its image pull secrets are theirs. They get no token of it.",
    ),
    Row(
        key="kubernetes.front-door",
        kind=WordOr("auto", _FRONT_DOOR),
        field="kubernetes.front_door",
        default="auto",
        description="Address of the front door in the status of Functions, as others reach it; auto: its own.",
    ),
    Row(
        key="kubernetes.lease",
        kind=WholeSeconds(Duration(3, 3600)),
        field="kubernetes.lease_s",
        default="15s",
        description="Time without a sign of life after which another control process leads.",
    ),
    Row(
        key="kubernetes.python",
        kind=_PATH,
        field="kubernetes.python",
        default="python",
        description="Interpreter in the image.",
    ),
    Row(
        key="limits.head-bytes",
        kind=Size(1024, 2**20),
        field="limits.head_bytes",
        default="16Ki",
        description="Maximum bytes of a request head; more is 431.",
    ),
    Row(
        key="limits.headers",
        kind=Whole(8, 10_000, "fields"),
        field="limits.headers",
        default="100",
        description="Maximum header fields of a request; more is 431.",
    ),
    Row(
        key="limits.target-bytes",
        kind=Size(256, 2**20),
        field="limits.target_bytes",
        default="8Ki",
        description="Maximum bytes of a request target; more is 414.",
    ),
    Row(
        key="limits.body-bytes",
        kind=Size(1024, 2**50),
        field="limits.body_bytes",
        default="1Gi",
        description="Maximum bytes of a request body; more is 413.",
    ),
    Row(
        key="limits.head-timeout",
        kind=_IDLE,
        field="limits.head_timeout_s",
        default="10s",
        description="Maximum time from the first byte of a head to its end; later is 408.",
    ),
    Row(
        key="limits.idle-timeout",
        kind=_IDLE,
        field="limits.idle_timeout_s",
        default="75s",
        description="Time after which an idle connection is closed.",
    ),
    Row(
        key="limits.body-idle-timeout",
        kind=_IDLE,
        field="limits.body_idle_timeout_s",
        default="30s",
        description="Maximum pause within a request body, and the time over which its rate is measured; later is 408.",
    ),
    Row(
        key="limits.body-min-rate",
        kind=WordOr("off", Size(1, 2**30)),
        field="limits.body_min_rate",
        default="500",
        description="Lowest rate of a request body until its response begins, in bytes per second, over every "
        "body-idle-timeout in which it is read; slower is 408. off: one byte in that time is enough.",
    ),
    Row(
        key="limits.waiting-body-bytes",
        kind=Size(2**20, 2**50),
        field="limits.waiting_body_bytes",
        default="256Mi",
        description="Memory of a gateway worker for the bodies of all requests that wait. Beyond it a request whose "
        "body has not come yet is refused with 429, the oldest first.",
    ),
    Row(
        key="limits.stream-idle-timeout",
        kind=_IDLE,
        field="limits.stream_idle_timeout_s",
        default="5m",
        description="Maximum pause within a response; the response is aborted then.",
    ),
    Row(
        key="limits.connections",
        kind=WordOr("auto", Whole(16, 1_000_000, "connections")),
        field="limits.connections",
        default="auto",
        description="Maximum client connections of a gateway worker; a further one is closed. auto: half of its open "
        "files (`ulimit -Hn`) or all but 8192, whichever is more, at most 100000.",
    ),
    Row(
        key="limits.connections-per-client",
        kind=WordOr("auto", Whole(1, 1_000_000, "connections")),
        field="limits.connections_per_client",
        default="auto",
        description="Maximum connections of one client address to a gateway worker, trusted proxies aside; auto: half "
        "of connections.",
    ),
    Row(
        key="jobs.limit",
        kind=Whole(0, 100_000, "jobs"),
        field="jobs.limit",
        default="1000",
        description="Maximum jobs that are kept at once, finished ones included; more is 429. 0: `Prefer: "
        "respond-async` is ignored.",
    ),
    Row(
        key="jobs.bytes",
        kind=Size(2**20, 2**40),
        field="jobs.bytes",
        default="256Mi",
        description="Maximum bytes of the answers of all kept jobs together.",
    ),
    Row(
        key="jobs.body-bytes",
        kind=Size(1024, 2**30),
        field="jobs.body_bytes",
        default="16Mi",
        description="Maximum bytes of a job's request body (more is 413) and of its answer (more fails the job).",
    ),
    Row(
        key="jobs.keep",
        kind=Duration(1, 30 * 86_400),
        field="jobs.keep_s",
        default="1h",
        description="Time for which a finished job and its answer are kept.",
    ),
    Row(
        key="scaling.max-replicas",
        kind=Whole(0, 1_000_000, "replicas"),
        field="scaling.max_replicas",
        default="0",
        description="Maximum replicas of all functions together, shared evenly if it binds; 0: no limit.",
    ),
    Row(
        key="store.url",
        kind=_STORE,
        field="store.url",
        default="embedded",
        description="Store of the shared state.",
    ),
    Row(
        key="store.name",
        kind=WordOr("auto", Text(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "1 to 63 of a-z, 0-9 and -")),
        field="store.name",
        default="auto",
        description="Key prefix of this deployment's records in a shared Redis; auto: a unique name.",
    ),
    Row(
        key="tenants.file",
        kind=WordOr("none", _PATH),
        field="tenants.file",
        default="none",
        description="File that declares the tenants with their keys, weights and quotas.",
    ),
    Row(
        key="log.level",
        kind=Choice(LogLevel),
        field="log.level",
        default="info",
        description="Minimum level of log lines.",
    ),
    Row(
        key="log.format",
        kind=Choice(LogFormat),
        field="log.format",
        default="text",
        description="Format of the log lines of all processes.",
    ),
    Row(
        key="log.access-sampling",
        kind=Number(0, 1),
        field="log.access_sampling",
        default="0",
        description="Share of requests with a line in the access log.",
    ),
    Row(
        key="metrics.http-server",
        kind=YesNo(),
        field="metrics.http_server",
        default="false",
        description="Count requests as OpenTelemetry's http.server.request.duration and active_requests too.",
    ),
    Row(
        key="metrics.listen",
        kind=WordOr("none", Listen()),
        field="metrics.listen",
        default="none",
        description="A further address of the control process that has `/metrics` alone.",
    ),
    Row(
        key="metrics.token-file",
        kind=WordOr("none", _PATH),
        field="metrics.token_file",
        default="none",
        description="File with the bearer token that metrics.listen asks for; none: it asks for none.",
    ),
    Row(
        key="tracing.endpoint",
        kind=WordOr("none", _COLLECTOR),
        field="tracing.endpoint",
        default="none",
        description="Collector that spans go to by OTLP over HTTP (protocol buffers); without a path: /v1/traces.",
    ),
    Row(
        key="tracing.sample-ratio",
        kind=Number(0, 1),
        field="tracing.sample_ratio",
        default="0.01",
        description="Share of the requests without a traceparent that are traced; with one, its flag decides.",
    ),
)
_ROWS: Final = {row.key: row for row in SETTINGS}
_SECTIONS: Final = tuple(dict.fromkeys(row.key.partition(".")[0] for row in SETTINGS))
_FLAGS: Final = {row.flag.removeprefix("--"): row for row in SETTINGS}


def read(
    text: str, *, source: str, base: str, flags: Mapping[str, str] | None = None, cwd: str | None = None
) -> Settings:
    """Reads settings from the text of a TOML file (empty: the defaults) and from flags without their dashes.

    Relative paths in the file start from ``base``, those in flags from ``cwd`` (default: ``base``). Raises
    InvalidInputError with every fault.
    """
    faults = Faults(source)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    overridden: list[str] = []
    lines = _Lines(text)
    for section, content in _load(text, faults).items():
        if section not in _SECTIONS:
            allowed = f"{', '.join(_SECTIONS)}{nearest(section, _SECTIONS)}"
            faults.report(f"[{section}]", "an unknown section", allowed, lines.of(section))
        elif not isinstance(content, dict):
            faults.report(section, "a value", f"a section [{section}]", lines.of(section))
        else:
            for key, value in content.items():
                name = f"{section}.{key}"
                _one(name, value, base, values, faults, lines)
                line = lines.of(name)
                origins[name] = source if line is None else f"{source}, line {line}"
    for flag, given in (flags or {}).items():
        row = _FLAGS.get(flag)
        if row is None:
            faults.report(f"--{flag}", "an unknown flag", f"{', '.join(_FLAGS)}{nearest(flag, _FLAGS)}")
        else:
            in_file = values.get(row.field)
            _take(row, given, f"--{flag}", cwd or base, values, faults)
            if row.key in origins and values.get(row.field) != in_file:
                shown_flag = "" if row.field in PRIVATE else f" {given}"
                overridden.append(f"{row.key}: --{flag}{shown_flag} overrides {origins[row.key]}")
            origins[row.key] = f"--{flag}"
    if (values.get("gateway.tls_cert") is None) != (values.get("gateway.tls_key") is None):
        given = "tls-cert" if values.get("gateway.tls_cert") is not None else "tls-key"
        whence = origins.get(f"gateway.{given}", "")
        faults.report("gateway.tls-cert, gateway.tls-key", f"{given} alone (from {whence})", "both or none")
    if values.get("gateway.workers") == 0 and values.get("store.url", "embedded") == "embedded":
        given = f"0 (from {origins.get('gateway.workers', '')}) with the embedded store"
        faults.report("gateway.workers", given, "at least 1: remote gateways need a store in Redis")
    if values.get("metrics.token_file") is not None and values.get("metrics.listen") is None:
        given = f"a file (from {origins.get('metrics.token-file', '')}) without metrics.listen"
        faults.report("metrics.token-file", given, "none: the API has the deployment's token")
    if values.get("kubernetes.image") is not None:
        _check_cluster(values, f"with kubernetes.image (from {origins.get('kubernetes.image', '')})", faults)
    faults.raise_any()
    return replace(assemble(Settings(), values), origins=origins, overridden=tuple(overridden))


def _check_cluster(values: Mapping[str, object], why: str, faults: Faults) -> None:
    if values.get("accelerators.file") is None:
        faults.report("accelerators.file", f"none, {why}", "a file: the accelerators of a cluster are declared")
    placement = values.get("accelerators.placement")
    if placement is PlacementStrategy.LEAST_INTERFERENCE:
        faults.report("accelerators.placement", f"{placement}, {why}", "another strategy: Pods share no device")


def _load(text: str, faults: Faults) -> dict[str, object]:
    if len(text) > MAX_BYTES:
        faults.report("document", f"{len(text)} characters", f"at most {MAX_BYTES}")
        return {}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line ([0-9]+), column [0-9]+\)$", str(error))
        message = str(error) if found is None else str(error)[: found.start()]
        faults.report("document", message, "TOML", None if found is None else int(found[1]))
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits and a thousand nested brackets raise other errors than TOMLDecodeError.
        faults.report("document", type(error).__name__, "TOML of ordinary numbers and depth")
    return {}


def _one(key: str, value: object, base: str, values: dict[str, object], faults: Faults, lines: "_Lines") -> None:
    row = _ROWS.get(key)
    if row is None:
        section = key.partition(".")[0]
        known = [name.partition(".")[2] for name in _ROWS if name.startswith(f"{section}.")]
        allowed = f"{', '.join(known)}{nearest(key.partition('.')[2], known)}"
        faults.report(key, "an unknown key", allowed, lines.of(key))
        return
    text = _as_text(value)
    if text is None:
        faults.report(key, f"a {type(value).__name__}", row.kind.allowed, lines.of(key))
        return
    _take(row, text, key, base, values, faults, lines.of(key))


def _take(
    row: Row, text: str, where: str, base: str, values: dict[str, object], faults: Faults, line: int | None = None
) -> None:
    try:
        value = row.kind.read(text)
    except UnreadableError:
        if row.field in PRIVATE:
            faults.report(where, "another value (not shown)", row.kind.allowed, line)
        else:
            faults.report(where, shown(text), allowed_for(row.kind, text), line)
        return
    values[row.field] = absolute(base, value) if row.field in PATHS and value is not None else value


def _as_text(value: object) -> str | None:
    """Returns a TOML value as the text that the table reads, or None for a type that no setting has."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float):
        return plain(value) if abs(value) < 1e15 else None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return None


class _Lines:
    """The line of each key, for files in the usual form (a header per section, a key per line)."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, int] = {}
        section = ""
        for number, line in enumerate(text[:MAX_BYTES].split("\n"), start=1):
            if header := re.match(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]", line):
                section = header[1]
                self._lines.setdefault(section, number)
            elif key := re.match(r"\s*([A-Za-z0-9_.-]+)\s*=", line):
                self._lines.setdefault(f"{section}.{key[1]}".lstrip("."), number)

    def of(self, key: str) -> int | None:
        return self._lines.get(key)
