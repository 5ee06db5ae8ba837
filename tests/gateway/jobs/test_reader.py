"""Clients' requests about jobs, through the real chain: results, deletions, and the jobs of other tenants."""

import json
from dataclasses import replace

import pytest

from tests.gateway.access.test_control import WITH_KEY, WITH_OTHER, closed
from tests.support.worlds.gateway_chain import ONE
from tests.support.worlds.job_world import ID, SECOND, JobWorld, answer_it, replies
from tidegate.records.tenants import Tenant, digest


def test_a_finished_job_is_deleted() -> None:
    world = JobWorld(None, 1)
    answer_it(world, world.ask())
    assert json.loads(world.get(f"/jobs/{ID}", method="DELETE").answer)["state"] == "deleted"
    assert world.get(f"/jobs/{ID}/result").log == ["answer 404"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"POST /jobs/{ID}", 400),
        (f"DELETE /jobs/{ID}/result", 400),
        (f"GET /jobs/{SECOND}", 404),
        ("GET /jobs/mistyped", 404),
    ],
)
def test_other_questions_get_a_clear_error(line: str, code: int) -> None:
    world = JobWorld(None, 1)
    world.ask()
    assert world.door.arrive(line, body=b"").log == [f"answer {code}"]


def tenants() -> JobWorld:
    acme = Tenant(name="acme", keys=(digest(b"tg-a-key-that-no-client-guesses"),))
    other = Tenant(name="other", keys=(digest(b"tg-the-key-of-somebody-else"),))
    world = JobWorld(closed(acme, other))
    world.door.ready(ONE, *range(1, 9))
    return world


def test_only_the_tenant_that_made_a_job_sees_it() -> None:
    world = tenants()
    assert world.ask().log == ["answer 401"], "a caller that may not call makes no job"
    job = world.ask(WITH_KEY)
    assert replies(job)[0][0] == 202
    answer_it(world, job)
    for path in (f"/jobs/{ID}", f"/jobs/{ID}/result"):
        for fields in ((), (WITH_OTHER,), ("x-api-key: tg-wrong",)):
            assert world.get(path, *fields).error["error"]["code"] == "job_not_found"
        assert world.get(path, WITH_KEY).log == ["answer 200"]
    assert world.get(f"/jobs/{ID}", WITH_OTHER, method="DELETE").log == ["answer 404"]
    assert ID in world.store.jobs


def test_a_tenants_job_is_shown_to_none_once_its_function_is_gone_or_open() -> None:
    world = tenants()
    world.ask(WITH_KEY)
    world.door.core.apply(closed(number=2, access=None))
    assert world.get(f"/jobs/{ID}").log == ["answer 404"]
    world.door.core.apply(replace(closed(number=3), functions=()))
    assert world.get(f"/jobs/{ID}", WITH_KEY).log == ["answer 404"]
