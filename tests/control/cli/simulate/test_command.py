"""``tidegate simulate``: one's own case from files, every fault at once, the same bytes every time."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.autoscaler.oltunes.test_graph import model, node, value, weight
from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.simulate.run import Made, run
from tidegate.control.predictor.graphs import figures_of
from tidegate.errors import InvalidInputError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.plans.bound import bound_of
from tidegate.loadgen.plans.loads import FLAGS, GivenLoads
from tidegate.loadgen.plans.simulation import SimulationOptions, SimulationPlan, plan_of
from tidegate.loadgen.reports import simulation
from tidegate.records.codec import decode
from tidegate.records.decision import Decision

ROOT = Path(__file__).resolve().parents[4]
FUNCTION = """apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: resnet
  annotations:
    tidegate.dev/latency: 300ms
    tidegate.dev/percentile: "98"
spec:
  server:
    command: [serve]
  concurrency: 1
"""
ACCELERATORS = """accelerators:
  - {name: t4, kind: emulated, count: 8, memory: 16Gi, price-per-hour: 0.53, tdp: 70, start-up: 2s,
     profile: {base: 9ms, per-item: 11ms, jitter: 5%}}
  - {name: v100, kind: nvidia, count: 4, memory: 16Gi, price-per-hour: 3.06, tdp: 250}
