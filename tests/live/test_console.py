"""The console of a deployment that runs: its link, its figures beside those of the command line, a control process that
dies and comes back."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

REQUESTS = 25


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("console")
    with deployment(folder, *places(folder, 2)) as made:
        made.up()
        yield made


class Browser:
    """What the console's modules do with the network."""

    def __init__(self, link: str) -> None:
        self.place, _, code = link.partition("/console")
        body = {"code": code.partition("#code=")[2]}
        self.signed_in = httpx.post(
            f"{self.place}/console/session", json=body, trust_env=False, verify=False, timeout=20.0
        )
        self.session = self.signed_in.json().get("session", "")

    def get(self, page: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.session}"}
        return httpx.get(
            f"{self.place}/console/data/{page}", headers=headers, trust_env=False, verify=False, timeout=20.0
        )

    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.get("overview").json()["functions"]}


@pytest.fixture
def browser(world: Deployment) -> Browser:
    return Browser(world.cli("open", "--print").stdout.strip())


def test_every_request_of_the_client_is_in_the_figures_and_they_are_those_of_status(
    world: Deployment, browser: Browser
) -> None:
    world.deploy(world.handler(), "--latency", "5s", "--wait", "--scale-to-zero-after", "5m")
    for _ in range(REQUESTS):
        assert world.infer().status_code == 200

    def counted() -> bool:
        return bool(browser.rows()["echo"]["traffic"]["answered"] == REQUESTS)

    world.until(counted, 20.0, "the console to show every request")
    row = browser.rows()["echo"]
    assert (row["sla"]["state"], row["sla"]["attained"], row["ready"]) == ("met", 1.0, 1)
    page, status = browser.get("functions/echo").json(), world.ask("status", "echo")
    same = ("requests", "answered", "within_sla", "failed", "p50_s", "p95_s", "p99_s", "sizes", "waiting")
    for name in same:
        assert page["function"]["traffic"][name] == status["traffic"][name] == row["traffic"][name], name
    assert page["summary"] and page["decisions"] and page["cold_starts"]
    placed = [unit["placed"] for card in browser.get("accelerators").json()["accelerators"] for unit in card["units"]]
    assert [[each["function"] for each in here] for here in placed if here] == [["echo"]]


def test_a_function_that_does_not_start_says_why(world: Deployment, browser: Browser) -> None:
    path = world.folder / "broken.py"
    path.write_text(
        "class Broken:\n    def load(self):\n        raise OSError('the disk is gone')\n"
        "    def predict(self, inputs):\n        return inputs\n"
    )
    world.deploy(f"{path}:Broken", name="broken")

    def message() -> str | None:
        found: str | None = browser.rows().get("broken", {}).get("message")  # The page may be a second older.
        return found

    assert "the disk is gone" in world.until(message, 30.0, "the reason of a failed start")
    assert browser.rows()["broken"]["state"] == "failed"
    world.cli("delete", "broken")


def test_a_session_goes_on_with_the_next_control_process(world: Deployment, browser: Browser) -> None:
    before = browser.get("overview").json()["epoch"]
    world.kill()
    with pytest.raises(httpx.TransportError):
        browser.get("overview")
    place = browser.place.removeprefix("http://")
    world.up("--control-listen", place)
    assert browser.get("overview").json()["epoch"] == before + 1


def test_wrong_links_names_and_tokens_are_refused(world: Deployment, browser: Browser) -> None:
    link = world.ask("open", "echo")
    assert "/console/functions/echo#code=" in link["url"] and link["expires_at"] > time.time()
    assert "no function 'nope' is deployed" in world.cli("open", "nope", code=2).stderr
    assert Browser(link["url"]).signed_in.status_code == 200
    again = Browser(link["url"]).signed_in
    assert (again.status_code, again.json()["error"]["code"]) == (403, "wrong_code")
    assert browser.get("functions/nope").status_code == 404
    browser.session += "x"
    assert browser.get("overview").status_code == 401
