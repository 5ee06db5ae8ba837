"""The predictor's service and its file of samples."""

import io
import math
from pathlib import Path

import pytest

from tidegate.autoscaler.oltunes.prediction.served import ServedDevice, ServedWork
from tidegate.control.predictor.main import serve
from tidegate.control.predictor.messages import MAX_BYTES, Question, Seen, Turn, packed, unpacked_answer, unpacked_turn
from tidegate.control.predictor.service import KEPT_SAMPLES, PredictionService, SampleHistory

OF = Question(model="m", device=ServedDevice(name="cpu", memory_gb=8.0, rates=None), share_pct=100.0)


def seen(one_s: float, of: Question = OF) -> Seen:
    work = ServedWork(requests=10, inferences=10, busy_s=10 * one_s, request_s=10 * one_s, execution_s=10 * one_s)
    return Seen(of=of, work=work)


def taught(service: PredictionService, turns: int = 40) -> PredictionService:
    for _ in range(turns):
        service.take(Turn(seen=(seen(0.02),)))
    return service


def predicted_s(service: PredictionService) -> float | None:
    (found,) = service.take(Turn(questions=(OF,))).predictions
    return None if found is None else found.one_s


def test_nothing_is_predicted_of_an_unknown_model() -> None:
    assert predicted_s(PredictionService()) is None


def test_samples_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    taught(PredictionService(SampleHistory(path)))
    assert predicted_s(PredictionService(SampleHistory(path))) == pytest.approx(0.02, rel=0.1)


def test_a_torn_or_foreign_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    taught(PredictionService(SampleHistory(path)))
    whole = path.read_bytes()
    path.write_bytes(b"\x00\xff\n{}\n" + whole + b"\n" + whole[: len(whole) // 80])
    heir = SampleHistory(path)
    assert len(heir.load()) == 40
    taught(PredictionService(heir), 1)
    assert len(SampleHistory(path).load()) == 41, "what follows a torn line begins on a line of its own"


def test_the_file_keeps_the_newest_samples_only(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    history = SampleHistory(path)
    service = PredictionService(history)
    taught(service, 2 * KEPT_SAMPLES + 1)
    assert len(path.read_bytes().splitlines()) == KEPT_SAMPLES
    assert len(SampleHistory(path).load()) == KEPT_SAMPLES
    assert [each.name for each in tmp_path.iterdir()] == ["samples.jsonl"]


def test_the_file_stays_bounded_over_many_starts(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    taught(PredictionService(SampleHistory(path)), 1)
    path.write_bytes((path.read_bytes() + b"\n") * 3 * KEPT_SAMPLES + b"torn")
    SampleHistory(path).load()
    assert len(path.read_bytes().splitlines()) == KEPT_SAMPLES - 1
    assert len(SampleHistory(path).load()) == KEPT_SAMPLES - 1


def test_a_refused_sample_is_not_kept_and_one_of_no_folder_is_learnt_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    answer = PredictionService(SampleHistory(path)).take(Turn(seen=(seen(math.nan),)))
    assert (answer.verdicts, path.exists(), list(answer.notes)) == ({"refused": 1}, False, ["m"])
    nowhere = PredictionService(SampleHistory(tmp_path / "gone" / "samples.jsonl"))
    fault = f"samples are not kept: {tmp_path}/gone/samples.jsonl: No such file or directory"
    assert nowhere.take(Turn(seen=(seen(0.02),))).fault == fault
    assert nowhere.take(Turn()).fault == fault, "it lasts until samples are kept again"
    (tmp_path / "gone").mkdir()
    assert nowhere.take(Turn()).fault is None, "without a new sample"
    assert len(SampleHistory(tmp_path / "gone" / "samples.jsonl").load()) == 1, "what could not be kept before"
    assert predicted_s(taught(nowhere)) == pytest.approx(0.02, rel=0.1)


def test_messages_carry_every_number() -> None:
    turn = Turn(graphs={"m": "/m.onnx"}, seen=(seen(math.inf),), questions=(OF,))
    assert unpacked_turn(packed(turn)[4:]) == turn
    (back,) = unpacked_turn(packed(Turn(seen=(seen(math.nan),)))[4:]).seen
    assert math.isnan(back.work.execution_s)


def test_the_process_answers_turn_by_turn_and_ends_with_its_input_or_at_nonsense() -> None:
    one = packed(Turn(questions=(OF,)))
    for tail in (b"", b"\x00", one[:-1], (MAX_BYTES + 1).to_bytes(4, "big")):
        sink = io.BytesIO()
        serve(PredictionService(), io.BytesIO(one + one + tail), sink)
        out, answers = sink.getvalue(), []
        while out:
            size = int.from_bytes(out[:4], "big")
            answers.append(unpacked_answer(out[4 : 4 + size]).predictions)
            out = out[4 + size :]
        assert answers == [(None,), (None,)]
