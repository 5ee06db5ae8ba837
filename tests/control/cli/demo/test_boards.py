"""A Prometheus beside a demo: without one, or with one that fails, the demo goes on without the boards."""

from pathlib import Path

import pytest

from tidegate.control.cli.demo.boards import GRAFANA, PrometheusError, Watcher, watching

TREE = Path(__file__).parents[4]


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho no disk\nexit 1\n"])
def test_no_prometheus_or_one_that_does_not_start_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str | None
) -> None:
    found = tmp_path / "bin"
    found.mkdir()
    if script is not None:
        (found / "prometheus").write_text(script)
        (found / "prometheus").chmod(0o755)
    monkeypatch.setenv("PATH", f"{found}:/bin:/usr/bin" if script else str(found))
    with watching(TREE, tmp_path / "prometheus", tmp_path / "state", "magika") as watcher:
        assert watcher is None
    assert ("no disk" in capsys.readouterr().err) == (script is not None)


def test_one_that_does_not_answer_is_an_error_of_its_own() -> None:
    watcher = Watcher("http://127.0.0.1:9", TREE / GRAFANA, "magika")
    assert not watcher.sees_function()
    with pytest.raises(PrometheusError, match="does not answer"):
        watcher.figures(0.0, 10.0, 98.0, 0.0)
