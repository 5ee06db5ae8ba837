"""A tenant's quotas with a pipeline: charged once, at its entry, however many stages run or fail."""

import json
from dataclasses import replace

from tests.gateway.access.test_control import AT_ONCE, BODY, INFERENCES, KEYS, PER_MINUTE, WITH_KEY, acme
from tests.gateway.pipelines.test_pipelines import ANSWER, KEPT, ask, both_ready, ended, table
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import Door
from tidegate.records.route_table import RouteTable
from tidegate.records.tenants import AccessRule, Quotas

THREE = Quotas(requests_per_minute=2, inferences_per_second=20, concurrency=3)


def closed(*, is_stage_closed: bool = False, rule: AccessRule = KEYS) -> RouteTable:
    """The pipeline requires a key; with ``is_stage_closed`` so does its first stage, of its direct callers."""
    whole = table(access=rule)
    a, b, p = whole.functions
    first = replace(a, access=rule) if is_stage_closed else a
    return replace(whole, functions=(first, b, p), tenants=(acme(quotas=THREE),))


def door(*, is_stage_closed: bool = False) -> Door:
    found = Door(closed(is_stage_closed=is_stage_closed))
    both_ready(found)
    found.core.apply(replace(found.core.table, number=2))
    return found


def asked(found: Door) -> FakeExchange:
    return ask(found, WITH_KEY, body=BODY)


def answered(found: Door) -> FakeExchange:
    """One request, through both stages."""
    found.stages.clear()
    client = asked(found)
    both_ready(found)
    found.stages[0].gets_answer(100.1, 200, KEPT, body=ANSWER)
    found.stages[1].gets_answer(100.2, 200, KEPT, body=b"{}")
    return client


def test_a_request_takes_its_quota_once_and_gives_its_place_back_at_the_end() -> None:
    found = door()
    client = asked(found)
    assert found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8, AT_ONCE: 1}
    both_ready(found)
    found.stages[0].gets_answer(100.1, 200, KEPT, body=ANSWER)
    assert found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8, AT_ONCE: 1}, "the second stage takes no more"
    found.stages[1].gets_answer(100.2, 200, KEPT, body=b"{}")
    assert client.log[-1] == "answer 200"
    assert +found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8}
    (seen,) = found.core.access_control.seen()
    assert (seen.tenant, seen.requests, seen.inferences) == ("acme", 1, 8)


def test_a_spent_quota_refuses_before_any_stage_hears_of_the_request() -> None:
    found = door()
    answered(found)
    answered(found)
    found.stages.clear()
    refused = asked(found)
    assert refused.log == ["answer 429"] and refused.error["code"] == "quota_exceeded"
    assert found.stages == []
    assert [ended(found, name)[0] for name in "pab"] == [2, 2, 2]


def test_a_stage_that_fails_has_run_and_is_charged_one_that_never_ran_is_not() -> None:
    found = door()
    client = asked(found)
    both_ready(found)
    found.stages[0].gets_answer(100.1, 500, KEPT, body=b"oh")
    assert client.log[-1] == "answer 500"
    assert +found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8}, "a replica has had it"
    found = Door(closed())
    waits = asked(found)
    assert found.quota_counters.taken[AT_ONCE] == 1
    waits.client_leaves(100.3)
    assert +found.quota_counters.taken == {}, "none has: all of it comes back"


def test_the_rule_of_a_stage_is_for_its_direct_callers_alone() -> None:
    found = door(is_stage_closed=True)
    assert answered(found).log[-1] == "answer 200"
    assert found.quota_counters.taken[PER_MINUTE] == 1
    direct = found.arrive("POST /v2/models/a/infer", body=BODY)
    assert direct.log == ["answer 401"]
    assert json.loads(ask(found, body=BODY).answer)["error"], "nor is the pipeline open without a key"
