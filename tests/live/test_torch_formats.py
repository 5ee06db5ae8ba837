"""TorchScript modules and Hugging Face folders by the libraries themselves, with models that are made up here."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live import presets
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(300), pytest.mark.needs(tool="torch")]

WRITE = """
import json, warnings
from pathlib import Path
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, pipeline
warnings.simplefilter("ignore")
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(2, 3)).eval()
torch.jit.script(net).save("net.pt")
torch.save(net.state_dict(), "weights.pt")
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
Path("vocab.txt").write_text("\\n".join(words))
labels = {0: "negative", 1: "positive"}
config = BertConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=32, id2label=labels)
BertForSequenceClassification(config).save_pretrained("film")
BertTokenizerFast("vocab.txt").save_pretrained("film")
found = pipeline("text-classification", model="film", device="cpu")(["good film", "bad"])
json.dump({"net": net(torch.ones(1, 2)).tolist(), "film": found}, open("expected.json", "w"))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("torch")
    presets.write("torch", WRITE, folder)
    with deployment(folder, *places(folder, 4)) as made:
        made.up()
        yield made


def deploy(world: Deployment, file: str, *flags: str, code: int = 0) -> str:
    return world.cli("deploy", file, "--python", str(presets.python("torch")), *flags, code=code).stderr


def infer(world: Deployment, model: str, **tensor: Any) -> httpx.Response:
    url = f"{world.gateway}/v2/models/{model}/infer"
    return httpx.post(url, json={"inputs": [tensor]}, timeout=120, trust_env=False)


def test_a_torchscript_file_answers_as_the_module_does(world: Deployment) -> None:
    deploy(world, "net.pt", "--arg", 'inputs={"input": ["FP32", [-1, 2]]}')
    answer = infer(world, "net", name="input", datatype="FP32", shape=[1, 2], data=[1, 1])
    (expected,) = json.loads((world.folder / "expected.json").read_text())["net"]
    assert answer.json()["outputs"][0]["data"] == pytest.approx(expected)
    answer = infer(world, "net", name="input", datatype="FP32", shape=[1, 3], data=[1, 1, 1])
    assert (answer.status_code, "must have the shape [-1, 2]" in answer.text) == (400, True)
    deploy(world, "net.pt", "--name", "bare")
    answer = infer(world, "bare", name="input", datatype="FP32", shape=[1, 3], data=[1, 1, 1])
    assert (answer.status_code, "shapes cannot be multiplied" in answer.text) == (400, True)


def test_weights_without_code_are_refused_with_what_to_do(world: Deployment) -> None:
    assert "torch.save keeps weights without their code" in deploy(world, "weights.pt", code=1)


def test_a_folder_answers_as_its_pipeline_does(world: Deployment) -> None:
    assert "no copy of film is kept (it is a folder)" in deploy(world, "film")
    answer = infer(world, "film", name="text", datatype="BYTES", shape=[2], data=["good film", "bad"])
    labels, scores = answer.json()["outputs"]
    expected = json.loads((world.folder / "expected.json").read_text())["film"]
    assert labels["data"] == [each["label"] for each in expected]
    assert scores["data"] == pytest.approx([each["score"] for each in expected], abs=1e-5)
