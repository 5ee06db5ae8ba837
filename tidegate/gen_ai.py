"""OpenTelemetry's metrics for generative AI (semantic conventions, "gen_ai"), with their names as Prometheus writes
them.

Names, labels and buckets are those of the conventions; the labels ``function`` and ``revision`` are added. A label that
does not apply is empty, which equals an absent label.
"""

from tidegate.metrics import Metric, MetricKind, exact_buckets

_LABELS = ("function", "revision", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_SECONDS = exact_buckets(*(10_000 << power for power in range(14)), unit=1e-6)
DURATION = Metric(
    "gen_ai_server_request_duration_seconds",
    MetricKind.HISTOGRAM,
    "From the received head to the last byte sent.",
    (*_LABELS, "error_type"),
    _SECONDS,
)
OPERATION = Metric(
    "gen_ai_client_operation_duration_seconds",
    MetricKind.HISTOGRAM,
    "From sending to a replica to the last byte sent, without the time in the waiting room.",
    (*_LABELS, "error_type"),
    _SECONDS,
)
FIRST_TOKEN = Metric(
    "gen_ai_server_time_to_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Streams: from the received head to the first event with output.",
    _LABELS,
    exact_buckets(
        *(1_000, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 250_000, 500_000, 750_000),
        *(1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000),
        unit=1e-6,
    ),
)
PER_TOKEN = Metric(
    "gen_ai_server_time_per_output_token_seconds",
    MetricKind.HISTOGRAM,
    "Successful streams: mean time per token after the first one.",
    _LABELS,
    exact_buckets(
        *(10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 750_000),
        *(1_000_000, 2_500_000),
        unit=1e-6,
    ),
)
USAGE = Metric(
    "gen_ai_client_token_usage",
    MetricKind.HISTOGRAM,
    "Tokens of a request as its response reported them.",
    (*_LABELS, "gen_ai_token_type"),
    exact_buckets(*(1 << power for power in range(0, 27, 2))),
)

CATALOGUE: tuple[Metric, ...] = (DURATION, OPERATION, FIRST_TOKEN, PER_TOKEN, USAGE)