"""
PROFILES = "profiles:\n  - {accelerator: v100, base: 5ms, per-item: 5ms, start: {load: 4s}}\n"


@pytest.fixture
def case(tmp_path: Path) -> list[str]:
    """The options that name the three files."""
    for name, text in (("f.yaml", FUNCTION), ("a.yaml", ACCELERATORS), ("p.yaml", PROFILES)):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("f.yaml", "a.yaml", "p.yaml")]
    return ["--function", files[0], "--accelerators", files[1], "--profile", files[2]]


def options(tmp_path: Path, **given: object) -> SimulationOptions:
    here = {"accelerators": tmp_path / "a.yaml", "profile": tmp_path / "p.yaml", "functions": (tmp_path / "f.yaml",)}
    load = {"rate": "40", "span": "30s"} | {key: given.pop(key) for key in FLAGS if key in given}
    loads = {
        key: tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)
        for key, value in load.items()
        if value is not None
    }
    return SimulationOptions(**(here | given), loads=GivenLoads(loads))  # type: ignore[arg-type]  # of every kind


def made(plan: SimulationPlan) -> Made:
    return run(plan, has_bound=False, log=None, csv=None, is_silent=True)


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_policies_are_compared_under_the_same_load(case: list[str]) -> None:
    done = tidegate("simulate", *case, "--rate", "40", "--for", "30s", "--policy", "smif", "--policy", "kpa")
    assert done.exit_code == 0, done.output
    rows = {line[:30].strip(): line[30:].split() for line in done.output.splitlines() if line}
    assert rows[""] == ["smif", "kpa"]
    assert rows["requests"][0] == rows["requests"][1]
    assert all(cost.startswith("$") for cost in rows["cost"])
    assert all(float(times) >= 1.0 for times in rows["cost over B0"] + rows["cost over Bq"])
    assert "98 % within 300 ms" in done.output


def test_json_tells_each_policys_figures(case: list[str]) -> None:
    done = tidegate("simulate", *case, "--rate", "40", "--for", "30s", "--no-bound", "--json")
    found = json.loads(done.output)
    (policy,) = found["policies"]
    assert (policy["policy"], found["bound"], found["is_partial"]) == ("tide", None, False)
    assert policy["figures"]["answered"] == policy["figures"]["requests"] > 1000
    assert policy["figures"]["cost_dollars"] > 0


def test_the_log_the_rows_and_the_report_are_written(case: list[str], tmp_path: Path) -> None:
    log, csv, report = (tmp_path / name for name in ("log.jsonl", "rows.csv", "report.html"))
    files = ("--log", str(log), "--csv", str(csv), "--report", str(report))
    both = ("--policy", "kpa", "--policy", "smif")
    assert tidegate("simulate", *case, *both, "--rate", "40", "--for", "30s", *files).exit_code == 0
    decisions = [decode(line, Decision) for line in log.read_bytes().splitlines()]
    assert {each.policy for each in decisions} == {"kpa", "smif"}
    assert all(each.function == "resnet" and each.reasons for each in decisions)
    head, *rows = csv.read_text().splitlines()
    assert head == simulation.CSV_HEAD
    assert {len(row.split(",")) for row in rows} == {len(head.split(","))}
    seconds = [float(row.split(",")[1]) for row in rows if row.startswith("kpa,")]
    assert seconds == [float(second) for second in range(len(seconds))]
    assert len(seconds) >= 30
    explained = tidegate("explain", "resnet", "--log", str(log), "--last", "1000")
    assert explained.exit_code == 0
    assert explained.output.count("resnet-00001 smif") == sum(each.policy == "smif" for each in decisions)
    page = report.read_text()
    for plot in ("Replicas", "Waiting", "Latency", "SLA violations per 5 s", "Utilisation", "Power"):
        assert f"aria-label='{plot}" in page, plot


def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed(case: list[str], tmp_path: Path) -> None:
    def bytes_of(hash_seed: str) -> tuple[bytes, ...]:
        files = [tmp_path / f"{hash_seed}.{kind}" for kind in ("log", "csv", "html")]
        named = [
            text for option, path in zip(("--log", "--csv", "--report"), files, strict=True) for text in (option, path)
        ]
        load = [
            "--shape",
            "mmpp:5s@10,2s@80",
            "--for",
            "20s",
            "--batches",
            "1:3,4:1",
            "--policy",
            "kpa",
            "--policy",
            "smif",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.control.cli", "simulate", *case, *load, "--json", *named],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        return (done.stdout, *(path.read_bytes() for path in files))

    first, second = bytes_of("1"), bytes_of("2")
    assert first == second
    assert all(first)


def test_another_seed_gives_other_requests(case: list[str], tmp_path: Path) -> None:
    drawn = [list(plan_of(options(tmp_path, seed=seed)).arrivals()) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]


def test_profiles_come_from_the_file_else_from_the_emulated_accelerator(case: list[str], tmp_path: Path) -> None:
    plan = plan_of(options(tmp_path))
    assert plan.parts[0].profiles["t4"].nominal(1) == pytest.approx(0.020)
    assert plan.parts[0].profiles["v100"].nominal(1) == pytest.approx(0.010)
    assert plan.parts[0].starts["v100"].total_s == 4.0
    assert any("t4" in note and "a start takes 1 s" in note for note in plan.notes)


def test_an_emulated_server_runs_one_request_or_batch_at_a_time_as_live(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FUNCTION.replace("  concurrency: 1\n", ""))
    plan = plan_of(options(tmp_path))
    assert plan.parts[0].profiles["t4"].width == 1
    assert plan.parts[0].deployed(plan.variants[0].functions[0]).limit_on("t4") == 1, (
        "one slot, so that waiting is seen"
    )
    (tmp_path / "m.onnx").touch()
    batched = FUNCTION.replace("  concurrency: 1\n", "  batching: {max: 8}\n").replace(
        "command: [serve]", "model: m.onnx"
    )
    (tmp_path / "f.yaml").write_text(batched)
    plan = plan_of(options(tmp_path))
    profile = plan.parts[0].profiles["t4"]
    assert (profile.width, profile.joins) == (1, 8), "one batch at a time, of what waits in its slots"
    assert plan.parts[0].deployed(plan.variants[0].functions[0]).limit_on("t4") == 8


def test_closed_loops_are_simulated_too(case: list[str], tmp_path: Path) -> None:
    callers = plan_of(options(tmp_path, rate=None, callers="4", span="20s"))
    assert callers.duration_s == 20.0
    (found,) = made(callers).report.policies
    assert found.figures["requests"] > 100
    phases = plan_of(options(tmp_path, rate=None, span=None, phases=("0s:30:2:10", "2s:10:1:5")))
    (found,) = made(phases).report.policies
    assert (phases.duration_s, found.figures["requests"]) == (None, 40)


def test_a_duration_cuts_the_load_and_goes_on_behind_it(case: list[str], tmp_path: Path) -> None:
    short, long = (plan_of(options(tmp_path, duration=text)) for text in ("10s", "90s"))
    assert max(each.at_s for each in short.arrivals()) < 10.0
    (found,) = made(long).report.policies
    assert found.figures["duration_s"] == 90.0


def test_replicas_can_be_ready_at_the_beginning(case: list[str], tmp_path: Path) -> None:
    plan = plan_of(options(tmp_path, ready="2"))
    assert plan.parts[0].ready == {"t4": 2}
    (found,) = made(plan).report.policies
    assert found.figures["cold_start_requests"] == 0
    with pytest.raises(InvalidInputError, match="at most 8, the units of t4"):
        plan_of(options(tmp_path, ready="9"))


def test_the_command_of_the_docs_runs() -> None:
    page = (ROOT / "docs" / "inside" / "simulator.md").read_text()
    words = shlex.split(page.split("```sh\n")[1].split("```")[0].replace("\\\n", " "))
    assert words[0] == "tidegate"
    assert words[-2] == "--report"
    given = [str(ROOT / word) if word.startswith("examples/") else word for word in words[1:-2]]
    given[given.index("--to") + 1] = "20s"
    done = tidegate(*given)
    assert done.exit_code == 0, done.output
    (line,) = (each for each in done.output.splitlines() if each.startswith("cost over B0"))
    assert all(float(each) >= 1.0 for each in line.split()[3:]) and len(line.split()) > 3


def test_settings_and_policies_win_over_the_manifest(case: list[str], tmp_path: Path) -> None:
    (variant,) = plan_of(options(tmp_path, policies=("kpa",), settings=("max-scale=3", "latency=1s"))).variants
    (function,) = variant.functions
    assert (function.scaling.policy, function.scaling.max_scale, function.sla.latency_s) == ("kpa", 3, 1.0)


def test_a_parameter_is_for_those_of_the_policies_that_have_it(case: list[str], tmp_path: Path) -> None:
    plan = plan_of(options(tmp_path, policies=("kpa", "smif"), settings=("policy.window=30s", "max-scale=3")))
    functions = [each.functions[0] for each in plan.variants]
    assert [dict(each.scaling.parameters) for each in functions] == [{"window": "30s"}, {}]
    assert [each.scaling.max_scale for each in functions] == [3, 3]
    with pytest.raises(InvalidInputError, match=r"policy\.nothing"):
        plan_of(options(tmp_path, policies=("kpa", "smif"), settings=("policy.nothing=1",)))


# --- the bound --------------------------------------------------------------------------------------------------------


def test_the_bound_is_of_the_same_load_sla_and_hardware(case: list[str], tmp_path: Path) -> None:
    bound, note = bound_of(plan_of(options(tmp_path)))
    assert note is None
    assert bound is not None
    assert bound.b0_dollars is not None
    assert 0.0 < bound.bq_dollars <= bound.b0_dollars
    twice, _ = bound_of(plan_of(options(tmp_path, rate="80")))
    assert twice is not None
    assert twice.bq_dollars > bound.bq_dollars


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rate": None, "callers": "2"}, "closed loop"),
        ({"settings": ("concurrency=0",)}, "without a limit"),
        ({"settings": ("latency=1ms",)}, "no fleet keeps the SLA"),
    ],
)
def test_where_there_is_no_bound_it_is_said_why(
    case: list[str], tmp_path: Path, given: dict[str, object], why: str
) -> None:
    bound, note = bound_of(plan_of(options(tmp_path, **given)))
    assert bound is None
    assert note is not None
    assert why in note


def test_a_service_that_takes_no_time_has_none_and_the_run_is_not_lost(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("profiles:\n  - {accelerator: v100, base: 0s}\n")
    done = tidegate("simulate", *case, "--rate", "5", "--for", "3s")
    assert done.exit_code == 0, done.output
    assert "no bound: groups.v100.times: got 0.0 s for batch 1" in done.output


def test_without_a_latency_or_a_price_there_is_none(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ACCELERATORS.replace("price-per-hour: 3.06, ", ""))
    assert bound_of(plan_of(options(tmp_path)))[1] == "no bound: an accelerator has no price"
    (tmp_path / "f.yaml").write_text(FUNCTION.replace("    tidegate.dev/latency: 300ms\n", ""))
    assert bound_of(plan_of(options(tmp_path))) == (None, None)


# --- an interrupted run -----------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_partial_report_of_what_had_happened(case: list[str], tmp_path: Path) -> None:
    """The signal comes in the middle of the first policy: there is no second one."""
    plan = plan_of(options(tmp_path, policies=("kpa", "smif"), span="1000s"))

    def interrupted(rng: random.Random) -> Iterator[Arrival]:
        for number in range(40_000):
            if number == 2_000:
                signal.raise_signal(signal.SIGINT)
            yield Arrival(number / 40.0)

    before = signal.getsignal(signal.SIGINT)
    (part,) = plan.parts
    found = made(replace(plan, parts=(replace(part, source=replace(part.source, schedule=interrupted)),)))
    assert signal.getsignal(signal.SIGINT) is before
    (only,) = found.report.policies
    assert found.report.is_partial and only.is_partial
    assert only.policy == "kpa"
    assert 49.0 <= only.figures["duration_s"] <= 52.0
    assert 1_900 <= only.figures["requests"] <= 2_100
    assert "INTERRUPTED" in simulation.text(found.report)
    assert "Interrupted" in simulation.html(found.report, found.timelines, has_power=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_bound_out_and_the_report_is_partial(
    number: signal.Signals, case: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(options(tmp_path, span="3s"))
    monkeypatch.setattr("tidegate.loadgen.plans.bound.bound_of", lambda plan: signal.raise_signal(number))
    found = run(plan, has_bound=True, log=None, csv=None, is_silent=True)
    assert found.report.is_partial
    assert found.report.notes[-1] == "no bound: interrupted"


# --- input ------------------------------------------------------------------------------------------------------------


def test_faults_of_all_files_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FUNCTION.replace("concurrency: 1", "concurency: 1").replace("300ms", "soon"))
    (tmp_path / "a.yaml").write_text("accelerators:\n  - {name: t4, kind: nvidia}\n  - {name: a, kind: tpu}\n")
    (tmp_path / "p.yaml").write_text("profiles:\n  - {accelerator: t4}\n")
    (tmp_path / "trace.txt").write_text("1\n-1\n")
    with pytest.raises(InvalidInputError) as caught:
        plan_of(options(tmp_path, rate=None, span=None, trace=tmp_path / "trace.txt", seed="x", duration="0s"))
    places = [(fault.where.removeprefix("--").replace(f"{tmp_path}/", ""), fault.line) for fault in caught.value.faults]
    assert set(places) == {
        ("seed", None),
        ("duration", None),
        ("trace trace.txt: trace", 2),
        ("accelerators a.yaml: accelerators[1].kind", 3),
        ("profile p.yaml: profiles[0].base or times", 2),
        ("function f.yaml: metadata.annotations.tidegate.dev/latency", 6),
        ("function f.yaml: spec.concurency", 11),
    }


def test_hardware_that_is_not_here_says_what_it_is(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "accelerators:\n  - {name: t4, kind: nvidia}\n  - {name: c, kind: cpu, count: 2}\n"
    )
    with pytest.raises(InvalidInputError) as caught:
        plan_of(options(tmp_path, profile=None))
    where = f"--accelerators {tmp_path / 'a.yaml'}: accelerators"
    assert [(fault.where, fault.line) for fault in caught.value.faults] == [
        (f"{where}[0].count", 2),
        (f"{where}[0].memory", 2),
        (f"{where}[1].memory", 3),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profile": None}, "no profile"),
        ({"policies": ("kpa", "kpa")}, "each policy once"),
        (
            {"policies": ("kap",)},
            "horizontal-only, hpa, k8s-baseline, kpa, oltunes, orion, reserve-and-pack, smif",
        ),
        ({"settings": ("min-scal=1",), "policies": ("kpa", "smif")}, "one of "),
        ({"functions": (Path("nowhere.yaml"),)}, "No such file"),
        ({"trace": Path("sample:burst"), "rate": None, "span": None}, "azure-llm, bursts, twitter"),
        ({"rate": None, "callers": "2", "batches": "1:1,2:1"}, "one size"),
        ({"rate": None}, "exactly one of"),
    ],
)
def test_what_cannot_be_simulated_is_reported_once(
    case: list[str], tmp_path: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        plan_of(options(tmp_path, **given))
    assert len(caught.value.faults) == 1


def test_without_a_profile_the_times_of_an_onnx_file_follow_from_its_graph(case: list[str], tmp_path: Path) -> None:
    """512 x 512 by 512 x 512: 268 MFLOP at 0.45 of 200 GFLOPS a core, on two cores."""
    data = model(node("MatMul", "a b", "c"), inputs=[value("a", 1, 512, 512)], weights=[weight("b", 512, 512)])
    (tmp_path / "m.onnx").write_bytes(data)
    (tmp_path / "f.yaml").write_text(FUNCTION.replace("command: [serve]", "model: m.onnx"))
    (tmp_path / "a.yaml").write_text("accelerators:\n  - {name: c, kind: cpu, cores: 2, count: 2, memory: 4Gi}\n")
    given = options(tmp_path, profile=None)
    with pytest.raises(InvalidInputError, match="no profile"):
        plan_of(given)
    plan = plan_of(replace(given, figures=figures_of))
    profile = plan.parts[0].profiles["c"]
    one_s = 2 * 512**3 / (0.45 * 200e9 * 2)
    assert profile.times.seconds(1) == pytest.approx(one_s, rel=0.05)
    assert profile.times.seconds(4) == pytest.approx(4 * one_s, rel=0.05)
    assert "service times follow from the model's graph alone, within a factor of 3: c" in plan.notes


def test_an_accelerator_of_unknown_speed_and_a_broken_file_still_need_a_profile(
    case: list[str], tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
    (tmp_path / "f.yaml").write_text(FUNCTION.replace("command: [serve]", "model: m.onnx"))
    with pytest.raises(InvalidInputError, match="no profile"):
        plan_of(replace(options(tmp_path, profile=None), figures=figures_of))


def test_a_function_has_a_name_and_a_place_of_its_own(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FUNCTION)
    with pytest.raises(InvalidInputError, match="resnet again; allowed: each function once"):
        plan_of(options(tmp_path, functions=(tmp_path / "f.yaml", tmp_path / "f.yaml")))
    (tmp_path / "f.yaml").write_text(FUNCTION + "  accelerators: [h100]\n")
    with pytest.raises(InvalidInputError, match="h100"):
        plan_of(options(tmp_path))


def test_wrong_input_ends_with_2_and_a_file_that_cannot_be_written_is_reported_first(
    case: list[str], tmp_path: Path
) -> None:
    assert tidegate("simulate", *case).exit_code == 2
    done = tidegate("simulate", *case, "--rate", "1", "--for", "1", "--report", str(tmp_path / "none" / "r.html"))
    assert done.exit_code == 2
    assert "\n  --for: got " in done.output
    assert "\n  --report: got " in done.output


def test_no_file_that_is_read_is_written_over_and_each_output_has_its_own(
    case: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path is cut where it is quoted
    (tmp_path / "day.txt").write_text("3\n")
    (tmp_path / "link").symlink_to(tmp_path / "p.yaml")
    trace = ("--trace", str(tmp_path / "day.txt"))
    for wrong in map(Path, ("f.yaml", "a.yaml", "link", "day.txt")):
        before = wrong.read_text()
        done = tidegate("simulate", *case, *trace, "--log", str(wrong))
        assert done.exit_code == 2
        assert f"--log: got '{wrong}'; allowed: a file of its own" in done.output
        assert wrong.read_text() == before
    same = str(tmp_path / "out")
    done = tidegate("simulate", *case, *trace, "--log", same, "--csv", same)
    assert done.exit_code == 2
    assert "--csv: got " in done.output
    devices = ("--log", os.devnull, "--csv", os.devnull)
    assert tidegate("simulate", *case, *trace, *devices, "--no-bound").exit_code == 0


def test_a_name_that_is_too_long_or_a_folder_without_permission_is_wrong_input(
    case: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ("simulate", *case, "--rate", "1", "--for", "1s", "--report")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    done = tidegate(*wanted, str(tmp_path / "r.html"))
    assert done.exit_code == 2
    assert "--report: got " in done.output
    done = tidegate(*wanted, "r" * 300)
    assert done.exit_code == 2
    assert "--report: got " in done.output


def test_faults_name_what_this_command_has_and_the_range_that_is_meant(case: list[str]) -> None:
    done = tidegate("simulate", *case, "--duration", "500ms", "--rate", "1e6")
    assert "--rate: got '1e6'; allowed: a number above 0, at most 1000000\n" in done.output
    assert "--concurrency" not in done.output + tidegate("simulate", *case).output
    assert "--duration: got '500ms'; allowed: a time with its unit, such as 30s or 5m, 1s to 7 days" in done.output


# --- several functions ------------------------------------------------------------------------------------------------

BERT = FUNCTION.replace("resnet", "bert").replace("300ms", "500ms")
SHARED = """profiles:
  - {accelerator: v100, sharing: mps, base: 20ms}
  - {accelerator: v100, function: bert, base: 80ms, interference: {resnet: 2}}
