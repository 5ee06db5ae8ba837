"""Definitions: what they become, and every fault of one at once."""

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import pytest

from tests.loadgen.experiments.small import PARAMETERS, TEXT, small
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import MAX_BYTES, Check, catalogue, parse
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.tables import Count, Some, read
from tidegate.schema.yaml_nodes import Faults


def faults_of(text: str) -> dict[str, str]:
    """What is allowed, by where."""
    with pytest.raises(InvalidInputError) as caught:
        parse(text, "own.toml")
    assert caught.value.source == "own.toml"
    return {fault.where: fault.allowed for fault in caught.value.faults}


def test_a_definition_becomes_an_experiment() -> None:
    found = small()
    assert (found.name, found.setup, found.seeds) == ("small", "thesis.latency", 2)
    total, mean = found.checks
    assert (total.low, total.high, total.each) == (1.0, 3.0, False)
    assert mean.low == pytest.approx(0.05) and mean.high == pytest.approx(0.15) and mean.each
    assert found.reported[0].printed is None
    assert found.parameters["cluster"]["devices"] == 2


def test_within_is_of_what_was_printed_unless_it_says_of_what() -> None:
    assert Check(figure="a", printed=-200.0, within=0.1).low == pytest.approx(-220.0)
    assert Check(figure="a", printed=200.0, within=0.1, of=10.0).high == pytest.approx(11.0)


def test_all_faults_are_reported_at_once() -> None:
    text = f"""
        name = "Has Blanks"
        title = ""
        claim = 7
        colour = "red"
        setup = "thesis.latensy"
        seeds = 0
        {PARAMETERS.replace("devices = 2", "devices = 0").replace("target = 1", "target = nan")}
        [[checks]]
        figure = "a"
        [[checks]]
        figure = "a"
        at_least = 3
        at_most = 2
        [[checks]]
        figure = "a"
        within = 0.1
        [[checks]]
        figure = "a"
        at_most = "many"
        [[checks]]
        figure = "a"
        at_most = 1
        of = 3
    """
    found = faults_of(text)
    assert set(found) == {
        *("name", "title", "source", "claim", "colour", "setup", "seeds"),
        *(f"checks[{index}]" for index in (0, 1, 2, 4)),
        "checks[3].at_most",
    }
    assert "did you mean `thesis.latency`?" in found["setup"]
    assert found["seeds"] == "a whole number >= 1"
    assert found["checks[3].at_most"] == "a number"
    assert found["checks[4]"] == "of only beside within"


def test_faults_of_parameters_come_with_the_others() -> None:
    text = TEXT.replace("devices = 2", "devices = 0").replace("threshold = 30", "treshold = 30")
    text = text.replace("calm = 1", "calm = 2.5").replace("service_s = 0.05", "service_s = inf")
    text = text.replace('title = "A small one"', "")
    assert faults_of(text) == {
        "title": "a text",
        "parameters.cluster.devices": "a whole number >= 1",
        "parameters.cluster.service_s": "a finite number",
        "parameters.hpa.treshold": "threshold, busy_utilization, tolerance, period_s, window_s, cooldown_s, start_s, "
        "calm, crowd, crowded_s (did you mean `threshold`?)",
        "parameters.hpa.threshold": "a number",
        "parameters.hpa.calm": "a whole number",
    }


def test_parameters_that_do_not_fit_together_are_reported_where_they_stand() -> None:
    assert faults_of(TEXT.replace("calm = 1", "calm = 2")) == {"parameters.hpa": "a calm below crowd"}


@pytest.mark.parametrize(
    "text", ["name = ", "a" * (MAX_BYTES + 1), "a = " + "[" * 5000, f"a = {'9' * 5000}", "a = 1\na = 2"]
)
def test_what_is_no_toml_is_reported(text: str) -> None:
    assert set(faults_of(text)) == {"document"}


def test_an_experiment_judges_something() -> None:
    assert faults_of(TEXT.partition("[[checks]]")[0].replace("seeds = 2", "checks = []")) == {
        "checks": "a list of one or more"
    }


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: Count


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    several: Some[Inner]
    names: tuple[str, ...] = ()


def test_tables_are_read_into_dataclasses() -> None:
    faults = Faults("x")
    table = {"inner": {"size": 1}, "several": [{"size": 2}, {"size": 3}], "names": ["a"]}
    assert read(Outer, table, "", faults) == Outer(
        inner=Inner(size=1), several=(Inner(size=2), Inner(size=3)), names=("a",)
    )
    assert not len(faults)
    assert read(Outer, {"inner": [], "several": [{"size": 0}, 4], "names": "a"}, "top", faults) is None
    found = {fault.where: (fault.value, fault.allowed) for fault in faults.error().faults}
    assert found == {
        "top.inner": ("a list", "a table"),
        "top.several[0].size": ("0", "a whole number >= 1"),
        "top.several[1]": ("4", "a table"),
        "top.names": ("'a'", "a list"),
    }


# --- the catalogue


def test_the_catalogue_has_every_experiment_under_the_name_of_its_file() -> None:
    found = catalogue()
    folder = resources.files("tidegate.loadgen.experiments") / "catalogue"
    assert set(found) == {each.name.removesuffix(".toml") for each in folder.iterdir()}
    names = list(found)
    assert names.index("th2") < names.index("th10"), "by number"
    assert {f"th{number}" for number in range(1, 11)} <= set(names)


def test_the_catalogue_is_installed_with_the_package() -> None:
    root = Path(__file__).resolve().parents[3]
    tool = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = tool["package-data"]["tidegate.loadgen.experiments"]
    files = [
        path.relative_to(root / "loadgen/experiments").as_posix()
        for path in root.glob("loadgen/experiments/catalogue/*")
    ]
    assert files and all(any(fnmatch(file, pattern) for pattern in patterns) for file in files)


def test_every_setup_of_a_paper_is_looked_at_by_an_experiment() -> None:
    own = {"championship.row"}  # of one's own experiments
    assert set(known()) - own == {each.setup for each in catalogue().values()}


@pytest.mark.parametrize("name", list(catalogue()))
def test_no_experiment_judges_a_figure_twice_by_the_same_bound(name: str) -> None:
    checks = catalogue()[name].checks
    assert len({(check.figure, check.low, check.high) for check in checks}) == len(checks)
