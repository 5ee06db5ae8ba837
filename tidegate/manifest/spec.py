"""The table of plain values in a manifest's ``spec``, and the shapes of names and paths that stand in manifests."""

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
HANDLER: Final = Text(r".{1,4095}\.py:[A-Za-z_][A-Za-z0-9_]{0,127}", "FILE.py:CLASS")
IMAGE: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", "an image reference (registry/name:tag)")
ACCELERATOR: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of an accelerator")
DEFAULT_READINESS: Final[Mapping[Protocol, str | None]] = {
    Protocol.V2: "/v2/health/ready",
    Protocol.OPENAI: "/health",
    Protocol.HTTP: None,
    Protocol.GRPC: None,
}

SPEC: Final[tuple[Row, ...]] = (
    Row(
        key="port",
        kind=Whole(1, 65535),
        lands="port",
        default_words="any free one, given as PORT and {port}",
        sentence="The port on which the model server listens.",
    ),
    Row(
        key="protocol",
        kind=Choice(Protocol),
        lands="protocol",
        default="v2",
        sentence="What clients and the model server speak.",
    ),
    Row(
        key="concurrency",
        kind=CONCURRENCY,
        lands="concurrency",
        default="auto",
        sentence="Slots of one replica; 0: no limit; auto: what the server declares, else 4.",
    ),
    Row(
        key="concurrency-unit",
        kind=Choice(ConcurrencyUnit),
        lands="concurrency_unit",
        default="requests",
        sentence="What a slot counts.",
    ),
    Row(
        key="cancel",
        kind=Choice(Cancel),
        lands="cancel",
        default="close",
        sentence="A running request whose client has left: close its connection, or hold its slot until it has ended.",
    ),
    Row(
        key="timeout",
        kind=TIMEOUT,
        lands="timeout_s",
        default="5m",
        sentence="Upper bound of any request's deadline.",
    ),
    Row(
        key="batching.max",
        kind=Whole(1, 65536, "inferences"),
        lands="batching.max_size",
        default="1",
        sentence="Largest batch that the shipped runtime forms; 1: none.",
    ),
    Row(
        key="batching.delay",
        kind=Duration(0, 10),
        lands="batching.delay_s",
        default="0s",
        sentence="Longest time that the shipped runtime waits for a batch to fill.",
    ),
    Row(
        key="readiness.path",
        kind=WordOr("", URL_PATH),
        lands="readiness.path",
        default_words="/v2/health/ready for v2, /health for openai, else empty",
        sentence="Path whose GET answers 2xx when the server is ready; empty: ready when its port accepts.",
    ),
    Row(
        key="readiness.start-timeout",
        kind=Duration(0.01, 86_400),
        lands="readiness.start_timeout_s",
        default="2m",
        sentence="Time within which a started server must become ready.",
    ),
    Row(
        key="queue.requests",
        kind=Whole(1, 10_000_000, "requests"),
        lands="queue.requests",
        default="1000",
        sentence="Requests that may wait, over all gateway workers.",
    ),
    Row(
        key="queue.bytes",
        kind=Size(1024, 2**40),
        lands="queue.bytes",
        default="256Mi",
        sentence="Bytes of bodies that may wait in memory.",
    ),
    Row(
        key="queue.max-wait",
        kind=Duration(0.001, 86_400),
        lands="queue.max_wait_s",
        default="5m",
        sentence="Longest time that a request waits for a slot.",
    ),
    Row(
        key="metrics.path",
        kind=URL_PATH,
        lands="metrics.path",
        default="/metrics",
        sentence="Where the model server shows its own metrics, read every second; the shipped one: /metrics.",
    ),
    Row(
        key="metrics.port",
        kind=Whole(1, 65535),
        lands="metrics.port",
        default_words="the serving port, or any free one, given as METRICS_PORT, where the command has {metrics_port}",
        sentence="Port of those metrics.",
    ),
    Row(
        key="resources.memory",
        kind=Size(2**20, 2**50),
        lands="resources.memory_bytes",
        default_words="not accounted",
        sentence="Memory of one replica, kept free on its accelerator.",
    ),
    Row(
        key="resources.threads",
        kind=Whole(1, 4096),
        lands="resources.threads",
        default_words="the accelerator's cores",
        sentence="Threads of one replica.",
    ),
    *spec_rows(),
)
