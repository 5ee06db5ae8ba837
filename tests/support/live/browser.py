"""A real Chromium, driven by Selenium through Debian's chromedriver, and axe-core, which judges if pages can be read.

``python -m tests.support.live.browser`` brings axe-core from npm into ``build/axe`` (once, by version and hash); exit
code 3 and one line where it cannot be had. Selenium comes from ``browser.lock``; ``--list`` prints its requirements,
which ``make lock`` resolves. Browser and driver are named by their paths, so Selenium downloads nothing.
"""

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.deadline import Patience

ROOT: Final = Path(__file__).resolve().parents[3]
AXE: Final = ROOT / "build" / "axe" / "axe.min.js"
AXE_PACKAGE: Final = "axe-core@4.14.1"
AXE_SHA512: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
"""Of the package's archive, as npm publishes it (base64)."""
PROGRAMS: Final = ("chromium", "chromedriver")
CANNOT: Final = 3
TABS_AT_MOST: Final = 200
POLL_S: Final = 0.05
"""Between two looks at a page."""

_DRAWN = "return [...document.querySelectorAll('canvas')].filter(c => c.width && c.height).map(c => c.toDataURL())"
_FOCUSED = """
const focused = document.activeElement;
if (!focused || focused === document.body) return '';
return (focused.getAttribute('aria-label') || focused.innerText || focused.title || '').trim();
"""
_FACTS = """
return Object.fromEntries([...document.querySelectorAll('dl dt')].map(
  name => [name.innerText, name.nextElementSibling.innerText]));
"""
_TABLE = """
const table = [...document.querySelectorAll('table')].find(each => each.caption?.textContent === arguments[0]);
if (!table) return [];
const heads = [...table.tHead.rows[0].cells].map(each => each.textContent);
return [...table.tBodies[0].rows].map(
  row => Object.fromEntries([['', row.cells[0].innerText.split('\\n')[0]],
    ...[...row.cells].map((cell, index) => [heads[index], cell.innerText])]));
"""
_AXE = """
const [kinds, done] = [arguments[0], arguments[1]];
axe.run(document, {resultTypes: ['violations']}).then(
  found => done(found.violations.filter(each => kinds.includes(each.impact)).map(
    each => `${each.impact} ${each.id}: ${each.help}; ` + each.nodes.map(
      node => node.target.join(' ') + ' ' + node.any.concat(node.all).map(why => why.message).join(', ')
    ).slice(0, 3).join(' | '))),
  error => done([`axe failed: ${error}`]));
"""
_WIDER = """
const wide = document.documentElement.clientWidth;
return [...document.body.querySelectorAll('*')].filter(each => {
  const box = each.getBoundingClientRect();
  if (!box.width || box.right <= wide + 1) return false;
  for (let above = each.parentElement; above; above = above.parentElement) {
    if (getComputedStyle(above).overflowX !== 'visible') return false;
  }
  return true;
}).slice(0, 5).map(each => each.outerHTML.slice(0, 120));
"""


class CannotBeHadError(Exception):
    """There is no axe-core for this machine; the message says why."""


def lacking() -> str:
    """Names what is missing; empty if all is there."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if importlib.util.find_spec("selenium") is None:
        missing.append("selenium")
    if not is_there():
        missing.append("axe-core in build/axe")
    return " ".join(missing)


def is_there() -> bool:
    mark = AXE.with_name("complete")
    return mark.exists() and mark.read_text() == AXE_SHA512


def fetch() -> None:
    """Brings axe-core where it is not there yet. Raises CannotBeHadError."""
    if is_there():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise CannotBeHadError("there is no npm (Debian: apt-get install npm)")
    with tempfile.TemporaryDirectory(prefix="axe-") as folder:
        words = [npm, "pack", AXE_PACKAGE, "--silent", "--ignore-scripts", "--pack-destination", folder]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            lines = done.stderr.strip().splitlines() or ["npm printed nothing"]
            raise CannotBeHadError(f"npm cannot bring {AXE_PACKAGE}: {lines[-1]}")
        found = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if found != AXE_SHA512:
            raise CannotBeHadError(f"{AXE_PACKAGE} has another hash than the one named here: {found}")
        AXE.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archives[0]) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            AXE.write_bytes(member.read())
    AXE.with_name("complete").write_text(AXE_SHA512)


def requirements() -> list[str]:
    """Lines of the extra in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return list(extras["browser"])


@dataclass(slots=True)
class Faults:
    """What went wrong in the browser since the last look."""

    log: list[str] = field(default_factory=list)
    """Lines of the console of level SEVERE."""
    requests: list[str] = field(default_factory=list)
    """Requests that failed or were answered 400 or above."""


