"""Load of numbered requests through a gateway, and the journals of both ends: what was answered, and what ran."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

SERVER: Final = """
import asyncio
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 1])}
    outputs = {"y": ("FP32", [-1, 1])}
    concurrency = 4
    running = 0
    async def predict(self, inputs):
        Echo.running += 1
        with open(JOURNAL, "a") as journal:
            journal.write(f"{int(inputs['x'][0][0])} {Echo.running}\\n")
        await asyncio.sleep(PAUSE_S)
        Echo.running -= 1
        return {"y": [[value + 0.5 for value in row] for row in inputs["x"]]}
"""


def write_server(folder: Path, *, pause_s: float = 0.0) -> str:
    """A handler that adds one half, takes ``pause_s`` for it, and writes what it was given into ``folder``. Returns it
    as deploys name it."""
    path = folder / "echo.py"
    path.write_text(f"JOURNAL = {str(folder / 'ran')!r}\nPAUSE_S = {pause_s}\n{SERVER}")
    return f"{path}:Echo"


def most_at_once(folder: Path) -> int:
    """The most requests that a replica ran at once, as the servers of ``folder`` wrote down at each beginning."""
    return max(int(line.split()[1]) for line in (folder / "ran").read_text().splitlines())


_FIRSTS = itertools.count(100_000, 100_000)
"""Each load has numbers of its own, which 32 bits of a float hold."""


class JournaledLoad:
    """Sends numbered requests, one after the other from each client, until it is ended."""

    def __init__(self, gateway: str, folder: Path, *, clients: int = 3, timeout_s: float = 20.0) -> None:
        self._url = f"{gateway}/v2/models/echo/infer"
        self._ran = folder / "ran"
        self._timeout_s = timeout_s
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._first = self._next = next(_FIRSTS)
        self.answered: dict[int, float] = {}
        """By number: when it was answered, rightly."""
        self.lost: dict[int, str] = {}
        """By number: what it got instead."""
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def _number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def _client(self) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=self._timeout_s) as client:
            while not self._end.is_set():
                self._one(client, self._number())
                time.sleep(0.02)

    def _one(self, client: httpx.Client, number: int) -> None:
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}
        try:
            reply = self.post(client, body)
            if reply.status_code != 200:
                self.lost[number] = f"{reply.status_code} {reply.text[:300]}"
            elif reply.json()["outputs"][0]["data"] != [number + 0.5]:
                self.lost[number] = f"another's answer: {reply.text[:300]}"
            else:
                self.answered[number] = time.monotonic()
        except httpx.HTTPError as error:
            self.lost[number] = repr(error)

    def post(self, client: httpx.Client, body: object) -> httpx.Response:
        """Sends one request."""
        return client.post(self._url, json=body)

    def count(self) -> int:
        return len(self.answered)

    def answered_since(self, moment: float) -> int:
        return sum(at >= moment for at in tuple(self.answered.values()))

    def check(self, *, may_lose: Callable[[str], bool] = lambda _: False) -> None:
        """Compares both journals: nothing was lost but what may be, and each answer is of exactly one run."""
        wrong = {number: text for number, text in self.lost.items() if not may_lose(text)}
        assert not wrong, f"{len(wrong)} of {self._next - self._first} were lost: {dict(list(wrong.items())[:5])}"
        ran = Counter(int(line.split()[0]) for line in self._ran.read_text().splitlines())
        unrun = [number for number in self.answered if ran[number] != 1]
        assert not unrun, f"answered, but not run once: {[(number, ran[number]) for number in unrun[:5]]}"
        unknown = {each for each in ran if self._first < each <= self._next} - self.answered.keys() - self.lost.keys()
        assert not unknown, f"run, but never asked or answered: {sorted(unknown)[:5]}"

    @contextmanager
    def running(self) -> Iterator["JournaledLoad"]:
        for each in self._threads:
            each.start()
        try:
            yield self
        finally:
            self._end.set()
            for each in self._threads:
                each.join(self._timeout_s + 5.0)
