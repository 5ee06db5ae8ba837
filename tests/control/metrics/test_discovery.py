"""The file through which Prometheus finds a deployment."""

import json
from pathlib import Path

import pytest

from tidegate.control.metrics.discovery import targets, write_targets
from tidegate.control.state.notices import Faults


@pytest.mark.parametrize(
    ("api", "target"),
    [
        ("http://127.0.0.1:8081", "127.0.0.1:8081"),
        ("http://0.0.0.0:8081", "127.0.0.1:8081"),
        ("http://[::]:8081", "[::1]:8081"),
        ("http://gpu-1.example.com:9000", "gpu-1.example.com:9000"),
    ],
)
def test_the_target_is_where_the_api_can_be_reached(api: str, target: str) -> None:
    assert targets(api, "prod") == [{"targets": [target], "labels": {"deployment": "prod"}}]


def test_the_file_is_its_owners_and_one_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    faults, path = Faults(), tmp_path / "prometheus" / "tidegate.json"
    path.parent.mkdir()
    write_targets(path, "http://127.0.0.1:8081", "prod", faults)
    assert json.loads(path.read_text())[0]["labels"] == {"deployment": "prod"}
    assert path.stat().st_mode & 0o077 == 0
    write_targets(tmp_path / "no" / "tidegate.json", "http://127.0.0.1:8081", "prod", faults)
    assert "Prometheus targets" in str(faults.texts())
    write_targets(path, "http://127.0.0.1:8081", "prod", faults)
    assert not faults.texts()
