"""h2spec (RFC 9113 and RFC 7541 conformance) against a gateway and a queue_proxy: ``make test-h2spec``.

    python -m tests.interop.h2spec [KIND ...] [--direct HOST:PORT]

h2spec is a tool in Go, installed by its ordinary ``go install`` into ``build/go``. Its requests are plain HTTP ones, so
behind the doors stands a small HTTP backend of other authors. Exit code 0: every case holds or is one of DEVIATIONS; 1:
anything else, also a deviation that is none any more; 3: there is no Go. ``--direct`` tries some other server instead.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.http.echo import KINDS, doors
from tests.support.live.go_tools import H2SPEC, NoGoError, tool

LEAST_CASES = 140
"""A run of fewer has not run."""
PATIENCE_S = 2
"""Of h2spec, for each answer."""
CANNOT = 3

_TABLE = "we announce a header table of 0, and above that an update is a COMPRESSION_ERROR (RFC 7541 section 4.2)"
_PRIORITY = "RFC 9113 section 5.3.2 has taken dependencies back: PRIORITY is read over"
_CLOSED = "RFC 9113 section 5.1 lets an endpoint ignore what comes on a closed stream; bounded by the frame allowance"
DEVIATIONS: dict[str, str] = {
    "generic/5 Sends a dynamic table size update": _TABLE,
    "generic/5 Sends multiple dynamic table size update": _TABLE,
    "http2/3.5 Sends invalid connection preface": "the port speaks HTTP/1 too, and answers 400 in it before it closes",
    "http2/4.2 Sends a DATA frame with 2^14 octets in length": "h2spec sends as much as MAX_FRAME_SIZE allows, 256 KB, "
    "and the window of the stream is 64 KB: FLOW_CONTROL_ERROR",
    "http2/4.2 Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE": "it is 20 KB and does not "
    "exceed ours; above the list's limit it is answered 431",
    "http2/5.1 closed: Sends a DATA frame after sending RST_STREAM frame": _CLOSED,
    "http2/5.1 closed: Sends a HEADERS frame after sending RST_STREAM frame": _CLOSED,
    "http2/5.1 closed: Sends a DATA frame": _CLOSED,
    "http2/5.3.1 Sends HEADERS frame that depend on itself": _PRIORITY,
    "http2/5.3.1 Sends PRIORITY frame that depend on itself": _PRIORITY,
}
"""Cases that we answer otherwise, and why; argued in docs/inside/testing.md."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case as h2spec tells it."""

    section: str
    name: str
    failure: str
    skipped: bool

    @property
    def key(self) -> str:
        return f"{self.section} {self.name}"


def read_report(path: Path) -> list[Case]:
    """The cases of a JUnit report."""
    cases = []
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            found = case.find("failure") if case.find("failure") is not None else case.find("error")
            text = "" if found is None else " ".join("".join(found.itertext()).split()) or "failed"
            section = f"{suite.get('package', '')}"
            cases.append(Case(section, case.get("classname", ""), text, case.find("skipped") is not None))
    return cases


def ask(binary: Path, address: tuple[str, int]) -> list[Case]:
    """All cases, the strict ones too, against one address."""
    with tempfile.TemporaryDirectory(prefix="h2spec-") as folder:
        report = Path(folder) / "report.xml"
        words = ["-h", address[0], "-p", str(address[1]), "-S", "-o", str(PATIENCE_S), "-j", str(report)]
        done = subprocess.run([str(binary), *words], capture_output=True, text=True, timeout=600, check=False)
        if not report.exists():
            raise RuntimeError(f"h2spec wrote no report: {done.stdout[-500:]}{done.stderr[-500:]}")
        return read_report(report)


def judge(cases: list[Case]) -> list[str]:
    """What is wrong."""
    faults = [f"{case.key}: {case.failure}" for case in cases if case.failure and case.key not in DEVIATIONS]
    failed = {case.key for case in cases if case.failure}
    faults += [f"{key}: holds now; take it out of DEVIATIONS" for key in DEVIATIONS if key not in failed]
    if len(cases) < LEAST_CASES:
        faults.append(f"only {len(cases)} cases were run")
    return faults


def tell(name: str, cases: list[Case]) -> bool:
    """Prints a line, and one for each fault; whether there is none."""
    faults = judge(cases)
    held = sum(not case.failure and not case.skipped for case in cases)
    skipped = [case.key for case in cases if case.skipped]
    known = sum(bool(case.failure) and case.key in DEVIATIONS for case in cases)
    print(f"{name}: {held} of {len(cases)} hold, {known} deviate as documented, {len(skipped)} do not apply")  # noqa: T201
    for line in faults + [f"does not apply: {key}" for key in skipped]:
        print(f"  {line}")  # noqa: T201
    return not faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.h2spec")
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--direct", metavar="HOST:PORT", help="no door of ours: this server")
    chosen = parser.parse_args()
    try:
        binary = tool(H2SPEC)
    except NoGoError as error:
        print(f"h2spec needs Go: {error}", file=sys.stderr)  # noqa: T201
        return CANNOT
    if chosen.direct:
        host, _, port = chosen.direct.rpartition(":")
        return 0 if tell(chosen.direct, ask(binary, (host, int(port)))) else 1
    logging.disable()  # aiohttp tells of each request that h2spec takes back
    ways = [(kind, "uvloop") for kind in chosen.kinds or KINDS]
    with doors(ways) as opened:
        results = [tell(kind, ask(binary, opened[kind, loop].address)) for kind, loop in ways]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