"""


@pytest.fixture
def two(case: list[str], tmp_path: Path) -> list[str]:
    """The options of a file with two functions."""
    (tmp_path / "f.yaml").write_text(FUNCTION + "---\n" + BERT)
    return case


def test_each_function_has_its_load_and_its_figures(two: list[str], tmp_path: Path) -> None:
    log, csv, report = (tmp_path / name for name in ("log.jsonl", "rows.csv", "report.html"))
    files = ("--log", str(log), "--csv", str(csv), "--report", str(report))
    load = ("--rate", "resnet=40", "--rate", "bert=10", "--for", "30s", "--batches", "bert=4:1")
    done = tidegate("simulate", *two, *load, "--policy", "kpa", "--policy", "smif", *files)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "function  resnet: open loop, 40 requests/s, poisson; 98 % within 300 ms" in lines
    assert "function  bert: open loop, 10 requests/s, poisson; 98 % within 500 ms" in lines
    starts = [index for index, line in enumerate(lines) if line.endswith("smif")]
    assert [lines[index].split("  ")[0] for index in starts] == ["all functions", "resnet", "bert"]
    requests = [int(line.split()[-1]) for line in lines if line.startswith("requests  ")]
    assert requests[0] == requests[1] + requests[2]
    assert requests[1] > 3 * requests[2]
    costs = [float(line.split("$")[-1]) for line in lines if line.startswith("cost  ")]
    assert costs[0] == pytest.approx(costs[1] + costs[2], rel=1e-3)
    assert any(line.startswith("cost over B0") for line in lines)
    decided = {decode(line, Decision).function for line in log.read_bytes().splitlines()}
    assert decided == {"resnet", "bert"}
    head, *rows = csv.read_text().splitlines()
    assert head == simulation.CSV_HEAD_OF_SEVERAL
    assert {tuple(row.split(",")[:2]) for row in rows} == {
        (policy, name) for policy in ("kpa", "smif") for name in ("resnet", "bert")
    }
    page = report.read_text()
    assert "Policy smif, bert" in page and "Utilisation" not in page.split("All figures")[0].split("<svg")[1]


def test_json_has_the_figures_of_each_function(two: list[str]) -> None:
    found = json.loads(tidegate("simulate", *two, "--rate", "10", "--for", "10s", "--json").output)
    assert [each["function"] for each in found["functions"]] == ["resnet", "bert"]
    (policy,) = found["policies"]
    assert policy["policy"] == "tide"
    of = policy["functions"]
    assert of["resnet"]["requests"] + of["bert"]["requests"] == policy["figures"]["requests"]
    assert found["bound"]["b0_dollars"] >= found["bound"]["bq_dollars"] > 0.0


def test_a_value_for_all_is_for_those_without_their_own(two: list[str], tmp_path: Path) -> None:
    plan = plan_of(
        options(
            tmp_path,
            rate=("20", "bert=5"),
            span="60s",
            trace=None,
            deadline=("bert=250ms",),
            ready="bert=1",
            functions=(tmp_path / "f.yaml",),
        )
    )
    assert [each.source.mode.split(", ")[1] for each in plan.parts] == ["20 requests/s", "5 requests/s"]
    assert [each.deadline_s for each in plan.parts] == [None, 0.25]
    assert [dict(each.ready) for each in plan.parts] == [{}, {"t4": 1}]
    traced = plan_of(options(tmp_path, rate="20", span="60s", trace="bert=sample:bursts", last="bert=10s"))
    assert [each.source.total_s for each in traced.parts] == [60.0, 10.0]


def test_functions_from_several_files_share_the_places(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(BERT)
    (tmp_path / "a.yaml").write_text(ACCELERATORS.replace("count: 8", "count: 2").split("  - {name: v100")[0])
    files = (tmp_path / "f.yaml", tmp_path / "b.yaml")
    given = options(tmp_path, functions=files, profile=None, rate="60", span="30s")
    (found,) = made(plan_of(given)).report.policies
    assert found.figures["most_ready_replicas"] <= 2
    assert min(each["answered"] for each in found.functions.values()) > 0
    with pytest.raises(InvalidInputError, match="at most 2, the units of t4"):
        plan_of(replace(given, loads=GivenLoads({"rate": ("1",), "span": ("9s",), "ready": ("resnet=2", "bert=1")})))


def test_profiles_and_interference_are_of_a_function(two: list[str], tmp_path: Path) -> None:
    mps = ACCELERATORS.replace("tdp: 250", "tdp: 250, mps: true")
    (tmp_path / "a.yaml").write_text("accelerators:\n" + mps.splitlines()[-1] + "\n")
    (tmp_path / "p.yaml").write_text(SHARED)
    plan = plan_of(options(tmp_path))
    assert [each.profiles["v100"].nominal(1) for each in plan.parts] == [0.02, 0.08]
    assert plan.kinds[0].interference == {("bert", "resnet"): 2.0}
    (tmp_path / "p.yaml").write_text(SHARED.replace("{resnet: 2}", "{resnett: 2}"))
    with pytest.raises(InvalidInputError, match="function of v100: got 'resnett'; did you mean `resnet`"):
        plan_of(options(tmp_path))


def test_faults_of_loads_name_the_function(two: list[str]) -> None:
    done = tidegate("simulate", *two, "--rate", "4", "--rate", "5", "--shape", "bart=x", "--for", "resnet=1s")
    assert done.exit_code == 2
    assert "--rate: got '5'; allowed: once, or once for each function as NAME=VALUE" in done.output
    assert "--shape: got 'bart=x'; did you mean `bert`? allowed: NAME=VALUE with the name of a function" in done.output
    assert "bert: --for: got nothing" in done.output


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_deadlines_end_running_work(case: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("profiles:\n  - {accelerator: t4, base: 2s}\n" + PROFILES.split("\n", 1)[1])
    done = tidegate(
        "simulate", *case, "--rate", "2", "--for", "10s", "--ready", "8", "--deadline", "500ms", "--no-bound"
    )
    assert done.exit_code == 0, done.output
    rows = {line[:30].strip(): line[30:].strip() for line in done.output.splitlines() if line}
    assert rows["answered"] == "0"
    assert rows["failed, deadline_exceeded"] == rows["requests"]
