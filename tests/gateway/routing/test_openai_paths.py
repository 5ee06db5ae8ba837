"""The paths of OpenAI's API: the requests on it, the prefix that is cut off, the lists of models, and error formats."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.routing.test_match import BERT, WEB, look, matcher, route
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.routing.match import Call, Matcher
from tidegate.gateway.routing.openai_paths import error_format_for, model_list, model_object, prefix_length
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import GroupRoute, ReplicaRoute, RevisionRoute
from tidegate.wire.bodies.openai import anthropic_error, openai_error

LLAMA = route("llama", models=("meta/llama-3", "llama-lora", "llama3:8b"), protocol="openai")
BOTH = matcher(BERT, LLAMA)
WITH_DEFAULT = matcher(BERT, LLAMA, default="llama")


def revision_of(name: str, *replicas: str, failure: str | None = None) -> RevisionRoute:
    group = GroupRoute(
        accelerator="cpu", weight=1.0, replicas=tuple(ReplicaRoute(id=r, address="a:1") for r in replicas)
    )
    return RevisionRoute(id=f"{name}-00001", percent=100.0, groups=(group,), failure=failure)


@pytest.mark.parametrize(
    ("path", "bytes_cut"),
    [
        ("/v1/chat/completions", 0),
        ("/openai/v1/x", 7),
        ("/v1/", 0),
        ("/v1", None),
        ("/openai/v2/x", None),
        ("/x/v1/", None),
    ],
)
def test_which_paths_are_on_the_surface(path: str, bytes_cut: int | None) -> None:
    assert prefix_length(path.encode()) == bytes_cut


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/audio/transcriptions", "/v1/whatever"])
@pytest.mark.parametrize("prefix", ["", "/openai"])
@pytest.mark.parametrize("by", [BOTH, WITH_DEFAULT], ids=["", "with a default"])
def test_these_requests_are_named_by_their_body(path: str, prefix: str, by: Matcher) -> None:
    found = look(prefix + path, by=by)
    assert (found.route, found.named_in_body, found.strip, found.call) == (None, True, len(prefix), Call.WORK)
    assert found.error_format is openai_error
    named = by.of_model(found, "llama-lora")
    assert (named.route, named.model, named.strip, named.error_format) == (
        LLAMA,
        "llama-lora",
        len(prefix),
        openai_error,
    )
    assert by.of_model(found, "unheard").route is None, "never silently the default"
    assert by.of_model(found, None).route is (LLAMA if by is WITH_DEFAULT else None)


def test_who_names_a_function_by_host_or_prefix_goes_there_whatever_the_body_says() -> None:
    by_host = look("/v1/chat/completions", host="bert.localhost", by=BOTH)
    by_prefix = look("/functions/llama/v1/chat/completions", by=BOTH)
    assert (by_host.route, by_host.named_in_body, by_host.strip) == (BERT, False, 0)
    assert (by_prefix.route, by_prefix.named_in_body, by_prefix.strip) == (LLAMA, False, 16)
    assert by_host.error_format is openai_error


def test_a_server_that_speaks_openai_never_sees_the_prefix_and_others_see_what_was_sent() -> None:
    assert look("/openai/v1/chat/completions", host="llama.localhost", by=BOTH).strip == 7
    assert look("/functions/llama/openai/v1/chat/completions", by=BOTH).strip == 23
    assert look("/openai/v1/chat/completions", host="web.localhost", by=matcher(WEB)).strip == 0


def test_equal_heads_are_found_in_the_cache() -> None:
    by = matcher(BERT)
    assert look("/v1/embeddings", by=by) is look("/v1/embeddings?x=1", by=by)


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "call", "model"),
    [
        ("/v1/models", Call.MODELS, ""),
        ("/v1/models/", Call.MODELS, ""),
        ("/openai/v1/models", Call.MODELS, ""),
        ("/v1/models/llama-lora", Call.MODEL, "llama-lora"),
        ("/v1/models/meta/llama-3", Call.MODEL, "meta/llama-3"),
        ("/v1/models/meta%2Fllama-3", Call.MODEL, "meta/llama-3"),
        ("/v1/models/llama3:8b", Call.MODEL, "llama3:8b"),
        ("/v1/models/llama3%3A8b", Call.MODEL, "llama3:8b"),
        ("/openai/v1/models/llama3:8b", Call.MODEL, "llama3:8b"),
        ("/openai/v1/models/bert", Call.MODEL, "bert"),
        ("/v1/models/bert", Call.MODEL_READY, "bert"),
    ],
)
def test_questions_about_models_need_no_replica(path: str, call: Call, model: str) -> None:
    """The last line is V1's question to a function of another protocol, as it ever was."""
    found = look(path, method="GET", by=BOTH)
    assert (found.call, found.model, found.named_in_body) == (call, model, False)


