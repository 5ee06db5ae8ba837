"""`tidegate profile` with real processes: its figures, what deploy and simulate make of them, an interruption."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ACCELERATORS = """
accelerators:
  - {name: cpu, kind: cpu, count: 2, cores: 1, memory: 2GB, price-per-hour: 0.1}
  - name: fast
    kind: emulated
    count: 1
    memory: 8GB
    price-per-hour: 1
    profile: {base: 4ms, per-item: 2ms}
"""
HANDLER = """
import time


class Model:
    inputs = {"x": ("FP32", [-1, 4])}

    def predict(self, inputs):
        time.sleep(0.010 + 0.005 * len(inputs["x"]))
        return {"y": inputs["x"] * 2}
"""


@pytest.mark.early
def test_a_profile_says_what_a_model_takes_and_deploy_goes_by_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "acc.yaml").write_text(ACCELERATORS)
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "acc.yaml")) as there:
        there.up()
        model, profile = str(tmp_path / "model.py"), str(tmp_path / "p.yaml")
        words = (model, "--seconds", "500ms", "--html", str(tmp_path / "page.html"), "--to", profile)
        made = there.cli("profile", *words, "--batches", "1,4", "--accelerators", "cpu,fast", "--json")
        report = json.loads(made.stdout)
        points = {(each["cell"]["accelerator"], each["cell"]["batch"]): each for each in report["points"]}
        assert set(points) == {("cpu", 1), ("cpu", 4), ("fast", 1), ("fast", 4)}
        for (name, batch), least_s in {("cpu", 1): 0.015, ("cpu", 4): 0.030, ("fast", 4): 0.012}.items():
            point = points[name, batch]
            assert point["execution_s"] >= 0.95 * least_s, (name, batch)  # By the loop's clock.
            assert point["p99_s"] >= point["p50_s"] >= 0.95 * least_s
            assert 0.0 < point["rate_ips"] <= 1.1 * batch * point["slots"] / least_s
        assert {each["accelerator"] for each in report["starts"]} == {"cpu", "fast"}
        assert "<svg" in (tmp_path / "page.html").read_text()
        assert there.ask("list") == [], "nothing is left of it"

        deployed = there.cli("deploy", model, "--profile", profile, "--slo", "p95=200ms", "--max-scale", "2")
        assert "inferences/s a replica (measured)" in deployed.stderr, "known before the first request"
        wrong = there.cli("deploy", model, "--name", "other", "--profile", str(tmp_path / "acc.yaml"), code=2)
        assert "profiles" in wrong.stderr

        (tmp_path / "m.yaml").write_text(there.cli("get", "model", "-o", "yaml").stdout)
        files = {"--function": "m.yaml", "--accelerators": "acc.yaml", "--profile": "p.yaml"}
        named = [word for option, file in files.items() for word in (option, str(tmp_path / file))]
        load = ("--rate", "50", "--for", "10s", "--no-bound", "--json")
        simulated = subprocess.run(
            (sys.executable, "-m", "tidegate", "simulate", *named, *load), capture_output=True, text=True, check=False
        )
        assert simulated.returncode == 0, simulated.stderr


@pytest.mark.early
def test_an_interrupted_profile_keeps_what_is_there_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "acc.yaml").write_text(ACCELERATORS)
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "acc.yaml")) as there:
        there.up()
        profile = tmp_path / "p.yaml"
        options = (str(tmp_path / "model.py"), "--to", str(profile), "--accelerators", "cpu", "--batches", "1,2,4")
        words = there.command("profile", *options, "--seconds", "2s")
        lines = tmp_path / "p.jsonl"
        running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60.0
        while not (lines.is_file() and '"batch":1' in lines.read_text()):
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        output, faults = running.communicate(timeout=60)
        assert running.returncode == 130, faults
        assert "cpu" in output
        assert "batch: 1" in profile.read_text()
        assert there.ask("list") == [], "its replica is gone"
        again = there.ask("profile", *options, "--seconds", "1s")
        assert [each["cell"]["batch"] for each in again["points"]] == [1, 2, 4]
        whole = there.cli("profile", *options)
        assert "3 of 3 cells are measured already" in whole.stderr
