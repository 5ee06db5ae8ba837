"""The console in a real Chromium over a running deployment: every page, its figures, its charts and its buttons."""

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.support.live import console
from tests.support.live.browser import Browser, browser
from tests.support.live.console import BROKEN, BUSY, CLOSED, KEY, WHY, api, ask, enter, go, without_faults
from tests.support.live.deployment import Deployment
from tests.support.live.load import load

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="browser"), pytest.mark.timeout(180)]

WORST = ("serious", "critical")
DESK, PHONE = (1280, 900), (360, 740)
ONE = ("--min-scale", "1", "--max-scale", "1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with console.furnished(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def window(world: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        enter(found, world)
        yield found


@pytest.fixture
def web(window: Browser) -> Iterator[Browser]:
    """The browser as a desk has it, without faults of before; whatever the test does, it causes none."""
    window.size(*DESK)
    window.theme("light")
    window.faults()
    yield window
    without_faults(window.faults())


@pytest.mark.parametrize("page", console.pages(BUSY))
def test_a_page_loads_without_faults_fits_a_phone_and_can_be_read_in_light_and_dark(
    world: Deployment, web: Browser, page: str
) -> None:
    with load(world, BUSY), load(world, CLOSED, headers=KEY):
        go(web, world, page)
        web.until(lambda: web.run("return document.querySelector('main').innerText.length > 80"), "the page's content")
        for theme in ("light", "dark"):
            web.theme(theme)
            assert web.axe(*WORST) == []
        web.size(*PHONE, is_phone=True)
        web.until(lambda: not web.too_wide(), f"no element of {page} to be wider than a phone", 5.0)
        assert web.axe(*WORST) == []


def test_charts_move_while_load_runs(world: Deployment, web: Browser) -> None:
    go(web, world, f"/console/functions/{BUSY}")
    web.until(web.drawn, "charts")
    with load(world, BUSY) as client:
        web.shows("p50", ".charts")  # the last chart to have values
        before = web.drawn()
        web.until(
            lambda: client.answered > 20 and sum(a != b for a, b in zip(before, web.drawn(), strict=True)) >= 3,
            "three charts to change",
        )
        # Again: they follow the load and are not drawn once.
        later = web.drawn()
        web.until(lambda: sum(a != b for a, b in zip(later, web.drawn(), strict=True)) >= 3, "them to go on")
        web.size(*PHONE, is_phone=True)
        web.until(lambda: web.drawn() and not web.too_wide(), "charts that fit a phone")


def test_a_function_that_cannot_start_is_shown_with_its_reason(world: Deployment, web: Browser) -> None:
    go(web, world, "/console")
    web.until(lambda: row(web, BROKEN)["State"] == "failed", f"{BROKEN} to be shown as failed")
    web.shows(WHY, "#faults")
    go(web, world, f"/console/functions/{BROKEN}")
    web.shows(WHY, "main")
    web.shows("failed", "h1")


def test_the_figures_are_those_of_status_and_of_the_load_client(world: Deployment, web: Browser) -> None:
    world.deploy(world.handler(work_s=0.02, name="counted"), *ONE, "--latency", "500ms", "--wait", name="counted")
    go(web, world, "/console/functions/counted")
    with load(world, "counted", threads=2) as client:
        web.until(lambda: client.answered >= 200, "200 answers")
    web.until(lambda: number(web.facts()["Last minute"]) == client.answered, f"{client.answered} answers")
    assert client.failed == 0
    status = world.ask("status", "counted")
    traffic, facts = status["traffic"], web.facts()
    assert traffic["requests"] == client.answered
    assert number(facts["Last minute"]) == pytest.approx(client.answered, rel=0.02)
    assert number(facts["Ready / wanted"]) == status["ready"] == 1
    assert number(facts["Price/h"]) == status["price_per_hour"]
    latencies = facts["p50 / p95 / p98 / p99, last minute"].split(" / ")
    times = [milliseconds(each) for each in latencies]
    assert times == pytest.approx([1e3 * traffic[each] for each in ("p50_s", "p95_s", "tail_s", "p99_s")], rel=0.02)
    legend = web.text("main").replace("\n", " ")
    assert f"p98 {facts['p50 / p95 / p98 / p99, last minute'].split(' / ')[2]}" in legend, (
        "the chart ends there as well"
    )
    go(web, world, "/console")
    shown = row(web, "counted")
    assert [milliseconds(shown[each]) for each in ("p50", "p95", "p99")] == [times[0], times[1], times[3]]
    assert shown["SLA, last minute"].splitlines()[0] == f"met {100 * traffic['within_sla'] / traffic['requests']:.1f} %"


def test_rollout_buttons_work_by_mouse(world: Deployment, web: Browser) -> None:
    console.begin_rollout(world, "ship")
    go(web, world, "/console/functions/ship")
    press(web, world, "Pause", "paused")
    web.click("Resume")
    web.click("No")
    press(web, world, "Resume", "running")
    press(web, world, "Promote", "promoted")
    web.until(lambda: row(web, "ship-00002", "Revisions")["Traffic"] == "100 %", "all traffic on the new revision")
    web.click("Roll back to ship-00001")
    web.click("Yes")
    web.until(lambda: row(web, "ship-00001", "Revisions")["Traffic"] == "100 %", "all traffic on the old revision")


def press(web: Browser, world: Deployment, words: str, phase: str) -> None:
    """Clicks a button and says yes; waits until the rollout is in this phase, and the page shows it."""
    web.click(words)
    web.click("Yes")
    world.until(partial(is_in, world, "ship", phase), 20.0, f"a rollout that is {phase}")
    web.shows(f": {phase}", "main")


def test_rollout_buttons_work_by_keyboard_alone(world: Deployment, web: Browser) -> None:
    console.begin_rollout(world, "sail")
    go(web, world, "/console/functions/sail")
    for words, key, phase in (
        ("Pause", "Enter", "paused"),
        ("Resume", "Space", "running"),
        ("Abort", "Enter", "aborted"),
    ):
        press_by_key(web, words, key)
        world.until(partial(is_in, world, "sail", phase), 20.0, f"a rollout that is {phase}")


def press_by_key(web: Browser, words: str, key: str) -> None:
    """Goes to a button by Tab, takes its question back once, then says yes."""
    web.shows(words, "main")
    web.tab_to(lambda name: name.startswith(words))
    web.press(key)
    web.press("Escape")
    assert web.focused().startswith(words), "the focus is back after a question that was not answered"
    web.press(key)
    web.until(lambda: web.run("return document.querySelector('dialog').open"), "a question")
    if web.focused() != "Yes":
        web.tab_to(lambda name: name == "Yes")
    web.press("Enter")


def is_in(world: Deployment, name: str, phase: str) -> bool:
    return bool(world.ask("rollout", name)["phase"] == phase)


@pytest.mark.parametrize(
    ("page", "name"),
    [("/console", BUSY), ("/console/accelerators", BUSY), (f"/console/functions/{BUSY}", "Pause")],
)
def test_the_focus_stays_while_figures_change(world: Deployment, web: Browser, page: str, name: str) -> None:
    go(web, world, page)
    web.shows(name, "main")
    web.tab_to(lambda each: each == name)
    with load(world, BUSY, threads=2) as client:
        before = web.text("main")
        web.until(lambda: client.answered > 50, "50 answers")
        web.until(lambda: web.text("main") != before, "other figures")
        web.until(lambda: client.answered > 150, "150 answers")
    assert web.focused() == name


REBUILT = """
return import('/console/static/dom.js').then(({h, refill}) => {
  const box = h('div'), links = (...names) => () => names.map((name) => h('a', {href: '#' + name}, name));
  document.querySelector('main').append(box);
  refill(box, 'a', links('x', 'y'));
  box.lastChild.focus();
  refill(box, 'b', links('z', 'x', 'y'));
  const kept = document.activeElement.textContent;
  refill(box, 'c', links('z'));
  return [kept, document.activeElement === document.body];
});
"""


def test_the_focus_goes_on_when_its_place_is_drawn_again(world: Deployment, web: Browser) -> None:
    """As when a replica comes to an accelerator: all its units are drawn again."""
    go(web, world, "/console/accelerators")
    web.shows(BUSY, "main")
    assert web.run(REBUILT) == ["y", True]


def test_without_the_token_there_is_nothing_to_see(world: Deployment, window: Browser) -> None:
    web, used = window, console.link(world)
    try:
        web.open(used)
        console.is_live(web)
        web.run("localStorage.clear()")
        for page in console.pages(BUSY):
            web.open(f"{api(world)}{page}")
            web.shows("Sign in", "h1")
            web.until(lambda: web.text("#connection") == "signed out", "the page to be signed out")
            assert not any(name in web.text() for name in (BUSY, CLOSED, BROKEN)), page
        for code in ("wrong", used):
            web.open("about:blank")
            web.open(f"{api(world)}/console#code={code}" if code == "wrong" else used)
            web.shows("was used already", "main")
        field = web.driver.find_element("id", "code")
        field.send_keys(console.link(world))
        web.click("Sign in")
        console.is_live(web)
        assert "code=" not in web.driver.current_url
    finally:
        web.open("about:blank")
        enter(web, world)


def test_requests_without_a_right_are_refused(world: Deployment, web: Browser) -> None:
    go(web, world, "/console")
    session = {"authorization": f"Bearer {web.run('return localStorage.getItem(localStorage.key(0))')}"}
    token = {"authorization": f"Bearer {world.state.token}"}
    rollout = f"/api/v1/functions/{BUSY}/rollout"
    data = "/console/data/overview"
    assert ask(world, "GET", data) == 401
    assert ask(world, "GET", data, session) == ask(world, "GET", data, token) == 200
    assert ask(world, "GET", data, {"authorization": session["authorization"][:-1]}) == 401
    assert ask(world, "POST", "/console/code") == 401
    assert ask(world, "POST", "/console/code", session) == 403
    assert ask(world, "POST", "/console/session", code="guess") == 403
    # A session presses the buttons of its pages and nothing else.
    assert ask(world, "POST", "/api/v1/functions", session, manifest="", base="/") == 403
    assert ask(world, "DELETE", f"/api/v1/functions/{BUSY}", session) == 403
    assert ask(world, "POST", "/api/v1/shutdown", session) == 403
    # A page of another site: its form has no header of ours, and what a script of it sends says where it comes from.
    form = {"content-type": "text/plain"}
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        for rights in ({}, session, token):
            assert ask(world, "POST", rollout, {**form, **rights, "origin": origin}, action="abort") == 403
    assert ask(world, "POST", rollout, {**session, "sec-fetch-site": "cross-site"}, action="abort") == 403
    assert ask(world, "POST", rollout, form, action="abort") == 401
    assert ask(world, "GET", "/console", {"host": "evil.example"}) == 403
    assert world.ask("rollout", BUSY)["phase"] == "running"


def test_no_site_may_frame_the_console_or_run_scripts_in_it(world: Deployment) -> None:
    answer = httpx.get(f"{api(world)}/console", trust_env=False)
    policy = answer.headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"):
        assert rule in policy
    assert "unsafe" not in policy


def row(web: Browser, name: str, caption: str = "Functions") -> dict[str, str]:
    """The row of a table that is about this name."""

    def found() -> list[dict[str, str]]:
        return [each for each in web.table(caption) if each[""] == name]

    return dict(web.until(found, f"a row {name}")[0])


def number(text: str) -> float:
    """The first figure of a text."""
    return float(text.split()[0])


def milliseconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"ms": 1.0, "s": 1e3}[unit]
