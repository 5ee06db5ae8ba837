"""The example call that a deploy prints: bodies that are short enough to be pasted."""

import json
import shlex
import subprocess
import sys

from tidegate.control.cli.develop.example import SHORT, _batch, _made
from tidegate.loadgen.clients.bodies import Input, v2_json


def test_a_large_body_is_made_by_a_line_of_python_that_prints_the_same() -> None:
    inputs = (Input("it's", "FP32", (-1, 3, 64, 64)), Input("words", "BYTES", (-1,)), Input("mask", "BOOL", (-1, 2)))
    body = v2_json(inputs, 1).decode()
    words = shlex.split(_made(body))
    assert words[:2] == ["python3", "-c"]
    assert len(words[2]) < SHORT
    printed = subprocess.run([sys.executable, "-c", words[2]], capture_output=True, check=True).stdout
    assert json.loads(printed) == json.loads(body)


def test_the_batch_is_the_smallest_that_the_inputs_allow() -> None:
    assert _batch((Input("x", "FP32", (-1, 2)),)) == 1
    assert _batch((Input("x", "FP32", (4, 2)), Input("scale", "FP32", ()))) == 4
