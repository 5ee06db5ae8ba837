"""OpenAI's and Anthropic's API through a whole deployment, with the official client and a scripted model server."""

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import websockets.sync.client

from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
MESSAGES: Any = [{"role": "user", "content": 'say "model": "other" twice'}]
LARGE = "x" * 900_000


def manifest(
    folder: Path,
    name: str,
    *,
    load_s: float = 0.0,
    load_until: Path | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> str:
    """A function whose server is the script, which listens after ``load_s`` and when there is a file ``load_until``;
    its file's path."""
    server = {"command": [sys.executable, str(SERVER), "{port}", str(load_s)]}
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {
            "name": name,
            "annotations": {f"tidegate.dev/{key}": value for key, value in (annotations or {}).items()},
        },
        "spec": {
            "server": server,
            "protocol": "openai",
            "concurrency": 4,
            "models": [name, f"{name}-lora"],
            "env": {"JOURNAL": str(folder / f"{name}.journal"), "LOAD_UNTIL": str(load_until or "")},
            **spec,
        },
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("openai")
    with deployment(folder) as found:
        found.up()
        found.cli("deploy", manifest(folder, "scripted"))
        yield found


@pytest.fixture(params=["/v1", "/openai/v1"])
def client(served: Deployment, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.gateway + request.param, api_key="none", max_retries=0, timeout=30) as found:
        yield found


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES, max_tokens=3)
    assert answer.choices[0].message.content == "w0 w1 w2 "
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    adapter = client.chat.completions.create(model="scripted-lora", messages=MESSAGES)
    assert adapter.model == "scripted-lora", "an adapter's name goes to its function as it is"


def test_chat_streams_and_tells_its_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "w0 w1 w2 w3 w4 "
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(model="scripted", prompt="x", max_tokens=2).choices[0].text == "w0 w1 "
    stream = client.completions.create(model="scripted", prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "w0 w1 w2 w3 w4 "


def test_embeddings(client: openai.OpenAI) -> None:
    """The client asks for base64 by itself unless it is given a format."""
    answer = client.embeddings.create(model="scripted", input=["one", "two words"])
    assert [each.embedding for each in answer.data] == [[3.0, 1.0], [9.0, 2.0]]
    plain = client.embeddings.create(model="scripted", input="one", encoding_format="float")
    assert plain.data[0].embedding == [3.0, 1.0]


def test_transcriptions_come_as_forms_small_and_large(client: openai.OpenAI) -> None:
    for size in (1000, 3_000_000):
        file = ("a.wav", io.BytesIO(b"R" * size))
        answer = client.audio.transcriptions.create(model="scripted", file=file)
        assert answer.text == f"scripted heard {size} bytes of a.wav"


def test_pictures_come_as_forms_too(client: openai.OpenAI) -> None:
    picture = ("a.png", b"P" * 400_000, "image/png")
    answer = client.images.with_raw_response.edit(model="scripted", image=picture, prompt='name="model"\r\n\r\nother')
    echoed = json.loads(answer.text)
    assert (echoed["path"], echoed["size"] > 400_000) == ("/v1/images/edits", True)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {"scripted", "scripted-lora"} <= {model.id for model in client.models.list()}
    one = client.models.retrieve("scripted-lora")
    assert (one.id, one.object, one.owned_by) == ("scripted-lora", "model", "tidegate")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert (missing.value.code, missing.value.param, missing.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError) as typed:
        client.chat.completions.create(model="scripted", messages=MESSAGES, extra_body={"stream": "yes"})
    assert "'stream' must be true or false" in str(typed.value)
    with pytest.raises(openai.BadRequestError) as scripted:
        client.chat.completions.create(model="scripted", messages=MESSAGES, extra_body={"fail": 400})
    assert scripted.value.code == "scripted", "the server's own words pass"


@pytest.mark.parametrize("first", ["model", "messages"])
def test_prompts_of_megabytes_go_wherever_the_model_stands(client: openai.OpenAI, first: str) -> None:
    document = {"model": "scripted", "messages": [{"role": "user", "content": LARGE * 3}], "max_tokens": 1}
    ordered = dict(sorted(document.items(), key=lambda pair: pair[0] != first))
    answer = client.post("/chat/completions", cast_to=httpx.Response, body=ordered)
    assert answer.json()["choices"][0]["message"]["content"] == "w0 "


def test_the_async_client(served: Deployment) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.gateway}/v1", api_key="none", timeout=30) as client:

            async def ask(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="scripted", messages=MESSAGES, stream=True, max_tokens=number + 1
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            found = await asyncio.gather(*(ask(number) for number in range(8)))
            assert [len(text.split()) for text in found] == list(range(1, 9))
            listed = await client.models.list()
            assert "scripted" in [model.id for model in listed.data]
            file = ("a.wav", b"R" * 700_000)
            heard = await client.audio.transcriptions.create(model="scripted", file=file)
            assert heard.text.startswith("scripted heard 700000 bytes")

    asyncio.run(main())


# --- by plain HTTP ---------------------------------------------------------------------------------------------------


@pytest.fixture
def http(served: Deployment) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.gateway, trust_env=False, verify=False, timeout=30) as found:
        yield found


