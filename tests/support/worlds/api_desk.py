"""The API over a whole deployment without processes: a client, the round, a fake backend."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from tests.support.worlds.control_api import app_over
from tests.support.worlds.control_world import ControlWorld, in_world
from tidegate.control.api.deployment import Deployment
from tidegate.control.metrics.scraping import Scrape
from tidegate.control.state.directory import StateDirectory
from tidegate.control.views.deployment import GatewayView, ReplacedView
from tidegate.store.embedded import EmbeddedStore

MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: echo
  annotations: {tidegate.dev/latency: 200ms}
spec:
  server: {command: [python3, server.py, --port, "{port}"]}
"""


WORKER = GatewayView(worker="g0", pid=7, state="serving", restarts=2, table="4.1", connections=0)


class FakeFrontDoor:
    url = "http://127.0.0.1:8080"
    certificate: str | None = None

    def __init__(self) -> None:
        self.outcomes: dict[str, str | None] = {"g0": None}

    async def reload(self) -> dict[str, str | None]:
        return self.outcomes

    def views(self) -> tuple[GatewayView, ...]:
        return ()

    async def linked(self, limit_s: float) -> bool:
        return True


async def renew() -> tuple[tuple[ReplacedView, ...], tuple[str, ...]]:
    return (ReplacedView(worker="g0.2", pid=8, old="g0", old_pid=7),), ("gateway.listen",)


def scrape_of(world: ControlWorld, state: StateDirectory) -> Scrape:
    async def others() -> dict[str, bytes | None]:
        return {"g0/1": b"# TYPE tidegate_gateway_connections gauge\ntidegate_gateway_connections 3\n"}

    own = world.own_metrics(WORKER)
    return Scrape(own, others, functions=lambda: {"echo"}, kept=state.counted, goes_on=False, faults=world.faults)


class Desk:
    """A client of the API, and the deployment behind it."""

    def __init__(self, world: ControlWorld, deployment: Deployment, client: httpx.AsyncClient) -> None:
        self.world = world
        self.deployment = deployment
        self.client = client

    async def deploy(self, text: str = MANIFEST, **flags: str) -> httpx.Response:
        body = {"manifest": text, "base": str(self.world.folder), "source": "echo.yaml", "flags": flags}
        answer = await self.client.post("/api/v1/functions", json=body)
        await self.world.second()
        return answer

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(f"/api/v1{path}")


def at_desk(folder: Path, tell: Callable[[Desk], Awaitable[None]]) -> None:
    async def story(world: ControlWorld) -> None:
        state = StateDirectory(folder / "state")
        state.prepare()
        store = await EmbeddedStore.open(folder / "other.db")
        deployment = Deployment(
            state=state,
            store=store,
            loop=world.loop,
            gateways=FakeFrontDoor(),
            scrape=scrape_of(world, state).pieces,
            epoch=4,
            version="1.0",
            domain="localhost",
            stop=lambda: None,
            renew=renew,
        )
        app = app_over(deployment, token="t", version="1.0")
        transport = httpx.ASGITransport(app)
        headers = {"authorization": "Bearer t"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            await tell(Desk(world, deployment, client))
        await store.close()

    in_world(folder, story)
