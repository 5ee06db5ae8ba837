"""A real embedding model, deployed as the example says, asked by the official client, from zero."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.live.deployment import Deployment, deployment

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "embeddings"
TEXTS = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.needs(tool="embeddings"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("embeddings")) as found:
        found.up()
        found.cli("deploy", str(EXAMPLE / "manifest.yaml"), "--initial-scale", "0")
        yield found


@pytest.fixture
def client(served: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.gateway}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def similarity(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_vectors_are_the_published_ones_and_usage_is_reported(client: openai.OpenAI) -> None:
    """The first request wakes the function."""
    answer = client.embeddings.create(model="all-minilm-l6-v2", input=TEXTS)
    vectors = [each.embedding for each in answer.data]
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert {len(vector) for vector in vectors} == {384}
    found = [similarity(vectors[a], vectors[b]) for a, b in ((0, 0), (0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx([1.0, 0.666, 0.1046, 0.1411], abs=2e-4)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (25, 25)
    assert answer.model == "all-minilm-l6-v2"


def test_formats_carry_the_same_numbers(client: openai.OpenAI) -> None:
    coded = client.embeddings.create(model="minilm", input=TEXTS[0])
    plain = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float", dimensions=384)
    assert coded.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)


def test_a_request_may_have_more_texts_than_a_batch(client: openai.OpenAI) -> None:
    texts = [f"text number {number}" for number in range(40)]
    answer = client.embeddings.create(model="minilm", input=texts)
    assert [each.index for each in answer.data] == list(range(40))
    alone = client.embeddings.create(model="minilm", input=texts[33]).data[0].embedding
    assert answer.data[33].embedding == pytest.approx(alone, abs=1e-5)


def test_other_dimensions_and_tokens_are_refused_in_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="vectors have 384 numbers"):
        client.embeddings.create(model="minilm", input="x", dimensions=128)
    with pytest.raises(openai.BadRequestError, match="must be texts"):
        client.embeddings.create(model="minilm", input=[1, 2, 3])
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="x")
    assert missing.value.code == "model_not_found"


def test_v2_clients_get_the_same_vectors(served: Deployment, client: openai.OpenAI) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXTS[2]]}
    url = f"{served.gateway}/v2/models/minilm/infer"
    answer = httpx.post(url, json={"inputs": [tensor]}, timeout=30, trust_env=False, verify=False).json()
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    own = client.embeddings.create(model="minilm", input=TEXTS[2]).data[0].embedding
    assert outputs["embedding"] == pytest.approx(own, abs=1e-6)
    assert outputs["tokens"] == [8]


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert {"all-minilm-l6-v2", "minilm"} <= {model.id for model in client.models.list()}
