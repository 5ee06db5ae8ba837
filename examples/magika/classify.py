"""Asks a deployed magika function what some real files are, and compares with what the magika package itself says.

    python examples/magika/classify.py [--url http://127.0.0.1:8080] [--model magika] FILE...

Without files it looks at the ones of this repository. Exit code 1 when an answer differs from the package's,
or when there is none.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import prepare


def ask(url: str, model: str, rows: list[list[int]], layout: prepare.Layout) -> list[tuple[str, float]]:
    """One V2 request with all rows. Ends the program with one line when it is not answered."""
    request = urllib.request.Request(
        f"{url}/v2/models/{model}/infer",
        data=json.dumps(prepare.request_of(rows)).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return prepare.labels_of(json.load(reply), layout)
    except urllib.error.HTTPError as error:
        sys.exit(f"status {error.code}: {message_of(error.read())}")
    except OSError as error:
        sys.exit(f"{url}: {getattr(error, 'reason', error)}")


def message_of(body: bytes) -> str:
    """Returns the message of an error answer, in one line."""
    try:
        said = json.loads(body)
    except ValueError:
        said = body.decode(errors="replace")
    while isinstance(said, dict):
        said = said.get("message") or said.get("error") or json.dumps(said)
    return " ".join(str(said).split())


def own_answers(paths: list[Path]) -> list[tuple[str, float]]:
    """Returns the package's own results with the same model, before its rules for rare and doubtful labels."""
    from magika import Magika

    return [(str(result.dl.label), result.score) for result in Magika().identify_paths(paths)]


def repository_files() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    chosen = [
        *root.glob("*.toml"),
        *root.glob("*.md"),
        root / "LICENSE",
        root / "Makefile",
        *root.glob("tidegate/*.py"),
    ]
    return [path for path in chosen if path.is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="magika")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    layout = prepare.own_layout()
    rows, paths = [], []
    for path in arguments.files or repository_files():
        row = prepare.features_of(path.read_bytes(), layout)
        if row is None:
            print(f"{path}: too short for the model")
        else:
            rows.append(row)
            paths.append(path)
    if not rows:
        return 0
    differ = 0
    answers = zip(paths, ask(arguments.url, arguments.model, rows, layout), own_answers(paths), strict=True)
    for path, (label, score), (own_label, own_score) in answers:
        same = label == own_label and abs(score - own_score) < 1e-3
        differ += not same
        print(f"{label:16} {score:6.1%}  {'same' if same else f'magika: {own_label} {own_score:.1%}':8}  {path}")
    print(f"{len(paths)} files, {differ} answers differ from the package's own")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
