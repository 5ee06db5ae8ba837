"""Views of a deployment: its control process, gateway workers, accelerators and tenants."""

from dataclasses import dataclass

from tidegate.control.views.functions import FunctionView


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    worker: str
    pid: int
    state: str
    restarts: int
    table: str | None
    """``epoch.number`` of the route table it works from."""
    connections: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedView:
    """A gateway worker and the one that it replaced; the old one may still be finishing its requests."""

    worker: str
    pid: int
    old: str
    old_pid: int
    """0 if it was down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartView:
    """The result of a hot restart of the gateway workers."""

    replaced: tuple[ReplacedView, ...]
    needs_up: tuple[str, ...]
    """Settings that changed since the control process started and that only another ``tidegate up`` puts into force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant, and its usage since the control process started."""

    name: str
    keys: int
    """Number of its API keys."""
    weight: float
    priority: int | None
    functions: tuple[str, ...]
    """Functions that it may call; empty: every function."""
    quotas: dict[str, int]
    """Amounts by the names in the tenants' file."""
    requests: int
    inferences: int
    tokens: int
    refused: int
    """Requests that exceeded a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLinkView:
    """A link that signs a browser in to the console, once."""

    url: str
    expires_at: float
    """Unix seconds until which it can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadView:
    """The settings that a reload has put into force, and the gateway workers that serve the certificate now in the
    files."""

    reloaded: tuple[str, ...]
    faults: dict[str, str]
    """Reasons why the other workers keep their certificate, by worker."""
    in_force: tuple[str, ...] = ()
    """Settings and accelerators that changed, one sentence each."""
    needs_restart: tuple[str, ...] = ()
    """Changed settings that fresh gateway workers put into force: ``tidegate restart``."""
    needs_up: tuple[str, ...] = ()
    """Changed settings that need another ``tidegate up``."""
    overridden: tuple[str, ...] = ()
    """Values of the settings file that a flag of ``tidegate up`` overrides, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorView:
    name: str
    kind: str
    count: int
    in_use: int
    memory_bytes: int
    cores: int
    price_per_hour: float
    emulated: bool
    mps: bool = False
    """Whether replicas may share a unit through MPS."""
    mig: bool = False
    """Whether its units are MIG partitions, or can be divided into some."""
    driver: str | None = None
    """Version of the driver of NVIDIA devices; None if unknown."""
    compute_capability: str | None = None
    utilization_percent: tuple[float | None, ...] = ()
    """Use of each unit's time, mean of a minute; None where it is not known. Empty if nothing measures it."""
    utilization_variation: float | None = None
    """Coefficient of variation over the units; 0 is even. None if not known, or if all are idle."""
    power_w: float | None = None
    """Power of all units, mean of a minute; of a CPU kind that of the processor packages, which all CPU kinds share."""
    power_unknown: str | None = None
    """Why the power is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The whole deployment."""

    version: str
    pid: int
    epoch: int
    since_s: float
    state_directory: str
    api: str
    gateway: str
    table: str
    faults: tuple[str, ...]
    """Present faults: a full disk, a gateway worker that keeps failing."""
    gateways: tuple[GatewayView, ...]
    accelerators: tuple[AcceleratorView, ...]
    functions: tuple[FunctionView, ...]
    certificate: str | None = None
    """File with the gateway's certificate; None without TLS."""
    store: str = ""
    """Location of its records, without a password."""
    metrics: str | None = None
    """URL of the listener that has metrics alone; None if there is none."""
