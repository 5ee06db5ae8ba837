"""A developer's loop: `tidegate init`, `dev` that deploys on every save, and an environment made from requirements."""

import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.commands import command_server
from tests.support.live.deployment import REQUEST, Deployment, deployment
from tests.support.live.terminal import Terminal

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

NEEDS = """
import os, tinylib

class Needs:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1])}
    def __init__(self, factor=1, word="none"):
        self.factor, self.word = factor, word
    def predict(self, inputs):
        return {"y": [tinylib.VALUE * self.factor], "said": [f"{self.word} {os.environ['COLOUR']}".encode()]}
"""


def wheel(folder: Path) -> None:
    """A package `tinylib` that pip installs without a network."""
    about = "tinylib-1.0.dist-info"
    with zipfile.ZipFile(folder / "tinylib-1.0-py3-none-any.whl", "w") as file:
        file.writestr("tinylib.py", "VALUE = 42.0\n")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinylib\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "".join(f"{each.filename},,\n" for each in file.infolist()))


def deploy(world: Deployment, *words: str, code: int = 0) -> str:
    """Deploys with time for an environment to be made; returns what was reported."""
    words = ("deploy", "--state", str(world.state.root), *words)
    done = command_server().run(words, folder=world.folder, limit_s=150.0)
    assert done.returncode == code, done.stderr
    return done.stderr


def outputs(world: Deployment, name: str) -> dict[str, Any]:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    answer = httpx.post(
        f"{world.gateway}/v2/models/{name}/infer", json=body, timeout=20.0, trust_env=False, verify=False
    )
    return {each["name"]: each["data"] for each in answer.json()["outputs"]}


@pytest.mark.early
def test_requirements_are_installed_once_into_an_environment_of_the_function(tmp_path: Path) -> None:
    wheel(tmp_path)
    needs = tmp_path / "needs.py"
    needs.write_text(NEEDS)
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links .\ntinylib\n")
    (tmp_path / "wrong.txt").write_text("--no-index\n--find-links .\nno-such-library\n")
    settings = ("--requirements", "requirements.txt", "--env", "COLOUR=blue", "--arg", "factor=2")
    with deployment(tmp_path) as world:
        world.up()
        missing = world.cli("deploy", str(needs), code=1).stderr
        assert "No module named 'tinylib'" in missing
        assert "`deploy --requirements FILE` installs what a file lists, `--python PATH` chooses another" in missing
        refused = deploy(world, str(needs), "--requirements", "wrong.txt", code=1)
        assert "wrong.txt is not installed: pip install ended with 1" in refused
        assert "No matching distribution found for no-such-library" in refused
        assert len(world.ask("status", "needs")["revisions"]) == 1
        deploy(world, str(needs), *settings, "--arg", "word=hello")
        assert outputs(world, "needs") == {"y": [84.0], "said": ["hello blue"]}
        environments = world.state.root / "environments"
        (made,) = (path for path in environments.iterdir() if (path / ".complete").exists())
        stamp = (made / ".complete").stat().st_mtime_ns
        world.cli("deploy", str(needs), *settings)
        assert outputs(world, "needs") == {"y": [84.0], "said": ["none blue"]}
        assert (made / ".complete").stat().st_mtime_ns == stamp
        wrong = world.cli("deploy", str(needs), "--env", "PORT=1", "--arg", "2", "--python", "nowhere", code=2).stderr
        for flag in ("--arg: got '2'; allowed: NAME=VALUE", "--python: got 'nowhere'", "--env: got 'PORT'"):
            assert flag in wrong
        other = world.cli("deploy", str(needs), "--accelerators", "v100", code=2).stderr
        assert "--accelerators: got 'v100'; allowed: " in other


def test_dev_deploys_on_every_save_and_shows_errors_inline(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        handler = tmp_path / "echo.py"
        world.handler()
        good = handler.read_text()
        shown = Terminal(world.command("dev", str(handler)), world.folder)
        try:
            shown.until("| echo is loaded")
            shown.until("echo is ready after")
            assert world.infer().json()["outputs"][0]["data"] == [2.0, 4.0]
            handler.write_text(good + "broken(\n")
            shown.until("'(' was never closed (")
            handler.write_text("import nowhere\n" + good)
            shown.until("error: echo-00002: the model server exited")
            assert "No module named 'nowhere'" in shown.text
            assert world.infer().status_code == 200
            handler.write_text(good.replace("2 * value", "3 * value"))
            world.until(lambda: world.infer().json()["outputs"][0]["data"] == [3.0, 6.0], 30.0, "the new code")
            (tmp_path / "helper.py").write_text("FACTOR = 5\n")
            world.until(
                lambda: world.ask("status", "echo")["revision"] == "echo-00004", 30.0, "a deploy for the helper"
            )
            shown.interrupt()
            assert shown.end() == 0
            assert "echo stays deployed; `tidegate delete echo` ends it" in shown.text
        finally:
            shown.close()
        assert world.infer().status_code == 200


def test_what_init_writes_is_deployed_and_never_overwritten(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()

        def init(*words: str) -> tuple[int, str]:
            done = command_server().run(["init", *words], folder=tmp_path, limit_s=30.0)
            return done.returncode, done.stdout + done.stderr

        assert init() == (0, "wrote handler.py and function.yaml; deploy with `tidegate deploy function.yaml`\n")
        (tmp_path / "function.yaml").write_text("mine")
        code, text = init()
        assert code == 2
        assert "function.yaml (it exists)" in text
        assert (tmp_path / "function.yaml").read_text() == "mine"
        (tmp_path / "handler.py").write_text("# mine\n" + (tmp_path / "handler.py").read_text())
        assert json.loads(init("--force", "--json")[1]) == {"written": ["function.yaml"]}
        assert (tmp_path / "handler.py").read_text().startswith("# mine\n")
        world.cli("deploy", "function.yaml")
        answer = httpx.post(
            f"{world.gateway}/v2/models/handler/infer", json=REQUEST, timeout=20.0, trust_env=False, verify=False
        )
        assert answer.json()["outputs"][0]["data"] == [3.0]