def test_anthropics_messages(http: httpx.Client) -> None:
    body = {"model": "scripted", "max_tokens": 2, "messages": MESSAGES}
    version = {"anthropic-version": "2023-06-01"}
    answer = http.post("/v1/messages", json=body, headers=version).json()
    assert (answer["type"], answer["content"][0]["text"]) == ("message", "w0 w1 ")
    with http.stream("POST", "/v1/messages", json=body | {"stream": True}, headers=version) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("event: ")]
    assert lines[0] == "event: message_start"
    assert lines[-1] == "event: message_stop"
    missing = http.post("/v1/messages", json=body | {"model": "claude"}, headers=version)
    assert missing.status_code == 404
    fault = missing.json()
    assert (fault["type"], fault["error"]["type"]) == ("error", "not_found_error")
    assert fault["request_id"] == missing.headers["x-request-id"]


def test_a_websocket_names_its_model_in_its_address(served: Deployment) -> None:
    url = served.gateway.replace("http://", "ws://") + "/v1/realtime?model=scripted"
    with websockets.sync.client.connect(url, proxy=None) as connection:
        connection.send("hello")
        assert json.loads(connection.recv(10)) == {"model": "scripted", "heard": "hello"}


def test_unknown_paths_pass_to_the_function_of_the_model(http: httpx.Client) -> None:
    answer = http.post("/openai/v1/some/new/thing", json={"model": "scripted", "x": 1})
    assert answer.json()["path"] == "/v1/some/new/thing"


def test_a_second_model_behind_megabytes_never_reaches_the_server_whole(served: Deployment, http: httpx.Client) -> None:
    body = b'{"model":"scripted","messages":"%b","model":"scripted"}' % LARGE.encode()
    answer = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "'model' twice" in answer.json()["error"]["message"]
    assert http.post("/v1/chat/completions", json={"model": "scripted", "messages": []}).status_code == 200


def test_the_list_reads_as_v1s_too_and_a_named_function_answers_itself(served: Deployment, http: httpx.Client) -> None:
    assert "scripted" in http.get("/v1/models").json()["models"]
    one = http.get("/openai/v1/models/scripted").json()
    assert (one["name"], one["ready"], one["status"]) == ("scripted", True, "ready")
    assert http.get("/functions/scripted/openai/v1/models").json()["data"][0]["owned_by"] == "the script"


def test_curl_s_habits(http: httpx.Client) -> None:
    """A form's content type on a JSON body, and a pause for 100 before a large one."""
    kind = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"messages": [], "model": "scripted"}).encode()
    assert http.post("/v1/chat/completions", content=body, headers=kind).status_code == 200
    expects = http.post("/v1/chat/completions", content=body, headers=kind | {"expect": "100-continue"})
    assert expects.status_code == 200
