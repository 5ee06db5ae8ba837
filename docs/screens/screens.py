"""Writes the pictures of the console's pages, ``docs/screens/NAME.png``: ``python -m docs.screens.screens``.

It starts a deployment with functions under load, tenants and a rollout, and opens each page in Chromium. The tools are
those of ``make test-browser``, which has to run once before. The figures in the pictures are those of the moment.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.support.live import console
from tests.support.live.browser import Browser, browser, lacking
from tests.support.live.deployment import Deployment
from tests.support.live.load import load

OUT: Final = Path(__file__).parent
MOST_BYTES: Final = 150_000
FILLED_S: Final = 40.0
"""Load before the first picture: charts have a line."""
DESK, PHONE = (1100, 700), (360, 700)
SCREENS: Final[Sequence[tuple[str, str, str, tuple[int, int], str]]] = (
    ("overview", "/console", "light", DESK, ""),
    ("overview-dark", "/console", "dark", DESK, ""),
    ("overview-phone", "/console", "light", PHONE, ""),
    ("function", f"/console/functions/{console.BUSY}", "light", (1100, 1150), ""),
    ("function-rollout", f"/console/functions/{console.BUSY}", "light", (1100, 600), "Revisions and rollouts"),
    ("accelerators", "/console/accelerators", "light", DESK, ""),
    ("waiting", "/console/waiting", "light", DESK, ""),
    ("tenants", "/console/tenants", "light", DESK, ""),
    ("cost", "/console/cost", "light", DESK, ""),
)
"""Name of the picture, page, theme, size, and the heading that stands at its top."""
_TO_HEADING: Final = """
const found = [...document.querySelectorAll('h2')].find(each => each.innerText === arguments[0]);
window.scrollTo({top: found ? found.getBoundingClientRect().top + scrollY - 16 : 0, behavior: 'instant'});
"""


def take(web: Browser, world: Deployment, out: Path) -> list[str]:
    """Writes all pictures; returns what is wrong with them."""
    faults = []
    for name, page, theme, size, heading in SCREENS:
        web.theme(theme)
        web.size(*size, is_phone=size == PHONE)
        console.go(web, world, page)
        time.sleep(1.5)  # charts draw what they have
        web.run(_TO_HEADING, heading)
        picture = web.picture()
        (out / f"{name}.png").write_bytes(picture)
        sys.stdout.write(f"{name}.png {len(picture)} bytes\n")
        if len(picture) > MOST_BYTES:
            faults.append(f"{name}.png has {len(picture)} bytes, {MOST_BYTES} are allowed")
    return faults


def main(out: Path = OUT) -> int:
    missing = lacking()
    if missing:
        sys.stderr.write(f"missing: {missing}; `make test-browser` names where it comes from\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="tidegate-screens-") as folder, ExitStack() as open_:
        (Path(folder) / "browser").mkdir()
        world = open_.enter_context(console.furnished(Path(folder)))
        web = open_.enter_context(browser(Path(folder) / "browser"))
        open_.enter_context(load(world, console.BUSY, threads=2))
        open_.enter_context(load(world, console.CLOSED, headers=console.KEY, pause_s=0.1))
        console.enter(web, world)
        time.sleep(FILLED_S)
        faults = take(web, world, out)
    sys.stderr.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT))
