"""A new process of a process: its descriptors, its parent and what the system shows of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork servers are for Linux")


def run(program: str, *arguments: str, **environment: str) -> object:
    """What the program prints. It runs alone: a fork of these tests would have their threads' locks."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_descriptors_get_their_numbers_even_if_others_have_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    found = run(
        "import json, os, sys; from tidegate.runtime.fork import process\n"
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # few are allowed\n"
        "a, b = (os.open(f'{sys.argv[1]}/{name}', os.O_RDONLY) for name in 'ab')\n"
        "process.place([a, b], [b, a])\n"
        "print(json.dumps([os.read(b, 9).decode(), os.read(a, 9).decode(), os.get_inheritable(a)]))",
        str(tmp_path),
    )
    assert found == ["a", "b", False]


def test_the_system_shows_the_command_and_the_environment_of_what_a_process_became() -> None:
    found = run(
        "import json, os; from tidegate.runtime.fork import process\n"
        "os.environ.clear(); os.environ['MARK'] = '/state/a.json'\n"
        "process.show(['model', '-m', 'server'], {'MARK': '/state/a.json', 'LONG': 'x' * 100_000})\n"
        "read = lambda name: open(f'/proc/self/{name}').read().rstrip('\\0').split('\\0')\n"
        "print(json.dumps([read('cmdline'), read('environ'), os.environ['MARK']]))",
        ROOM="-" * 64,
    )
    assert found == [["model", "-m", "server"], ["MARK=/state/a.json"], "/state/a.json"]


def test_a_fork_is_a_child_of_the_process_above() -> None:
    found = run(
        "import ctypes, json, os, sys; from tidegate.runtime.fork import process\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "read, write = os.pipe()\n"
        "server = os.fork()\n"
        "if server == 0:\n"
        "    pid = process.fork_for_parent()\n"
        "    if pid == 0:\n"
        "        os._exit(7)\n"
        "    os.write(write, str(pid).encode()); os._exit(0)\n"
        "os.waitpid(server, 0)\n"
        "pid = int(os.read(read, 32))\n"
        "print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))"
    )
    assert found == 7


def test_threads_of_native_libraries_count() -> None:
    found = run(
        "import json, threading; from tidegate.runtime.fork import process\n"
        "one = process.threads(); stop = threading.Event(); thread = threading.Thread(target=stop.wait)\n"
        "thread.start(); two = process.threads(); stop.set(); thread.join()\n"
        "print(json.dumps([one, two]))"
    )
    assert found == [1, 2]
