"""gRPC over TLS by ALPN, at a front door with a certificate: tritonclient unmodified, grpcio, and grpcurl."""

import json
import subprocess
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.live.certificates import make_certificate
from tests.support.live.deployment import deployment
from tests.support.live.go_tools import GRPCURL, tool

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SOON_S = 20.0
_CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


def test_grpc_clients_over_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    flags = ("--gateway-tls-cert", str(certificate), "--gateway-tls-key", str(key), "--gateway-workers", "1")
    with deployment(tmp_path, *flags) as world:
        world.up()
        world.deploy(world.handler())
        port = world.gateway.rpartition(":")[2]
        address = f"localhost:{port}"

        # The first call finds no replica: it wakes the function and is answered.
        with triton.InferenceServerClient(address, ssl=True, root_certificates=str(certificate)) as client:
            x = triton.InferInput("x", [1, 2], "FP32")
            x.set_data_from_numpy(np.array([[1.0, 2.0]], dtype=np.float32))
            found = client.infer("echo", [x], client_timeout=SOON_S)
            assert found.as_numpy("y").tolist() == [[2.0, 4.0]]
            assert client.is_model_ready("echo", client_timeout=SOON_S)

        trust = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(address, trust) as channel:
            assert channel.unary_unary(_CHECK)(b"", timeout=SOON_S) == SERVING

        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary(_CHECK)(b"", timeout=2.0)
        assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.needs(tool="go")
def test_grpcurl_over_tls(tmp_path: Path) -> None:
    binary = tool(GRPCURL)
    certificate, key = make_certificate(tmp_path)
    flags = ("--gateway-tls-cert", str(certificate), "--gateway-tls-key", str(key), "--gateway-workers", "1")
    with deployment(tmp_path, *flags) as world:
        world.up()
        world.deploy(world.handler())
        address = f"localhost:{world.gateway.rpartition(':')[2]}"
        request = {"model_name": "echo", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]}
        request["inputs"][0]["contents"] = {"fp32_contents": [1, 2]}  # type: ignore[index]
        words = [str(binary), "-cacert", str(certificate), "-max-time", "20", "-d", json.dumps(request)]
        done = subprocess.run(
            [*words, address, "inference.GRPCInferenceService/ModelInfer"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        outputs = answer["outputs"][0]["contents"]
        assert next(iter(outputs.values())) == [2, 4], answer
