"""``tidegate load`` without anything to send to: every fault at once, targets, plans, the report's file."""

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.load.run import OTHER_FILES, LoadError, _inputs
from tidegate.control.cli.load.target import V2_INFER, V2_STREAM, of_url
from tidegate.errors import InvalidInputError
from tidegate.loadgen.clients.call import Call, Request, WantedSla
from tidegate.loadgen.plans.load import MAX_CONNECTIONS, LoadOptions, LoadPlan, plan_of
from tidegate.loadgen.reports.load_page import render
from tidegate.loadgen.reports.record import About, LoadReport, report_of
from tidegate.loadgen.reports.tally import Tally

URL = "http://127.0.0.1:9/x"


def options(**given: Any) -> LoadOptions:
    return LoadOptions(**({"target": URL, "rate": "10", "span": "5s"} | given))


def faults(**given: Any) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        plan_of(options(**given))
    return [fault.where for fault in caught.value.faults]


def times(plan: LoadPlan, seed: int = 1) -> list[float]:
    assert plan.schedule is not None
    return [each.at_s for each in plan.schedule(random.Random(seed))]


# --- input ------------------------------------------------------------------------------------------------------------


def test_every_fault_is_reported_at_once_and_the_exit_code_is_2(tmp_path: Path) -> None:
    done = tidegate(
        *("load", URL, "--rate", "0", "--callers", "3", "--shape", "foo:1", "--sla", "x", "--header", "bad"),
        *("--seed", "-1", "--timeout", "5", "--connections", "0", "--protocol", "soap", "--batches", "0:1"),
        *("--arrivals", "often", "--from", "1s", "--body", str(tmp_path / "none"), "--tokens", "many"),
    )
    assert done.exit_code == 2
    for where in (
        *("mode", "--rate", "--for", "--shape", "--sla", "--header", "--seed", "--timeout", "--connections"),
        *("--protocol", "--batches", "--arrivals", "--from", "--body", "--tokens"),
    ):
        assert f"\n  {where}: got " in done.output, where


def test_a_mode_is_needed_and_one_is_enough() -> None:
    assert tidegate("load", URL).exit_code == 2
    assert faults(rate=None) == ["mode"]
    assert faults(span=None) == ["--for"]
    assert faults(rate=None, callers="0", span=None) == ["--for", "--callers"]
    assert faults(rate=None, phases=("0s:10:2:5",)) == ["--for"]
    for wrong in ("200ms,@98", "200ms,50ms@98", "200ms,0s/token@98", "200ms,x/token@98", "200ms/token@98"):
        assert faults(sla=wrong) == ["--sla"]
    assert plan_of(options(sla="500ms,50ms/token@99")).sla == WantedSla(0.5, 99.0, 0.05)
    assert plan_of(options(sla="200ms@98")).sla == WantedSla(0.2, 98.0)
    assert faults(sla="200ms@101") == faults(sla="0s@98") == ["--sla"]
    assert faults(headers=("content-length: 3", "a b: c", "x: é")) == ["--header"] * 3


def test_an_sla_is_written_as_deploy_takes_it_or_as_a_latency_at_a_percentile() -> None:
    for text in ("600ms@95", "600ms@p95", "p95=600ms", "p95%=600ms"):
        assert plan_of(options(sla=text)).sla == (0.6, 95.0, None)
    assert plan_of(options(sla="600ms")).sla == (0.6, 98.0, None), "the percentile of a function that states none"
    assert plan_of(options(sla="p99=500ms,50ms/token")).sla == plan_of(options(sla="500ms,50ms/token@99")).sla
    assert "such as 200ms@98 or p98=200ms" in tidegate("load", URL, "--slo", "95=1s").output


def test_faults_of_a_trace_have_their_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("3\nx\n-1\n")
    with pytest.raises(InvalidInputError) as caught:
        plan_of(options(rate=None, span=None, trace=trace, seed="x"))
    assert [(fault.where, fault.line) for fault in caught.value.faults] == [
        ("--seed", None),
        (f"--trace {trace}: trace", 2),
        (f"--trace {trace}: trace", 3),
    ]


