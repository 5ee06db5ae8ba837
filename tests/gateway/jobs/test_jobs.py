"""Requests with ``Prefer: respond-async`` through the real chain: accepted, refused, answered, lost, cancelled."""

import json
from typing import Any

import pytest

from tests.gateway.access.test_control import WITH_KEY, closed
from tests.support.worlds.gateway_chain import ONE, Door, table
from tests.support.worlds.job_world import ASYNC, ID, SECOND, JobWorld, answer_it, replies
from tidegate import metrics
from tidegate.gateway.jobs.records import JobState, StoreFull
from tidegate.records.cold_rules import ColdCalls, ColdRules
from tidegate.records.tenants import Quotas, Tenant, digest


def state_of(world: JobWorld, job_id: str = ID) -> str:
    return str(world.get(f"/jobs/{job_id}").error["state"])


# --- accepted ---------------------------------------------------------------------------------------------------------


def test_a_request_to_a_sleeping_function_is_accepted_and_its_answer_is_fetched_later() -> None:
    world = JobWorld(table(1))
    job = world.ask("x-request-id: r-1")
    ((status, document),) = replies(job)
    assert status == 202
    assert (document["id"], document["state"], document["function"], document["request_id"]) == (
        ID,
        "queued",
        "f",
        "r-1",
    )
    client: Any = job._client
    lines = client._client.answers[0][3]
    assert lines == (
        f"location: /jobs/{ID}\r\npreference-applied: respond-async\r\nretry-after: 1\r\nx-request-id: r-1\r\n".encode()
    )
    assert world.door.activations() == [1], "it has woken the function"
    early = world.get(f"/jobs/{ID}/result")
    assert early.log == ["answer 202"] and early.error["state"] == "queued"

    world.door.core.apply(table(2, ONE))
    world.door.ready(ONE, 1)
    assert job.log == ["to 10.0.0.1:1"]
    assert state_of(world) == "running"
    world.later(1.0)
    assert world.store.jobs[ID].state is JobState.RUNNING, "other workers show it, too"
    answer_it(world, job)
    assert state_of(world) == "done"
    result = world.get(f"/jobs/{ID}/result")
    assert (result.log, result.answer) == (["answer 200"], b'{"y": 1}')
    assert b"x-model: a\r\n" in result.extra and b"x-request-id: r-1\r\n" in result.extra
    assert b"content-length" not in result.extra
    assert len(replies(job)) == 1
    assert world.jobs.live == 0


def test_the_preference_is_met_here_and_is_not_passed_on() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    assert b"prefer" not in job.head._block.lower()
    other = world.ask(prefer="Prefer: return=minimal")
    assert b"prefer: return=minimal" in other.head._block.lower()
    assert not replies(other)


@pytest.mark.parametrize("prefer", ["x: y", "Prefer: wait=10", 'Prefer: foo="respond-async"'])
def test_without_the_preference_there_is_no_job(prefer: str) -> None:
    world = JobWorld(None, 1)
    ex = world.ask(prefer=prefer)
    answer_it(world, ex)
    assert replies(ex)[0][0] == 200
    assert not world.store.jobs and not world.todo


def test_without_jobs_in_the_settings_the_preference_is_ignored() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    assert door.arrive("POST /v2/models/m/infer", ASYNC).log == ["to 10.0.0.1:1"]
    assert door.arrive(f"GET /jobs/{ID}").error["error"]["code"] == "job_not_found"


def test_a_job_waits_for_its_whole_body() -> None:
    world = JobWorld(None, 1)
    ex = world.ask("tidegate-batch-size: 1", body=b"", complete=False)
    assert ex.log == ["proceed"] and not world.store.jobs
    ex.body_comes(b"x" * 60, complete=False)
    ex.body_comes(b"x" * 67)
    assert [status for status, _ in replies(ex)] == [202]
    assert ex.log[-1] == "to 10.0.0.1:1"


def test_a_job_may_wait_for_a_replica_that_the_store_was_slower_than() -> None:
    world = JobWorld(None, 1)
    world.is_slow = True
    ex = world.ask()
    assert ex.log == [] and not replies(ex), "there is no 202 before the record is kept, and no work"
    world.work()
    assert ex.log == ["to 10.0.0.1:1"]
    assert replies(ex)[0][1]["state"] == "running"


def test_a_client_that_leaves_before_the_202_leaves_nothing() -> None:
    world = JobWorld(None, 1)
    world.is_slow = True
    ex = world.ask()
    ex.client_leaves(101.0)
    world.work()
    assert not world.store.jobs and world.jobs.live == 0
    assert ex.log == ["gone"]


