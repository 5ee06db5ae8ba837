"""Documents of Triton's extensions: what a model declares and what the server counted, and nothing made up."""

from dataclasses import replace

import pytest

from tidegate.runtime.errors import RequestError
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols import triton
from tidegate.runtime.protocols.tensors import DATATYPES
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec

SPEC = ModelSpec(
    platform="python",
    inputs=(TensorSpec("x", "FP32", (-1, 2)), TensorSpec("s", "BYTES", (-1, 1))),
    outputs=(TensorSpec("y", "INT64", (-1,)),),
    max_batch=8,
)


def test_the_configuration_of_a_model_that_batches() -> None:
    assert triton.model_config("m", SPEC, 0.0015) == {
        "name": "m",
        "platform": "python",
        "max_batch_size": 8,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "s", "data_type": "TYPE_STRING", "dims": [1]},
        ],
        "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": []}],
        "dynamic_batching": {"max_queue_delay_microseconds": 1500},
        "model_transaction_policy": {"decoupled": False},
    }


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, max_batch=1),
        replace(SPEC, inputs=(TensorSpec("x", "FP32", (-1, 2)), TensorSpec("s", "BYTES", (4, 1)))),
        replace(SPEC, outputs=(TensorSpec("y", "FP32", ()),)),
    ],
)
def test_without_batches_or_with_a_fixed_first_dimension_dims_are_whole(spec: ModelSpec) -> None:
    found = triton.model_config("m", spec, 0.0015)
    assert found["max_batch_size"] == 0
    assert found["input"][0]["dims"] == [-1, 2]
    assert "dynamic_batching" not in found


def test_a_model_that_streams_is_decoupled_and_one_that_declares_nothing_has_no_tensors() -> None:
    found = triton.model_config("m", ModelSpec("python", None, None, streams=True), 0.0)
    assert found["model_transaction_policy"] == {"decoupled": True}
    assert (found["input"], found["output"]) == ([], [])


def test_every_datatype_has_a_name_and_a_number() -> None:
    for datatype in DATATYPES:
        spec = ModelSpec("python", (TensorSpec("x", datatype, (1,)),), ())
        assert triton.model_config("m", spec, 0.0)["input"][0]["data_type"] in triton.DATA_TYPES


def test_statistics_are_the_servers_counters() -> None:
    counters = RuntimeCounters(
        success=3,
        canceled=1,
        other=2,
        inferences=9,
        executions=2,
        measured=4,
        request_s=0.5,
        failed_s=0.25,
        queue_s=0.1,
        input_s=0.01,
        infer_s=0.3,
        output_s=0.02,
    )
    found = triton.model_statistics("m", counters, 2.0, 1000.5)
    assert found["inference_stats"] == {
        "success": {"count": 3, "ns": 500_000_000},
        "fail": {"count": 3, "ns": 250_000_000},
        "queue": {"count": 4, "ns": 100_000_000},
        "compute_input": {"count": 4, "ns": 10_000_000},
        "compute_infer": {"count": 4, "ns": 300_000_000},
        "compute_output": {"count": 4, "ns": 20_000_000},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
    assert (found["inference_count"], found["execution_count"], found["last_inference"]) == (9, 2, 998_500)
    assert triton.model_statistics("m", RuntimeCounters(), None, 1000.5)["last_inference"] == 0


def test_the_index_has_every_name_and_only_ready_ones_if_wanted() -> None:
    entry = {"name": "n", "version": "1", "state": "LOADING", "reason": "why"}
    assert triton.repository_index(("m", "n"), "LOADING", "why", {})[1] == entry
    assert triton.repository_index(("m",), "LOADING", "why", {"ready": True}) == []
    assert len(triton.repository_index(("m",), "READY", "", {"ready": True})) == 1
    with pytest.raises(RequestError, match="'ready' must be true or false"):
        triton.repository_index(("m",), "READY", "", {"ready": 1})


def test_a_load_of_the_loaded_model_is_done_and_any_other_is_refused() -> None:
    triton.check_load("m", "READY", None)
    triton.check_load("m", "READY", {})
    with pytest.raises(RequestError, match="takes no parameters, got config, file:1"):
        triton.check_load("m", "READY", {"file:1": "", "config": "{}"})
    with pytest.raises(RequestError, match="must be a JSON object"):
        triton.check_load("m", "READY", ["config"])
    with pytest.raises(RequestError, match="model 'm' is loading") as caught:
        triton.check_load("m", "LOADING", None)
    assert caught.value.status == 503
