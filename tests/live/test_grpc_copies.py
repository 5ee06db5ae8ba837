"""gRPC calls have hedges and shadows as requests over HTTP have: real replicas, Triton's client unmodified."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import tritonclient.grpc as triton

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

SLOW_S = 3.0

HANDLER = """
import os, time
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    concurrency = 1
    def load(self):
        try:
            os.mkdir(FOLDER)
            self.pause_s = PAUSE_S
        except FileExistsError:
            self.pause_s = 0.0
    def predict(self, inputs):
        time.sleep(self.pause_s)
        return {"y": [[FACTOR * value for value in row] for row in inputs["x"]]}
"""


def handler(folder: Path, factor: int = 2, pause_s: float = 0.0) -> str:
    """A class of which the first process takes ``pause_s`` for each call."""
    path = folder / "echo.py"
    path.write_text(f"FOLDER, FACTOR, PAUSE_S = {str(folder / 'first')!r}, {factor}, {pause_s}\n{HANDLER}")
    return f"{path}:Echo"


def client(world: Deployment) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(world.gateway.partition("://")[2])


def call(one: triton.InferenceServerClient, value: float = 1.0) -> float:
    """One unary call; returns the first value of its answer."""
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(numpy.array([[value, value]], "f4"))
    return float(one.infer("echo", [tensor]).as_numpy("y")[0, 0])


def hedges(world: Deployment, what: str) -> float:
    """A counter of all workers."""
    with world.sdk() as tidegate:
        lines = [line for line in tidegate.metrics().splitlines() if line.startswith(f"tidegate_gateway_{what}")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_late_unary_call_is_answered_by_its_second_copy(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        flags = (
            "--min-scale",
            "2",
            "--max-scale",
            "2",
            "--concurrency",
            "1",
            "--hedge-after",
            "150ms",
            "--idempotent",
            "true",
        )
        world.cli("deploy", handler(tmp_path, pause_s=SLOW_S), "--name", "echo", *flags)
        world.until(lambda: world.status("echo")["ready"] == 2, 20.0, "both replicas")
        one, took = client(world), []

        def timed(number: int) -> None:
            began = time.monotonic()
            assert call(one, number) == 2 * number
            took.append(time.monotonic() - began)

        with ThreadPoolExecutor(2) as pool:  # Two at a time: one of them meets the slow replica.
            for number in range(4):
                list(pool.map(timed, (number, number + 10)))
        assert max(took) < SLOW_S - 0.5, "a call that meets the slow replica does not wait for it"
        assert max(took) > 0.14, "one of them has met it"
        assert hedges(world, "hedges_total") >= 1
        assert hedges(world, "won_hedges_total") >= 1
        time.sleep(SLOW_S)
        assert world.status("echo")["traffic"]["failed"] == 0


def test_a_shadow_gets_copies_of_unary_calls_and_their_answers_are_compared(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        (tmp_path / "first").mkdir()
        flags = ("--name", "echo", "--min-scale", "1", "--max-scale", "1")
        world.cli("deploy", handler(tmp_path), *flags)
        world.cli("deploy", handler(tmp_path), *flags, "--shadow-percent", "100")
        one = client(world)

        def compared(count: int) -> dict[str, int]:
            def look() -> dict[str, int] | None:
                call(one)
                found: dict[str, int] = world.ask("rollout", "echo")["shadow"]
                return found if found and found["requests"] >= count else None

            shown: dict[str, int] = world.until(look, 20.0, "compared copies")
            return shown

        same = compared(5)
        assert (same["failed"], same["status_differs"], same["output_differs"]) == (0, 0, 0)
        with pytest.raises(triton.InferenceServerException):
            one.infer("echo", [])
        world.cli("deploy", handler(tmp_path, factor=3), *flags, "--shadow-percent", "100")
        other = compared(3)
        assert other["output_differs"] == other["requests"] - other["status_differs"]
        assert other["failed"] == 0 and call(one) == 2.0, "the client gets the answer of the serving revision"
