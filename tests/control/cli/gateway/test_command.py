"""`tidegate gateway` by itself: what it needs is said at once, with exit code 2 for wrong input."""

import socket
from pathlib import Path

from typer.testing import CliRunner, Result

from tidegate.control.cli.app import app

URL = "redis://127.0.0.1:1/0"


def run(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["gateway", "--state", str(folder / "state"), *flags])


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    flags = (
        "--token-file",
        "t",
        "--name",
        "Edge_1",
        "--admin-listen",
        "nowhere",
        "--config",
        str(tmp_path / "none.toml"),
    )
    (tmp_path / "none.toml").write_text("")
    done = run(tmp_path, *flags)
    assert done.exit_code == 2
    said = done.stderr
    assert "store.url: got embedded; allowed: the redis:// or rediss:// URL of its control process" in said
    assert "store.name: got auto; allowed: the name that its control process has (store.name)" in said
    assert "--name: got Edge_1; allowed: 1 to 63 of a-z, 0-9 and -, no - at either end" in said
    assert "--admin-listen: got nowhere; allowed: HOST:PORT" in said


def test_the_control_process_needs_an_address_where_it_listens_on_all(tmp_path: Path) -> None:
    given = ("--token-file", "t", "--store-url", URL, "--store-name", "blue", "--name", "edge1")
    done = run(tmp_path, *given, "--admin-listen", "0.0.0.0:1")
    assert done.exit_code == 2
    assert "--admin-host: got none; allowed: with --admin-listen 0.0.0.0:1 the address" in done.stderr
    done = run(tmp_path, *given, "--admin-host", "10.0.0.7:80/x")
    assert done.exit_code == 2
    assert "--admin-host: got 10.0.0.7:80/x; allowed: a name or address, without a port" in done.stderr


def test_a_taken_admin_port_is_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = ("--token-file", str(tmp_path / "token"), "--store-url", URL, "--store-name", "blue", "--name", "edge1")
        done = run(tmp_path, *given, "--admin-listen", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"--admin-listen 127.0.0.1:{port}: Address already in use" in done.stderr


def test_a_gateway_has_workers(tmp_path: Path) -> None:
    done = run(tmp_path, "--token-file", "t", "--store-url", URL, "--store-name", "blue", "--gateway-workers", "0")
    assert done.exit_code == 2
    assert "gateway.workers: got 0; allowed: at least 1" in done.stderr


def test_without_the_deployments_token_it_does_not_start(tmp_path: Path) -> None:
    flags = ("--store-url", URL, "--store-name", "blue", "--name", "edge1")
    done = run(tmp_path, "--token-file", str(tmp_path / "none"), *flags)
    assert done.exit_code == 1
    assert f"{tmp_path / 'none'}: the token of the deployment cannot be read" in done.stderr
    (tmp_path / "empty").write_text("")
    done = run(tmp_path, "--token-file", str(tmp_path / "empty"), *flags)
    assert done.exit_code == 1
    assert "is empty; it has to hold the token of the deployment" in done.stderr
