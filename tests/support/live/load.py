"""Load on a deployment that counts what it sent and what came back."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.live.deployment import REQUEST, Deployment


class Client:
    """Sends requests from some threads until it is closed, and counts the answers. Each thread pauses for ``pause_s``
    after an answer."""

    def __init__(
        self, url: str, *, threads: int = 1, pause_s: float = 0.02, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url, self._pause_s, self._headers = url, pause_s, dict(headers or {})
        self._latencies: list[list[float]] = [[] for _ in range(threads)]
        self._failed = [0] * threads
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def answered(self) -> int:
        return sum(map(len, self._latencies))

    @property
    def failed(self) -> int:
        return sum(self._failed)

    @property
    def p50_s(self) -> float:
        """Median of all answers, as this client saw them."""
        found = sorted(each for row in self._latencies for each in row)
        return found[len(found) // 2]

    def _run(self, index: int) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=30.0, headers=self._headers) as client:
            while not self._is_over.wait(self._pause_s):
                begun = time.monotonic()
                if self._is_answered(client):
                    self._latencies[index].append(time.monotonic() - begun)
                else:
                    self._failed[index] += 1

    def _is_answered(self, client: httpx.Client) -> bool:
        try:
            return client.post(self._url, json=REQUEST).is_success
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def load(world: Deployment, name: str = "echo", **how: Any) -> Iterator[Client]:
    """Load on a function while the block runs; ``how``: arguments of the client."""
    client = Client(f"{world.gateway}/v2/models/{name}/infer", **how)
    try:
        yield client
    finally:
        client.close()
