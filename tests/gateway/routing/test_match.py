"""Which function a head names: host, path prefix, model, default; and what the front door answers by itself."""

from dataclasses import replace

import pytest

from tests.support.worlds.fake_exchange import request
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import CACHE_ENTRIES, CACHED_BYTES, Call, Matcher, Target
from tidegate.records.route_table import FunctionRoute, HeaderMatch, RouteMatch, RouteTable


def route(name: str, *, models: tuple[str, ...] = (), protocol: str = "v2") -> FunctionRoute:
    return FunctionRoute(
        name=name,
        models=models or (name,),
        protocol=protocol,
        timeout_s=300.0,
        latency_s=None,
        queue_requests=1000,
        queue_bytes=1 << 28,
        max_wait_s=300.0,
        batch_header="tidegate-batch-size",
        bytes_per_item=None,
        overhead_bytes=0.0,
        max_batch=1024,
    )


def matcher(*routes: FunctionRoute, default: str | None = None, domain: str = "localhost") -> Matcher:
    table = RouteTable(epoch=1, number=1, workers=1, domain=domain, default=default, functions=routes)
    return Matcher(table, {route.name: FunctionRouter(route, FunctionMemory(0.0)) for route in routes})


RESNET, BERT, WEB = route("resnet", models=("resnet50", "resnet")), route("bert"), route("web", protocol="http")
ALL = matcher(RESNET, BERT, WEB)


def look(target: str, *fields: str, host: str = "127.0.0.1", method: str = "POST", by: Matcher = ALL) -> Target:
    lines = "".join(f"{field}\n" for field in fields)
    return by.match(request(f"{method} {target} HTTP/1.1\nhost: {host}\n{lines}\n"))


@pytest.mark.parametrize(
    ("host", "path", "name", "strip"),
    [
        ("bert.localhost", "/anything", "bert", 0),
        ("bert.localhost", "/v2/models/resnet50/infer", "bert", 0),
        ("bert.localhost", "/functions/resnet/x", "bert", 0),
        ("127.0.0.1", "/functions/resnet/v2/models/m/infer", "resnet", 17),
        ("127.0.0.1", "/functions/resnet", "resnet", 17),
        ("127.0.0.1", "/functions/resnet/", "resnet", 17),
        ("127.0.0.1", "/v2/models/resnet50/infer", "resnet", 0),
        ("127.0.0.1", "/v2/models/resnet50/versions/3/infer", "resnet", 0),
        ("127.0.0.1", "/v2/models/re%73net/infer", "resnet", 0),
        ("127.0.0.1", "/v1/models/bert:predict", "bert", 0),
        ("127.0.0.1", "/v2/repository/models/resnet50/load", "resnet", 0),
        ("127.0.0.1", "/v2/repository/models/b%65rt/unload", "bert", 0),
        ("127.0.0.1", "/functions/bert/v1/models/bert:predict", "bert", 15),
        ("other.example", "/v2/models/bert/infer", "bert", 0),
    ],
)
def test_order_is_host_then_prefix_then_model(host: str, path: str, name: str, strip: int) -> None:
    found = look(path, host=host)
    assert found.route is not None
    assert (found.route.name, found.strip, found.call) == (name, strip, Call.WORK)


@pytest.mark.parametrize(
    ("host", "path", "named"),
    [
        ("absent.localhost", "/v2/models/bert/infer", "absent"),
        ("127.0.0.1", "/functions/absent/v2/models/bert/infer", "absent"),
        ("127.0.0.1", "/functions/", ""),
    ],
)
def test_a_function_that_is_named_and_unknown_is_never_the_default(host: str, path: str, named: str) -> None:
    found = look(path, host=host, by=matcher(BERT, default="bert"))
    assert (found.route, found.named) == (None, named)
    assert not found.is_found


def test_default_takes_what_names_none_and_models_it_does_not_declare() -> None:
    by = matcher(BERT, default="bert")
    assert look("/predict", by=by).route is BERT
    assert look("/v2/models/unheard/infer", by=by).route is BERT
    assert look("/predict").route is None


def test_a_default_that_left_the_table_is_none() -> None:
    assert look("/predict", by=matcher(BERT, default="gone")).route is None


def test_domain_is_configurable_and_compared_in_lower_case() -> None:
    by = matcher(BERT, domain="Models.Example")
    assert look("/", host="bert.models.example", by=by).route is BERT
    assert look("/", host="bert.localhost", by=by).route is None


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/v2", Call.SERVER_METADATA),
        ("/v2/health/live", Call.SERVER_LIVE),
        ("/v2/health/ready", Call.SERVER_READY),
        ("/v2/models", Call.MODEL_LIST),
    ],
)
def test_server_level_calls_without_a_function_are_the_front_doors_own(path: str, call: Call) -> None:
    found = look(path, method="GET", by=matcher(BERT, default="bert"))
    assert (found.route, found.call, found.v2) == (None, call, True)
    assert found.is_found


