"""Writes the Grafana boards, ``deploy/grafana/NAME.json``: ``python -m docs.boards.boards`` (or ``make docs``).

Each board is a list of rows, each row a list of panels; a panel names its queries. Boards and panels are built by
Grafana's own SDK. Every query is tried in a real Prometheus over a running deployment (``make test-prometheus``).
"""

import re
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh, VariableSort
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

HEIGHT: Final = 8
WIDTH: Final = 24
PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
D: Final = 'deployment=~"$deployment"'
F: Final = f'{D},function=~"$function"'
W: Final = "$__rate_interval"
"""The window of rates: what Grafana chooses for the width of the panel."""

DECISIONS: Final = f"changes(tidegate_desired_replicas{{{F}}}[1m]) > 0"
"""When the autoscaler wants another number of replicas."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``queries``: an expression and the legend of its series each."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "lines"
    """``lines``, ``value`` or ``heat``."""


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    has_function: bool = True
    """Whether it has a variable for the function."""


def line(title: str, description: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, description, unit, queries)


def value(title: str, description: str, unit: str, query: str) -> Panel:
    return Panel(title, description, unit, ((query, ""),), "value")


FLEET: Final = Board(
    "tidegate-fleet",
    "Tidegate: fleet",
    "All functions of a deployment at a glance.",
    (
        (
            "Now",
            (
                value("Deployments that answer", "Control processes that answer a scrape.", "none", f"sum(up{{{D}}})"),
                value("Requests per second", "", "reqps", f"sum(function:tidegate_requests:rate1m{{{D}}})"),
                value(
                    "Replicas ready",
                    "",
                    "none",
                    f'sum(tidegate_replicas{{{D},state="ready"}})',
                ),
                value(
                    "Price per hour", "Of all replicas.", "none", f"sum(function:tidegate_price_per_hour:sum{{{D}}})"
                ),
                value("Faults", "`tidegate status` lists each.", "none", f"sum(tidegate_control_faults{{{D}}})"),
            ),
        ),
        (
            "Functions",
            (
                line(
                    "Requests",
                    "Arrivals at the gateway.",
                    "reqps",
                    (f"function:tidegate_requests:rate1m{{{D}}}", "{{function}}"),
                ),
                line(
                    "SLA attainment",
                    "Part of requests in time, of functions whose SLA states a latency.",
                    "percentunit",
                    (f"function:tidegate_sla_attainment:ratio_rate5m{{{D}}}", "{{function}}"),
                ),
                line(
                    "Replicas",
                    "By state.",
                    "none",
                    (f"sum by (function, state) (tidegate_replicas{{{D}}})", "{{function}} {{state}}"),
                ),
                line(
                    "Requests that fail, are refused or expire",
                    "",
                    "percentunit",
                    (f"function:tidegate_errors:ratio_rate5m{{{D}}}", "{{function}}"),
                ),
            ),
        ),
        (
            "Cost",
            (
                line(
                    "Price per hour",
                    "Of the replicas that run.",
                    "none",
                    (f"function:tidegate_price_per_hour:sum{{{D}}}", "{{function}}"),
                ),
                line(
                    "Cost of 1,000 inferences",
                    "Price of the last hour over its inferences.",
                    "none",
                    (f"function:tidegate_cost_per_1k_inferences:1h{{{D}}}", "{{function}}"),
                ),
            ),
        ),
    ),
    has_function=False,
)

FUNCTION: Final = Board(
    "tidegate-function",
    "Tidegate: function",
    "One function: its SLA, its latency, its replicas and why there are so many.",
    (
        (
            "SLA",
            (
                value(
                    "Attainment",
                    "Part of requests in time, last five minutes.",
                    "percentunit",
                    f"function:tidegate_sla_attainment:ratio_rate5m{{{F}}}",
                ),
                value("Objective", "", "percentunit", f"function:tidegate_sla_objective:ratio{{{F}}}"),
                line(
                    "Burn rate",
                    "How many times too fast the error budget is spent.",
                    "none",
                    (f"function:tidegate_sla_burn:rate5m{{{F}}}", "5 minutes"),
                    (f"function:tidegate_sla_burn:rate1h{{{F}}}", "1 hour"),
                    (f"function:tidegate_sla_burn:rate6h{{{F}}}", "6 hours"),
                ),
                line(
                    "Latency and its target",
                    "At the gateway in the last minute, cold starts included; less than 1 % off.",
                    "s",
                    (f"max by (quantile) (tidegate_latency_quantile_seconds{{{F}}})", "p{{quantile}}"),
                    (f"max(tidegate_sla_latency_seconds{{{F}}})", "target"),
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Latency",
                    "Requests by latency.",
                    "s",
                    (
                        (
                            f"sum by (le) (increase(tidegate_gateway_latency_seconds_bucket{{{F}}}[{W}]))",
                            "{{le}}",
                        ),
                    ),
                    "heat",
                ),
                line(
                    "Ends by outcome",
                    "",
                    "reqps",
                    (f"function_outcome:tidegate_ended_requests:rate5m{{{F}}}", "{{outcome}}"),
                ),
                Panel(
                    "Batch sizes",
                    "Inferences per request.",
                    "none",
                    (
                        (
                            f"sum by (le) (increase(tidegate_queue_proxy_batch_inferences_bucket{{{F}}}[{W}]))",
                            "{{le}}",
                        ),
                    ),
                    "heat",
                ),
            ),
        ),
        (
            "Waiting and replicas",
            (
                line(
                    "Waiting requests",
                    "In the waiting room.",
                    "none",
                    (f"sum(tidegate_gateway_waiting_requests{{{F}}})", "waiting"),
                ),
                line(
                    "Oldest waiting request",
                    "",
                    "s",
                    (f"max(tidegate_gateway_oldest_waiting_seconds{{{F}}})", "oldest"),
                ),
                line(
                    "Replicas wanted and ready",
                    "",
                    "none",
                    (f"sum(tidegate_desired_replicas{{{F}}})", "wanted"),
                    (f'sum(tidegate_replicas{{{F},state="ready"}})', "ready"),
                    (f"sum(tidegate_replicas{{{F}}})", "all"),
                ),
            ),
        ),
        (
            "Cold starts",
            (
                line(
                    "Cold starts by phase",
                    "The 95th percentile of the last hour.",
                    "s",
                    (f"function_phase:tidegate_cold_start_seconds:p95_1h{{{F}}}", "{{phase}}"),
                ),
                line(
                    "Starts",
                    "Replicas that became ready in the last hour.",
                    "none",
                    (f'sum(increase(tidegate_cold_start_seconds_count{{{F},phase="load"}}[1h]))', "starts"),
                ),
            ),
        ),
    ),
)

GROUPS: Final = Board(
    "tidegate-groups",
    "Tidegate: groups",
    "The replicas of a function by accelerator kind: what they can do, what they get, what they cost.",
    (
        (
            "Load",
            (
                line(
                    "Service rate of a replica (mu)",
                    "Inferences per second, as learnt.",
                    "ops",
                    (f"group:tidegate_mu:inferences_per_second{{{F}}}", "{{function}} {{group}}"),
                ),
                line(
                    "Arrival rate (lambda)",
                    "Inferences per second of all replicas of a group.",
                    "ops",
                    (f"group:tidegate_lambda:rate1m{{{F}}}", "{{function}} {{group}}"),
                ),
                line(
                    "Utilization",
                    "lambda over mu of the ready replicas.",
                    "percentunit",
                    (f"group:tidegate_utilization:ratio{{{F}}}", "{{function}} {{group}}"),
                ),
            ),
        ),
        (
            "Routing and price",
            (
                line(
                    "Weights",
                    "Fraction of the inferences that a group is to get.",
                    "percentunit",
                    (f"tidegate_group_weight{{{F}}}", "{{function}} {{group}}"),
                ),
                line(
                    "Ready replicas",
                    "",
                    "none",
                    (f"group:tidegate_ready_replicas:sum{{{F}}}", "{{function}} {{group}}"),
                ),
                line(
                    "Price per hour",
                    "",
                    "none",
                    (f"tidegate_group_price_per_hour{{{F}}}", "{{function}} {{group}}"),
                ),
                line(
                    "Slots of a replica",
                    "0: no limit.",
                    "none",
                    (f"tidegate_group_concurrency_limit{{{F}}}", "{{function}} {{group}}"),
                ),
            ),
        ),
    ),
)

GATEWAY: Final = Board(
    "tidegate-gateway",
    "Tidegate: gateway and control process",
    "The programs themselves.",
    (
        (
            "Gateway workers",
            (
                line("Connections", "", "none", (f"tidegate_gateway_connections{{{D}}}", "{{worker}}")),
                line(
                    "Connections closed at once",
                    "",
                    "ops",
                    (f"rate(tidegate_gateway_shed_connections_total{{{D}}}[{W}])", "{{worker}} {{limit}}"),
                ),
                line(
                    "Memory of waiting bodies",
                    "",
                    "bytes",
                    (f"tidegate_gateway_waiting_body_bytes{{{D}}}", "{{worker}}"),
                ),
                line(
                    "Requests that named no function",
                    "",
                    "reqps",
                    (f"rate(tidegate_gateway_unmatched_requests_total{{{D}}}[{W}])", "{{worker}}"),
                ),
            ),
        ),
        (
            "Resilience",
            (
                line(
                    "Retries and hedges",
                    "",
                    "reqps",
                    (f"sum(rate(tidegate_gateway_retries_total{{{D}}}[{W}]))", "retries"),
                    (f"sum(rate(tidegate_gateway_hedges_total{{{D}}}[{W}]))", "hedges"),
                ),
                line(
                    "Ejected replicas",
                    "",
                    "none",
                    (f"sum by (function) (tidegate_gateway_ejected_replicas{{{D}}})", "{{function}}"),
                ),
            ),
        ),
        (
            "Control process",
            (
                line(
                    "Rounds",
                    "One a second.",
                    "s",
                    (
                        "histogram_quantile(0.5, sum by (le)"
                        f" (rate(tidegate_control_round_seconds_bucket{{{D}}}[{W}])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le)"
                        f" (rate(tidegate_control_round_seconds_bucket{{{D}}}[{W}])))",
                        "p99",
                    ),
                ),
                line(
                    "Processor time",
                    "Cores in use.",
                    "none",
                    (f"rate(tidegate_control_process_cpu_seconds_total{{{D}}}[{W}])", "{{deployment}}"),
                ),
                line(
                    "Memory", "", "bytes", (f"tidegate_control_process_resident_memory_bytes{{{D}}}", "{{deployment}}")
                ),
            ),
        ),
    ),
    has_function=False,
)

COST: Final = Board(
    "tidegate-cost",
    "Tidegate: tenants and cost",
    "What functions and tenants cost, and what is paid for without a request.",
    (
        (
            "Now",
            (
                value(
                    "Cost per hour",
                    "Of all device time, last five minutes.",
                    "none",
                    f"sum(function_state:tidegate_cost_per_hour:rate5m{{{F}}})",
                ),
                value(
                    "Busy share",
                    "Part of the device time in which a request ran.",
                    "percentunit",
                    f'sum(function_state:tidegate_devices:rate5m{{{F},state="busy"}})'
                    f" / sum(function_state:tidegate_devices:rate5m{{{F}}})",
                ),
                value(
                    "Idle devices",
                    "Held, ready, and without a request.",
                    "none",
                    f'sum(function_state:tidegate_devices:rate5m{{{F},state="idle"}})',
                ),
                value(
                    "Cost of the last hour",
                    "",
                    "none",
                    f"sum(increase(tidegate_cost_price_total{{{F}}}[1h]))",
                ),
            ),
        ),
        (
            "Functions",
            (
                line(
                    "Cost per hour",
                    "Busy, idle and starting.",
                    "none",
                    (
                        f"sum by (function) (function_state:tidegate_cost_per_hour:rate5m{{{F}}})",
                        "{{function}}",
                    ),
                ),
                line(
                    "Cost of 1,000 requests",
                    "Idle time and starts included, last hour.",
                    "none",
                    (f"function:tidegate_cost_per_1k_requests:1h{{{F}}}", "{{function}}"),
                ),
                line(
                    "Cost of a million tokens",
                    "Idle time and starts included, last hour.",
                    "none",
                    (f"function:tidegate_cost_per_million_tokens:1h{{{F}}}", "{{function}}"),
                ),
                line(
                    "Idle devices",
                    "Idle device seconds per second.",
                    "none",
                    (f'function_state:tidegate_devices:rate5m{{{F},state="idle"}}', "{{function}}"),
                ),
            ),
        ),
        (
            "Tenants",
            (
                line(
                    "Cost per hour",
                    "Busy time, by the slots that a tenant held; idle time belongs to no tenant.",
                    "none",
                    (
                        f"sum by (tenant) (function_tenant:tidegate_cost_per_hour:rate5m{{{F}}})",
                        "{{tenant}}",
                    ),
                ),
                line(
                    "Slots held",
                    "Slot seconds per second.",
                    "none",
                    (f"sum by (tenant) (function_tenant:tidegate_slots:rate5m{{{F}}})", "{{tenant}}"),
                ),
                line(
                    "Requests",
                    "Answered below 500.",
                    "reqps",
                    (
                        f"sum by (tenant) (rate(tidegate_cost_tenant_requests_total{{{F}}}[{W}]))",
                        "{{tenant}}",
                    ),
                ),
                line(
                    "Tokens per second",
                    "Of prompts and completions, where they are counted.",
                    "none",
                    (
                        f"sum by (tenant) (rate(tidegate_cost_tenant_tokens_total{{{F}}}[{W}]))",
                        "{{tenant}}",
                    ),
                ),
            ),
        ),
    ),
)

DEVICES: Final = Board(
    "tidegate-devices",
    "Tidegate: devices",
    "The accelerators: what there is, what is held, and what it does.",
    (
        (
            "Now",
            (
                value("Devices", "", "none", f"sum(tidegate_accelerator_units{{{D}}})"),
                value(
                    "Held",
                    "A replica with a part of a device counts that part.",
                    "none",
                    f"sum(tidegate_accelerator_held_units{{{D}}})",
                ),
                value(
                    "Price per hour of what is held",
                    "",
                    "none",
                    f"sum(tidegate_accelerator_held_units{{{D}}} * tidegate_accelerator_price_per_hour{{{D}}})",
                ),
                value(
                    "Price per hour of what is free",
                    "Paid to their owner, used by no replica.",
                    "none",
                    f"sum((tidegate_accelerator_units{{{D}}} - tidegate_accelerator_held_units{{{D}}})"
                    f" * tidegate_accelerator_price_per_hour{{{D}}})",
                ),
            ),
        ),
        (
            "By accelerator",
            (
                line(
                    "Devices held",
                    "",
                    "none",
                    (f"sum by (accelerator) (tidegate_accelerator_held_units{{{D}}})", "{{accelerator}} held"),
                    (f"sum by (accelerator) (tidegate_accelerator_units{{{D}}})", "{{accelerator}} all"),
                ),
                line(
                    "Device time",
                    "Busy, idle and starting device seconds per second.",
                    "none",
                    (
                        f"sum by (accelerator, state) (rate(tidegate_cost_device_seconds_total{{{D}}}[{W}]))",
                        "{{accelerator}} {{state}}",
                    ),
                ),
                line(
                    "Busy share",
                    "Part of all devices' time in which a request ran.",
                    "percentunit",
                    (
                        "sum by (deployment, accelerator)"
                        f' (rate(tidegate_cost_device_seconds_total{{{D},state="busy"}}[{W}]))'
                        f" / sum by (deployment, accelerator) (tidegate_accelerator_units{{{D}}})",
                        "{{accelerator}}",
                    ),
                ),
                line(
                    "Replicas",
                    "By accelerator and state.",
                    "none",
                    (f"sum by (accelerator, state) (tidegate_replicas{{{D}}})", "{{accelerator}} {{state}}"),
                ),
            ),
        ),
        (
            "By function",
            (
                line(
                    "Devices held",
                    "Device seconds per second, by function and accelerator.",
                    "none",
                    (
                        f"sum by (function, accelerator) (rate(tidegate_cost_device_seconds_total{{{D}}}[{W}]))",
                        "{{function}} {{accelerator}}",
                    ),
                ),
                line(
                    "GPU utilization",
                    "Time of the last minute with work, of the GPUs that a function held; 0 without GPUs.",
                    "percentunit",
                    (f"tidegate_function_gpu_utilization_ratio{{{D}}} or vector(0)", "{{function}}"),
                ),
            ),
        ),
    ),
    has_function=False,
)

BOARDS: Final = (FLEET, FUNCTION, GROUPS, COST, DEVICES, GATEWAY)


def built(board: Board) -> str:
    """Returns the board as Grafana's JSON."""
    page = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["tidegate"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("deployment", "Deployment", 'label_values(up{job="tidegate"}, deployment)'))
    )
    if board.has_function:
        query = 'label_values(tidegate_traffic_percent{deployment=~"$deployment"}, function)'
        page = page.with_variable(_variable("function", "Function", query))
        page = page.annotation(
            dashboard.AnnotationQuery()
            .name("Decisions")
            .datasource(PROMETHEUS)
            .enable(True)
            .icon_color("blue")
            .expr(DECISIONS)
        )
    number = count(1)
    for title, panels in board.rows:
        page = page.with_row(dashboard.Row(title).id(next(number)))
        for panel in panels:
            page = page.with_panel(_panel(panel, WIDTH // min(len(panels), 4)).id(next(number)))
    return JSONEncoder(sort_keys=True, indent=1).encode(page.build()) + "\n"


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(PROMETHEUS)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
    )


def _panel(panel: Panel, width: int) -> stat.Panel | heatmap.Panel | timeseries.Panel:
    made: stat.Panel | heatmap.Panel | timeseries.Panel
    if panel.kind == "value":
        made = stat.Panel()
    elif panel.kind == "heat":
        made = heatmap.Panel().calculate(False)
    else:
        made = timeseries.Panel()
    made.title(panel.title).description(panel.description or panel.title).unit(panel.unit)
    made.datasource(PROMETHEUS).height(HEIGHT).span(width)
    for letter, (expression, legend) in zip(ascii_uppercase, panel.queries, strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto").ref_id(letter)
        if panel.kind == "heat":
            query.format(PromQueryFormat.HEATMAP)
        made.with_target(query)
    return made


def queries(board: Board) -> list[str]:
    """Returns the queries of a board with all deployments and functions chosen."""
    found = [expression for _, panels in board.rows for panel in panels for expression, _ in panel.queries]
    return [re.sub(r"\$(deployment|function)", ".*", each).replace("$__rate_interval", "1m") for each in found]


def main() -> int:
    folder = Path(__file__).parents[2] / "deploy" / "grafana"
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(built(board), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
