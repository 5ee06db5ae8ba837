"""The console over a whole deployment without processes: who gets in, what its addresses answer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.console.test_pages import deployment
from tests.support.worlds.api_desk import Desk, at_desk
from tests.support.worlds.control_api import CLOCK
from tidegate.clock import ManualClock
from tidegate.control.api.sessions import CODE_S, SESSION_S
from tidegate.control.console.routes import KEPT_S, PAGES, REST, Documents
from tidegate.control.views.deployment import DeploymentView

Tell = Callable[[Desk, "Browser"], Awaitable[None]]


@dataclass
class Browser:
    """A client without the token."""

    client: httpx.AsyncClient
    session: str = ""

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.send("GET", path, **headers)

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        own = {"authorization": f"Bearer {self.session}"} if self.session else {}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, path, json=body, headers=own | sent)

    async def sign_in(self, link: str) -> httpx.Response:
        answer = await self.send("POST", "/console/session", {"code": link.partition("#code=")[2]})
        self.session = answer.json().get("session", "")
        return answer


def in_browser(folder: Path, tell: Tell, *, signed_in: bool = True) -> None:
    async def at(desk: Desk) -> None:
        desk.deployment.api = "http://127.0.0.1:8081"
        transport = desk.client._transport
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            browser = Browser(client)
            if signed_in:
                assert (await browser.sign_in(await link(desk))).status_code == 200
            await tell(desk, browser)

    at_desk(folder, at)


async def link(desk: Desk) -> str:
    answer = await desk.client.post("/console/code")
    assert answer.status_code == 200
    return str(answer.json()["url"])


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def test_pages_and_files_need_no_token_and_data_does(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        for page in PAGES:
            answer = await browser.get(page.replace("{name}", "echo"))
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await browser.get("/console/static/console.js")).status_code == 200
        assert (await browser.get("/console/static/none.js")).status_code == 404
        assert (await browser.get("/console/nowhere")).status_code == 404
        for path in ("overview", "functions/echo", "accelerators", "waiting", "tenants", "cost"):
            answer = await browser.get(f"/console/data/{path}")
            assert (answer.status_code, code_of(answer)) == (401, "wrong_token")
        assert (await browser.send("POST", "/console/code")).status_code == 401

    in_browser(tmp_path, tell, signed_in=False)


def test_a_file_that_the_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        for path in ("/console", "/console/static/console.css"):
            tag = (await browser.get(path)).headers["etag"]
            again = await browser.get(path, if_none_match=tag)
            assert (again.status_code, again.content) == (304, b"")

    in_browser(tmp_path, tell, signed_in=False)


def test_a_link_signs_one_browser_in_once(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        given = await link(desk)
        assert given.startswith("http://127.0.0.1:8081/console#code=")
        assert (await browser.sign_in(given)).status_code == 200
        assert (await browser.get("/console/data/overview")).status_code == 200
        again = await browser.sign_in(given)
        assert (again.status_code, code_of(again)) == (403, "wrong_code")
        old = await link(desk)
        CLOCK.advance(CODE_S + 1.0)
        assert code_of(await browser.sign_in(old)) == "wrong_code"
        wrong: tuple[Any, ...] = (None, [], {"code": 7}, {})
        for body in wrong:
            assert code_of(await browser.send("POST", "/console/session", body)) == "wrong_code"

    in_browser(tmp_path, tell, signed_in=False)


def test_a_session_that_ended_is_a_wrong_token(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        assert (await browser.get("/console/data/tenants")).status_code == 200
        CLOCK.advance(SESSION_S)
        assert code_of(await browser.get("/console/data/tenants")) == "wrong_token"

    in_browser(tmp_path, tell)


def test_a_session_may_not_deploy_and_a_foreign_page_may_do_nothing(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        await desk.deploy()
        answer = await browser.send("POST", "/api/v1/functions", {"manifest": "x", "base": "/"})
        assert (answer.status_code, code_of(answer)) == (403, "not_by_console")
        path, body = "/api/v1/functions/echo/rollback", {"to": None}
        assert code_of(await browser.send("POST", path, body, sec_fetch_site="same-site")) == "not_by_console"
        assert code_of(await browser.send("POST", path, body, origin="http://127.0.0.1:8080")) == "wrong_origin"
        ours = await browser.send("POST", path, body, sec_fetch_site="same-origin", origin="http://127.0.0.1")
        assert (ours.status_code, code_of(ours)) == (409, "refused")  # there is no earlier revision

    in_browser(tmp_path, tell)


def test_the_figures_are_those_of_the_status(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        await desk.deploy()
        desk.world.activate("echo-00001")
        await desk.world.advance(3.0)
        status = (await desk.get("/functions/echo")).json()
        (row,) = (await browser.get("/console/data/overview")).json()["functions"]
        page = (await browser.get("/console/data/functions/echo")).json()
        assert row["traffic"] == status["traffic"] == page["function"]["traffic"]
        assert (row["ready"], row["desired"]) == (status["ready"], status["desired"])
        assert page["function"] == status | {"last_log": []}
        summary = (await desk.get("/functions/echo/explain")).json()["summary"]
        assert page["summary"] == summary and page["decisions"][0]["reasons"]
        assert {line["metric"] for line in page["series"]["lines"]} >= {"ready", "desired"}

    in_browser(tmp_path, tell)


def test_the_cost_of_the_last_hour_is_that_of_the_api(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        await desk.deploy()
        await desk.world.advance(5.0)
        page = (await browser.get("/console/data/cost")).json()
        for by in ("function", "tenant"):
            there = (await desk.get(f"/cost?since=3600&by={by}")).json()
            assert page[f"{by}s"]["total"] == there["total"] and page[f"{by}s"]["rows"] == there["rows"]
        assert [row["function"] for row in page["rows"]] == ["echo"]

    in_browser(tmp_path, tell)


def test_an_unchanged_document_is_not_sent_again_and_a_changed_one_is(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        first = await browser.get("/console/data/overview")
        again = await browser.get("/console/data/overview", if_none_match=first.headers["etag"])
        assert (again.status_code, again.content) == (304, b"")
        await desk.deploy()
        CLOCK.advance(KEPT_S)
        changed = await browser.get("/console/data/overview", if_none_match=first.headers["etag"])
        assert changed.status_code == 200
        assert [row["name"] for row in changed.json()["functions"]] == ["echo"]

    in_browser(tmp_path, tell)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("functions/none", 404, "function_not_found"),
        ("functions/echo?since=0", 422, "invalid_input"),
        ("functions/echo?since=9&step=x", 422, "invalid_input"),
        ("nothing", 404, "not_found"),
    ],
)
def test_faults_have_a_status_and_a_text(path: str, status: int, code: str, tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        await desk.deploy()
        answer = await browser.get(f"/console/data/{path}")
        assert (answer.status_code, code_of(answer)) == (status, code)

    in_browser(tmp_path, tell)


def test_all_faults_of_an_address_are_reported(tmp_path: Path) -> None:
    async def tell(desk: Desk, browser: Browser) -> None:
        await desk.deploy()
        answer = await browser.get("/console/data/functions/echo?since=99999&step=-1")
        assert [fault["where"] for fault in answer.json()["error"]["faults"]] == ["since", "step"]

    in_browser(tmp_path, tell)


@dataclass
class Viewed:
    """A deployment whose view takes ``took_s``."""

    clock: ManualClock
    took_s: float = 0.0
    changed: int = 0
    views: int = 0

    async def view(self) -> DeploymentView:
        self.views += 1
        self.clock.advance(self.took_s)
        return deployment(epoch=self.changed)

    def documents(self) -> Documents[DeploymentView]:
        pages_of: dict[str, Callable[[DeploymentView], int]] = {
            "epoch": lambda view: view.epoch,
            "twice": lambda view: 2 * view.epoch,
        }
        return Documents(pages_of, self.view, lambda: self.changed, self.clock.now)


def test_all_documents_are_of_one_view_which_is_made_again_after_a_change_and_half_a_second() -> None:
    async def story() -> None:
        behind = Viewed(ManualClock())
        documents = behind.documents()
        assert (await documents.get("epoch"))[0] == b"0"
        behind.clock.advance(60.0)
        assert (await documents.get("epoch"))[0] == b"0" and behind.views == 1
        behind.changed = 3
        assert [(await documents.get(name))[0] for name in ("epoch", "twice")] == [b"3", b"6"]
        behind.changed = 4
        behind.clock.advance(KEPT_S / 2)
        assert (await documents.get("epoch"))[0] == b"3" and behind.views == 2
        behind.clock.advance(KEPT_S / 2)
        assert (await documents.get("epoch"))[0] == b"4" and behind.views == 3

    asyncio.run(story())


def test_a_view_that_takes_long_is_made_less_often() -> None:
    async def story() -> None:
        behind = Viewed(ManualClock(), took_s=0.2)
        documents = behind.documents()
        await documents.get("epoch")
        for _ in range(39):
            behind.changed += 1
            behind.clock.advance(REST * 0.2 / 40.0)
            await documents.get("epoch")
        assert behind.views == 1
        behind.clock.advance(REST * 0.2 / 40.0)
        await documents.get("epoch")
        assert behind.views == 2

    asyncio.run(story())


def test_browsers_that_ask_at_one_moment_share_a_view() -> None:
    async def story() -> None:
        behind = Viewed(ManualClock())
        documents = behind.documents()
        await asyncio.gather(*(documents.get("epoch") for _ in range(5)))
        assert behind.views == 1

    asyncio.run(story())
