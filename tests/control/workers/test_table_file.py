"""The route table's file: written at once, or once the disk is well."""

import asyncio
from pathlib import Path

import pytest

from tests.support.worlds.routes import table
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.state.notices import Faults
from tidegate.control.workers import table_file
from tidegate.control.workers.table_file import RouteTableFile
from tidegate.records.codec import decode
from tidegate.records.route_table import RouteTable


def test_a_file_that_cannot_be_written_is_tried_again_with_the_newest_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.0)
    asyncio.run(write_to_a_full_disk(tmp_path))


async def write_to_a_full_disk(tmp_path: Path) -> None:
    faults, owner = Faults(), TaskOwner("test")
    path = tmp_path / "gone" / "routes"
    file = RouteTableFile(path, faults, owner)
    file.write(table([("r1", "cpu")]))
    newest = table([("r2", "cpu")])
    file.write(newest)
    assert faults.texts() == (f"route table file: {path}: No such file or directory",)
    await asyncio.sleep(0)
    assert faults.texts(), "tried again, and not written yet"
    path.parent.mkdir()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not faults.texts()
    assert decode(path.read_bytes(), RouteTable) == newest
    await owner.close()


def test_a_file_that_can_be_written_is_no_fault_and_no_task(tmp_path: Path) -> None:
    asyncio.run(write_to_a_disk(tmp_path))


async def write_to_a_disk(tmp_path: Path) -> None:
    faults, owner = Faults(), TaskOwner("test")
    file = RouteTableFile(tmp_path / "routes", faults, owner)
    file.write(table([("r1", "cpu")]))
    assert not faults.texts() and "not written" not in repr(file)
    assert len(asyncio.all_tasks()) == 1
