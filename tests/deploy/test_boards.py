"""The Grafana boards: what is shipped is what is built, and no panel lacks its words, its place or its metrics."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.boards.boards import BOARDS, DECISIONS, Board, built, queries
from tests.support.live.prometheus_server import SHIPPED
from tidegate.metrics import CATALOGUE

FOLDER = SHIPPED.parent / "grafana"


def panels(board: Board) -> list[Any]:
    return list(json.loads(built(board))["panels"])


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_shipped_board_is_the_built_one(board: Board) -> None:
    assert (FOLDER / f"{board.uid}.json").read_text() == built(board), "run make docs"


def test_no_other_board_is_shipped() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {board.uid for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_each_panel_has_a_title_a_description_a_unit_and_the_chosen_data_source(board: Board) -> None:
    for panel in panels(board):
        if panel["type"] == "row":
            continue
        assert panel["title"] and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all("$deployment" in target["expr"] for target in panel["targets"])


UNITS = {"bytes", "none", "ops", "percentunit", "reqps", "s"}
"""Those of Grafana's units that the boards use."""
RANGED = re.compile(r"(\w+)\(\s*([\w:]+)(?:\{[^}]*\})?\[([^]]+)\]")
"""A call, the metric in it, and its window."""


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_rules_of_grafanas_dashboard_linter_hold(board: Board) -> None:
    """Its rules by the names that it gives them; ``deploy/grafana/.lint`` excludes four, with the reasons."""
    found = json.loads(built(board))
    assert found["editable"] is False, "uneditable-dashboard"
    source, *variables = found["templating"]["list"]
    assert (source["type"], source["name"], source["label"], source["query"]) == (
        *("datasource", "datasource", "Data source", "prometheus"),
    ), "template-datasource-rule"
    for each in variables:
        assert each["refresh"] == 2, "template-on-time-change-reload-rule"
        assert re.fullmatch(r"label_values\([\w:]+\{.*\}, \w+\)", each["query"]), "template-label-promql-rule"
        assert each["datasource"]["uid"] == "${datasource}"
    for panel in found["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["targets"], "panel-no-targets-rule"
        assert panel["datasource"]["uid"] == "${datasource}", "panel-datasource-rule"
        assert panel["title"] and panel["description"], "panel-title-description-rule"
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, "panel-units-rule"
        assert len({target["refId"] for target in panel["targets"]} - {""}) == len(panel["targets"])
        for target in panel["targets"]:
            calls = RANGED.findall(target["expr"])
            for call, _, window in calls:
                assert call not in ("rate", "irate") or window == "$__rate_interval", "target-rate-interval-rule"
            counters = re.findall(r"\b\w+_total\b", target["expr"])
            counted = [metric for call, metric, _ in calls if call in ("rate", "irate", "increase")]
            assert set(counters) <= set(counted), "target-counter-agg-rule"


def test_each_rule_that_is_left_out_has_a_reason() -> None:
    found = yaml.safe_load((FOLDER / ".lint").read_text())["exclusions"]
    assert set(found) == {f"{kind}-{label}-rule" for kind in ("template", "target") for label in ("job", "instance")}
    assert all(each["reason"] for each in found.values())


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(board: Board) -> None:
    found = panels(board)
    assert len({panel["id"] for panel in found}) == len(found)
    for one, other in combinations([panel["gridPos"] for panel in found], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert one["x"] + one["w"] <= 24


def test_queries_name_metrics_and_rules_that_there_are() -> None:
    known = {each.name for each in CATALOGUE}
    groups = yaml.safe_load((SHIPPED / "rules.yml").read_text())["groups"]
    known |= {rule["record"] for group in groups for rule in group["rules"]}
    for query in (*(query for board in BOARDS for query in queries(board)), DECISIONS):
        for name in re.findall(r"(?:\w+:)?tidegate_[\w:]+", query):
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            assert name in known or base in known or name.startswith("tidegate_control_process_"), name


def test_provisioning_finds_the_boards() -> None:
    found = yaml.safe_load((FOLDER / "provisioning" / "dashboards.yml").read_text())
    assert found["providers"][0]["options"]["path"].endswith("tidegate")
    source = yaml.safe_load((FOLDER / "provisioning" / "datasources.yml").read_text())
    assert source["datasources"][0]["type"] == "prometheus"
    assert Path(FOLDER / "tidegate-fleet.json").exists()