def test_a_job_of_a_cold_function_gets_no_second_202() -> None:
    world = JobWorld(table(1, cold=ColdRules(heartbeat_s=1.0, calls=ColdCalls.ACCEPT)))
    job = world.ask("accept: text/event-stream")
    plain = world.ask()
    world.later(5.0)
    assert (job.log, plain.log) == ([], []), "both wait for the replica"
    assert len(replies(job)) == len(replies(plain)) == 1


# --- wait -------------------------------------------------------------------------------------------------------------


def test_an_answer_within_the_wait_goes_to_the_client_and_there_is_no_job() -> None:
    world = JobWorld(None, 1)
    ex = world.ask(prefer=f"{ASYNC}, wait=5")
    world.later(4.0)
    assert not replies(ex)
    answer_it(world, ex)
    assert replies(ex) == [(200, {"y": 1})]
    assert not world.store.jobs and world.jobs.live == 0


def test_after_the_wait_the_client_gets_a_202() -> None:
    world = JobWorld(None, 1)
    ex = world.ask(prefer=f"{ASYNC}, wait=5")
    world.later(5.0)
    assert [status for status, _ in replies(ex)] == [202]
    answer_it(world, ex)
    assert state_of(world) == "done"


@pytest.mark.parametrize(("prefer", "in_time"), [(f"{ASYNC}, wait=5", 1), (f"{ASYNC}, wait=50", 0)])
def test_an_answer_is_late_only_for_a_client_that_waits_for_it(prefer: str, in_time: int) -> None:
    world = JobWorld(table(1, ONE, latency_s=0.2), 1)
    ex = world.ask(prefer=prefer)
    world.later(6.0)
    answer_it(world, ex)
    demand = world.door.demand()
    assert (demand.answered, demand.within_sla) == (1, in_time)


def test_a_job_that_is_deleted_is_not_late() -> None:
    world = JobWorld(table(1, latency_s=0.2))
    world.ask()
    world.later(6.0)
    world.jobs.cancel(ID)
    demand = world.door.demand()
    assert (demand.cancelled, demand.missed) == (1, 0)


def test_a_client_that_leaves_during_its_wait_takes_its_work_along() -> None:
    world = JobWorld(None, 1)
    ex = world.ask(prefer=f"{ASYNC}, wait=5")
    ex.client_leaves(101.0)
    world.later(0.25)
    assert not world.store.jobs and world.jobs.live == 0


# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_full_store_is_a_429_with_the_bound_and_starts_no_work() -> None:
    world = JobWorld(None, 1)
    world.store.full = StoreFull("5 jobs are kept", 17)
    ex = world.ask()
    assert ex.log == ["answer 429"]
    assert ex.error["code"] == "jobs_full" and "5 jobs are kept" in ex.error["error"]
    assert b"retry-after: 17" in ex.extra
    assert world.jobs.live == 0


def test_requests_do_not_pile_up_before_a_slow_store() -> None:
    world = JobWorld(None, 1)
    world.is_slow = True
    waiting = [world.ask() for _ in range(6)]
    assert [each.log for each in waiting] == [[]] * 5 + [["answer 429"]]
    assert len(world.todo) == 5


def test_a_full_disk_is_a_503_and_requests_without_the_preference_are_served() -> None:
    world = JobWorld(None, 1)
    world.fault = "database or disk is full"
    ex = world.ask()
    assert ex.log == ["answer 503"] and "database or disk is full" in ex.error["error"]
    assert ex.error["code"] == "jobs_unavailable"
    assert world.door.arrive().log == ["to 10.0.0.1:1"]
    assert world.get(f"/jobs/{ID}").log == ["answer 503"]


def test_a_body_above_the_bound_is_a_413_before_it_is_read() -> None:
    world = JobWorld(None, 1)
    whole = world.ask(body=b"x" * 1025)
    assert whole.log == ["answer 413"] and "`jobs.body-bytes`" in whole.error["error"]
    ex = world.ask("tidegate-batch-size: 1", body=b"", complete=False)
    ex.body_comes(b"x" * 1025, complete=False)
    assert ex.log[-1] == "answer 413" and not world.store.jobs, "a body without a length, too"
    assert world.jobs.refused == {"body_too_large": 2}


def test_what_the_door_refuses_is_the_answer_and_no_job() -> None:
    world = JobWorld(table(1))
    first, second, third = world.ask(), world.ask(), world.ask()
    assert [replies(each)[0][0] for each in (first, second, third)] == [202, 202, 429]
    assert third.error["code"] == "queue_full"
    assert set(world.store.jobs) == {ID, SECOND}
    assert world.door.arrive("POST /v2/models/missing/infer", ASYNC).log == ["answer 404"]
    assert world.ask("tidegate-batch-size: 999").log == ["answer 413"]


# --- failed -----------------------------------------------------------------------------------------------------------


