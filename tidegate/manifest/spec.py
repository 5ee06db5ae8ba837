"""The table of plain values in a manifest's ``spec``, and the shapes of names and paths in manifests."""

from collections.abc import Mapping
from typing import Final

from tidegate.function import Cancel, ConcurrencyUnit, Protocol
from tidegate.manifest.annotations import CONCURRENCY, TIMEOUT
from tidegate.manifest.routing import spec_rows
from tidegate.schema.rows import Choice, Duration, Row, Size, Text, Whole, WordOr

API_VERSION: Final = "tidegate.dev/v1alpha1"
KIND: Final = "Function"

URL_PATH: Final = Text(r"/[!-~]{0,1023}", "a path that starts with /")
PROBE_PATH: Final = Text(r"[!-~]{0,1023}", "a path")
MODEL_NAME: Final = Text(
    r"[A-Za-z0-9](?:[A-Za-z0-9._:@/-]{0,254}[A-Za-z0-9._-])?", "a model's name: letters, digits and . _ : @ / -"
)
VARIABLE: Final = Text(
    r"(?!PORT$|TIDEGATE_)[A-Za-z_][A-Za-z0-9_]{0,127}",
    "a variable's name (letters, digits, _), but not PORT or TIDEGATE_..., which Tidegate sets",
)
ARGUMENT: Final = Text(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "an argument's name: letters, digits, _")
HANDLER: Final = Text(r".{1,4095}\.py:[A-Za-z_][A-Za-z0-9_]{0,127}", "FILE.py:CLASS")
IMAGE: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", "an image reference (registry/name:tag)")
ACCELERATOR: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of an accelerator")
DEFAULT_READINESS: Final[Mapping[Protocol, str | None]] = {
    Protocol.V2: "/v2/health/ready",
    Protocol.OPENAI: "/health",
    Protocol.HTTP: None,
    Protocol.GRPC: None,
}

MAX_BATCH: Final = 65536
SPEC: Final[tuple[Row, ...]] = (
    Row(
        key="port",
        kind=Whole(1, 65535),
        field="port",
        default_words="any free one, passed as PORT and {port}",
        description="Port of the model server.",
    ),
    Row(
        key="protocol",
        kind=Choice(Protocol),
        field="protocol",
        default="v2",
        description="Protocol of clients and the model server.",
    ),
    Row(
        key="concurrency",
        kind=CONCURRENCY,
        field="concurrency",
        default="auto",
        description="Slots of one replica; 0: no limit; auto: as the server declares, else 4.",
    ),
    Row(
        key="concurrency-unit",
        kind=Choice(ConcurrencyUnit),
        field="concurrency_unit",
        default="requests",
        description="Unit of a slot: a request or an inference.",
    ),
    Row(
        key="cancel",
        kind=Choice(Cancel),
        field="cancel",
        default="auto",
        description="A running request without a client: close its connection, or hold its slot until it has ended; "
        "auto: close it, and hold the slot while the shipped server goes on with the call.",
    ),
    Row(
        key="timeout",
        kind=TIMEOUT,
        field="timeout_s",
        default="5m",
        description="Maximum deadline of a request.",
    ),
    Row(
        key="batching.max",
        kind=Whole(1, MAX_BATCH, "inferences"),
        field="batching.max_size",
        default_words="1; of a model repository infer-batch-size",
        description="Maximum batch that the shipped runtime forms; 1: no batching.",
    ),
    Row(
        key="batching.delay",
        kind=Duration(0, 10),
        field="batching.delay_s",
        default="0s",
        description="Maximum time that the shipped runtime waits for a batch to fill.",
    ),
    Row(
        key="readiness.path",
        kind=WordOr("", URL_PATH),
        field="readiness.path",
        default_words="/v2/health/ready for v2, /health for openai, else empty",
        description="Path of the readiness probe (GET, 2xx); empty: ready when the port accepts connections.",
    ),
    Row(
        key="readiness.start-timeout",
        kind=Duration(0.01, 86_400),
        field="readiness.start_timeout_s",
        default="2m",
        description="Maximum time from the start of a server to its readiness.",
    ),
    Row(
        key="liveness.path",
        kind=Text(r"tcp|/[!-~]{0,1023}", "a path that starts with /, or tcp"),
        field="liveness.path",
        default_words="no probe",
        description="Path of the liveness probe (GET, 2xx or 3xx), or tcp: a connection. One that fails replaces the "
        "replica.",
    ),
    Row(
        key="liveness.period",
        kind=Duration(0.1, 86_400),
        field="liveness.period_s",
        default="10s",
        description="Interval of the liveness probe.",
    ),
    Row(
        key="liveness.timeout",
        kind=Duration(0.01, 86_400),
        field="liveness.timeout_s",
        default="1s",
        description="Maximum time of one liveness probe.",
    ),
    Row(
        key="liveness.failures",
        kind=Whole(1, 1000, "failures"),
        field="liveness.failures",
        default="3",
        description="Failures in a row after which the replica is replaced.",
    ),
    Row(
        key="queue.requests",
        kind=Whole(1, 10_000_000, "requests"),
        field="queue.requests",
        default="1000",
        description="Maximum waiting requests, over all gateway workers.",
    ),
    Row(
        key="queue.bytes",
        kind=Size(1024, 2**40),
        field="queue.bytes",
        default="256Mi",
        description="Maximum bytes of waiting bodies in memory.",
    ),
    Row(
        key="queue.max-wait",
        kind=Duration(0.001, 86_400),
        field="queue.max_wait_s",
        default="5m",
        description="Maximum time that a request waits for a slot.",
    ),
    Row(
        key="limits.body-bytes",
        kind=Size(1024, 2**40),
        field="body_bytes",
        default="256Mi",
        description="Maximum bytes of a request body in the shipped model server; more is 413.",
    ),
    Row(
        key="metrics.path",
        kind=URL_PATH,
        field="metrics.path",
        default="/metrics",
        description="Path of the model server's own metrics, scraped every second; the shipped server: /metrics.",
    ),
    Row(
        key="metrics.port",
        kind=Whole(1, 65535),
        field="metrics.port",
        default_words="the serving port; with {metrics_port} in the command any free one, passed as METRICS_PORT",
        description="Port of the metrics.",
    ),
    Row(
        key="resources.memory",
        kind=Size(2**20, 2**50),
        field="resources.memory_bytes",
        default_words="not accounted, no limit",
        description="Memory of one replica, reserved on its accelerator; a server that uses more is ended.",
    ),
    Row(
        key="resources.threads",
        kind=Whole(1, 4096),
        field="resources.threads",
        default_words="the accelerator's cores",
        description="Threads of one replica.",
    ),
    *spec_rows(),
)
