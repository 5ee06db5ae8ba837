"""The file of jobs: bounds over all workers, owners that end, a full disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.gateway.jobs.records import FILE, Job, JobBounds, JobState, JobStoreError, KeptAnswer
from tidegate.gateway.jobs.store.sqlite import SqliteJobs

BOUNDS = JobBounds(jobs=3, total_bytes=1000, body_bytes=1000, keep_s=60.0)


def job(name: str, owner: str = "g0.a", created: float = 0.0) -> Job:
    return Job(id=f"tg-{name}", owner=owner, function="f", tenant=None, request_id="r", created=created)


def answered(store: SqliteJobs, name: str, now: float, size: int = 1) -> bool:
    done = job(name).over(now, BOUNDS, status=200, size=size, reason=None)
    return store.finish(done, KeptAnswer(200, "text/plain", "x: y\r\n", b"a" * size), now)


Open = Callable[..., SqliteJobs]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the file of jobs in ``tmp_path`` for an owner; all are closed at the end."""
    stores: list[SqliteJobs] = []

    def open_file(owner: str, bounds: JobBounds = BOUNDS, **settings: int) -> SqliteJobs:
        stores.append(SqliteJobs(tmp_path / "jobs", owner, bounds, **settings))
        return stores[-1]

    yield open_file
    for each in stores:
        each.close()


def test_workers_share_jobs_and_answers(opened: Open) -> None:
    one, two = opened("g0.a"), opened("g1.b")
    assert one.add(job("1"), 0.0) is None
    assert two.find("tg-1", 1.0) == job("1")
    running = replace(job("1"), state=JobState.RUNNING)
    one.running(running)
    assert two.find("tg-1", 1.0) == running
    assert answered(one, "1", 2.0)
    found = two.find("tg-1", 3.0)
    assert found is not None and (found.state, found.status) == (JobState.DONE, 200)
    assert two.answer("tg-1") == KeptAnswer(200, "text/plain", "x: y\r\n", b"a")
    assert two.find("tg-1", 62.0) is None, "its time is over"
    assert two.sweep(62.0) == (0, 0, None)
    assert one.answer("tg-1") is None


def test_a_job_that_was_deleted_elsewhere_is_found_missing_and_leaves_no_answer(opened: Open) -> None:
    one, two = opened("g0.a"), opened("g1.b")
    one.add(job("1"), 0.0)
    one.add(job("2"), 0.0)
    two.forget("tg-1")
    assert one.deleted(("tg-1", "tg-2")) == ("tg-1",)
    assert answered(one, "1", 1.0)
    assert one.find("tg-1", 1.0) is None and one.answer("tg-1") is None


def test_the_bound_of_jobs_holds_over_all_workers_and_an_answer_that_none_got_is_never_dropped(opened: Open) -> None:
    one, two = opened("g0.a"), opened("g1.b")
    assert [one.add(job("1"), 0.0), two.add(job("2", "g1.b"), 0.0), one.add(job("3"), 0.0)] == [None] * 3
    full = two.add(job("4"), 0.0)
    assert full is not None and "3 jobs are kept" in full.reason
    answered(one, "1", 5.0)
    answered(one, "3", 6.0)
    full = two.add(job("4"), 10.0)
    assert full is not None and full.retry_after_s == 56, "when the first of them expires"
    one.answer("tg-3")
    assert two.add(job("4"), 10.0) is None, "in place of the one that was fetched"
    assert (one.find("tg-3", 10.0), one.find("tg-1", 10.0) is not None) == (None, True)


def test_the_bound_of_bytes_is_met_by_dropping_what_was_fetched_and_else_the_answer_is_not_kept(opened: Open) -> None:
    store = opened("g0.a")
    for name in "123":
        store.add(job(name), 0.0)
    assert answered(store, "1", 1.0, 600)
    assert not answered(store, "2", 2.0, 600)
    found = store.find("tg-2", 2.0)
    assert found is not None and found.state is JobState.QUEUED
    store.answer("tg-1")
    assert answered(store, "2", 3.0, 600)
    assert store.find("tg-1", 3.0) is None
    assert store.sweep(3.0) == (2, 600, 63.0)


