"""The configuration of a queue_proxy, parsed once from its environment into a frozen record.

Knative's names keep Knative's meaning, so that both proxies can run side by side in one benchmark. ``TIDEGATE_`` names
are our own and win if both are set. ``main.py`` reads the environment; this module only parses it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidegate.aio.proxy.limits import Limits, read_limits
from tidegate.errors import Fault, InvalidInputError
from tidegate.queue_proxy.probes import LivenessProbe
from tidegate.records.replica_state import ColdStartPhases, read_phases

T = TypeVar("T")

DEFAULT_LIMIT = 4
"""Slots if the function says ``auto`` and the model server declares nothing."""
TRUSTED = ("127.0.0.0/8", "::1/128", "unix")
"""Peers that may set forwarding fields by default: gateways on this machine."""
KNATIVE_QUEUE_PER_SLOT = 10
"""Depth of Knative's own queue per slot: ten times the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The whole configuration. Times in seconds."""

    serving_port: int = 8012
    listen_fd: int | None = None
    """An inherited listening socket. It wins over the port."""
    upstream: str = "127.0.0.1:8080"
    """``host:port`` or ``unix:/path`` of the model server."""
    admin: str = "127.0.0.1:8022"
    token_file: str | None = None
    """File with the deployment's token. If None, no control header is ever trusted."""
    function: str = ""
    revision: str = ""
    group: str = ""
    replica: str = ""
    limit: int | None = 0
    """Slots. 0 is no limit; None is ``auto``, read from the model server when it is ready."""
    unit_inferences: bool = False
    timeout_s: float = 300.0
    readiness_path: str | None = None
    """Path of the readiness probe. If None, the replica is ready when the port accepts a connection."""
    start_timeout_s: float = 120.0
    warmup_file: str | None = None
    warmup_path: str = "/"
    batch_header: str = "tidegate-batch-size"
    bytes_per_item: float | None = None
    batch_overhead_bytes: float = 0.0
    max_batch: int = 1024
    holds_cancelled: bool = False
    """The model server goes on computing after a disconnect, so the slot is held until it has answered."""
    asks_running: bool = False
    """The model server reports the calls without a client that it goes on with (``RUNNING_PATH`` of
    ``process/model_server.py``). Their slots are held meanwhile."""
    unresponsive_after_s: float | None = None
    """Time for which such calls may go on while no request ends. Then the model server is given up. None: for ever."""
    liveness: LivenessProbe | None = None
    """Probe of the ready model server. None if there is none."""
    limits: Limits = field(default_factory=lambda: Limits(trusted_proxies=TRUSTED))
    """HTTP limits of the gateways in front. The fields that they add come on top (``live.client_limits``)."""
    models: tuple[str, ...] = ()
    """Names of the models that the function serves."""
    metrics_path: str | None = None
    """Path of the model server's own Prometheus endpoint. If None, it is not read."""
    metrics_address: str = ""
    """``host:port`` or ``unix:/path`` of that endpoint."""
    pre_stop: bool = False
    """A ``preStop`` hook may call ``/wait-for-drain``, without the token: set in a Pod."""
    pre_stop_delay_s: float = 0.0
    """Time from that call to the drain, in which requests are taken as before. For Pods behind a Service, whose clients
    learn of the end late."""
    only_grpc: bool = False
    """The model server speaks gRPC only. Other requests are refused here."""
    epoch: int = 0
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)


