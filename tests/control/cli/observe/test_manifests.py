"""``diff`` by itself: faults of the file, all at once; the live tests compare with a deployment."""

from pathlib import Path

from tests.control.cli.test_commands import tidegate


def test_diff_reports_every_fault_of_a_file_before_it_looks_for_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("class Model:\n    def predict(self, inputs): ...\n", encoding="utf-8")
    result = tidegate(
        "diff", f"{tmp_path}/handler.py", "--latency", "soon", "--max-scale", "many", "--state", str(tmp_path / "none")
    )
    assert result.exit_code == 2
    assert "--latency" in result.stderr
    assert "--max-scale" in result.stderr


def test_without_a_deployment_they_say_what_to_do(tmp_path: Path) -> None:
    for command in (("get",), ("describe", "echo")):
        result = tidegate(*command, "--state", str(tmp_path / "none"))
        assert result.exit_code == 1
        assert "start one with `tidegate up`" in result.stderr
