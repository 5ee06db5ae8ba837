"""The webhook's server with certificates that are wrong, over real TLS. With an API server:
tests/live/test_kubernetes_webhook.py."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.support.http.loopback import until
from tests.support.live.certificates import make_certificate
from tidegate.clock import wall
from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.webhook.pods import WebhookSettings
from tidegate.deploy.kubernetes.webhook.process.server import Effects, WebhookServer
from tidegate.deploy.kubernetes.webhook.validity import Material

pytestmark = pytest.mark.live


def test_a_certificate_with_the_key_of_another_leaves_the_one_that_is_served(tmp_path: Path) -> None:
    """cert-manager's two files can be read while they are exchanged."""
    (tmp_path / "next").mkdir()
    pairs = [make_certificate(folder) for folder in (tmp_path, tmp_path / "next")]
    (first, key), (second, _) = [tuple(Path(each).read_bytes() for each in pair) for pair in pairs]
    found, notes = [Material(certificate=first, key=key)], list[str]()

    async def look() -> Material:
        return found[0]

    async def main() -> None:
        effects = Effects(look=look, look_every_s=0.01, now=wall, note=notes.append)
        server = WebhookServer(WebhookSettings(pods=PodSettings(image="tidegate:1")), effects)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(server.serve("127.0.0.1:0"))
            await until(lambda: any("the one served" in each for each in notes))
            port = int(notes[0].rpartition(":")[2])
            found[0] = Material(certificate=second, key=key)
            await until(lambda: "MISMATCH" in notes[-1].upper())
            trusts = ssl.create_default_context(cadata=first.decode())
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusts)
            writer.close()
            server.end()

    asyncio.run(main())
