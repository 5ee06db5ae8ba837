"""Plots and pages."""

import re
from xml.etree import ElementTree

from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import Plot, Series, nice_top, svg


def test_steps_hold_their_value_until_the_next() -> None:
    plot = Plot("t", "n", (Series("ready", ((0.0, 1.0), (10.0, 2.0)), "#000", steps=True),))
    (points,) = re.findall(r"points='([^']*)'", svg(plot))
    pairs = [tuple(map(float, pair.split(","))) for pair in points.split()]
    assert len(pairs) == 3
    assert pairs[0][1] == pairs[1][1] > pairs[2][1]


def test_an_axis_ends_at_a_round_number() -> None:
    assert [nice_top(value) for value in (0.0, 0.3, 1.0, 3.0, 7.0, 99.0, 101.0)] == [
        1.0,
        0.4,
        1.0,
        4.0,
        8.0,
        100.0,
        200.0,
    ]


def test_an_axis_of_something_other_than_time_says_its_unit() -> None:
    drawn = svg(Plot("t", "s", (Series("a", ((0.0, 1.0), (30.0, 2.0)), "#000"),), x_unit="% & more"))
    texts = [each.text for each in ElementTree.fromstring(drawn) if each.tag == "text"]
    assert "30 % & more" in texts
    assert "15 % & more" in texts


def test_a_page_is_well_formed_and_escapes_what_it_is_given() -> None:
    hostile = "<b>&'\""
    text = page.page(
        hostile,
        [
            page.verdict(hostile, True),
            page.heading(hostile),
            page.facts([(hostile, hostile)]),
            page.table([hostile, "held"], [[hostile, "yes"], [hostile, "no"]], ["good"]),
            page.lines([hostile, hostile]),
            *page.plots([Plot(hostile, "n", (Series(hostile, ((0.0, 1.0),), "#000"),))]),
        ],
    )
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")])
    assert {each.text for each in body.iter() if each.text and "<" in each.text} >= {hostile}
    assert [each.get("class") for each in body.iter("td") if each.text in ("yes", "no")] == ["good", None]
