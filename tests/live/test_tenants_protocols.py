"""Tenants as the official clients meet them: OpenAI's and Anthropic's fields, and calls of gRPC."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy
import openai
import pytest
import tritonclient.grpc as triton

from tests.support.live.deployment import Deployment, deployment
from tests.support.live.tenants import ACME, OTHER, closed_function, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
TOKENS_A_MINUTE = 400
MESSAGES: Any = [{"role": "user", "content": "four words are here"}]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A scripted server of OpenAI's API behind keys, with a quota of tokens."""
    folder = tmp_path_factory.mktemp("chat")
    file = tenants_file(folder, f"{{tokens-per-minute: {TOKENS_A_MINUTE}}}")
    spec = {
        "server": {"command": [sys.executable, str(SERVER), "{port}", "0"]},
        "protocol": "openai",
        "concurrency": 4,
        "env": {"JOURNAL": str(folder / "journal")},
        "access": {"api-keys": True},
    }
    document = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": {"name": "chat"}, "spec": spec}
    (folder / "chat.json").write_text(json.dumps(document))
    with deployment(folder, "--gateway-workers", "2", "--tenants-file", str(file)) as place:
        place.up()
        place.cli("deploy", str(folder / "chat.json"))
        yield place


def client_of(place: Deployment, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{place.gateway}/v1", api_key=key, max_retries=0, timeout=30)


def ask(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=20)


def test_openais_client_is_reported_in_its_own_words(chat: Deployment) -> None:
    with client_of(chat, "tg-wrong-key-000000") as client, pytest.raises(openai.AuthenticationError) as wrong:
        ask(client)
    assert "not known" in str(wrong.value)
    with client_of(chat, OTHER) as client, pytest.raises(openai.PermissionDeniedError):
        ask(client)


def test_a_quota_of_tokens_is_settled_with_the_usage_that_is_reported(chat: Deployment) -> None:
    chat.until(lambda: time.time() % 60.0 < 35.0, 30.0, "a minute of the quota with time left")
    used = 0
    with client_of(chat, ACME) as client, pytest.raises(openai.RateLimitError) as refused:
        for _ in range(200):
            answer = ask(client)
            used += answer.usage.total_tokens
    assert "tokens per minute" in str(refused.value)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert refused.value.response.headers["x-ratelimit-limit-tokens"] == str(TOKENS_A_MINUTE)
    view = chat.until(
        lambda: next((each for each in chat.ask("tenants") if each["name"] == "acme" and each["tokens"] == used), None),
        10.0,
        "the count of the tokens that were used",
    )
    assert view["refused"] == 1
    assert used <= TOKENS_A_MINUTE
    sys.stdout.write(f"\n{used} of {TOKENS_A_MINUTE} tokens used; what was left did not suffice for one more\n")


def test_anthropics_field_is_a_key_too(chat: Deployment) -> None:
    body = {"model": "chat", "max_tokens": 5, "messages": MESSAGES}
    with httpx.Client(base_url=chat.gateway, trust_env=False, verify=False, timeout=20.0) as client:
        denied = client.post("/v1/messages", json=body, headers={"x-api-key": "tg-wrong-key-000000"})
        assert (denied.status_code, denied.json()["error"]["type"]) == (401, "authentication_error")
        assert client.post("/v1/messages", json=body, headers={"x-api-key": OTHER}).status_code == 403


def test_calls_of_grpc_are_asked_for_the_same_keys(tmp_path: Path) -> None:
    file = tenants_file(tmp_path, "{requests-per-minute: 3}")
    with deployment(tmp_path, "--gateway-workers", "2", "--tenants-file", str(file)) as place:
        place.up()
        closed_function(place, {"api-keys": True})
        given = triton.InferInput("x", [1, 2], "FP32")
        given.set_data_from_numpy(numpy.array([[1, 2]], "f4"))
        with triton.InferenceServerClient(place.gateway.partition("://")[2]) as client:

            def code(**metadata: str) -> Any:
                try:
                    answer = client.infer("echo", [given], headers=metadata)
                except triton.InferenceServerException as error:
                    assert ACME not in str(error)
                    return error.status(), error.message()
                return answer.as_numpy("y").tolist()

            assert code() == (str(grpc.StatusCode.UNAUTHENTICATED), code()[1])
            assert "asks who calls" in code()[1]
            assert code(authorization="Bearer tg-wrong-key-000000")[0] == str(grpc.StatusCode.UNAUTHENTICATED)
            assert code(**{"x-api-key": OTHER})[0] == str(grpc.StatusCode.PERMISSION_DENIED)
            for metadata in ({"authorization": f"Bearer {ACME}"}, {"x-api-key": ACME}, {"x-api-key": ACME}):
                assert code(**metadata) == [[2.0, 4.0]]
            # A minute may end in between; two of them admit six.
            refused = [each for each in (code(**{"x-api-key": ACME}) for _ in range(5)) if isinstance(each, tuple)]
            status, message = refused[-1]
            assert status == str(grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert "3 requests per minute" in message
