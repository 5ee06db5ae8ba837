"""A real pipeline, deployed as the example says: a picture of the console is posted, and its text is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment, places

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "screens" / "overview.png"

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.needs(tool="ocr"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("ocr")
    with deployment(folder, *places(folder, 4)) as found:
        found.up()
        found.cli("deploy", str(ROOT / "examples" / "ocr" / "manifest.yaml"), "--no-wait")
        found.until(lambda: found.status("read-text")["ready"] >= 1, 120.0, "both stages to be ready")
        yield found


def posted(served: Deployment, body: bytes) -> httpx.Response:
    return httpx.post(f"{served.gateway}/functions/read-text/", content=body, timeout=120.0, trust_env=False)


def test_the_text_of_a_picture_is_read(served: Deployment) -> None:
    answer = posted(served, PICTURE.read_bytes())
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = {each["name"]: each for each in answer.json()["outputs"]}
    texts = found["text"]["data"]
    for words in ("Functions", "Accelerators", "Waiting room", "Tenants", "summarise", "failed"):
        assert any(words in text for text in texts), (words, texts)
    assert found["box"]["shape"] == [1, len(texts), 4]
    assert sum(found["certainty"]["data"]) / len(texts) > 0.9
    parts = answer.headers["server-timing"]
    assert "detect-text;dur=" in parts and "recognise-text;dur=" in parts and "total;dur=" in parts


def test_what_is_no_picture_or_has_no_text_ends_in_the_first_stage(served: Deployment) -> None:
    answer = posted(served, b"no picture")
    assert (answer.status_code, answer.headers["tidegate-stage"]) == (415, "detect-text")
    blank = bytes.fromhex(  # a PNG of one white pixel
        "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f80f0001010100"
        "1bb6ee560000000049454e44ae426082"
    )
    answer = posted(served, blank)
    assert (answer.status_code, answer.headers["tidegate-stage"]) == (422, "detect-text"), answer.text
    assert "recognise-text" not in answer.headers["server-timing"]


def test_its_sla_is_divided_by_what_the_models_take(served: Deployment) -> None:
    posted(served, PICTURE.read_bytes())

    def measured() -> bool:
        budgets = served.status("read-text")["budgets"]
        return bool(budgets) and not budgets[0]["is_even"]

    served.until(measured, 90.0, "both stages to be measured")
    assert sum(each["budget_s"] for each in served.status("read-text")["budgets"]) == pytest.approx(5.0)
    assert "its budget is" in served.cli("explain", "read-text").stdout
