"""A deployment with something on every page of the console, and the way of a browser into it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.support.live.browser import Browser, Faults
from tests.support.live.deployment import Deployment, deployment
from tests.support.live.tenants import ACME, tenants_file
from tidegate.control.console.routes import PAGES

BUSY, CLOSED, BROKEN = "classify", "embed", "summarise"
"""A function that a rollout changes, one for tenants, and one whose file does not load."""
WHY: Final = "weights.bin has 0 bytes"
"""Why that one does not load."""
UNLOADABLE: Final = f"""
class Model:
    def load(self):
        raise ValueError({WHY!r})
    def predict(self, inputs):
        return inputs
"""
KEY: Final = {"x-api-key": ACME}
KINDS: Final = """
accelerators:
- {name: cpu, kind: cpu, cores: 1, count: 6, memory: 8Gi, price-per-hour: 0.04}
- {name: t4, kind: emulated, count: 2, memory: 16Gi, price-per-hour: 0.5, profile: {base: 8ms}}
"""
CANARY: Final = ("--canary-steps", "20,50", "--canary-window", "10m")
"""A rollout that stays at its first step."""


@contextmanager
def furnished(folder: Path, *, work_s: float = 0.02) -> Iterator[Deployment]:
    """Functions that serve, a rollout under way, one that cannot start, and tenants."""
    kinds = folder / "accelerators.yaml"
    kinds.write_text(KINDS)
    flags = ("--accelerators-file", str(kinds), "--tenants-file", str(tenants_file(folder)))
    with deployment(folder, *flags, "--control-listen", free_address()) as world:
        world.up()
        scale = ("--min-scale", "1", "--max-scale", "2")
        (folder / "broken.py").write_text(UNLOADABLE)
        world.deploy(f"{folder / 'broken.py'}:Model", "--min-scale", "1", name=BROKEN)
        closed = folder / "closed.json"
        world.handler(work_s=work_s)
        closed.write_text(json.dumps(_closed()))
        world.cli("deploy", str(closed), "--no-wait")
        begin_rollout(world, BUSY, *scale, work_s=work_s)
        yield world


def begin_rollout(world: Deployment, name: str, *flags: str, work_s: float = 0.02) -> None:
    """Deploys a function and then its candidate, which stays at a fifth of the traffic."""
    slo = ("--latency", "500ms", "--percentile", "95", *(flags or ("--min-scale", "1", "--max-scale", "1")))
    world.deploy(world.handler(work_s=work_s, name=name), *slo, "--wait", name=name)
    world.deploy(world.handler(work_s=work_s / 2, name=name), *slo, *CANARY, name=name)
    world.until(lambda: "candidate" in world.status(name)["rollout"] or {}, 30.0, "a rollout")


def _closed() -> dict[str, object]:
    annotations = {"min-scale": "1", "max-scale": "2", "latency": "500ms"}
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": CLOSED, "annotations": {f"tidegate.dev/{key}": each for key, each in annotations.items()}},
        "spec": {"server": {"handler": "echo.py:Echo"}, "access": {"api-keys": True}, "concurrency": 4},
    }


def free_address() -> str:
    """An address that a control process after this one takes again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def api(world: Deployment) -> str:
    holder = world.state.holder()
    assert holder is not None
    assert holder.api is not None
    return holder.api


def link(world: Deployment) -> str:
    """A link into the console, which works once."""
    return world.cli("open", "--print").stdout.strip()


def enter(web: Browser, world: Deployment) -> None:
    """Opens the console by a link."""
    web.open(link(world))
    is_live(web)


def go(web: Browser, world: Deployment, page: str) -> None:
    """Opens a page by its address, and waits until it shows the present."""
    web.open(f"{api(world)}{page}")
    is_live(web)


def is_live(web: Browser) -> None:
    web.until(lambda: web.text("#connection").startswith("live"), "the page to be live")


def pages(function: str) -> list[str]:
    """Addresses of all pages."""
    return [page.replace("{name}", function) for page in PAGES]


def ask(world: Deployment, method: str, path: str, headers: dict[str, str] | None = None, **body: object) -> int:
    """The status of a request that no browser sends."""
    how = {"headers": headers or {}, "trust_env": False, "timeout": 20.0}
    return httpx.request(method, f"{api(world)}{path}", json=body or None, **how).status_code  # type: ignore[arg-type]


def without_faults(faults: Faults) -> None:
    assert not faults.log, faults.log
    assert not faults.requests, faults.requests
