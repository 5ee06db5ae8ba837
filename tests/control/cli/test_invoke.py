"""V2 tensors from the command line, with and without inputs that the model declares."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import typer
from typer.testing import CliRunner

from tidegate.control.cli.app import app
from tidegate.control.cli.invoke import _tensor, stream_error


def tensor(text: str, declared: list[dict[str, Any]] | None = None) -> tuple[str, str, list[int]]:
    made = _tensor(triton, np, text, declared or [])
    return made.name(), made.datatype(), made.shape()


@pytest.mark.parametrize(
    ("values", "datatype", "shape"),
    [
        ("[1, 2]", "INT64", [2]),
        ("[[1, 2.5]]", "FP64", [1, 2]),
        ("[[true], [false]]", "BOOL", [2, 1]),
        ('["Ebbe", "Flut"]', "BYTES", [2]),
    ],
)
def test_without_declared_inputs_the_values_tell_the_type(values: str, datatype: str, shape: list[int]) -> None:
    assert tensor(f"x={values}") == ("x", datatype, shape)


def test_a_type_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"abcd")
    assert tensor("x:FP32=[1, 2]") == ("x", "FP32", [2])
    assert tensor("x:0=[1]") == ("x:0", "INT64", [1])
    assert tensor(f"x:UINT8=@{tmp_path / 'raw'}") == ("x", "UINT8", [1, 4])
    assert tensor(f"x:BYTES=@{tmp_path / 'raw'}") == ("x", "BYTES", [1, 1])


@pytest.mark.parametrize("values", ["[null]", "{}", '[1, "a"]', "[[1], [2, 3]]", "[1"])
def test_values_that_tell_no_type_are_wrong_input(values: str) -> None:
    with pytest.raises(typer.BadParameter, match="--input x: "):
        tensor(f"x={values}")


def test_raw_bytes_need_a_type_where_none_is_declared(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"abc")
    with pytest.raises(typer.BadParameter, match="the model declares no inputs: say the type"):
        tensor(f"x=@{tmp_path / 'raw'}")
    with pytest.raises(typer.BadParameter, match="--input x: "):
        tensor(f"x:FP32=@{tmp_path / 'raw'}")


def test_a_declared_input_has_its_type_and_others_are_refused() -> None:
    declared = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert tensor("x=[[1, 2]]", declared) == ("x", "FP32", [1, 2])
    with pytest.raises(typer.BadParameter, match=r"the model has x FP32\[-1, 2\]"):
        tensor("y=[1]", declared)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (
            b'data: {"i": 1}\n\ndata: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n',
            "out of memory",
        ),
        (b'data: {"i": 1}\r\n\r\nevent: error\r\ndata: {"error": "it broke", "code": "x"}\r\n\r\n', "it broke"),
        (b"event: error\ndata: the replica is gone\n\n", "the replica is gone"),
        (b'data: {"i": 1}\n\ndata: {"error": null}\n\n: error\n\ndata: [DONE]\n\n', None),
        (b"", None),
    ],
    ids=["openai", "ours", "no JSON", "no error", "nothing"],
)
def test_an_error_amid_a_stream_is_found(stream: bytes, why: str | None) -> None:
    assert stream_error(stream) == why


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-d", "{}", "--file", "f"), "--data and --file exclude each other"),
        (("--input", "x=[1]"), "--input needs --v2"),
        (("--v2", "--async"), "--async does not apply to --v2"),
        (("--v2", "-d", "{}", "--path", "/p"), "--data, --path: not with --v2"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["invoke", "echo", *words, "--state", str(tmp_path / "none")])
    assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
