"""The thread of the store: results arrive on the loop, errors too."""

import asyncio
from pathlib import Path
from typing import Any

from tidegate.gateway.jobs.live import JobThread, new_id
from tidegate.gateway.jobs.records import JobBounds, JobStoreError
from tidegate.gateway.routing.match import is_job_path

BOUNDS = JobBounds(jobs=3, total_bytes=1000, body_bytes=1000, keep_s=60.0)


def test_results_and_errors_arrive_on_the_loop_and_the_file_is_made_at_the_first_use(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        loop = asyncio.get_running_loop()
        thread = JobThread(loop, tmp_path / "jobs", "g0.a", BOUNDS)
        assert not thread.has_jobs and not (tmp_path / "jobs").exists()
        found: asyncio.Queue[Any] = asyncio.Queue()
        thread(lambda store: store.find("tg-1", 0.0), found.put_nowait)
        thread(lambda store: int("no number"), found.put_nowait)
        results = [await found.get(), await found.get()]
        assert (tmp_path / "jobs" / "jobs.db").exists()
        await thread.close()
        return results

    nothing, error = asyncio.run(run())
    assert nothing is None
    assert isinstance(error, JobStoreError) and "ValueError" in str(error)
    assert not list((tmp_path / "jobs").glob("*.lock")), "a worker that ends gives its lock back"


def test_a_store_that_cannot_be_opened_is_a_fault_with_its_place_and_tried_again(tmp_path: Path) -> None:
    async def run() -> list[str | None]:
        folder = tmp_path / "jobs"
        folder.write_text("not a folder")
        thread = JobThread(asyncio.get_running_loop(), folder, "g0.a", BOUNDS)
        found: asyncio.Queue[Any] = asyncio.Queue()
        faults = [thread.fault]
        thread(lambda store: store.find("tg-1", 0.0), found.put_nowait)
        assert isinstance(await found.get(), JobStoreError)
        faults.append(thread.fault)
        folder.unlink()
        thread(lambda store: store.find("tg-1", 0.0), found.put_nowait)
        assert await found.get() is None
        await thread.close()
        return [*faults, thread.fault]

    assert asyncio.run(run()) == [None, f"jobs cannot be written to {tmp_path / 'jobs'}: File exists", None]


def test_ids_are_paths_of_jobs_and_never_the_same() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(is_job_path(f"/jobs/{each}".encode()) and is_job_path(f"/jobs/{each}/result".encode()) for each in ids)