class Browser:
    """One window. ``driver``: Selenium's, for what this has not."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._urls: dict[str, str] = {}

    # --- where it is and how it looks ---

    def open(self, url: str) -> None:
        self.driver.get(url)

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Sets the size of the page in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name: str) -> None:
        """``light`` or ``dark``: what the person's system prefers."""
        features = [
            {"name": "prefers-color-scheme", "value": name},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, *, is_whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        flags = {"format": "png", "captureBeyondViewport": is_whole}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", flags)
        return base64.b64decode(found["data"])

    # --- what is there ---

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        """The text that is shown; empty if there is no such element."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def drawn(self) -> list[str]:
        """The pixels of each canvas that has a size."""
        return list(self.run(_DRAWN))

    def until(self, found: Callable[[], Any], what: str, limit_s: float = 15.0) -> Any:
        """Asks until there is an answer, and returns it."""
        from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException

        changing = (ElementClickInterceptedException, StaleElementReferenceException)
        patience = Patience(limit_s)
        answer: Any = None
        while not answer:
            try:
                answer = found()
            except changing:  # what it named has moved, or is another one now
                answer = None
            if not answer:
                assert not patience.is_over, f"waited {patience} for {what}; the page has:\n{self.text()[:1500]}"
                time.sleep(POLL_S)
        return answer

    def shows(self, words: str, selector: str = "body", limit_s: float = 15.0) -> None:
        """Waits until the text of an element has these words, in letters of either case."""
        self.until(lambda: words.lower() in self.text(selector).lower(), f"{words!r} in {selector}", limit_s)

    def facts(self) -> dict[str, str]:
        """The figures of a page that stand beside their names."""
        return dict(self.run(_FACTS))

    def table(self, caption: str) -> list[dict[str, str]]:
        """The rows of a table: text by the head of its column; under the empty name what the row is about."""
        return list(self.run(_TABLE, caption))

    # --- mouse and keys ---

    def click(self, words: str) -> None:
        """Clicks the button that begins with these words, once it can be seen."""
        self.until(lambda: self._clicked(words), f"a button {words!r}")

    def _clicked(self, words: str) -> bool:
        for button in self.driver.find_elements("css selector", "button"):
            if button.is_displayed() and button.text.startswith(words):
                self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
                button.click()
                return True
        return False

    def focused(self) -> str:
        """The name of what has the focus; empty if nothing has."""
        return str(self.run(_FOCUSED))

    def press(self, *keys: str) -> None:
        """Sends keys to what has the focus: ``Tab``, ``Enter``, ``Space``, ``Escape`` or a character."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        actions = ActionChains(self.driver)
        for key in keys:
            actions = actions.send_keys(getattr(Keys, key.upper()) if len(key) > 1 else key)
        actions.perform()

    def tab_to(self, is_it: Callable[[str], bool]) -> str:
        """Presses Tab until what has the focus has a name of which ``is_it`` holds; returns the name."""
        seen: list[str] = []
        for _ in range(TABS_AT_MOST):
            self.press("Tab")
            name = self.focused()
            if is_it(name):
                return name
            seen.append(name)
        raise AssertionError(f"Tab does not reach it; it reaches {list(dict.fromkeys(seen))}")

    # --- judgement ---

    def faults(self) -> Faults:
        """Returns what went wrong since the last call."""
        found = Faults([f"{each['message']}" for each in self.driver.get_log("browser") if each["level"] == "SEVERE"])
        for each in self.driver.get_log("performance"):
            event = json.loads(each["message"])["message"]
            method, details = event["method"], event["params"]
            if method == "Network.requestWillBeSent":
                self._urls[details["requestId"]] = details["request"]["url"]
            elif method == "Network.responseReceived" and details["response"]["status"] >= 400:
                found.requests.append(f"{details['response']['status']} {details['response']['url']}")
            elif method == "Network.loadingFailed" and not details.get("canceled"):
                found.requests.append(f"{details['errorText']} {self._urls.get(details['requestId'], '?')}")
        return found

    def axe(self, *impacts: str) -> list[str]:
        """What axe-core finds on this page, of these impacts."""
        self.run(AXE.read_text(encoding="utf-8"))
        self.driver.set_script_timeout(60)
        return list(self.driver.execute_async_script(_AXE, list(impacts)))

    def too_wide(self) -> list[str]:
        """Elements for which the page would have to be scrolled sideways; empty if it need not."""
        if self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"):
            return []
        return list(self.run(_WIDER)) or ["something that no element's box shows"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in ``folder``; it goes to no other host than this one."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-extensions",
        "--hide-scrollbars",
        "--no-first-run",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        f"--user-data-dir={folder / 'profile'}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    log = folder / "chromedriver.log"
    service = Service(executable_path=str(shutil.which("chromedriver")), log_output=str(log))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        sys.stdout.write("\n".join(requirements()) + "\n")
    else:
        try:
            fetch()
        except CannotBeHadError as error:
            sys.stderr.write(f"axe-core cannot be had here: {error}\n")
            sys.exit(CANNOT)