def test_a_job_past_its_deadline_has_failed_with_the_reason_and_the_answer_that_a_client_would_have_got() -> None:
    world = JobWorld(table(1))
    job = world.ask()
    world.later(10.0)
    assert job.is_ended
    document = world.get(f"/jobs/{ID}").error
    assert (document["state"], document["status"]) == ("failed", 504)
    assert document["reason"] == "its deadline passed before a replica was free for it"
    assert world.get(f"/jobs/{ID}/result").log == ["answer 504"]


def test_an_error_of_the_function_is_its_answer() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    answer_it(world, job, b'{"error": "no"}', status=400)
    document = world.get(f"/jobs/{ID}").error
    assert (document["state"], document["status"]) == ("done", 400)
    assert world.get(f"/jobs/{ID}/result").log == ["answer 400"]


def test_an_answer_that_breaks_off_is_a_failure() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    answer_it(world, job, ends=False)
    job.ends(102.0, truncated=True)
    document = world.get(f"/jobs/{ID}").error
    assert (document["state"], document["reason"]) == ("failed", "the replica broke off amid its answer")
    result = world.get(f"/jobs/{ID}/result")
    assert result.log == ["answer 502"] and result.error["error"]["code"] == "job_lost"
    assert result.error["error"]["executed"] == "unknown"


def test_an_answer_above_the_bound_ends_the_work() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    answer_it(world, job, b"x" * 1000, ends=False)
    job._client.more(b"x" * 100, False, b"")
    job._client.more(b"x" * 100, False, b"")
    world.later(0.25)
    assert job.log[-1] == "gone"
    assert "larger than 1024 bytes" in world.get(f"/jobs/{ID}").error["reason"]
    assert world.jobs._collected == 0


def test_a_worker_that_is_stopped_says_so() -> None:
    world = JobWorld(None, 1)
    job, waiting = world.ask(), world.ask(prefer=f"{ASYNC}, wait=9")
    over: list[bool] = []
    world.jobs.on_empty = lambda: over.append(True)
    world.jobs.stop("the gateway worker was stopped")
    assert job.log[-1] == "gone"
    assert world.store.jobs[ID].reason == "the gateway worker was stopped"
    assert SECOND not in world.store.jobs, "its client was never promised anything"
    assert not waiting.is_ended and over


# --- cancelled --------------------------------------------------------------------------------------------------------


def test_a_deletion_ends_the_work() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    deleted = world.get(f"/jobs/{ID}", method="DELETE")
    assert deleted.log == ["answer 200"] and json.loads(deleted.answer) == {"id": ID, "state": "cancelled"}
    assert job.log == ["to 10.0.0.1:1", "gone"]
    assert world.get(f"/jobs/{ID}").log == ["answer 404"]
    assert world.jobs._recorder.ended == {"cancelled": 1}


def test_a_deletion_at_another_worker_ends_the_work_within_a_second() -> None:
    world = JobWorld(None, 1)
    job = world.ask()
    world.later(0.25)
    world.store.forget(ID)
    world.later(1.0)
    assert job.log[-1] == "gone" and world.jobs.live == 0


# --- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [1, 0])
def test_a_202_waits_for_the_quota_pool_and_a_spent_quota_makes_no_job(amount: int) -> None:
    acme = Tenant(name="acme", keys=(digest(b"tg-a-key-that-no-client-guesses"),), quotas=Quotas(requests_per_minute=1))
    world = JobWorld(closed(acme))
    world.door.ready(ONE, 1, 2)
    if not amount:
        world.ask(WITH_KEY)
    world.door.quota_counters.knows = False
    ex = world.ask(WITH_KEY)
    world.later(0.25)
    assert not replies(ex)
    ((wanted, _, decided),) = world.door.asked
    decided(world.door.quota_counters.answer(wanted))
    world.later(0.25)
    assert [status for status, _ in replies(ex)] == [202 if amount else 429]
    assert len(world.store.jobs) == 1


# --- reports ----------------------------------------------------------------------------------------------------------


def test_jobs_are_counted() -> None:
    world = JobWorld(None, 1)
    answer_it(world, world.ask())
    world.store.full = StoreFull("full", 1)
    world.ask()
    world.later(5.0)
    exposition = metrics.Exposition()
    world.jobs.expose(exposition, "g0")
    text = b"".join(exposition.parts()).decode()
    for line in (
        'tidegate_gateway_jobs_accepted_total{worker="g0"} 1',
        'tidegate_gateway_jobs_ended_total{worker="g0",outcome="done"} 1',
        'tidegate_gateway_jobs_refused_total{worker="g0",code="jobs_full"} 1',
        'tidegate_gateway_jobs_kept{worker="g0"} 1',
        'tidegate_gateway_jobs_live{worker="g0"} 0',
    ):
        assert line in text
    demand = world.door.demand()
    assert demand.arrivals == 1, "a job counts as one request"
