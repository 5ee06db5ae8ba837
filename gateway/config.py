"""The configuration that the control process passes to a gateway worker, as a JSON file."""

from dataclasses import dataclass, field

from tidegate.aio.proxy.limits import LimitValue, read_limits
from tidegate.errors import Fault, InvalidInputError
from tidegate.gateway.answers.cors import CorsPolicy
from tidegate.gateway.jobs.records import JobBounds
from tidegate.records.codec import CodecError, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker's configuration; keys as in the file."""

    worker: str
    listen_fd: int
    """The inherited listening socket."""
    admin: str
    """Unix socket of the admin endpoint: ``/path`` or ``unix:/path``."""
    table_file: str
    """File of the last route table: read at start, so that a worker serves without the control process."""
    token: str
    domain: str = "localhost"
    """Domain of the functions' hosts until there is a route table."""
    workers: int = 1
    limits: dict[str, LimitValue] = field(default_factory=dict)
    """HTTP limits by the names of ``tidegate.aio.proxy.limits.Limits``; absent ones keep their defaults."""
    tls_cert: str | None = None
    """File with the certificate chain (PEM); with ``tls_key`` the worker speaks HTTPS only. None for plain HTTP."""
    tls_key: str | None = None
    log_format: str = "text"
    """Format of the access log: ``text`` or ``json``."""
    access_sampling: float = 0.0
    """Share of the requests that get a line in the access log, 0 to 1."""
    http_server_metrics: bool = False
    """Whether requests are counted by OpenTelemetry's convention ``http.server.request.duration`` too."""
    tracing_endpoint: str | None = None
    """URL of the collector that spans go to (OTLP over HTTP); None if nothing is traced."""
    tracing_ratio: float = 0.0
    """Share of the requests without a parent that are traced, 0 to 1."""
    cors: CorsPolicy | None = None
    """What pages of browsers may do; None if they get no CORS fields."""
    quotas: str | None = None
    """Unix socket of the pool through which workers share quotas: ``unix:/path``. None if this worker shares them with
    none."""
    waiting: str | None = None
    """File in which the workers of this machine publish what waits at them. None: each keeps to its part of a waiting
    room's bound."""
    among_machines: bool = False
    """Whether gateways on other machines serve the same functions. The bounds of waiting rooms are leased then from the
    pool behind ``quotas``, ``waiting`` has no effect, and this worker links to every replica."""
    jobs: JobBounds | None = None
    """Bounds of the jobs of this machine; None if there are none."""
    jobs_folder: str | None = None
    """Folder in which the workers of this machine keep jobs. None: there are none."""
    payloads_folder: str | None = None
    """Folder of the files that sampled payloads go to. None: none are sampled."""
    log: str | None = None
    """File that standard output and error are appended to; None if they are left as they are."""

    @property
    def admin_address(self) -> str:
        return self.admin if self.admin.startswith("unix:") else f"unix:{self.admin}"

    @property
    def index(self) -> int:
        """The number of the worker's seat: the digits at the end of its name, before the dot of a later process
        (``g2``, ``g2.7``); 0 without digits."""
        name = self.worker.partition(".")[0]
        digits = name[len(name.rstrip("0123456789")) :]
        return int(digits) if digits else 0


def read_config(data: bytes, source: str) -> WorkerConfig:
    """Reads a configuration. Raises InvalidInputError with every fault of the limits, or the first fault of the
    rest."""
    try:
        config = decode(data, WorkerConfig)
    except CodecError as error:
        raise InvalidInputError(source, [Fault("file", "something else", str(error))]) from error
    read_limits(config.limits, source)
    return config