def test_unknown_models_in_a_path() -> None:
    for path in ("/v1/models/unheard", "/openai/v1/models/unheard"):
        missing = look(path, method="GET", by=BOTH)
        assert (missing.route, missing.is_found, missing.named, missing.error_format) == (
            None,
            False,
            "unheard",
            openai_error,
        )
    assert look("/v1/models/unheard", method="GET", by=WITH_DEFAULT).route is LLAMA, "it may serve what it does not say"
    assert look("/openai/v1/models/unheard", method="GET", by=WITH_DEFAULT).route is None


def test_v1_predictions_are_kserves_as_they_ever_were() -> None:
    for by in (BOTH, WITH_DEFAULT):
        found = look("/v1/models/bert:predict", by=by)
        assert (found.route, found.call, found.error_format, found.named_in_body) == (BERT, Call.WORK, None, False)
    assert look("/openai/v1/models/bert:predict", by=BOTH).strip == 0
    unknown = look("/openai/v1/models/llama3:70b", method="GET", by=BOTH)
    assert (unknown.route, unknown.named, unknown.error_format) == (None, "llama3:70b", openai_error)


def test_a_function_that_is_named_tells_of_its_own_models_while_it_is_awake() -> None:
    for found in (
        look("/v1/models", method="GET", host="llama.localhost", by=BOTH),
        look("/functions/llama/openai/v1/models/x", method="GET", by=BOTH),
    ):
        assert (found.route, found.call) == (LLAMA, Call.OWN_MODELS)
    assert look("/v1/models", method="GET", host="bert.localhost", by=BOTH).call is Call.WORK


def body_of(answer: tuple[int, bytes]) -> dict[str, Any]:
    assert answer[0] == 200
    found: dict[str, Any] = json.loads(answer[1])
    return found


def test_lists_read_as_openais_and_as_v1s() -> None:
    cold = ColdStarts(Report("g", "i", 0.0))
    listed = body_of(model_list((BERT, LLAMA, route("later", models=("bert",))), cold.status))
    assert (listed["object"], listed["models"]) == ("list", ["bert", "llama-lora", "llama3:8b", "meta/llama-3"])
    assert [(one["id"], one["object"], one["function"]) for one in listed["data"]] == [
        ("bert", "model", "bert"),
        ("llama-lora", "model", "llama"),
        ("llama3:8b", "model", "llama"),
        ("meta/llama-3", "model", "llama"),
    ]
    one = body_of(model_object("llama-lora", LLAMA, cold.status))
    assert (one["id"], one["name"], one["created"], one["owned_by"]) == ("llama-lora", "llama-lora", 0, "tidegate")
    status, body = model_object("unheard", LLAMA, cold.status)
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


def test_the_status_of_a_model_is_that_of_its_function() -> None:
    cold = ColdStarts(Report("g", "i", 0.0))
    sleeping = body_of(model_object("llama-lora", LLAMA, cold.status))
    assert (sleeping["status"], sleeping["ready"]) == ("asleep", True)
    starting = replace(LLAMA, revisions=(revision_of("llama", "r1"),))
    assert body_of(model_object("llama-lora", starting, cold.status))["status"] == "starting"
    cold.apply({"r1": ("llama", "llama-00001")})
    cold.reported("r1", ReplicaState.READY, ColdStartPhases(), 1.0)
    assert body_of(model_object("llama-lora", starting, cold.status))["status"] == "ready"
    broken = replace(LLAMA, revisions=(revision_of("llama", failure="no such file"),))
    failed = body_of(model_object("llama-lora", broken, cold.status))
    assert (failed["status"], failed["ready"]) == ("failed", False)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "tell"),
    [
        ("/v1/chat/completions", openai_error),
        ("/v1/messages", anthropic_error),
        ("/v1/messages/count_tokens", anthropic_error),
        ("/v1/messagesx", openai_error),
        ("/v1/models/m", openai_error),
        ("/v1/models/m:predict", None),
        ("/v2/models/m/infer", None),
        ("/predict", None),
    ],
)
def test_failures_are_reported_as_the_path_says(path: str, tell: object) -> None:
    assert error_format_for(path.encode()) is tell
