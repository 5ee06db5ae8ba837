"""Ends of jobs that the store does not take, through the real chain."""

from tests.support.worlds.job_world import ID, JobWorld, answer_it
from tidegate.gateway.jobs.records import JobState


def test_an_answer_for_which_the_store_has_no_room_is_a_failure_that_says_so() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    world.store.takes_answers = False
    answer_it(world, job)
    assert "(`jobs.bytes`)" in world.get(f"/jobs/{ID}").error["reason"]


def test_an_answer_that_a_full_disk_does_not_take_is_a_failure_that_is_written_once_there_is_room() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    world.fault = "disk full"
    answer_it(world, job)
    world.later(1.0)
    world.fault = None
    assert world.get(f"/jobs/{ID}").error["reason"] == "its answer was not kept: disk full", "its worker knows"
    assert world.store.jobs[ID].state is JobState.QUEUED
    world.later(1.0)
    assert world.store.jobs[ID].reason == "its answer was not kept: disk full"
    assert world.jobs._recorder.ended == {"failed": 1}