def test_no_tenant_keeps_the_others_out(opened: Open) -> None:
    bounds = replace(BOUNDS, jobs=4)
    store = opened("g0.a", bounds)
    acme = [replace(job(name), tenant="acme") for name in "123"]
    assert [store.add(acme[0], 0.0), store.add(acme[1], 0.0)] == [None, None]
    full = store.add(acme[2], 0.0)
    assert full is not None and full.reason.startswith(
        "2 jobs of tenant acme are kept, half of what `jobs.limit` allows"
    )
    answered(store, "1", 1.0)
    store.answer("tg-1")
    assert store.add(acme[2], 2.0) is None, "in place of its own that was fetched"
    assert store.add(replace(job("4"), tenant="other"), 0.0) is None
    assert store.add(job("5"), 0.0) is None, "jobs without a tenant have no such share"
    full = store.add(job("6"), 0.0)
    assert full is not None and full.reason.startswith("4 jobs are kept, as many as")


def test_the_jobs_of_a_worker_that_was_killed_have_failed_with_the_reason(opened: Open, tmp_path: Path) -> None:
    one, two = opened("g0.a"), opened("g1.b")
    one.add(job("1"), 0.0)
    one.add(job("2"), 0.0)
    one.running(replace(job("2"), state=JobState.RUNNING))
    one.add(job("3"), 0.0)
    answered(one, "3", 1.0)
    found = two.find("tg-1", 2.0)
    assert found is not None and not found.state.is_over, "its worker lives"
    one._unlock()  # As the kernel does when a process ends.
    found = two.find("tg-1", 2.0)
    assert found is not None and found.state is JobState.FAILED and found.expires == 62.0
    assert found.reason == "the gateway worker g0 ended (killed, or crashed) while it waited: its answer is lost"
    found = two.find("tg-2", 2.0)
    assert found is not None and found.reason is not None and "while a replica had it" in found.reason
    kept = two.answer("tg-3")
    assert kept is not None and kept.body == b"a", "answers outlive their worker"
    assert sorted(path.name for path in (tmp_path / "jobs").glob("*.lock")) == ["g1.b.lock"]


def test_locks_of_workers_that_were_killed_do_not_pile_up(opened: Open, tmp_path: Path) -> None:
    one = opened("g0.a")
    one.add(job("1"), 0.0)
    one._unlock()
    two = opened("g0.b")
    assert [path.name for path in (tmp_path / "jobs").glob("*.lock")] == ["g0.b.lock"]
    found = two.find("tg-1", 2.0)
    assert found is not None and found.state is JobState.FAILED


def test_a_sweep_finds_the_jobs_of_workers_that_have_ended(opened: Open) -> None:
    one, two = opened("g0.a"), opened("g1.b")
    one.add(job("1"), 0.0)
    one.close()
    assert two.sweep(2.0) == (1, 0, 62.0)


def test_a_full_disk_refuses_new_jobs_and_keeps_those_that_are_there(opened: Open) -> None:
    bounds = replace(BOUNDS, total_bytes=10_000_000, jobs=1000)
    store = opened("g0.a", bounds, max_pages=16)
    store.add(job("1"), 0.0)
    with pytest.raises(JobStoreError, match="full"):
        answered(store, "1", 1.0, 200_000)
    assert store.fault == "database or disk is full", "without a path: clients read it"
    found = store.find("tg-1", 1.0)
    assert found is not None and found.state is JobState.QUEUED, "nothing of it was written"
    assert store.finish(job("1").lost(1.0, bounds, "the disk is full"), None, 1.0)
    assert str(store.fault) == "None"
    with pytest.raises(JobStoreError, match="full"):
        for number in range(1000):
            store.add(job(f"n{number}"), 1.0)
    found = store.find("tg-1", 1.0)
    assert found is not None and found.reason == "the disk is full"


def test_a_file_that_is_no_database_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is not a database, and it is long enough to be read as one" * 20)
    with pytest.raises(JobStoreError, match="not a database"):
        SqliteJobs(tmp_path, "g0.a", BOUNDS)


def test_only_the_owner_may_read(opened: Open, tmp_path: Path) -> None:
    store = opened("g0.a")
    store.add(job("1"), 0.0)
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "jobs").iterdir()} == {0o600}
