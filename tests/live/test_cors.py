"""Pages of browsers, through real processes: preflights, answers and errors, with CORS and without."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]
APP = "https://app.example"
ASKS = {"Origin": APP, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
ALLOWED = "access-control-allow-origin"


@pytest.fixture(params=[True, False], ids=["on", "off"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Deployment, bool]]:
    deployment = Deployment(tmp_path, *(("--cors-origins", APP) if request.param else ()))
    deployment.up()
    try:
        deployment.deploy(deployment.handler(), "--initial-scale", "0")
        yield deployment, request.param
    finally:
        deployment.close()


def test_a_page_calls_a_function_that_sleeps(place: tuple[Deployment, bool]) -> None:
    deployment, is_on = place
    with httpx.Client(base_url=deployment.gateway, timeout=30.0, trust_env=False, verify=False) as client:
        if is_on:
            asked = client.options("/v2/models/echo/infer", headers=ASKS)
            assert (asked.status_code, asked.headers[ALLOWED], asked.content) == (204, APP, b"")
            assert asked.headers["access-control-allow-headers"] == "authorization"
            assert asked.headers["access-control-max-age"] == "600"
            assert client.options("/v2/models/echo/infer", headers=ASKS | {"Origin": "null"}).status_code == 403
            assert not any(name.startswith("model") for name in deployment.living()), "a preflight woke the function"
        answers = {
            client.post("/v2/models/echo/infer", json=REQUEST, headers={"Origin": APP}): 200,
            client.post("/v2/models/nothing/infer", json=REQUEST, headers={"Origin": APP}): 404,
            client.get("/v1/models", headers={"Origin": APP}): 200,
        }
        for answer, status in answers.items():
            assert answer.status_code == status
            assert answer.headers.get(ALLOWED) == (APP if is_on else None)
            assert answer.headers.get("vary") == ("origin" if is_on else None)
        other = client.post("/v2/models/echo/infer", json=REQUEST, headers={"Origin": "https://evil.example"})
        assert (other.status_code, ALLOWED in other.headers) == (200, False)