@pytest.mark.parametrize(
    ("path", "call", "model"),
    [
        ("/v2/health/live", Call.FUNCTION_LIVE, ""),
        ("/v2/health/ready", Call.FUNCTION_READY, ""),
        ("/v2", Call.METADATA, ""),
        ("/v2/models/resnet50/ready", Call.MODEL_READY, "resnet50"),
        ("/v2/models/resnet50/versions/1/ready", Call.MODEL_READY, "resnet50"),
        ("/v2/models/resnet50", Call.METADATA, "resnet50"),
        ("/v2/models/resnet50/versions/1", Call.METADATA, "resnet50"),
        ("/v2/models/resnet50/config", Call.WORK, ""),
        ("/v2/models/resnet50/stats", Call.WORK, ""),
        ("/v2/models/stats", Call.WORK, ""),
        ("/v2/repository/models/resnet50/load", Call.WORK, ""),
        ("/v2/repository/index", Call.WORK, ""),
        ("/v1/models/resnet50", Call.MODEL_READY, "resnet50"),
    ],
)
def test_health_and_metadata_are_distinguished_from_work(path: str, call: Call, model: str) -> None:
    by_host = look(path, method="GET", host="resnet.localhost")
    by_prefix = look("/functions/resnet" + path, method="GET")
    for found in (by_host, by_prefix):
        assert (found.route, found.call, found.model) == (RESNET, call, model)
    assert look(path, method="POST", host="resnet.localhost").call is Call.WORK


def test_a_model_may_be_called_stats() -> None:
    own = matcher(route("resnet", models=("stats",)))
    found = look("/v2/models/stats", method="GET", by=own)
    assert (found.call, found.model) == (Call.METADATA, "stats")


def test_the_index_of_a_repository_names_no_function() -> None:
    assert look("/v2/repository/index").route is None
    assert look("/v2/repository/models/bert").route is None
    assert look("/v2/repository/index", by=matcher(BERT, default="bert")).route is BERT


def test_a_function_that_does_not_speak_v2_has_no_health_calls_of_ours() -> None:
    assert look("/v2/health/ready", method="GET", host="web.localhost").call is Call.WORK


def test_v2_clients_are_known_by_path_also_when_nothing_is_found() -> None:
    assert look("/v2/models/absent/infer").v2
    assert look("/v1/models/absent:predict").v2
    assert not look("/v1/models/absent").v2


def test_a_colon_in_a_models_name_is_no_verb_of_v1() -> None:
    tagged = route("llama", models=("llama3:8b", "org/n"))
    by = matcher(tagged)
    for path in ("/v1/models/llama3:8b", "/v1/models/llama3:8b:predict", "/v1/models/org%2Fn:predict"):
        assert look(path, method="POST", by=by).route is tagged
    found = look("/v1/models/llama3:8b", method="GET", by=by)
    assert (found.call, found.model) == (Call.MODEL_READY, "llama3:8b")


def test_the_cache_is_bounded_and_never_holds_misses_or_long_paths() -> None:
    by = matcher(BERT)
    look("/v2/models/absent/infer", by=by)
    look("/v2/models/bert/" + "x" * 600, by=by)
    assert "0 cached" in repr(by)
    for number in range(CACHE_ENTRIES + 1):
        look(f"/v2/models/bert/{number}", by=by)
    assert repr(by) == "<Matcher 1 functions, 0 rules, 1 cached>"
    assert look("/v2/models/bert/7", by=by) is look("/v2/models/bert/7", by=by)


def test_names_that_are_no_utf8_or_badly_encoded_stand_for_themselves() -> None:
    assert look("/v2/models/%zz/infer").named == "%zz"
    assert look("/v2/models/%ff/infer").named == "\xff"


def ruled(name: str, *matches: RouteMatch) -> FunctionRoute:
    return replace(route(name, protocol="http"), matches=matches)


def test_hosts_of_kserve_and_routes_of_ray_serve_name_what_the_page_for_clients_says() -> None:
    by = matcher(RESNET, BERT, ruled("shop", RouteMatch(path_prefix="/shop")), domain="example.com")
    assert look("/v1/models/x:predict", host="bert.example.com", by=by).named == "bert"
    assert look("/v1/models/bert:predict", host="bert.default.example.com", by=by).route is None, "no namespaces"
    assert look("/v1/models/bert:predict", host="bert.default.other.org", by=by).named == "bert", "the model does"
    found = look("/shop/cart", by=by)
    assert (found.named, found.strip) == ("shop", 0), "its server sees the prefix"
    assert [look(path, by=by).route for path in ("/-/healthz", "/-/routes")] == [None, None]


