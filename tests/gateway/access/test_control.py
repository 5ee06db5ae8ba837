"""Access control with the real chain and room: authentication, authorisation, quotas reserved and returned."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.live.tokens import AUDIENCE, ISSUER, Issuer, claims
from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate import metrics
from tidegate.flow.quota import Budget
from tidegate.gateway.access import control
from tidegate.gateway.answers.health import PROTECTED_FAILURE
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.counting.tenant_accounts import MAX_WAITING
from tidegate.gateway.routing.openai_body import WAITED_BYTES
from tidegate.records.costs import OTHER_TENANTS
from tidegate.records.route_table import Hedging, ReplicaRoute, RouteTable
from tidegate.records.tenants import AccessRule, JwtRule, KeySet, Quotas, Tenant, digest
from tidegate.store.counters import ShortBudget

KEY = "tg-a-key-that-no-client-guesses"
OTHER = "tg-the-key-of-somebody-else"
WITH_KEY = f"authorization: Bearer {KEY}"
WITH_OTHER = f"x-api-key: {OTHER}"
KEYS = AccessRule(api_keys=True)
BODY = b'{"inputs":[{"name":"x","shape":[8,3],"datatype":"FP32","data":[]}]}'
ISSUED = Issuer().ec("e")
TOKENS = JwtRule(jwks="keys", issuer=ISSUER, audience=(AUDIENCE,), tenant_claim="tenant")
NOW = 100.0


def closed(
    *tenants: Tenant,
    number: int = 1,
    access: AccessRule | None = KEYS,
    keys: Issuer | None = ISSUED,
    more: tuple[ReplicaRoute, ...] = (),
    **route: Any,
) -> RouteTable:
    """A table with one function that requires authentication, and one replica."""
    known = tenants or (Tenant(name="acme", keys=(digest(KEY.encode()),)),)
    shown = () if keys is None else tuple(json.dumps(key) for key in keys.jwks()["keys"])
    sets = (KeySet(source="keys", keys=shown),)
    return replace(table(number, ONE, *more, access=access, **route), tenants=known, key_sets=sets)


def acme(**terms: Any) -> Tenant:
    return Tenant(name="acme", keys=(digest(KEY.encode()),), **terms)


def door(*tenants: Tenant, **route: Any) -> Door:
    found = Door(closed(*tenants, **route))
    found.ready(ONE, *range(1, 20))
    return found


def arrivals(found: Door) -> int:
    return sum(each.arrivals for each in found.report.demands(lambda revision: None))


def exposed(found: Door) -> str:
    into = metrics.Exposition()
    found.core.access_control.expose(into, "g0")
    return into.render().decode()


# --- who -------------------------------------------------------------------------------------------------------------


def test_a_function_without_a_rule_asks_none_and_passes_on_what_it_gets() -> None:
    open_to_all = door(access=None)
    asked = open_to_all.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert asked.log == ["to 10.0.0.1:1"]
    assert KEY.encode() in asked.head.fields
    assert asked.context.tenant is None


@pytest.mark.parametrize("field", [WITH_KEY, f"x-api-key: {KEY}"])
def test_a_key_opens_and_goes_no_further(field: str) -> None:
    asked = door().arrive("POST /v2/models/m/infer", field)
    assert asked.log == ["to 10.0.0.1:1"]
    assert KEY.encode() not in asked.head.fields
    assert asked.context.tenant.name == "acme"


def test_a_function_may_want_to_see_the_credential() -> None:
    asked = door(access=AccessRule(api_keys=True, forward_credential=True)).arrive("POST /v2/models/m/infer", WITH_KEY)
    assert KEY.encode() in asked.head.fields


@pytest.mark.parametrize(
    ("fields", "challenge"),
    [
        ((), b'Bearer realm="tidegate"\r\n'),
        ((WITH_OTHER,), b'Bearer realm="tidegate", error="invalid_token"\r\n'),
        ((WITH_KEY, WITH_KEY), b'Bearer realm="tidegate", error="invalid_request"\r\n'),
        (("authorization: Basic dGc6",), b'Bearer realm="tidegate", error="invalid_request"\r\n'),
    ],
)
def test_who_proves_nothing_is_shown_how(fields: tuple[str, ...], challenge: bytes) -> None:
    found = door()
    asked = found.arrive("POST /v2/models/m/infer", *fields)
    assert asked.log == ["answer 401"]
    assert b"www-authenticate: " + challenge in asked.extra
    assert asked.error["code"] == "unauthenticated"
    assert KEY not in asked.answer.decode()
    assert not arrivals(found), "it is no demand that a replica is needed for"
    assert 'denied_requests_total{function="f",code="unauthenticated"} 1' in exposed(found)


def test_a_tenant_calls_the_functions_that_it_may() -> None:
    found = door(acme(functions=("g",)))
    asked = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert (asked.log, asked.error["code"]) == (["answer 403"], "not_allowed")
    found.core.apply(closed(acme(functions=("g", "f")), number=2))
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).log == ["to 10.0.0.1:1"]


def test_health_is_everybodys_and_metadata_is_not() -> None:
    found = door()
    assert found.arrive("GET /v2/models/m/ready").log == ["answer 200"]
    assert found.arrive("GET /v2/models/m").log == ["answer 401"]
    assert found.arrive("GET /v2/models/m", WITH_KEY).log != ["answer 401"]


def test_anybody_sees_that_a_protected_function_has_failed_and_only_its_callers_why() -> None:
    failed = {"failure": "exit 1: password 4711"}
    shown = door(revision=failed).arrive("GET /v2/models/m/ready")
    assert (shown.log, shown.error["error"]) == (["answer 503"], PROTECTED_FAILURE)
    open_to_all = door(revision=failed, access=None).arrive("GET /v2/models/m/ready")
    assert open_to_all.error["error"] == "exit 1: password 4711"


def test_the_list_of_models_shows_names_alone_of_a_protected_function() -> None:
    for access, shown in ((KEYS, False), (None, True)):
        entry = json.loads(door(access=access).arrive("GET /v1/models").answer)["data"][0]
        assert entry["id"] == "m"
        assert ({"status", "ready"} <= entry.keys()) is shown


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("POST /functions/f/x", ["tidegate-tag: v2"]),
        ("GET /v2/models/m/ready", ["tidegate-tag: v2"]),
        ("GET /functions/f/v2/models/unknown/ready", []),
    ],
)
def test_tags_and_other_models_of_a_protected_function_are_shown_to_its_callers_alone(
    line: str, fields: list[str]
) -> None:
    found = door()
    assert found.arrive(line, *fields).log == ["answer 401"]
    assert found.arrive(line, *fields, WITH_KEY).log != ["answer 401"]


def test_a_key_that_was_taken_back_opens_nothing_from_the_next_table_on() -> None:
    found = door()
    found.core.apply(closed(Tenant(name="acme", keys=(digest(OTHER.encode()),)), number=2))
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).log == ["answer 401"]
    assert found.arrive("POST /v2/models/m/infer", WITH_OTHER).log == ["to 10.0.0.1:1"]


def test_a_token_stands_for_the_tenant_that_it_names() -> None:
    found = door(access=AccessRule(jwt=TOKENS))
    token = ISSUED.sign("e", claims(NOW))
    asked = found.arrive("POST /v2/models/m/infer", f"authorization: Bearer {token}")
    assert (asked.log, asked.context.tenant.name) == (["to 10.0.0.1:1"], "acme")
    assert token.encode() not in asked.head.fields
    for others, code in (({"tenant": "unknown"}, "not_allowed"), ({"exp": 1}, "unauthenticated")):
        denied = found.arrive("POST /v2/models/m/infer", f"x-api-key: {ISSUED.sign('e', claims(NOW, **others))}")
        assert denied.error["code"] == code
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).log == ["answer 401"], "keys are not taken here"


def test_a_token_without_a_claim_for_the_tenant_stands_for_none() -> None:
    rule = JwtRule(jwks="keys", issuer=ISSUER, audience=(AUDIENCE,))
    found = door(access=AccessRule(jwt=rule, api_keys=True))
    asked = found.arrive("POST /v2/models/m/infer", f"x-api-key: {ISSUED.sign('e', claims(NOW))}")
    assert (asked.log, asked.context.tenant.name) == (["to 10.0.0.1:1"], "")
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).context.tenant.name == "acme"
    assert "tenant=" not in exposed(found).replace('tenant="acme"', "")


def test_while_the_issuers_keys_are_not_there_none_is_blamed() -> None:
    found = door(access=AccessRule(jwt=TOKENS), keys=None)
    asked = found.arrive("POST /v2/models/m/infer", f"x-api-key: {ISSUED.sign('e', claims(NOW))}")
    assert asked.log == ["answer 503"]
    assert b"retry-after: 2\r\n" in asked.extra


def test_a_key_that_the_issuer_does_not_show_yet_is_counted_and_taken_once_it_does() -> None:
    found = door(access=AccessRule(jwt=TOKENS))
    later = Issuer().ec("e2")
    field = f"x-api-key: {later.sign('e2', claims(NOW))}"
    assert found.arrive("POST /v2/models/m/infer", field).log == ["answer 401"]
    assert found.core.access_control.unknown_keys == {"keys": 1}
    found.core.apply(closed(number=2, access=AccessRule(jwt=TOKENS), keys=later))
    assert found.arrive("POST /v2/models/m/infer", field).log == ["to 10.0.0.1:1"]


# --- how much --------------------------------------------------------------------------------------------------------

PER_MINUTE = Budget("acme/requests", 2, 60)
INFERENCES = Budget("acme/inferences", 20, 1)
AT_ONCE = Budget("acme/concurrency", 3)


def test_a_quota_is_reserved_and_settled_with_what_was_used() -> None:
    found = door(acme(quotas=Quotas(requests_per_minute=2, inferences_per_second=20, concurrency=3)))
    first = found.arrive("POST /v2/models/m/infer", WITH_KEY, body=BODY)
    assert found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8, AT_ONCE: 1}
    first.gets_answer(100.1)
    assert +found.quota_counters.taken == {PER_MINUTE: 1, INFERENCES: 8}, "its place is free, the rest is used"
    found.arrive("POST /v2/models/m/infer", WITH_KEY).gets_answer(100.2)
    refused = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert refused.log == ["answer 429"]
    assert refused.error["code"] == "quota_exceeded"
    assert "2 requests per minute" in refused.answer.decode()
    assert b"retry-after: 13\r\n" in refused.extra
    assert b"x-ratelimit-limit-requests: 2\r\nx-ratelimit-remaining-requests: 0\r\n" in refused.extra
    assert +found.quota_counters.taken == {PER_MINUTE: 2, INFERENCES: 9}, "what was refused has taken nothing"
    assert found.demand().arrivals == 2, "what a quota refuses needs no replica"
    assert 'tenant_refused_requests_total{tenant="acme",quota="requests-per-minute"} 1' in exposed(found)
    assert 'tidegate_gateway_tenant_inferences_total{tenant="acme"} 9' in exposed(found)
    (seen,) = found.core.access_control.seen()
    assert (seen.tenant, seen.requests, seen.inferences, seen.refused) == ("acme", 2, 9, 1)


def test_slot_time_requests_and_tokens_count_by_function_and_tenant() -> None:
    found = door(acme())
    began = found.now
    running = found.arrive("POST /v2/models/m/infer", WITH_KEY, body=BODY)
    assert not found.core.access_control.uses(), "nothing is used before the end"
    running.gets_answer(began + 0.5)
    failed = found.arrive("POST /v2/models/m/infer", WITH_KEY, body=BODY)
    failed.gets_answer(began + 2.0, 500)
    found.arrive("POST /v2/models/m/infer")
    (use,) = found.core.access_control.uses()
    assert (use.function, use.tenant, use.requests, use.inferences) == ("f", "acme", 1, 8)
    assert use.slot_s == pytest.approx(0.5 + 2.0)


def test_a_request_that_no_replica_had_uses_nothing() -> None:
    found = door(acme())
    *_, last = [found.arrive("POST /v2/models/m/infer", WITH_KEY) for _ in range(20)]
    assert not last.log, "it waits: there are 19 slots"
    last.client_leaves(found.now + 1.0)
    assert not found.core.access_control.uses()


def test_too_many_pairs_of_function_and_tenant_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_USES", 0)
    found = door(acme())
    for _ in range(2):
        found.arrive("POST /v2/models/m/infer", WITH_KEY).gets_answer(found.now)
    (use,) = found.core.access_control.uses()
    assert (use.tenant, use.requests) == (OTHER_TENANTS, 2)


def test_what_is_larger_than_the_quota_is_not_asked_to_come_back() -> None:
    found = door(acme(quotas=Quotas(inferences_per_second=7)))
    refused = found.arrive("POST /v2/models/m/infer", WITH_KEY, body=BODY)
    assert refused.log == ["answer 429"]
    assert b"retry-after" not in refused.extra
    assert "less than this request needs (8)" in refused.answer.decode()


def test_a_guess_of_how_long_an_answer_will_be_takes_all_of_a_quota_at_most() -> None:
    """256 tokens are expected of the first answer: if it were refused for these, the estimate could never improve."""
    found = door(acme(quotas=Quotas(tokens_per_second=200)), protocol="openai")
    budget = Budget("acme/tokens", 200, 1)

    def ask(size: int) -> FakeExchange:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()
        return found.arrive("POST /v1/chat/completions", WITH_KEY, "content-type: application/json", body=body)

    asked = ask(100)
    assert asked.log == ["to 10.0.0.1:1"]
    assert found.quota_counters.taken == {budget: 200}
    usage = b'{"usage":{"prompt_tokens":40,"completion_tokens":5}}'
    asked.gets_answer(100.1, 200, "content-type: application/json", "tidegate-credit: keep", body=usage)
    assert found.quota_counters.taken == {budget: 45}
    refused = ask(4000)
    assert "less than this request needs" in refused.answer.decode(), "its prompt alone is too large"


def quota_of_ten() -> Tenant:
    return acme(quotas=Quotas(requests_per_minute=10, concurrency=10))


def waits() -> tuple[Door, FakeExchange]:
    """A request of a tenant in the waiting room."""
    found = Door(closed(quota_of_ten()))
    asked = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert asked.log == []
    assert sum(found.quota_counters.taken.values()) == 2
    return found, asked


def test_a_client_that_leaves_before_its_turn_gets_all_back() -> None:
    found, asked = waits()
    asked.client_leaves(100.5)
    assert not +found.quota_counters.taken


def test_a_deadline_in_the_waiting_room_gives_all_back() -> None:
    found, asked = waits()
    asked.expires(111.0)
    assert asked.log == ["answer 504"]
    assert not +found.quota_counters.taken


def test_a_room_that_is_full_gives_all_back() -> None:
    found = Door(closed(quota_of_ten(), queue_requests=0))
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).error["code"] == "queue_full"
    assert not +found.quota_counters.taken


def test_what_a_replica_had_counts_however_it_ended() -> None:
    found = door(quota_of_ten())
    found.arrive("POST /v2/models/m/infer", WITH_KEY).client_leaves(100.1)
    found.arrive("POST /v2/models/m/infer", WITH_KEY).gets_answer(100.2, 500)
    assert +found.quota_counters.taken == {Budget("acme/requests", 10, 60): 2}


def large(found: Door, *pieces: bytes) -> FakeExchange:
    """A body larger than what is kept; its first piece is what a slot is taken with."""
    line = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n{WITH_KEY}\r\n"
    head = request(f"{line}tidegate-batch-size: 1\r\ncontent-length: 9000000\r\n\r\n")
    asked = FakeExchange(found.chain, head, pieces[0], complete=False, now=found.now).start()
    for at in range(1, len(pieces)):
        asked.body_comes(b"".join(pieces[: at + 1]), complete=False)
    return asked


def test_a_shape_in_the_rest_of_a_large_body_is_charged_when_it_comes() -> None:
    found = door(acme(quotas=Quotas(inferences_per_minute=1000)))
    begun = b'{"parameters":{"shape":[1]},"pad":"%b",' % (b"x" * WAITED_BYTES)
    asked = large(found, begun, b'"inputs":[{"sha', b'\\u0070e" : [ 1', b"6 ,3]}]}")
    assert (asked.log, asked.inferences) == (["to 10.0.0.1:1"], 1)
    assert +found.quota_counters.taken == {Budget("acme/inferences", 1000, 60): 1}
    asked.gets_answer(found.now, 200)
    assert +found.quota_counters.taken == {Budget("acme/inferences", 1000, 60): 16}
    (seen,) = found.core.access_control.seen()
    assert seen.inferences == 16


def test_a_shape_above_the_maximum_in_the_rest_of_a_large_body_ends_the_request() -> None:
    found = door(acme())
    asked = large(found, b'{"pad":"%b",' % (b"x" * WAITED_BYTES), b'"inputs":[{"shape":[65', b"]}]}")
    assert (asked.log, asked.status) == (["to 10.0.0.1:1", "answer 413"], 413)
    assert asked.error["code"] == "batch_too_large"
    assert b"]}]}" not in asked.body[-4:], "its end went nowhere"


def test_a_shape_behind_the_first_kilobytes_of_a_body_in_pieces_is_charged() -> None:
    found = door(acme(quotas=Quotas(inferences_per_minute=1000)))
    body = b'{"parameters":{"shape":[1]},"pad":"%b","inputs":[{"shape":[16]}]}' % (b"x" * 9000)
    head = request(f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n{WITH_KEY}\r\ncontent-length: {len(body)}\r\n\r\n")
    asked = FakeExchange(found.chain, head, body[:5000], complete=False, now=found.now).start()
    asked.body_comes(body[:8000], complete=False)
    asked.body_comes(body)
    assert (asked.log, asked.inferences) == (["to 10.0.0.1:1"], 16)


def test_tenants_have_budgets_of_their_own() -> None:
    other = Tenant(name="other", keys=(digest(OTHER.encode()),), quotas=Quotas(requests_per_minute=1))
    found = door(acme(quotas=Quotas(requests_per_minute=1)), other)
    assert [
        found.arrive("POST /v2/models/m/infer", field).log[0][:6] for field in (WITH_KEY, WITH_OTHER, WITH_KEY)
    ] == [
        "to 10.",
        "to 10.",
        "answer",
    ]


def test_new_terms_hold_from_the_next_table_on_and_counts_go_on() -> None:
    found = door(acme(quotas=Quotas(requests_per_minute=1)))
    assert found.arrive("POST /v2/models/m/infer", WITH_KEY).log == ["to 10.0.0.1:1"]
    found.core.apply(closed(acme(weight=3.0, quotas=Quotas(requests_per_minute=5)), number=2))
    asked = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert asked.context.tenant.weight == 3.0
    assert 'tenant_requests_total{tenant="acme"} 2' in exposed(found)


@pytest.mark.parametrize("winner", ["first", "second"])
def test_a_request_with_two_copies_is_charged_once(winner: str) -> None:
    rule = Hedging(percentile=None, after_s=0.05)
    quotas = Quotas(requests_per_minute=10, inferences_per_second=20, concurrency=10)
    found = Door(closed(acme(quotas=quotas), more=(TWO,), idempotent=True, hedging=rule))
    found.ready(ONE, 1)
    found.ready(TWO, 2)
    first = found.arrive("POST /v2/models/m/infer", WITH_KEY, body=BODY)
    found.now = 100.06
    found.core.on_hedges_due()
    second = first.twin
    assert second is not None
    (first if winner == "first" else second).gets_answer(100.1)
    assert +found.quota_counters.taken == {Budget("acme/requests", 10, 60): 1, Budget("acme/inferences", 20, 1): 8}
    (seen,) = found.core.access_control.seen()
    assert (seen.requests, seen.inferences) == (1, 8)


# --- what has to be asked for ----------------------------------------------------------------------------------------


def asking() -> tuple[Door, FakeExchange]:
    """A request that waits for a decision about its quota."""
    found = door(quota_of_ten())
    found.quota_counters.knows = False
    asked = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert asked.log == []
    assert len(found.asked) == 1
    return found, asked


def test_a_request_goes_on_when_the_pool_has_granted_it() -> None:
    found, asked = asking()
    wanted, _, answered = found.asked[0]
    answered(found.quota_counters.answer(wanted))
    assert asked.log == ["to 10.0.0.1:1"]
    asked.gets_answer(100.1)
    assert +found.quota_counters.taken == {Budget("acme/requests", 10, 60): 1}
    assert found.demand().arrivals == 1, "it is counted once"
    assert found.core.access_control.waiting == 0


def test_a_request_is_refused_when_the_pool_refuses() -> None:
    found, asked = asking()
    found.asked[0][2](ShortBudget(1, 0.1))
    assert (asked.log, asked.error["code"]) == (["answer 429"], "quota_exceeded")
    assert "10 requests at the same time" in asked.answer.decode()
    assert not arrivals(found)


@pytest.mark.parametrize("end", ["client leaves", "deadline"])
def test_who_has_gone_meanwhile_gets_back_what_the_pool_granted(end: str) -> None:
    found, asked = asking()
    if end == "deadline":
        asked.expires(111.0)
    else:
        asked.client_leaves(100.2)
    wanted, _, answered = found.asked[0]
    answered(found.quota_counters.answer(wanted))
    assert not +found.quota_counters.taken
    assert found.core.access_control.waiting == 0


@pytest.mark.parametrize("granted", [True, False])
def test_a_faulty_rest_of_a_body_ends_a_request_that_waits_for_the_pool(granted: bool) -> None:
    found = door(quota_of_ten(), protocol="openai")
    found.quota_counters.knows = False
    first = b'{"model":"m","input":"' + b"x" * WAITED_BYTES
    head = request(
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{WITH_KEY}\r\ncontent-length: {len(first) + 99}\r\n\r\n"
    )
    asked = FakeExchange(found.chain, head, first, complete=False, now=found.now).start()
    state = asked.context
    asked.body_comes(first + b'","model":"other"', complete=False)
    assert (asked.log, state.ending) == (["proceed", "answer 400"], Ending.CANCELLED)
    wanted, _, answered = found.asked[0]
    answered(found.quota_counters.answer(wanted) if granted else ShortBudget(1, 0.1))
    assert asked.log == ["proceed", "answer 400"]
    assert not +found.quota_counters.taken
    assert found.core.room._fleet.replicas[ONE.id].in_flight == 0
    assert (arrivals(found), found.core.access_control.waiting) == (0, 0)


def test_those_who_wait_for_the_pool_are_bounded() -> None:
    found = door(quota_of_ten())
    found.quota_counters.knows = False
    found.core.access_control.waiting = MAX_WAITING
    asked = found.arrive("POST /v2/models/m/infer", WITH_KEY)
    assert asked.log == ["answer 429"]
    assert b"retry-after: 1\r\n" in asked.extra


# --- priority --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tenant", "stated", "counts"),
    [(None, None, 5), (3, None, 3), (3, 1, 3), (3, 8, 8), (None, 1, 5), (None, 0, 5), (None, 7, 7), (9, None, 9)],
)
def test_a_request_states_a_later_class_than_its_tenants_not_an_earlier_one(
    tenant: int | None, stated: int | None, counts: int
) -> None:
    found = door(acme(priority=tenant))
    fields = [WITH_KEY] if stated is None else [WITH_KEY, f"tidegate-priority: {stated}"]
    asked = found.arrive("POST /v2/models/m/infer", *fields)
    assert asked.context.bind.priority == counts


@pytest.mark.parametrize(
    ("oriented", "stated", "counts"),
    [
        (False, None, 3),
        (True, None, 13),
        (False, "throughput-oriented", 13),
        (True, "latency-critical", 13),
        (True, "throughput-oriented", 13),
    ],
)
def test_a_request_of_a_tenant_states_the_later_task_class_and_not_the_earlier_one(
    oriented: bool, stated: str | None, counts: int
) -> None:
    found = door(acme(priority=3), is_throughput_oriented=oriented)
    fields = [WITH_KEY] if stated is None else [WITH_KEY, f"tidegate-task-class: {stated}"]
    asked = found.arrive("POST /v2/models/m/infer", *fields)
    assert asked.context.bind.priority == counts


def test_a_later_task_class_brings_no_earlier_priority() -> None:
    found = door(acme(priority=7))
    fields = (WITH_KEY, "tidegate-task-class: throughput-oriented", "tidegate-priority: 0")
    assert found.arrive("POST /v2/models/m/infer", *fields).context.bind.priority == 17
