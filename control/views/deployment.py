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
    """A gateway worker and the one whose place it took; that one may still be finishing what it has."""

    worker: str
    pid: int
    old: str
    old_pid: int
    """0: it was down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartView:
    """What a hot restart of the gateway workers did."""

    replaced: tuple[ReplacedView, ...]
    needs_up: tuple[str, ...]
    """Settings that have changed since the control process started and that only its own restart puts into force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant, and what it has used since the control process started."""

    name: str
    keys: int
    """How many API keys it has."""
    weight: float
    priority: int | None
    functions: tuple[str, ...]
    """Those that it may call; empty: every one."""
    quotas: dict[str, int]
    """Amounts by the names of the tenants' file."""
    requests: int
    inferences: int
    tokens: int
    refused: int
    """Requests that met a spent quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadView:
    """What a reload has put into force, and which gateway workers serve the certificate that is in the files now."""

    reloaded: tuple[str, ...]
    faults: dict[str, str]
    """Why the others keep the one they had, by worker."""
    in_force: tuple[str, ...] = ()
    """Settings and accelerators that are others from now on, a sentence each."""
    needs_restart: tuple[str, ...] = ()
    """Changed settings that fresh gateway workers put into force: ``tidegate restart``."""
    needs_up: tuple[str, ...] = ()
    """Changed settings that need another ``tidegate up``."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The whole of it."""

    version: str
    pid: int
    epoch: int
    since_s: float
    state_directory: str
    api: str
    gateway: str
    table: str
    faults: tuple[str, ...]
    """What does not work just now: a full disk, a gateway worker that keeps dying."""
    gateways: tuple[GatewayView, ...]
    accelerators: tuple[AcceleratorView, ...]
    functions: tuple[FunctionView, ...]
    certificate: str | None = None
    """File with the front door's certificate; None without TLS."""
    store: str = ""
    """Where its records are, without a password."""
