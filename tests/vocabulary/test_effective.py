"""A function written in full is the same function."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.document import dump
from tidegate.draft import Terms
from tidegate.effective import effective, filled_in
from tidegate.function import Function
from tidegate.manifest import read

FOLDER = Path(__file__).parent / "manifests" / "good"


def functions(path: Path, terms: Terms) -> tuple[Function, ...]:
    return read(path.read_text(encoding="utf-8"), source=path.name, terms=terms).functions


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_was_filled_in_can_be_read_back(path: Path, terms: Terms) -> None:
    for function in functions(path, terms):
        text = dump(effective(function))
        assert read(text, source="effective", terms=terms).functions == (function,)


def test_it_is_plain_data_with_every_annotation(terms: Terms) -> None:
    (function,) = functions(FOLDER / "smallest.yaml", terms)
    written = json.loads(json.dumps(effective(function)))
    annotations = written["metadata"]["annotations"]
    assert annotations["tidegate.dev/scale-to-zero-after"] == "1m"
    assert annotations["tidegate.dev/latency"] == "none"
    assert written["spec"]["readiness"] == {"path": "/v2/health/ready", "start-timeout": "2m"}
    assert "metrics" not in written["spec"]


def test_an_image_is_shown_with_its_command(terms: Terms) -> None:
    (function,) = functions(FOLDER / "knative.yaml", replace(terms, images=True))
    assert effective(function)["spec"]["server"] == {
        "image": "ghcr.io/knative/helloworld-go:latest",
        "command": ["python", "server.py", "--port", "{port}", "--greet=Go", "$(TARGET)", "$(UNKNOWN)"],
    }


def test_filled_in_are_the_values_that_nobody_wrote(terms: Terms) -> None:
    text = (FOLDER / "command.yaml").read_text(encoding="utf-8")
    parsed = read(text, source="m", terms=terms)
    told = filled_in(parsed.functions[0], parsed.written[0])
    assert told["policy"] == "smif"
    assert told["percentile"] == "98"
    assert not {"latency", "concurrency", "target-ips"} & told.keys()
