"""What the command line says when something is wrong: what holds a port, what set a limit, what overrides a file."""

import json
import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.live.certificates import make_certificate
from tests.support.live.commands import command_server
from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def test_a_key_is_alone_on_standard_output(tmp_path: Path) -> None:
    done = command_server().run(["tenant-key"], folder=tmp_path, limit_s=30.0)
    assert done.returncode == 0
    assert re.fullmatch(r"tg-[\w-]{43}\n", done.stdout)
    assert "sha256:" in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_doctor_tells_a_leftover_from_another_deployment_and_from_a_foreign_process(tmp_path: Path) -> None:
    with deployment(tmp_path) as world, socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        taken = f"127.0.0.1:{foreign.getsockname()[1]}"
        world.up(as_program=True)
        front = world.gateway.removeprefix("http://")

        def port(state: str, address: str) -> str:
            words = ("--listen", address, "--control-listen", "127.0.0.1:0", "--json", "--state", state)
            found = json.loads(world.cli("doctor", *words, code=0 if state == own and address == front else 1).stdout)
            (text,) = (f"{each['verdict']} {each['text']}" for each in found if each["check"] == f"port {address}")
            return str(text)

        own, other = str(world.state.root), str(tmp_path / "other")
        assert "bad held by a process of another deployment of Tidegate" in port(other, front)
        assert "bad held by a foreign process" in port(other, taken)
        world.kill()
        left = port(own, front)
        assert left.startswith("note held by gateway-g0 (process ")
        assert "`tidegate up` takes it over" in left


def test_reload_says_what_a_flag_overrides_and_restart_needs_no_up_for_the_log_level(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text('[log]\nlevel = "info"\nformat = "text"\n')
    with deployment(tmp_path, "--config", str(config), "--log-format", "json") as world:
        world.up()
        config.write_text('[log]\nlevel = "debug"\nformat = "text"\n')
        restarted = world.cli("restart").stderr
        assert "log.level" not in restarted
        reloaded = world.cli("reload").stderr
        assert f"not in force: log.format: --log-format json overrides {config}, line 3" in reloaded
        assert world.ask("reload")["overridden"] == [f"log.format: --log-format json overrides {config}, line 3"]


def test_a_fault_of_a_setting_names_where_its_value_came_from(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    with deployment(tmp_path) as world, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(f'[gateway]\nlisten = "{address}"\n[accelerators]\nfile = "no.yaml"\n')
        missing = world.cli("up", "--config", str(config), "--tenants-file", "gone.yaml", code=2).stderr
        nowhere = "(No such file or directory), from"
        assert f"accelerators.file: got {tmp_path}/no.yaml {nowhere} {config}, line 4" in missing
        assert f"tenants.file: got {tmp_path}/gone.yaml {nowhere} --tenants-file" in missing
        config.write_text(f'[gateway]\nlisten = "{address}"\n')
        refused = world.cli("up", "--config", str(config), "--control-listen", "127.0.0.1:0", code=1).stderr
        assert f"cannot listen on {address} (gateway.listen, from {config}, line 2): " in refused


def test_a_certificate_that_has_gone_bad_names_where_it_came_from_at_a_restart(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[gateway]\ntls-cert = "{certificate}"\ntls-key = "{key}"\n')
    with deployment(tmp_path, "--config", str(config)) as world:
        world.up()
        certificate.write_text("no certificate")
        refused = world.cli("restart", code=2).stderr
        assert f"gateway.tls-cert: got {certificate}, from {config}, line 2; allowed: a certificate chain" in refused


def test_a_missing_gpu_is_the_fault_and_not_a_key(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        (tmp_path / "cpus.yaml").write_text("accelerators: [{name: cpu, kind: cpu, cores: 1, count: 2, memory: 4Gi}]\n")
        world.up("--accelerators-file", str(tmp_path / "cpus.yaml"))
        refused = world.cli("deploy", world.handler(), "--gpu", "v100", code=2).stderr
        assert "--gpu: got 'v100'; allowed: no such key: there is no GPU here" in refused
        assert "(the accelerators are cpu)" in refused
        assert "gpu-mem-limit" not in refused


def test_a_body_beyond_the_model_servers_limit_names_the_limit_and_the_key_that_raises_it(tmp_path: Path) -> None:
    with deployment(tmp_path, "--limits-body-bytes", "64Ki") as world:
        world.up()
        manifest = tmp_path / "echo.yaml"
        for limit in ("2Ki", "32Ki"):
            manifest.write_text(
                "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: echo}\n"
                f"spec: {{server: {{handler: '{world.handler()}'}}, limits: {{body-bytes: {limit}}}}}\n"
            )
            world.cli("deploy", str(manifest))
            body = json.dumps({"inputs": [{"name": "x", "shape": [900, 2], "datatype": "FP32", "data": [1] * 1800}]})
            answer = httpx.post(
                f"{world.gateway}/v2/models/echo/infer", content=body.encode(), trust_env=False, verify=False
            )
            if limit == "2Ki":
                assert answer.status_code == 413
                assert "larger than 2048 bytes: the limit of the model server, limits.body-bytes" in answer.text
            else:
                assert answer.status_code == 200
        larger = httpx.post(
            f"{world.gateway}/v2/models/echo/infer", content=b" " * 70_000, trust_env=False, verify=False
        )
        assert larger.status_code == 413
        assert "larger than 65536 bytes: limits.body-bytes of the deployment's settings" in larger.text


def test_load_ends_with_one_when_most_requests_failed_and_backs_off_where_nothing_listens(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    world = Deployment(tmp_path)
    failed = world.cli("load", url, "--callers", "2", "--for", "2s", "--json", code=1)
    made = json.loads(failed.stdout)
    assert made["sent"] <= 20
    assert not made["client"]["is_bottleneck"]
    assert f"all requests failed: {made['sent']} of {made['sent']} (connect: {made['sent']})" in failed.stderr
