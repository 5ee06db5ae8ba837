"""Records survive encoding, and invalid bytes are refused with the place of the fault."""

import json

import pytest

from tidegate import errors
from tidegate.clock import ManualClock
from tidegate.records import codec
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable

TABLE = RouteTable(
    epoch=2,
    number=7,
    workers=2,
    default="resnet",
    functions=(
        FunctionRoute(
            name="resnet",
            models=("resnet",),
            protocol="v2",
            timeout_s=300.0,
            latency_s=0.2,
            queue_requests=1000,
            queue_bytes=1 << 28,
            max_wait_s=300.0,
            batch_header="tidegate-batch-size",
            bytes_per_item=None,
            overhead_bytes=0.0,
            max_batch=64,
            revisions=(
                RevisionRoute(
                    id="resnet-00001",
                    percent=100.0,
                    groups=(
                        GroupRoute(
                            accelerator="t4",
                            weight=1.0,
                            replicas=(ReplicaRoute(id="resnet-00001-abcde", address="127.0.0.1:4000"),),
                        ),
                    ),
                ),
            ),
        ),
    ),
)


def test_a_route_table_survives_the_wire() -> None:
    assert codec.decode(codec.encode(TABLE), RouteTable) == TABLE


def test_a_newer_writers_keys_are_ignored() -> None:
    plain = json.loads(codec.encode(TABLE)) | {"invented-later": 1}
    assert codec.decode(json.dumps(plain), RouteTable).version == (2, 7)


@pytest.mark.parametrize("data", ["", "[]", "{", '{"epoch": "two", "number": 1, "workers": 1}', '{"epoch": 1}'])
def test_what_is_no_table_is_refused(data: str) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(data, RouteTable)


def test_a_failure_tells_the_client_what_to_do() -> None:
    body = json.loads(errors.error_body(errors.QUEUE_FULL, "1000 requests wait", function="resnet", request_id="r1"))
    assert body["error"]["code"] == "queue_full"
    assert body["error"]["executed"] == "false"
    assert "Retry-After" in body["error"]["action"]


def test_every_fault_is_in_the_message() -> None:
    faults = [errors.Fault("spec.port", "0", "1..65535", line=3), errors.Fault("spec.models", "''", "not empty")]
    text = str(errors.InvalidInputError("f.yaml", faults))
    assert "line 3: spec.port: got 0; allowed: 1..65535" in text
    assert "spec.models" in text


def test_time_never_runs_backwards() -> None:
    clock = ManualClock(10.0)
    clock.advance(0.5)
    assert clock.now() == 10.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