def read_settings(environment: Mapping[str, str]) -> ProxySettings:
    """Parses the environment. Raises InvalidInputError with every fault at once."""
    reader = _Reader(environment)
    user_port = reader.whole("USER_PORT", 8080, 1, 65535)
    upstream = reader.address("TIDEGATE_UPSTREAM", f"127.0.0.1:{user_port}")
    revision = reader.text("SERVING_REVISION", "")
    cancel = reader.choice("TIDEGATE_CANCEL", ("close", "hold", "ask"))
    replica = reader.text("TIDEGATE_REPLICA", "") or reader.text("SERVING_POD", "")
    settings = ProxySettings(
        serving_port=reader.whole("QUEUE_SERVING_PORT", 8012, 0, 65535),
        listen_fd=reader.optional("TIDEGATE_LISTEN_FD", lambda text: _whole(text, 0, 1 << 20), "a file descriptor"),
        upstream=upstream,
        admin=reader.address("TIDEGATE_ADMIN", "127.0.0.1:8022"),
        token_file=reader.text("TIDEGATE_TOKEN_FILE", "") or None,
        function=reader.text("TIDEGATE_FUNCTION", "") or reader.text("SERVING_SERVICE", ""),
        revision=revision,
        group=reader.text("TIDEGATE_GROUP", ""),
        replica=replica,
        limit=_limit(reader),
        unit_inferences=reader.choice("TIDEGATE_CONCURRENCY_UNIT", ("requests", "inferences")) == "inferences",
        timeout_s=reader.real("REVISION_TIMEOUT_SECONDS", 300.0),
        readiness_path=reader.text("TIDEGATE_READINESS_PATH", "") or None,
        start_timeout_s=reader.real("TIDEGATE_START_TIMEOUT_SECONDS", 120.0),
        warmup_file=reader.text("TIDEGATE_WARMUP_FILE", "") or None,
        warmup_path=reader.text("TIDEGATE_WARMUP_PATH", "/"),
        batch_header=reader.text("TIDEGATE_BATCH_HEADER", "tidegate-batch-size"),
        bytes_per_item=reader.optional("TIDEGATE_BYTES_PER_ITEM", _positive, "a number above 0"),
        batch_overhead_bytes=reader.real("TIDEGATE_BATCH_OVERHEAD_BYTES", 0.0),
        max_batch=reader.whole("TIDEGATE_MAX_BATCH", 1024, 1, 1 << 30),
        holds_cancelled=cancel == "hold",
        asks_running=cancel == "ask",
        unresponsive_after_s=reader.optional("TIDEGATE_UNRESPONSIVE_SECONDS", _positive, "a number above 0"),
        liveness=_liveness(reader),
        limits=reader.limits("TIDEGATE_LIMITS"),
        models=tuple(name for name in reader.text("TIDEGATE_MODELS", "").split(",") if name),
        metrics_path=reader.optional("TIDEGATE_METRICS_PATH", _path, "a path that begins with /"),
        metrics_address=reader.address("TIDEGATE_METRICS_ADDRESS", upstream),
        pre_stop=reader.choice("TIDEGATE_PRE_STOP", ("off", "on")) == "on",
        pre_stop_delay_s=reader.real("TIDEGATE_PRE_STOP_DELAY_SECONDS", 0.0),
        only_grpc=reader.choice("TIDEGATE_PROTOCOL", ("http", "grpc")) == "grpc",
        epoch=reader.whole("TIDEGATE_EPOCH", 0, 0, 1 << 62),
        phases=reader.optional("TIDEGATE_PHASES", read_phases, "name=seconds, comma separated, names of phases")
        or ColdStartPhases(),
    )
    if reader.faults:
        raise InvalidInputError("environment of the queue_proxy", reader.faults)
    return settings


def _liveness(reader: "_Reader") -> LivenessProbe | None:
    """Returns the liveness probe: ``TIDEGATE_LIVENESS_PATH`` is a path or ``tcp``; empty for no probe."""
    path = reader.text("TIDEGATE_LIVENESS_PATH", "")
    if not path:
        return None
    return LivenessProbe(
        path=None if path == "tcp" else path,
        period_s=reader.real("TIDEGATE_LIVENESS_PERIOD_SECONDS", 10.0),
        timeout_s=reader.real("TIDEGATE_LIVENESS_TIMEOUT_SECONDS", 1.0),
        failures=reader.whole("TIDEGATE_LIVENESS_FAILURES", 3, 1, 1000),
    )


def _limit(reader: "_Reader") -> int | None:
    """Returns ``TIDEGATE_CONCURRENCY`` (a number or ``auto``), else Knative's ``CONTAINER_CONCURRENCY``."""
    knative = reader.whole("CONTAINER_CONCURRENCY", 0, 0, 1_000_000)
    text = reader.text("TIDEGATE_CONCURRENCY", "")
    if not text:
        return knative
    if text == "auto":
        return None
    return reader.whole("TIDEGATE_CONCURRENCY", 0, 0, 1_000_000)


class _Reader:
    """A reader of variables that collects the faults instead of stopping at the first."""

    __slots__ = ("_environment", "faults")

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.faults: list[Fault] = []

    def text(self, name: str, default: str) -> str:
        return self._environment.get(name, default).strip()

    def optional(self, name: str, parse: Callable[[str], T], allowed: str) -> T | None:
        """Returns None if the variable is unset or empty. An invalid value is recorded as a fault and returns None
        too."""
        text = self.text(name, "")
        if not text:
            return None
        try:
            return parse(text)
        except ValueError:
            self.faults.append(Fault(name, repr(text), allowed))
            return None

    def limits(self, name: str) -> Limits:
        """Returns limits from a JSON object with the names of ``tidegate.aio.proxy.limits.Limits``. Absent ones keep
        their defaults."""
        base = Limits(trusted_proxies=TRUSTED)
        values = self.optional(name, _object, "a JSON object")
        try:
            return base if values is None else read_limits(values, name, base)
        except InvalidInputError as error:
            self.faults.extend(Fault(f"{name}.{one.where}", one.value, one.allowed) for one in error.faults)
            return base

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self.optional(name, lambda text: _whole(text, low, high), f"a whole number from {low} to {high}")
        return default if value is None else value

    def real(self, name: str, default: float) -> float:
        value = self.optional(name, _not_negative, "a number of at least 0")
        return default if value is None else value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Returns one of ``allowed``. The first is the default."""
        text = self.text(name, allowed[0]) or allowed[0]
        if text not in allowed:
            self.faults.append(Fault(name, repr(text), " or ".join(allowed)))
            return allowed[0]
        return text

    def address(self, name: str, default: str) -> str:
        found = self.optional(name, _address, "host:port or unix:/path")
        return default if found is None else found


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _whole(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        raise ValueError(text)
    return int(text)


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0.0:
        raise ValueError(text)
    return value


def _path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(text)
    return text


def _address(text: str) -> str:
    if text.startswith("unix:/"):
        return text
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(text)
    _whole(port, 1, 65535)
    return text
