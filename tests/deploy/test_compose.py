"""What can be read of Dockerfile and docker-compose.yml without Docker: pinned bases, users, commands, paths, ports."""

import re
import tomllib
from fnmatch import fnmatch
from typing import Any

import pytest
import yaml

from tests.support.live.images import ROOT, Stage, context, in_context, stages
from tidegate.control.main import GRACE_S
from tidegate.settings import read

TEXT = (ROOT / "Dockerfile").read_text()
STAGES = stages(TEXT)
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
TARGETS = {each["image"]: each["build"]["target"] for each in SERVICES.values() if "build" in each}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SETTINGS = (ROOT / "deploy" / "compose" / "tidegate.toml").read_text()


def stage_of(service: str) -> Stage:
    return STAGES[TARGETS[SERVICES[service]["image"]]]


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_base_is_an_earlier_stage_or_pinned_by_version_and_digest(stage: Stage) -> None:
    earlier = list(STAGES)[: list(STAGES).index(stage.name)]
    pinned = re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+[a-z-]*@sha256:[0-9a-f]{64}", stage.base)
    assert stage.base in earlier or pinned, stage.base


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_instructions_are_plain(stage: Stage) -> None:
    assert not stage.all("ADD")  # it unpacks and downloads
    for rest in (*stage.all("RUN"), *stage.all("CMD"), *stage.all("ENTRYPOINT")):
        assert rest.startswith("["), f"{rest}: the JSON form runs no shell"
    for rest in (*stage.all("ENV"), *stage.all("ARG")):
        assert not re.search(r"token|secret|password", rest, re.IGNORECASE), rest


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_what_is_copied_is_in_the_context(stage: Stage) -> None:
    names = context()
    for rest in stage.all("COPY"):
        source, _ = rest.split()[-2:]
        if rest.startswith("--from="):
            assert rest.split()[0].removeprefix("--from=") in STAGES
        else:
            assert source == "." or any(fnmatch(name, source) or name.startswith(f"{source}/") for name in names), rest


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("deploy/plan.py", True),
        ("tidegate/gateway", True),
        ("examples/hello/handler.py", True),
        ("examples/magika/manifest.yaml", False),
        ("tests/conftest.py", False),
        (".git/config", False),
        ("tidegate/__pycache__/x.pyc", False),
        ("token", False),
    ],
)
def test_the_context_is_the_product_alone(name: str, kept: bool) -> None:
    ignore = "\n".join(line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#"))
    assert in_context(name, ignore) is kept


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_an_image_of_ours_no_root_and_a_read_only_file_system(service: str) -> None:
    stated, stage = SERVICES[service], stage_of(service)
    assert stated["image"].endswith(f":{VERSION}")
    assert stage.all("USER")[-1] not in ("root", "0", "0:0")
    assert stated["read_only"] is True and stated["cap_drop"] == ["ALL"]
    assert stated["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in stated and "secrets" not in stated
    assert set(stated.get("depends_on", ())) <= set(SERVICES)
    for volume in stated.get("volumes", ()):
        name, target, *_ = volume.split(":")
        assert name in FILE["volumes"] and target.startswith("/")
    exposed = " ".join(stage.all("EXPOSE")).split()
    for port in stated.get("ports", ()):
        assert port.rpartition(":")[2] in exposed


def test_what_keeps_running_says_whether_it_is_well() -> None:
    without = {name for name, stated in SERVICES.items() if "healthcheck" not in stated}
    assert without == {"hello", "collector"}  # one ends, one's image has no program that could ask
    for name, stated in SERVICES.items():
        for other, condition in stated.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"} and "healthcheck" in SERVICES[other], name


def test_only_the_gateway_is_reachable_from_other_machines() -> None:
    public = [port for stated in SERVICES.values() for port in stated.get("ports", ()) if not port.startswith("127.")]
    assert public == ["8080:8080"]


def test_docker_waits_until_a_deployment_has_drained() -> None:
    assert int(SERVICES["tidegate"]["stop_grace_period"].removesuffix("s")) > 2 * GRACE_S


def test_the_settings_are_valid_and_agree_with_volumes_ports_and_names() -> None:
    settings = read(SETTINGS, source="tidegate.toml", base="/etc/tidegate", flags={}, cwd="/")
    assert f"state:{settings.state.directory}" in SERVICES["tidegate"]["volumes"]
    assert f"TIDEGATE_STATE={settings.state.directory}" in " ".join(STAGES["tidegate"].all("ENV"))
    assert settings.control.listen.host == SERVICES["tidegate"]["hostname"] == "tidegate"
    assert f"http://{settings.control.listen}/healthz" in SERVICES["tidegate"]["healthcheck"]["test"][-1]
    assert SERVICES["tidegate"]["ports"] == ["8080:8080", f"127.0.0.1:8081:{settings.control.listen.port}"]
    assert settings.gateway.listen.port == 8080
    assert str(settings.store.url).startswith("redis://redis:6379/")


def test_prometheus_finds_state_and_rules_where_its_configuration_looks() -> None:
    # Paths of its configuration are relative to the folder of that file.
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape["file_sd_configs"] == [{"files": ["STATE/prometheus/*.json"]}]
    assert scrape["authorization"]["credentials_file"] == "STATE/token"
    assert "state:/etc/tidegate/STATE:ro" in SERVICES["prometheus"]["volumes"]
    assert "deploy/prometheus /etc/tidegate" in STAGES["prometheus"].all("COPY")
    assert "--config.file=/etc/tidegate/prometheus.yml" in STAGES["prometheus"].all("CMD")[0]
    assert STAGES["prometheus"].all("USER")[-1] == STAGES["tidegate"].all("USER")[-1], "the token is its user's alone"


def test_grafana_finds_boards_and_prometheus() -> None:
    shipped = ROOT / "deploy" / "grafana" / "provisioning"
    for rest in STAGES["grafana"].all("RUN"):
        expression, place = re.findall(r'"([^"]*)"', rest)[2:]
        old, new = expression.split("#")[1:3]
        name = {"dashboards": "dashboards.yml", "datasources": "datasources.yml"}[place.split("/")[4]]
        assert old in (shipped / name).read_text()
        assert new in ("/etc/tidegate/boards", "http://prometheus:9090")
    assert "deploy/grafana/*.json /etc/tidegate/boards/" in STAGES["grafana"].all("COPY")


def test_the_collector_receives_on_the_ports_that_its_image_exposes() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "compose" / "collector.yaml").read_text())
    ports = [each["endpoint"].rpartition(":")[2] for each in config["receivers"]["otlp"]["protocols"].values()]
    assert ports == STAGES["collector"].all("EXPOSE")[0].split()
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
        assert pipeline["processors"][0] == "memory_limiter"


def test_the_lock_of_the_image_has_what_its_extras_need_and_nothing_for_development() -> None:
    locked = dict(
        re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "deploy" / "compose" / "requirements.lock").read_text(), re.M)
    )
    extras = re.findall(r"^IMAGE := (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for line in wanted:
        assert re.split(r"[\[<>=;]", line)[0] in locked
    assert not {"pytest", "mypy", "ruff", "grafana-foundation-sdk"} & set(locked)
    everything = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.M))
    assert {name: version for name, version in locked.items() if everything.get(name, version) != version} == {}
