"""Traces of a real deployment at a real collector, exemplars as the official parser reads them, and what happens to
clients when the collector is slow, dead, or the disk is full. No log and no span has what a request carried in
secret."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from tests.live.test_grpc_gateway import PLAIN, address_of, named
from tests.live.test_pipelines import Pipelines
from tests.support.live.deployment import REQUEST, Deployment, deployment, places
from tests.support.live.otlp_receiver import ReceivedSpan, Receiver, otlp_receiver
from tidegate.gateway.tracing.live import KEPT, Exporter, read_headers
from tidegate.gateway.tracing.otlp import Span, SpanType

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "request-1"}
OPEN_METRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


@contextmanager
def traced(folder: Path, *flags: str) -> Iterator[tuple[Deployment, Receiver]]:
    """A deployment whose spans go to a collector; nothing without a sampled parent is traced."""
    with (
        otlp_receiver() as collector,
        deployment(
            folder, *places(folder, 2), "--tracing-endpoint", collector.url, "--tracing-sample-ratio", "0", *flags
        ) as world,
    ):
        world.up()
        yield world, collector


def infer(world: Deployment, headers: dict[str, str], query: str = "") -> httpx.Response:
    return httpx.post(
        f"{world.gateway}/v2/models/echo/infer{query}",
        json=REQUEST,
        headers=headers,
        timeout=60.0,
        trust_env=False,
        verify=False,
    )


def arrived(world: Deployment, collector: Receiver, name: str = "forward") -> dict[str, ReceivedSpan]:
    """Waits for the trace; its spans by name."""
    world.until(
        lambda: any(span.name == name for span in collector.trace(TRACE)), 30.0, "the spans to reach the collector"
    )
    return {span.name: span for span in collector.trace(TRACE)}


def test_a_cold_start_is_one_trace_from_the_client_to_the_model(tmp_path: Path) -> None:
    with traced(tmp_path) as (world, collector):
        world.deploy(world.handler(load_s=0.3, work_s=0.1), "--min-scale", "0", "--initial-scale", "0")
        before = time.time_ns()
        assert infer(world, SAMPLED).status_code == 200
        after = time.time_ns()
        spans = arrived(world, collector)
        server, waiting, forward = spans["POST"], spans["waiting room"], spans["forward"]
        proxy, model, load = spans["queue_proxy"], spans["model"], spans["cold start: load"]
        assert [span.service for span in (server, proxy, load)] == [
            "tidegate-gateway",
            "tidegate-queue-proxy",
            "tidegate-control",
        ]
        assert server.parent_id == PARENT
        assert (waiting.parent_id, forward.parent_id) == (server.span_id, server.span_id)
        assert (proxy.parent_id, model.parent_id) == (forward.span_id, proxy.span_id)
        assert load.parent_id == waiting.span_id
        slack = 20_000_000
        assert before - slack <= server.start <= waiting.start <= waiting.end <= forward.start + slack
        assert forward.start - slack <= proxy.start <= model.start <= model.end <= server.end + slack
        assert server.end <= after + slack
        assert model.end - model.start >= 100_000_000, "the model sleeps 0.1 s"
        assert load.end - load.start >= 300_000_000, "it loads 0.3 s"
        assert load.end <= waiting.end + slack
        assert server.attributes["tidegate.request.id"] == "request-1"
        assert server.attributes["tidegate.function"] == "echo"
        assert server.trace_state == "vendor=1"
        infer(world, {})
        infer(world, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
        assert {span.trace_id for span in collector.spans} == {TRACE}


def test_a_pipeline_is_one_trace_with_a_span_per_stage_and_the_cold_start_of_each(tmp_path: Path) -> None:
    with traced(tmp_path) as (world, collector):
        made = Pipelines(world, tmp_path)
        first = made.stage("one", factor=2.0, output="x", load_s=0.3, work_s=0.1, scale=0)
        second = made.stage("two", factor=3.0, output="x", load_s=0.3, work_s=0.1, scale=0)
        made.deploy(first, second, made.pipeline("both", "function: one", "function: two"))
        answer = made.ask("both", headers=SAMPLED, timeout=60.0)
        assert answer.json()["outputs"][0]["data"] == [6.0, 12.0]
        world.until(lambda: len(collector.named("model")) == 2, 30.0, "the spans of both stages")
        spans = collector.trace(TRACE)
        (server,) = (span for span in spans if span.name == "POST")
        assert server.parent_id == PARENT
        stages = [span for span in spans if span.name.startswith("stage ")]
        assert [(span.name, span.parent_id) for span in stages] == [
            ("stage one", server.span_id),
            ("stage two", server.span_id),
        ]
        assert server.start <= stages[0].start <= stages[0].end <= stages[1].end <= server.end
        for stage in stages:
            below = {span.name: span for span in spans if span.parent_id == stage.span_id}
            assert set(below) == {"waiting room", "forward"}
            (proxy,) = (span for span in spans if span.parent_id == below["forward"].span_id)
            (model,) = (span for span in spans if span.parent_id == proxy.span_id)
            assert (proxy.name, model.name) == ("queue_proxy", "model")
            assert model.end - model.start >= 100_000_000, "each model sleeps 0.1 s"
        phases = [span for span in spans if span.name == "cold start: load"]
        waits = {span.span_id for span in spans if span.name == "waiting room"}
        assert phases and {span.parent_id for span in phases} <= waits
        assert all(span.end - span.start >= 300_000_000 for span in phases), "each loads 0.3 s"


def test_a_grpc_call_is_traced_too(tmp_path: Path) -> None:
    with traced(tmp_path) as (world, collector):
        manifest = tmp_path / "plain.yaml"
        manifest.write_text(PLAIN)
        world.cli("deploy", str(manifest))
        with grpc.insecure_channel(address_of(world), options=named("plain")) as channel:
            unary = channel.unary_unary("/plain.Test/Unary")
            metadata = (("traceparent", SAMPLED["traceparent"]),)
            assert unary(b"1", metadata=metadata, timeout=60.0, wait_for_ready=True) == b"1"
            assert unary(b"2", timeout=60.0) == b"2"
        spans = arrived(world, collector)
        call = spans["plain.Test/Unary"]
        assert (call.parent_id, call.attributes["rpc.system"]) == (PARENT, "grpc")
        assert spans["model"].parent_id == spans["queue_proxy"].span_id
        assert len(collector.named("plain.Test/Unary")) == 1


def test_exemplars_name_the_trace_and_only_openmetrics_has_them(tmp_path: Path) -> None:
    with traced(tmp_path) as (world, _):
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        assert infer(world, SAMPLED).status_code == 200
        for _ in range(5):
            assert infer(world, {}).status_code == 200
        holder = world.state.holder()
        assert holder is not None
        token = {"authorization": f"Bearer {world.state.token}"}
        found = httpx.get(f"{holder.api}/metrics", headers=OPEN_METRICS | token, trust_env=False, verify=False)
        assert found.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        exemplars = [
            (sample.name, sample.exemplar)
            for family in parse(found.text)  # type: ignore[no-untyped-call]  # it has no types
            for sample in family.samples
            if sample.exemplar is not None
        ]
        ((name, exemplar),) = exemplars
        assert name == "tidegate_gateway_latency_seconds_bucket"
        assert exemplar.labels == {"trace_id": TRACE}
        plain = httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False, verify=False)
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert TRACE not in plain.text


@pytest.mark.parametrize("fault", ["dead", "slow", "refusing"])
def test_a_collector_that_is_away_or_slow_changes_nothing_and_is_one_line(tmp_path: Path, fault: str) -> None:
    with traced(tmp_path, "--tracing-sample-ratio", "1") as (world, collector):
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        if fault == "slow":
            collector.is_open.clear()
        else:
            collector.status = 503 if fault == "dead" else 400
        for _ in range(40):
            assert infer(world, {}).status_code == 200

        def lines() -> list[str]:
            logs = "".join(path.read_text() for path in world.state.root.rglob("*.log")) + world.log.read_text()
            return [line for line in logs.splitlines() if "traces are not exported" in line]

        world.until(lines, 40.0, "the line about the collector")
        for _ in range(10):
            assert infer(world, {}).status_code == 200
        assert len(lines()) == 1
        collector.status = 200
        collector.is_open.set()
        if fault != "refusing":
            world.until(lambda: collector.named("POST"), 60.0, "spans at the collector that is back")


def span() -> Span:
    return Span(SpanType("tidegate-gateway", "g0", "one"), b"1" * 16, b"1" * 8, b"", 1.0, 2.0)


def test_spans_that_find_the_queue_full_are_dropped_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    with otlp_receiver() as collector:
        collector.status = 503
        exporter = Exporter(collector.url, read_headers("authorization=Bearer%20x,nonsense"), every_s=0.01)
        for _ in range(2 * KEPT):
            exporter.put([span()])
        assert exporter.dropped >= KEPT - 512 - 1
        collector.status = 200
        exporter.close()
        assert exporter.exported == len(collector.spans)
        assert exporter.exported + exporter.dropped == 2 * KEPT
        assert collector.heads[0]["authorization"] == "Bearer x"
    assert capfd.readouterr().err.count("are not exported") <= 1


def test_no_log_and_no_span_has_what_a_request_carried_in_secret(tmp_path: Path) -> None:
    secrets = {
        "authorization": "Bearer canary-authorization",
        "cookie": "session=canary-cookie",
        "x-api-key": "canary-key",
    }
    flags = ("--log-access-sampling", "1", "--log-format", "json", "--log-level", "debug")
    with traced(tmp_path, *flags) as (world, collector):
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        body = json.loads(json.dumps(REQUEST))
        body["parameters"] = {"secret": "canary-body"}
        for path in ("/v2/models/echo/infer", "/v2/models/none/infer"):
            httpx.post(
                f"{world.gateway}{path}?key=canary-query",
                json=body,
                headers={**secrets, **SAMPLED},
                timeout=60.0,
                trust_env=False,
                verify=False,
            )
        arrived(world, collector)
        world.until(lambda: "request-1" in logs(world), 20.0, "the access log")
        found = logs(world)
        assert f'"trace":"{TRACE}"' in found
        assert "canary" not in found
        assert b"canary" not in collector.raw
        assert b"request-1" in collector.raw


def logs(world: Deployment) -> str:
    files = [
        path for path in world.state.root.rglob("*") if path.is_file() and path.suffix in (".log", ".jsonl", ".txt")
    ]
    return world.log.read_text() + "".join(path.read_text(errors="replace") for path in files)
