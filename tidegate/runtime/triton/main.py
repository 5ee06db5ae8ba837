"""``python -P -m tidegate.runtime.triton.main REPOSITORY http|grpc PORT [METRICS_PORT]``: becomes ``tritonserver``.

The server is the user's own: ``tritonserver`` on ``PATH``, else that of Triton's container image. Without one it exits
with code 3 and the reason as the last line on stderr, like the model server that ships.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

PROGRAM: Final = "tritonserver"
IMAGE_PLACE: Final = "/opt/tritonserver/bin"
EXIT_LOAD: Final = 3


def command(program: str, repository: str, protocol: str, port: str, metrics_port: str | None) -> list[str]:
    """Returns the words of the server. Its backends lie beside it, as in every build of Triton."""
    other = "grpc" if protocol == "http" else "http"
    words = [
        program,
        f"--model-repository={repository}",
        f"--{protocol}-address=127.0.0.1",
        f"--{protocol}-port={port}",
        f"--allow-{other}=false",
    ]
    backends = Path(program).resolve().parents[1] / "backends"
    if backends.is_dir():
        words.append(f"--backend-directory={backends}")
    if metrics_port is None:
        return [*words, "--allow-metrics=false"]
    return [*words, "--metrics-address=127.0.0.1", f"--metrics-port={metrics_port}"]


def environment(variables: Mapping[str, str], source_root: str) -> dict[str, str]:
    """Returns the variables of the server: models in Python must not find Tidegate's folder among theirs."""
    kept = dict(variables)
    places = [place for place in kept.pop("PYTHONPATH", "").split(os.pathsep) if place and place != source_root]
    return kept | ({"PYTHONPATH": os.pathsep.join(places)} if places else {})


def why_not(repository: Path) -> str:
    """Returns the reason why there is no server, with the model that is served without one."""
    reason = (
        f"a Triton repository needs Triton: no {PROGRAM} is on PATH or in {IMAGE_PLACE}. "
        "`--env PATH=FOLDER:$PATH` names its folder"
    )
    models = sorted(repository.glob("*/*/model.onnx"))
    if models:
        return f"{reason}. ONNX needs no Triton: tidegate deploy {models[-1]}"
    return reason


def main(arguments: Sequence[str]) -> int:
    repository, protocol, port, *metrics_port = arguments
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=IMAGE_PLACE)
    if program is None:
        sys.stderr.write(f"{why_not(Path(repository))}\n")
        return EXIT_LOAD
    words = command(program, repository, protocol, port, metrics_port[0] if metrics_port else None)
    return os.execve(program, words, environment(os.environ, str(Path(__file__).resolve().parents[3])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
