"""The file through which Prometheus finds a deployment."""

import asyncio
import json
from pathlib import Path

import pytest

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.metrics import discovery
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


def test_the_file_is_its_owners_and_one_that_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "RETRY_S", 0.0)
    faults, path = Faults(), tmp_path / "prometheus" / "tidegate.json"

    async def run() -> None:
        owner = TaskOwner("test")
        owner.spawn(write_targets(path, "http://127.0.0.1:8081", "prod", faults), name="targets")
        for _ in range(3):
            await asyncio.sleep(0)
        assert faults.texts() == (f"Prometheus targets: {path}: No such file or directory",)
        path.parent.mkdir()
        for _ in range(10):
            await asyncio.sleep(0)
        await owner.close()

    asyncio.run(run())
    assert not faults.texts()
    assert json.loads(path.read_text())[0]["labels"] == {"deployment": "prod"}
    assert path.stat().st_mode & 0o077 == 0