def carrying(**fields: str | None) -> tuple[HeaderMatch, ...]:
    return tuple(HeaderMatch(name=name.replace("_", "-"), value=value) for name, value in fields.items())


def test_rules_name_a_function_between_its_host_and_the_path_prefix() -> None:
    by = matcher(RESNET, BERT, ruled("web", RouteMatch(path_prefix="/"), RouteMatch(host="shop.example")))
    assert look("/v2/models/bert/infer", by=by).named == "web"
    assert look("/functions/bert/x", by=by).named == "web"
    assert look("/functions/bert/x", host="bert.localhost", by=by).named == "bert"
    assert look("/functions/bert/x", host="absent.localhost", by=by).named == "absent"


@pytest.mark.parametrize(
    ("path", "fits"),
    [("/api", True), ("/api/", True), ("/api/x?y=1", True), ("/apix", False), ("/x/api", False), ("/API", False)],
)
def test_a_path_prefix_fits_whole_segments(path: str, fits: bool) -> None:
    for written in ("/api", "/api/"):
        by = matcher(ruled("web", RouteMatch(path_prefix=written)))
        found = look(path, by=by)
        assert (found.route is not None) is fits
        assert found.strip == 0, "nothing is cut off"


def test_all_that_a_rule_names_must_fit() -> None:
    both = RouteMatch(host="shop.example", path_prefix="/api", headers=carrying(x_tier="gold", x_beta=None))
    by = matcher(ruled("web", both))
    fields = ("x-tier: gold", "x-beta: whatever")
    assert look("/api/v1", *fields, host="SHOP.example:8080", by=by).named == "web"
    assert look("/api/v1", *fields, host="other.example", by=by).route is None
    assert look("/other", *fields, host="shop.example", by=by).route is None
    assert look("/api/v1", "x-tier: gold", host="shop.example", by=by).route is None
    assert look("/api/v1", "x-tier: Gold", "x-beta: 1", host="shop.example", by=by).route is None, "values have a case"


def test_the_most_specific_rule_counts_then_the_tables_order() -> None:
    by = matcher(
        ruled("any", RouteMatch(path_prefix="/")),
        ruled("long", RouteMatch(path_prefix="/api/v1")),
        ruled("fields", RouteMatch(path_prefix="/api", headers=carrying(x_a=None))),
        ruled("host", RouteMatch(host="shop.example")),
        ruled("also-any", RouteMatch(path_prefix="/")),
    )
    assert look("/api/v1/x", host="shop.example", by=by).named == "host"
    assert look("/api/v1/x", "x-a: 1", by=by).named == "long"
    assert look("/api/x", "x-a: 1", by=by).named == "fields"
    assert look("/api/x", by=by).named == "any"


def test_what_rules_look_at_is_part_of_what_is_remembered() -> None:
    by = matcher(ruled("gold", RouteMatch(headers=carrying(x_tier="gold"))), BERT, default="bert")
    for _ in range(2):
        assert look("/x", "x-tier: gold", by=by).named == "gold"
        assert look("/x", "x-tier: tin", by=by).route is BERT
        assert look("/x", by=by).route is BERT
    assert "3 cached" in repr(by)
    look("/x", "x-tier: " + "g" * 600, by=by)
    assert "3 cached" in repr(by), "a client cannot fill the memory with long values"


def test_queries_share_one_place_in_the_cache() -> None:
    by = matcher(BERT)
    for number in range(50):
        assert look(f"/v2/models/bert/infer?n={number}", by=by).route is BERT
    assert "1 cached" in repr(by)


def test_a_function_with_rules_answers_its_health_calls_there() -> None:
    by = matcher(replace(BERT, matches=(RouteMatch(host="bert.example"),)))
    found = look("/v2/health/ready", method="GET", host="bert.example", by=by)
    assert (found.named, found.call) == ("bert", Call.FUNCTION_READY)


def test_equal_requests_share_a_target_with_their_method_and_path_and_no_others_do() -> None:
    by = matcher(RESNET, BERT, default="bert")
    first = look("/v2/models/resnet/infer?key=secret", by=by)
    assert first.line == "POST /v2/models/resnet/infer"
    assert look("/v2/models/resnet/infer", by=by) is first
    assert look("/v2/models/resnet/infer", by=by, method="GET").line == "GET /v2/models/resnet/infer"
    assert look("/v2/models/resnet/infer", by=by, host="bert.localhost") is not first
    assert look("/" + "x" * CACHED_BYTES, by=by).line is None, "it is not kept"
    for path in ("/jobs/tg-1", "/jobs/tg-2"):
        assert look(path, by=matcher(RESNET), method="GET").line is None, "all jobs share one"
    assert first.router is not None
    assert first.of(first.router).line == first.line
    assert first.of_variant(first.router, None).line is None, "its line names both functions"
