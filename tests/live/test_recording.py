"""What the autoscaler saw and decided, from a deployment to a replay on its own; a dry run that serves nevertheless."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

DRY = ("--dry-run", "true", "--initial-scale", "0", "--scale-to-zero-after", "1s", "--latency", "100ms")


def replay(recording: Path, *flags: str) -> str:
    """Where nothing runs any more."""
    command = [sys.executable, "-m", "tidegate.control.cli", "replay", str(recording), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.early
def test_a_dry_run_serves_from_zero_and_its_recording_replays_over_a_restart(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        world.deploy(world.handler(), *DRY)
        view = world.status("echo")
        assert (view["ready"], view["revisions"][0]["is_dry_run"]) == (0, True)
        assert world.infer().status_code == 200
        assert world.replicas() == 1
        words = world.cli("explain", "echo", "--last", "20").stdout
        assert "dry_run_start" in words
        last = world.ask("explain", "echo", "--last", "1")["decisions"][-1]
        assert last["digest"]
        world.until(lambda: "    idle: " in world.cli("explain", "echo", "-v").stdout, 20.0, "the policy to want zero")
        assert world.replicas() == 1, "wanted, not carried out"
        with world.sdk() as tidegate:
            assert 'tidegate_dry_run{function="echo",revision="echo-00001"} 1\n' in tidegate.metrics()
        assert world.stop() == 0
        world.up()
        assert world.infer().status_code == 200
        recording = tmp_path / "echo.ndjson"
        world.cli("record", "echo", "-o", str(recording))
        assert world.stop() == 0
        rows = [json.loads(line) for line in recording.read_text().splitlines()]
        assert sum("format" in row for row in rows) >= 2, "one beginning for each control process"
    first, second = replay(recording), replay(recording)
    assert "come out the same, bit for bit" in first
    assert first == second
    other = replay(recording, "--policy", "kpa", "--set", "policy.window=6s")
    assert "recorded: policy tide; replayed: policy kpa (window 6s)" in other
