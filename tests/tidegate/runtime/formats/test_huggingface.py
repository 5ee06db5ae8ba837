"""Hugging Face folders: the task of an architecture, and results as tensors. By a stand-in for transformers with its
documented calls; ``make test-torch`` tries the real one."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tests.tidegate.runtime.formats.conftest import Answers, Modules
from tidegate.runtime.errors import LoadError, RequestError
from tidegate.runtime.formats.arrays_model import LoaderSettings
from tidegate.runtime.formats.huggingface import TASKS, HuggingFaceModel
from tidegate.runtime.protocols.tensors import Tensor


def texts(*items: str, name: str = "text") -> Tensor:
    return Tensor(name, "BYTES", (len(items),), [item.encode() for item in items])


class Transformers:
    """``pipeline`` gives ``answer(row)`` for each row."""

    def __init__(self, answer: Any, *, pad: int | None = 0) -> None:
        self._answer, self._pad = answer, pad
        self.made: list[Any] = []
        self.asked: list[Any] = []
        self.utils = SimpleNamespace(logging=SimpleNamespace(disable_progress_bar=lambda: None))

    def pipeline(self, task: str, **given: Any) -> Any:
        self.made.append((task, given))
        return _Pipeline(self._answer, self._pad, self.asked)


class _Pipeline:
    def __init__(self, answer: Any, pad: int | None, asked: list[Any]) -> None:
        self._answer, self._asked = answer, asked
        self.tokenizer = SimpleNamespace(pad_token_id=pad, mask_token="[MASK]")

    def __call__(self, rows: list[Any], batch_size: int) -> Any:
        self._asked.append((rows, batch_size))
        return [self._answer(row) for row in rows]


def model(
    tmp_path: Path, modules: Modules, library: Transformers, architecture: str = "", **arguments: Any
) -> HuggingFaceModel:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture] if architecture else None}))
    torch = SimpleNamespace(set_num_threads=lambda count: None)
    settings = LoaderSettings(
        path=str(tmp_path),
        source=str(tmp_path),
        max_batch=4,
        threads=1,
        arguments=arguments,
        import_module=modules(torch=torch, transformers=library),
    )
    return HuggingFaceModel(settings)


def sentiment(text: str) -> dict[str, Any]:
    return {"label": "good" if "good" in text else "bad", "score": 0.5}


def test_a_classifier_gives_a_label_and_a_score_for_each_text(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    library = Transformers(sentiment)
    spec, (one, two) = answers(
        model(tmp_path, modules, library, "BertForSequenceClassification"), [texts("good film")], [texts("dull", "ü")]
    )
    assert spec.inputs is not None
    assert spec.outputs is not None
    assert spec.inputs[0].as_metadata() == {"name": "text", "datatype": "BYTES", "shape": [-1]}
    assert [each.as_metadata() for each in spec.outputs] == [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "score", "datatype": "FP32", "shape": [-1]},
    ]
    assert (spec.max_batch, spec.notes) == (4, {"task": "text-classification"})
    assert (one["label"].data, two["label"].data) == ([b"good"], [b"bad", b"bad"])
    assert bytes(two["score"].data) == struct.pack("<2f", 0.5, 0.5)  # type: ignore[arg-type]  # not BYTES
    assert library.asked[-1] == (["good film", "dull", "ü"], 3), "one run for both requests"
    assert library.made == [("text-classification", {"model": str(tmp_path), "device": "cpu"})]


def test_arguments_go_to_the_pipeline_and_several_results_to_a_second_dimension(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    library = Transformers(lambda text: [sentiment(text)] * 2)
    spec, (answer,) = answers(
        model(tmp_path, modules, library, task="text-classification", top_k=2), [texts("good", "bad")]
    )
    assert library.made[0][1]["top_k"] == 2
    assert spec.outputs is not None
    assert [each.shape for each in spec.outputs] == [(-1, 2), (-1, 2)]
    assert answer["label"].data == [b"good", b"good", b"bad", b"bad"]


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("DistilBertForTokenClassification", "token-classification"),
        ("RobertaForMaskedLM", "fill-mask"),
        ("GPT2LMHeadModel", "text-generation"),
        ("LlamaForCausalLM", "text-generation"),
        ("ViTForImageClassification", "image-classification"),
        ("T5ForConditionalGeneration", "text2text-generation"),
        ("BertModel", "feature-extraction"),
    ],
)
def test_the_task_follows_from_the_architecture(tmp_path: Path, modules: Modules, architecture: str, task: str) -> None:
    kept = model(tmp_path, modules, Transformers(sentiment), architecture)
    assert kept._chosen() == task


def test_a_task_that_does_not_follow_or_is_not_served_is_said(tmp_path: Path, modules: Modules) -> None:
    served = ", ".join(TASKS)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("BertForNothing", {}, "does not follow from BertForNothing"),
        ("", {}, "does not follow from nothing"),
        ("", {"task": "video"}, f"'video'; these tasks are served: {served}"),
        ("", {"model": "other"}, "the model is the folder itself"),
    ]
    for architecture, arguments, expected in cases:
        with pytest.raises(LoadError, match=expected):
            model(tmp_path, modules, Transformers(sentiment), architecture, **arguments).load()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="names no architectures; state the task"):
        HuggingFaceModel(LoaderSettings(path=str(tmp_path), source=str(tmp_path))).load()


def test_entities_of_a_text_are_json(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    library = Transformers(lambda text: [{"word": word, "score": numpy.float32(0.5)} for word in text.split()])
    _, (answer,) = answers(model(tmp_path, modules, library, "BertForTokenClassification"), [texts("a b", "c")])
    found = [json.loads(item) for item in answer["entities"].data]  # type: ignore[arg-type]  # BYTES
    assert found == [[{"word": "a", "score": 0.5}, {"word": "b", "score": 0.5}], [{"word": "c", "score": 0.5}]]


def test_a_mask_more_or_less_is_the_callers_fault(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    def fill(text: str) -> Any:
        found = [{"token_str": "x", "score": 0.5, "sequence": text}] * 2
        return found if text.count("[MASK]") == 1 else [found] * 2

    kept = model(tmp_path, modules, Transformers(fill), "BertForMaskedLM")
    spec, (answer,) = answers(kept, [texts("a [MASK]")])
    assert spec.outputs is not None
    assert answer["token_str"].shape == (1, 2)
    with pytest.raises(RequestError, match="one mask for each text"):
        kept.run({"text": numpy.array([b"[MASK] [MASK]"], dtype=object)})


def test_features_of_texts_of_different_lengths_are_refused_and_never_those_of_padding(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    library = Transformers(lambda text: [[[1.0, 2.0]] * len(text.split())])
    kept = model(tmp_path, modules, library, "BertModel")
    spec, (answer,) = answers(kept, [texts("a b", "c d")])
    assert spec.outputs is not None
    assert (spec.outputs[0].shape, spec.max_batch) == ((-1, -1, 2), 1)
    assert answer["features"].shape == (2, 2, 2)
    assert {size for _, size in library.asked} == {1}
    with pytest.raises(RequestError, match="equally many tokens, got 1, 2: send one at a time"):
        kept.run({"text": numpy.array([b"a", b"b c"], dtype=object)})


def test_a_tokenizer_without_padding_runs_text_by_text(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    library = Transformers(lambda text: [{"generated_text": f"{text} on"}], pad=None)
    _, (answer,) = answers(model(tmp_path, modules, library, "GPT2LMHeadModel"), [texts("go", "and so")])
    assert answer["generated_text"].data == [b"go on", b"and so on"]
    assert library.asked[-1][1] == 1


def test_questions_have_two_inputs_of_equally_many_rows(tmp_path: Path, modules: Modules, answers: Answers) -> None:
    library = Transformers(lambda row: {"answer": row["context"], "score": 1.0, "start": 0, "end": 1})
    kept = model(tmp_path, modules, library, "BertForQuestionAnswering")
    _, (answer,) = answers(kept, [texts("who", name="question"), texts("me", name="context")])
    assert answer["answer"].data == [b"me"]
    assert library.asked[-1][0] == [{"question": "who", "context": "me"}]
    one, two = numpy.array([b"a"], dtype=object), numpy.array([b"a", b"b"], dtype=object)
    with pytest.raises(RequestError, match="equally many rows, got"):
        kept.run({"question": one, "context": two})


def test_an_image_is_the_contents_of_a_file_and_nothing_else_is_opened(
    tmp_path: Path, modules: Modules, answers: Answers
) -> None:
    """A path or an address in the place of an image would make the server read what its client may not."""

    def opened(data: Any) -> Any:
        if data.read() != b"PNG":
            raise OSError("cannot identify")
        return SimpleNamespace(convert=lambda mode: mode)

    library = Transformers(lambda image: [{"label": "cat", "score": 0.5}])
    kept = model(tmp_path, modules, library, "ViTForImageClassification")
    with pytest.raises(LoadError, match="tasks on images need pillow"):
        kept.load()
    torch = SimpleNamespace(set_num_threads=lambda count: None)
    images = modules(torch=torch, transformers=library, PIL_Image=SimpleNamespace(open=opened))
    settings = LoaderSettings(path=str(tmp_path), source=str(tmp_path), import_module=images)
    kept = HuggingFaceModel(settings)
    _, (answer,) = answers(kept, [Tensor("image", "BYTES", (1,), [b"PNG"])])
    assert answer["label"].data == [b"cat"]
    with pytest.raises(RequestError, match="must be the contents of an image file"):
        kept.run({"image": numpy.array([b"/etc/passwd"], dtype=object)})


def test_a_missing_library_names_the_extra(tmp_path: Path, modules: Modules) -> None:
    settings = LoaderSettings(
        path=str(tmp_path), source=str(tmp_path), arguments={"task": "fill-mask"}, import_module=modules()
    )
    with pytest.raises(LoadError, match=r"pip install 'tidegate\[huggingface\]'"):
        HuggingFaceModel(settings).load()
