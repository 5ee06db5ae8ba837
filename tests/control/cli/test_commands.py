"""The command line by itself: flags from tables, exit codes, what is said when nothing runs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner, Result

from tests.support.live.certificates import make_certificate
from tidegate.control.cli.app import app, with_command
from tidegate.control.cli.common import seconds
from tidegate.control.cli.deploy import as_typed, policy_flags, read
from tidegate.control.cli.show import _follow as follow
from tidegate.control.cli.traffic import _rollout as rollout_lines
from tidegate.control.cli.up import read_settings
from tidegate.control.sdk import ApiError, Tidegate
from tidegate.control.state.directory import Holder, StateDirectory
from tidegate.control.views.errors import ErrorDetail
from tidegate.control.views.functions import RolloutView
from tidegate.errors import InvalidInputError
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.records.rollout import Phase, Strategy
from tidegate.settings import SETTINGS

COMMANDS = [
    "up",
    "gateway",
    "down",
    "restart",
    "reload",
    "deploy",
    "dev",
    "init",
    "delete",
    "get",
    "describe",
    "diff",
    "version",
    "list",
    "status",
    "explain",
    "forget",
    "record",
    "replay",
    "invoke",
    "job",
    "traffic",
    "rollout",
    "rollback",
    "resize",
    "tenants",
    "tenant-key",
    "series",
    "cost",
    "load",
    "simulate",
    "experiment",
    "profile",
    "open",
    "logs",
    "doctor",
    "demo",
]


def tidegate(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_help_lists_what_exists_and_nothing_else() -> None:
    _, _, text = tidegate("--help").output.partition("Commands:")
    assert sorted(re.findall(r"^  (\S+) ", text, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", ["explain", "deploy", "experiment"])
def test_a_command_is_the_same_where_no_other_is_built(name: str) -> None:
    alone = CliRunner().invoke(with_command(name), [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert alone.output == tidegate(name, "--help").output
    assert (with_command(name) is app) is (name == "experiment"), "of a group all is built"
    assert with_command("fly") is app and with_command("--version") is app


def test_the_version_is_the_packages() -> None:
    assert tidegate("--version").output.strip() == "0.1.0"


def test_the_package_itself_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "tidegate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


def test_every_annotation_is_a_flag_of_deploy() -> None:
    text = tidegate("deploy", "--help").output
    for row in ANNOTATIONS:
        assert f"--{row.key} " in text


def test_every_setting_is_a_flag_of_up() -> None:
    text = tidegate("up", "--help").output
    for row in SETTINGS:
        assert f"{row.flag} " in text


def test_an_unknown_command_or_flag_is_wrong_input() -> None:
    assert tidegate("fly").exit_code == 2
    assert tidegate("list", "--fast").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("status", "echo"),
        ("explain", "echo"),
        ("series", "echo"),
        ("logs", "echo"),
        ("invoke", "echo"),
        ("job", "tg-1"),
        ("delete", "echo"),
        ("forget", "echo"),
        ("restart",),
        ("reload",),
    ],
)
def test_without_a_control_process_it_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = tidegate(*arguments, "--state", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "start one with `tidegate up`" in result.stderr
    assert not (tmp_path / "none").exists(), "asking makes no directory"


def test_status_works_from_the_directory_alone(tmp_path: Path) -> None:
    result = tidegate("status", "--json", "--state", str(tmp_path))
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "running": False,
        "message": f"no control process runs on {tmp_path}; start one with `tidegate up`",
        "state_directory": str(tmp_path),
        "processes": [],
    }


def test_down_of_nothing_is_done_at_once(tmp_path: Path) -> None:
    result = tidegate("down", "--state", str(tmp_path / "none"), "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"ended": []})


def test_up_on_a_held_directory_says_who_holds_it(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.prepare()
    lock = state.lock()
    lock.describe(Holder(pid=os.getpid(), since="2026-01-01 10:00:00+01:00", epoch=1))
    result = tidegate("up", "--state", str(tmp_path), "--detach")
    lock.release()
    assert result.exit_code == 1
    assert f"process {os.getpid()}, since 2026-01-01" in result.stderr


def test_down_ends_what_a_control_process_leaves_that_dies_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, pid = StateDirectory(tmp_path), 2**22 + 5
    state.prepare()
    lock = state.lock()

    def kill(_: int, number: int) -> None:
        if number == signal.SIGINT:
            lock.release()
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr("tidegate.control.cli.up._end_leftovers", lambda _: ["g0 (17)"])
    lock.describe(Holder(pid=pid, since="2026-01-01 10:00:00+01:00", epoch=1))
    done = tidegate("down", "--state", str(tmp_path), "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"ended": [f"control process {pid}", "g0 (17)"]})


def test_a_wrong_setting_is_exit_code_two(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text("[gateway]\nlisten = 'nowhere'\n[limits]\nheads = 3\n")
    result = tidegate("up", "--config", str(config), "--state", str(tmp_path / "s"), "--gateway-workers", "0")
    assert result.exit_code == 2
    for part in ("line 2: gateway.listen", "limits.heads", "--gateway-workers"):
        assert part in result.stderr


def test_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidegate.toml").write_text("[gateway]\nworkers = 3\ndomain = 'example.org'\n")
    monkeypatch.chdir(tmp_path)
    settings = read_settings(None, {"gateway-workers": "2"})
    assert (settings.gateway.workers, settings.gateway.domain) == (2, "example.org")
    with pytest.raises(InvalidInputError):
        read_settings(tmp_path / "none.toml", {})


def test_the_state_directory_of_the_settings_is_found_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidegate.toml").write_text("[state]\ndirectory = 'here'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_STATE", raising=False)
    assert str(tmp_path / "here") in tidegate("list").stderr
    monkeypatch.setenv("TIDEGATE_STATE", str(tmp_path / "there"))
    assert str(tmp_path / "there") in tidegate("list").stderr


def test_settings_here_that_are_no_text_are_one_line_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_STATE", raising=False)
    (tmp_path / "tidegate.toml").write_bytes(b"\xc0\xff[gateway]")
    result = tidegate("list")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: tidegate.toml\n  file: got tidegate.toml; allowed: a TOML file that can be read\n",
    )


def test_what_deploy_makes_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").touch()
    (tmp_path / "handler.py").write_text("class Model: ...\n")
    text, base, _ = read("model.onnx", "net")
    assert "model: model.onnx" in text
    assert "name: net" in text
    assert base == tmp_path
    assert "handler: handler.py:Model" in read("handler.py:Model", None)[0]
    (tmp_path / "model.onnx").write_bytes(b"x" * 10**6)
    text, _, _ = read("model.onnx", "net", {"gpu-model": "h100"})
    assert "dnn-model: net" in text, "what a GPU requires is filled in"
    assert "gpu-mem-limit: '0.6'" in text
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "function.yaml").write_text("kind: Function\n")
    assert read("sub/function.yaml", None) == ("kind: Function\n", tmp_path / "sub", "sub/function.yaml")
    with pytest.raises(InvalidInputError, match=r"a manifest, a model \(model\.onnx, .*\) or file\.py:Class"):
        read("nothing.yaml", None)
    with pytest.raises(InvalidInputError, match="--name"):
        read("sub/function.yaml", "other")


def test_a_file_with_one_handler_needs_no_class_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("class Net:\n    def predict(self, inputs): ...\n")
    assert "handler: net.py:Net" in read("net.py", None)[0]


@pytest.mark.parametrize("words", [("--slo", "p95=600ms"), ("--sla", "600ms@95")])
def test_an_slo_has_two_names_and_two_spellings(words: tuple[str, str], tmp_path: Path) -> None:
    given = (*words, "--percentile", "95", "--latency", "600ms")
    result = tidegate("deploy", "m.onnx", *given, "--state", str(tmp_path))
    assert result.exit_code == 2
    assert "--percentile: got 95; allowed: once" in result.stderr
    assert "--latency: got 600ms; allowed: once" in result.stderr


def test_a_flag_given_twice_by_its_short_form_is_exit_code_two(tmp_path: Path) -> None:
    result = tidegate("deploy", "m.onnx", "--slo", "p99=200ms", "--latency", "1s", "--state", str(tmp_path))
    assert result.exit_code == 2
    assert "--latency" in result.stderr


def test_a_wrong_policy_parameter_is_exit_code_two(tmp_path: Path) -> None:
    result = tidegate("deploy", "m.onnx", "--policy-parameter", "window", "--state", str(tmp_path))
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.stderr


@pytest.mark.parametrize("key", ["sla-effort", "policy.sla-effort"])
def test_a_policy_parameter_may_be_written_as_its_annotation(key: str) -> None:
    assert policy_flags([f"{key}=30"], []) == {"policy.sla-effort": "30"}


def test_faults_of_the_command_line_and_of_the_manifest_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "function.yaml"
    file.write_text("apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: Net}\nspec: {colour: red}\n")
    flags = ("--name", "net", "--policy-parameter", "window", "--slo", "fast", "--min-scale", "many")
    result = tidegate("deploy", str(file), *flags, "--state", str(tmp_path))
    assert result.exit_code == 2
    for part in ("--name", "--policy-parameter", "KEY=VALUE", "--slo", "min-scale", "metadata.name", "spec.colour"):
        assert part in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.00004, "less than 0.1 ms"),
        (0.0004, "0.4 ms"),
        (0.0421, "42.1 ms"),
        (0.25, "250 ms"),
        (2.3456, "2.35 s"),
        (600.0, "10 min"),
        (60.0, "60 s"),
        (0.05, "50 ms"),
        (2.0, "2 s"),
    ],
)
def test_durations_for_people(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_the_command_line_starts_light() -> None:
    heavy = ("fastapi", "httpx", "uvicorn", "rich", "pydantic", "numpy", "prometheus_client", "sqlite3", "asyncio")
    code = f"import sys, tidegate.control.cli.app; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_doctor_reports_every_check(tmp_path: Path) -> None:
    result = tidegate(
        "doctor", "--json", "--state", str(tmp_path), "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"
    )
    findings = {each["check"]: each["verdict"] for each in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert findings["head grammar"] == "ok"
    assert {"python", "event loop", "accelerators", "state directory", "leftovers"} <= findings.keys()


def test_doctor_looks_at_the_certificate_that_the_settings_here_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificate(tmp_path)
    (tmp_path / "tidegate.toml").write_text('[gateway]\ntls-cert = "localhost.crt"\ntls-key = "localhost.key"\n')
    flags = ("--json", "--state", "s", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0")
    finding = {each["check"]: each for each in json.loads(tidegate("doctor", *flags).stdout)}["certificate"]
    assert finding["verdict"] == "note"
    assert "expires on" in finding["text"]
    (tmp_path / "localhost.key").unlink()
    finding = {each["check"]: each for each in json.loads(tidegate("doctor", *flags).stdout)}["certificate"]
    assert finding["verdict"] == "bad"
    assert "gateway.tls-key" in finding["text"]


def test_doctor_looks_at_what_the_settings_here_would_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "tidegate.toml").write_text(
            f'[gateway]\nlisten = "{address}"\n[control]\nlisten = "127.0.0.1:0"\n[accelerators]\nfile = "own.yaml"\n'
        )
        for text, is_bad, words in (
            ("accelerators: [{name: t4, kind: nonsense}]", True, "accelerators[0].kind: got 'nonsense'"),
            ("accelerators: [{name: own-cpu, kind: cpu, count: 1}]", False, "1 x own-cpu (cpu)"),
        ):
            own.write_text(text)
            findings = {each["check"]: each for each in json.loads(tidegate("doctor", "--json", "--state", "s").stdout)}
            assert words in findings["accelerators"]["text"]
            assert (findings["accelerators"]["verdict"] == "bad") is is_bad
            assert findings[f"port {address}"]["verdict"] == "bad"
    own.unlink()
    findings = {each["check"]: each for each in json.loads(tidegate("doctor", "--json", "--state", "s").stdout)}
    assert findings["accelerators"]["verdict"] == "bad"
    (tmp_path / "tidegate.toml").write_text("[gateway\n")
    result = tidegate("doctor", "--json", "--state", "s", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0")
    assert result.exit_code == 1
    assert {each["check"]: each for each in json.loads(result.stdout)}["settings"]["verdict"] == "bad"


def test_logs_of_an_unknown_source_are_wrong_input() -> None:
    result = tidegate("logs", "echo", "--source", "unknown")
    assert result.exit_code == 2
    assert "--source: got 'unknown'; allowed: server, proxy, all" in result.stderr


def test_up_tells_every_fault_of_the_certificates_files(tmp_path: Path) -> None:
    files = ("--gateway-tls-cert", str(tmp_path / "no.crt"), "--gateway-tls-key", str(tmp_path / "no.key"))
    result = tidegate("up", "--state", str(tmp_path / "s"), *files)
    assert result.exit_code == 2
    assert "gateway.tls-cert" in result.stderr
    assert "gateway.tls-key" in result.stderr
    assert not (tmp_path / "s").exists()


def test_a_state_directory_that_cannot_be_used_is_one_line_and_no_trace(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    for command in (("up",), ("up", "--detach"), ("down",)):
        done = tidegate(*command, "--state", str(tmp_path / "state"))
        assert done.exit_code == 1
        assert done.stderr.startswith("error: the state directory cannot be used: ")
        assert "not a file" in done.stderr


@pytest.mark.parametrize("place", ["file", "file/state", "/proc/tidegate/state"])
def test_doctor_fails_where_no_state_directory_can_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    result = tidegate(
        "doctor",
        "--json",
        "--state",
        str(tmp_path / place),
        "--listen",
        "127.0.0.1:0",
        "--control-listen",
        "127.0.0.1:0",
    )
    found = {each["check"]: each for each in json.loads(result.stdout)}["state directory"]
    assert (result.exit_code, found["verdict"]) == (1, "bad")
    assert "not a folder" in found["text"] or "nothing can be made in /proc" in found["text"]


def test_status_watch_prints_each_view_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    class Watched:
        def watch(self, name: str) -> Iterator[str]:
            yield f"{name} starts"
            seen.append(capsys.readouterr().out)
            yield f"{name} is ready"

    monkeypatch.setattr("tidegate.control.cli.show._render", lambda view: view)
    follow(cast("Tidegate", Watched()), "echo", json=False)
    assert "echo starts" in seen[0], "at once"
    assert "echo is ready" in capsys.readouterr().out


def test_a_time_that_is_no_time_is_wrong_input() -> None:
    assert tidegate("invoke", "echo", "--timeout", "-1").exit_code == 2
    assert tidegate("invoke", "echo", "--async", "--v2").exit_code == 2
    assert tidegate("job", "tg-1", "--result", "--delete").exit_code == 2
    assert tidegate("invoke", "echo", "--timeout", "0").exit_code == 2


def test_a_model_that_is_not_there_is_the_arguments_fault() -> None:
    for file in ("nowhere.onnx", "nofile.py:M"):
        with pytest.raises(InvalidInputError) as refused:
            read(file, None)
        (fault,) = refused.value.faults
        assert (fault.where, fault.line) == ("file", None)


def test_a_missing_accelerators_file_is_wrong_input(tmp_path: Path) -> None:
    place = ("--state", str(tmp_path / "state"), "--accelerators-file", str(tmp_path / "none.yaml"))
    done = tidegate("up", *place, "--control-listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0")
    assert done.exit_code == 2
    assert "--accelerators-file" in done.stderr
    assert "No such file" in done.stderr


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase.RUNNING, "canary, running: 5% of the traffic"),
        (Phase.TAKEN_BACK, "canary, taken-back: it has 5% of the traffic now"),
    ],
)
def test_a_rollout_that_is_over_is_not_said_to_have_led_to_the_present_traffic(phase: Phase, message: str) -> None:
    view = RolloutView(
        function="echo",
        strategy=Strategy.CANARY,
        phase=phase,
        candidate="echo-00002",
        base="echo-00001",
        percent=5.0,
        steps=(5.0, 50.0),
        step=1,
        window_s=10.0,
        window_left_s=None,
        duration_s=None,
        shadow_percent=0.0,
        verdict="",
        new=None,
        old=None,
        shadow=None,
        began_at=0.0,
        events=(),
    )
    assert message in str(rollout_lines(view)[0])


def test_traffic_and_rollout_tell_all_faults_of_the_command_line(tmp_path: Path) -> None:
    wrong_to = ("--to", "1", "--to", "2=x", "--to", "3=-5")
    split = tidegate("traffic", "echo", *wrong_to, "--tag", "stable", "--state", str(tmp_path))
    assert split.exit_code == 2
    for wrong in ("--to", "'1'", "'2=x'", "got 3=-5; allowed: REVISION=PERCENT with a percent of 0 to 100", "'stable'"):
        assert wrong.strip("'") in split.output


def test_a_fault_names_gpu_as_it_was_typed() -> None:
    fault = ErrorDetail(code="invalid_input", message="m.py\n  --gpu-model: got 'A100'; allowed: no such key")
    with pytest.raises(ApiError, match="--gpu: got 'A100'"), as_typed("A100"):
        raise ApiError(400, fault)
    with pytest.raises(ApiError, match="--gpu-model: got"), as_typed(None):
        raise ApiError(400, fault)


def test_faults_of_flags_without_a_settings_file_name_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tidegate("up", "--gateway-listen", "8080", "--state", str(tmp_path))
    assert result.exit_code == 2
    assert "tidegate.toml" not in result.stderr
    assert "did you mean `127.0.0.1:8080`?" in result.stderr
