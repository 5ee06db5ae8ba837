"""Cores and batches of a running replica change under load, with real processes, and no request fails."""

import json
import os
import threading
from pathlib import Path

import httpx
import pytest

from tests.live.test_growth import ONE_PLACE, calls, cores, eventually, server
from tests.support.live.deployment import deployment
from tests.tidegate.runtime.conftest import write_product

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

HANDLER = """
import time

import numpy as np


class Model:
    max_batch_size = 8

    def predict(self, inputs):
        time.sleep(0.005)
        rows = len(inputs["x"])
        return {"y": np.full(rows, rows, dtype=np.float32)}
"""
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: rows}
spec:
  server: {handler: "model.py:Model"}
  batching: {max: 8, delay: 1ms}
"""
ROW = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]})


def largest(url: str, callers: int = 8, each: int = 25) -> int:
    """The largest batch that concurrent callers have seen; every answer was a 200."""
    seen: list[float] = []

    def call() -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=60.0) as client:
            for _ in range(each):
                answer = client.post(url, content=ROW)
                assert answer.status_code == 200, answer.text
                seen.append(answer.json()["outputs"][0]["data"][0])

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == callers * each
    return int(max(seen))


def test_batches_of_a_running_model_change_and_a_client_cannot_order_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "rows.yaml").write_text(MANIFEST)
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", str(tmp_path / "rows.yaml"))
        url = f"{world.gateway}/v2/models/rows/infer"
        before = server(world)
        assert largest(url) > 2
        found = json.loads(world.cli("resize", "rows", "--batch", "2", "--batch-delay", "0s", "--json").stdout)
        assert [(each["max_batch"], each["batch_delay_s"]) for each in found["replicas"]] == [(2, 0.0)]
        assert largest(url) == 2
        order = {"max_batch": 8, "delay_s": 0}
        by_client = httpx.post(
            f"{world.gateway}/functions/rows/tidegate/batching", json=order, headers={"tidegate-epoch": "99"}
        )
        assert by_client.status_code == 404
        assert largest(url) == 2
        world.cli("resize", "rows", "--reset")
        assert largest(url) > 2
        assert server(world) == before, "without a restart"
        refused = world.cli("resize", "rows", "--batch", "9", code=2)
        assert "1 to 8" in refused.stderr


def test_batches_change_under_load_without_a_failed_request_and_one_alone_waits_for_its_delay_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "rows.yaml").write_text(MANIFEST)
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", str(tmp_path / "rows.yaml"))
        url = f"{world.gateway}/v2/models/rows/infer"
        statuses, ended = list[int](), threading.Event()
        clients = [threading.Thread(target=calls, args=(url, ended.is_set, statuses)) for _ in range(8)]
        for each in clients:
            each.start()
        try:
            for batch in (2, 8, 1, 4):
                before = len(statuses)
                world.cli("resize", "rows", "--batch", str(batch), "--batch-delay", "20ms")
                eventually(lambda before=before: len(statuses) > before + 20, 10.0, "answers")  # type: ignore[misc]
        finally:
            ended.set()
            for each in clients:
                each.join()
        assert set(statuses) == {200}
        alone = httpx.post(url, content=ROW, timeout=10.0, trust_env=False, verify=False)
        assert (alone.status_code, alone.json()["outputs"][0]["data"]) == (200, [1.0]), "no second request has to come"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_policy_themis_meets_a_burst_with_cores_and_says_why(tmp_path: Path) -> None:
    if cores(0) < 2:
        pytest.skip("there is one core")
    write_product(tmp_path / "product.onnx")
    (tmp_path / "accelerators.yaml").write_text(ONE_PLACE)
    with deployment(tmp_path) as world:
        world.up("--accelerators-file", str(tmp_path / "accelerators.yaml"))
        flags = (
            "--latency",
            "500ms",
            "--policy",
            "themis",
            "--policy-parameter",
            "max-cores=2",
            "--policy-parameter",
            "profile=100,0,0,0",
        )
        world.cli("deploy", str(tmp_path / "product.onnx"), "--name", "product", *flags)
        before = server(world)
        url, statuses, ended = f"{world.gateway}/v2/models/product/infer", list[int](), threading.Event()
        clients = [threading.Thread(target=calls, args=(url, ended.is_set, statuses)) for _ in range(4)]
        for each in clients:
            each.start()
        try:
            eventually(lambda: cores(before[1]) == 2, 10.0, "more cores")
        finally:
            ended.set()
            for each in clients:
                each.join()
        assert set(statuses) == {200} and server(world) == before, "without a new replica"
        explained = world.cli("explain", "product", "--last", "40").stdout
        assert "cores_for_burst" in explained or "cores_not_enough" in explained


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_cores_of_a_running_model_change_under_load_and_stay(tmp_path: Path) -> None:
    if cores(0) < 2:
        pytest.skip("there is one core")
    write_product(tmp_path / "product.onnx")
    (tmp_path / "accelerators.yaml").write_text(ONE_PLACE)
    with deployment(tmp_path) as world:
        world.up("--accelerators-file", str(tmp_path / "accelerators.yaml"))
        world.cli("deploy", str(tmp_path / "product.onnx"), "--name", "product")
        before = server(world)
        url, statuses, ended = f"{world.gateway}/v2/models/product/infer", list[int](), threading.Event()
        client = threading.Thread(target=calls, args=(url, ended.is_set, statuses))
        client.start()
        try:
            for count in (2, 1, 2):
                found = json.loads(world.cli("resize", "product", "--cores", str(count), "--json").stdout)
                assert [each["cores"] for each in found["replicas"]] == [count]
                eventually(lambda count=count: cores(before[1]) == count, 5.0, f"{count} cores")  # type: ignore[misc]
        finally:
            ended.set()
            client.join()
        assert set(statuses) == {200} and server(world) == before
        refused = world.cli("resize", "product", "--cores", "1000", code=1)
        assert "cannot borrow cores" in refused.stderr