def test_a_trace_is_cut_and_scaled(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("10\n20\n30\n")
    given = {"rate": None, "span": None, "trace": trace, "arrivals": "even"}
    assert len(times(plan_of(options(**given)))) == 60
    cut = plan_of(options(**given, scale="2", first="1s", last="2500ms"))
    assert len(times(cut)) == 40 + 30
    assert (times(cut)[0], cut.total_s) == (0.0, 1.5)
    assert faults(**given, first="2s", last="1s", scale="0") == ["--scale", "--to"]


def test_the_same_seed_sends_at_the_same_times() -> None:
    plan = plan_of(options())
    assert times(plan, 7) == times(plan, 7) != times(plan, 8)
    assert plan_of(options(arrivals="even")).total_s == 5.0
    assert times(plan_of(options(arrivals="even"))) == pytest.approx([0.1 * number for number in range(50)])


def test_closed_loops_have_their_workers() -> None:
    callers = plan_of(options(rate=None, callers="3"))
    phases = plan_of(options(rate=None, span=None, phases=("0s:10:2:5", "1m:4:4:1")))
    for plan, count in ((callers, 3), (phases, 6)):
        assert plan.workers is not None
        assert len(plan.workers()) == count
        assert plan.schedule is None


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "given", "protocol", "address", "path"),
    [
        ("http://h:81/a?b=1", {}, "http", "h:81", "/a?b=1"),
        ("http://h", {}, "http", "h:80", "/"),
        ("https://[::1]/x", {}, "http", "[::1]:443", "/x"),
        ("http://h/v2/models/m/infer", {"protocol": "v2"}, "v2", "h:80", "/v2/models/m/infer"),
        ("http://h", {"protocol": "openai", "model": "m"}, "openai", "h:80", "/v1/chat/completions"),
        ("grpc://h:9", {"model": "m"}, "grpc", "h:9", V2_INFER),
        ("grpc://h:9", {"model": "m", "stream": True}, "grpc", "h:9", V2_STREAM),
    ],
)
def test_urls_name_their_protocol(target: str, given: dict[str, Any], protocol: str, address: str, path: str) -> None:
    made = options(target=target, **given)
    found = of_url(made, plan_of(made))
    assert (found.protocol, found.address, found.path) == (protocol, address, path)
    assert (found.tls is not None) == target.startswith("https")
    assert "?" not in found.text, "a query may hold a key, and reports are shown around"


@pytest.mark.parametrize(
    ("target", "given", "where"),
    [
        ("ftp://h/x", {}, ["TARGET"]),
        ("http://", {}, ["TARGET"]),
        ("http://h:99999/", {}, ["TARGET"]),
        ("http://user:secret@h/", {}, ["TARGET"]),
        ("http://h/x", {"protocol": "grpc"}, ["--protocol", "--model"]),
        ("http://h/x", {"protocol": "v2"}, ["TARGET"]),
        ("http://h/x", {"protocol": "openai"}, ["--model"]),
        ("http://h/x", {"stream": True, "method": "get", "batches": "4"}, ["--method", "--stream", "--batches"]),
        ("grpc://h:9", {"path": "pkg/Call", "batch_header": "x"}, ["--path", "--model", "--path", "--batch-header"]),
    ],
)
def test_faults_of_targets(target: str, given: dict[str, Any], where: list[str]) -> None:
    made = options(target=target, **given)
    with pytest.raises(InvalidInputError) as caught:
        of_url(made, plan_of(made))
    assert [fault.where for fault in caught.value.faults] == where
    assert "secret" not in str(caught.value)


def test_more_connections_than_files_are_a_fault() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > MAX_CONNECTIONS:
        pytest.skip("this machine allows as many open files as may be asked for")
    done = tidegate("load", URL, "--rate", "1", "--for", "1s", "--connections", str(hard))
    assert done.exit_code == 2
    assert f"at most {hard - OTHER_FILES} here" in done.output


def test_a_function_needs_a_deployment(tmp_path: Path) -> None:
    done = tidegate("load", "echo", "--callers", "1", "--for", "1s", "--state", str(tmp_path))
    assert done.exit_code == 1


def test_a_report_that_cannot_be_written_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    done = tidegate("load", URL, "--callers", "1", "--for", "1h", "--report", str(tmp_path / "none" / "r.html"))
    assert done.exit_code == 2
    assert "a file in a folder that exists" in done.output


def test_the_body_is_not_written_over(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text("{}")
    assert faults(body=body, outputs=(("--report", body), ("--csv", body))) == ["--report", "--csv"]


# --- the report -------------------------------------------------------------------------------------------------------


def report(*, is_partial: bool = False, count: int = 50) -> LoadReport:
    tally = Tally(WantedSla(0.2, 98.0))
    for number in range(count):
        call = Call(Request(b""), 0.1 * number)
        call.sent, call.ended = call.due, call.due + 0.1
        call.code, call.is_good = "200", True
        tally.add(call, 0.0)
    about = About(
        target="<script>alert(1)</script>", mode="m", protocol="v2", seed=1, is_partial=is_partial,
        began="2026-01-01T00:00:00+00:00", sent=count, wall_s=5.0, cpu_s=0.1,
    )  # fmt: skip
    return report_of(tally, about)


def test_the_html_report_is_one_file_with_tables_and_plots() -> None:
    page = render(report())
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "http" not in page.replace("&lt;", "")
    assert "met: 100.00 % within 200 ms, 98 % wanted" in page
    assert "partial" not in page
    for name in ("fastest", "10 %", "99 %", "slowest", "mean"):
        assert f"<td>{name}</td>" in page


def test_a_report_of_an_interrupted_run_says_so_and_an_empty_one_is_valid() -> None:
    assert "Interrupted: this report is partial." in render(report(is_partial=True))
    assert "0 sent" in render(report(count=0))


def test_a_model_without_declared_inputs_is_loaded_with_a_body_and_one_is_shown() -> None:
    with pytest.raises(LoadError, match="--body FILE, for example\n") as raised:
        _inputs({"name": "m", "inputs": []})
    assert json.loads(str(raised.value).splitlines()[1])["inputs"][0]["name"] == "x"


def test_without_a_mode_one_is_suggested() -> None:
    with pytest.raises(InvalidInputError, match="such as --rate 10 --for 30s"):
        plan_of(options(rate=None, span=None))
