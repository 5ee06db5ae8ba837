"""The rules of the house (docs/inside/architecture.md), read from the imports.

Each rule is one sentence; a test that fails prints it with every file and line that break it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A room may import these rooms (and itself). Inside `tidegate` the floors below apply as well.
MAY_IMPORT: dict[str, set[str]] = {
    "tidegate": set(),
    "traffic": {"tidegate"},
    "activator": {"tidegate"},
    "gateway": {"tidegate", "activator"},
    "queue_proxy": {"tidegate"},
    "deploy": {"tidegate"},
    "autoscaler": {"tidegate", "deploy"},
    "loadgen": {"tidegate", "traffic", "activator", "deploy", "autoscaler", "queue_proxy"},
    "control": {"tidegate", "traffic", "deploy", "autoscaler", "loadgen", "gateway", "activator", "queue_proxy"},
}

# Folders at the top that are imported below ``tidegate``, through the links ``tidegate/NAME`` (docs/adr/0061).
COMPONENTS = MAY_IMPORT.keys() - {"tidegate"}

# What the autoscaler may see of deploy: the contracts, never an adapter.
DEPLOY_FOR_AUTOSCALER = ("deploy.plan", "deploy.backend", "deploy.placement")

# Floors inside tidegate/: a folder may import the ones on lower floors.
TIDEGATE_FLOOR = {"wire": 1, "flow": 1, "aio": 2, "store": 2, "runtime": 3}

# The same for folders of the vocabulary and of wire: records know nothing of the texts that people write.
MAY_USE: dict[str, set[str]] = {
    "tidegate/records": set(),
    "tidegate/schema": set(),
    "tidegate/manifest": {"tidegate/records", "tidegate/schema"},
    "tidegate/manifest/foreign": {"tidegate/manifest", "tidegate/records", "tidegate/schema"},
    "tidegate/wire/http1": set(),
    "tidegate/wire/http2": {"tidegate/wire/http1"},
    "tidegate/wire/grpc": {"tidegate/wire/http1", "tidegate/wire/http2"},
    "tidegate/wire/bodies": {"tidegate/wire/http1"},
}

IO_FILES = {"live.py", "main.py"}
IO_FOLDERS = {
    "aio",
    "cli",
    "control",
    "store",
    "runtime",
    "local",
    "process",
    "devices",
    "clients",
    "traces",
    "replay",
    "experiments",
}

# Cores that lie in a folder that may do IO: the state and the rules of the control round, the ledger of costs.
CORES = {
    *(f"control/rounds/{name}.py" for name in ("roles", "tracked", "handover", "world", "replacement", "weights")),
    *(f"control/costs/{name}.py" for name in ("ledger", "report")),
}

# Modules that a core may not import: clocks, sockets, processes, files, loops.
IO_MODULES = {
    "asyncio",
    "concurrent",
    "ctypes",
    "fcntl",
    "httpx",
    "multiprocessing",
    "os",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uvloop",
}

# The one place where a core-looking file holds a real clock: the definition of Clock itself.
IO_EXCEPTIONS = {
    "tidegate/clock.py": {"time"},
    "tidegate/schema/files.py": {"os"},
    "loadgen/plans/outputs.py": {"os"},
}

# The request path stays light.
HEAVY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "httpx",
    "grpc",
    "pydantic",
    "prometheus_client",
    "numpy",
    "scipy",
    "typer",
    "rich",
    "yaml",
    "kubernetes",
    "kopf",
    "redis",
}
LIGHT_ROOMS = ("gateway", "activator", "queue_proxy", "tidegate/wire", "tidegate/flow", "tidegate/aio")
LIGHT_MAINS = ("queue_proxy.main", "gateway.main")

PROGRAM = "tidegate/__main__.py"
"""``python -m tidegate`` starts the command line, as the entry point ``tidegate`` does: it stands above all rooms."""

SDK = "control/sdk.py"
"""A border like the command line: it runs in the process of its user, and finds the deployment by the environment."""

BANNED_CALLS = {
    ("os", "environ"): "The environment is read in cli/ and in the components' main.py, nowhere else.",
    ("os", "getenv"): "The environment is read in cli/ and in the components' main.py, nowhere else.",
    ("time", "time"): "The wall clock is read by tidegate.clock only.",
    ("random", "random"): "Randomness is an argument: pass a random.Random.",
    ("random", "choice"): "Randomness is an argument: pass a random.Random.",
    ("random", "uniform"): "Randomness is an argument: pass a random.Random.",
    ("random", "randint"): "Randomness is an argument: pass a random.Random.",
}


def sources() -> list[Path]:
    return sorted(path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py") if name_of(path) != PROGRAM)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(slots=True)
class Facts:
    """What the rules look at in a file, which is read once."""

    imports: list[tuple[int, str]] = field(default_factory=list)
    """(line, dotted module) of every import, those inside functions included; ``from a import b`` is ``a.b``."""
    attributes: list[tuple[int, str, str]] = field(default_factory=list)
    """(line, a, b) of every ``a.b``."""
    classes: list[str] = field(default_factory=list)
    """Names of the public classes."""


@cache
def facts(path: Path) -> Facts:
    found = Facts()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.imports += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.attributes.append((node.lineno, node.value.id, node.attr))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.classes.append(node.name)
    return found


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The imports of a file by the folder in which they lie."""
    return ((line, by_folder(module)) for line, module in facts(path).imports)


def imported(files: Iterable[Path]) -> Iterator[tuple[Path, str, str]]:
    """(path, module, "FILE:LINE imports MODULE") of every import of these files."""
    for path in files:
        for line, module in imports(path):
            yield path, module, f"{name_of(path)}:{line} imports {module}"


def check(faults: Iterable[str]) -> None:
    """Fails with all of them at once."""
    found = list(faults)
    assert not found, "\n".join(("", *found))


def by_folder(module: str) -> str:
    """Returns ``gateway.main`` for ``tidegate.gateway.main``; modules of the folder tidegate/ keep their name."""
    parts = module.split(".")
    return ".".join(parts[1:]) if parts[0] == "tidegate" and parts[1:2] and parts[1] in COMPONENTS else module


def may_do_io(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    if name_of(path) in CORES:
        return False
    return relative.name in IO_FILES or bool(IO_FOLDERS.intersection(relative.parts[:-1]))


ALL = sources()


def test_rooms_import_only_the_rooms_named_for_them() -> None:
    def faults() -> Iterator[str]:
        for path, module, where in imported(ALL):
            room, target = path.relative_to(ROOT).parts[0], module.split(".")[0]
            if target not in MAY_IMPORT or target == room:
                continue
            if target not in MAY_IMPORT[room]:
                yield f"{where}: {room}/ may import only {sorted(MAY_IMPORT[room]) or 'itself'}"
            elif room == "autoscaler" and target == "deploy" and not module.startswith(DEPLOY_FOR_AUTOSCALER):
                yield f"{where}: the autoscaler sees deploy's plan, placement and backend protocol, never an adapter"

    check(faults())


def test_inside_tidegate_arrows_point_downward() -> None:
    rule = "aio, store, runtime stand on wire and flow, those on the vocabulary; nothing points up or sideways"

    def faults() -> Iterator[str]:
        for path, module, where in imported(path for path in ALL if path.is_relative_to(ROOT / "tidegate")):
            own, target = path.relative_to(ROOT).parts[1], module.split(".")
            if target[0] != "tidegate" or len(target) < 2 or target[1] == own:
                continue
            floor, below = TIDEGATE_FLOOR.get(own, 0), TIDEGATE_FLOOR.get(target[1], 0)
            if not (below < floor or below == floor == 0):
                yield f"{where}: {rule}"

    check(faults())


def test_folders_of_the_vocabulary_and_of_wire_use_only_the_ones_named_for_them() -> None:
    def faults() -> Iterator[str]:
        for path, module, where in imported(path for path in ALL if name_of(path).startswith(tuple(MAY_USE))):
            own = path.parent.relative_to(ROOT).as_posix()
            target = next((folder for folder in MAY_USE if module.startswith(folder.replace("/", ".") + ".")), None)
            if target is not None and target != own and target not in MAY_USE[own]:
                yield f"{where}: {own}/ may use only {sorted(MAY_USE[own]) or 'itself'}"

    check(faults())


def test_the_cores_of_the_control_round_are_there() -> None:
    assert {name_of(path) for path in ALL} >= CORES


def test_the_control_round_does_not_know_how_it_is_shown() -> None:
    check(
        f"{where}: views are made from the round, never the other way round"
        for _, module, where in imported(path for path in ALL if name_of(path).startswith("control/rounds/"))
        if module.startswith(("control.api", "control.views"))
    )


def test_the_page_names_the_folders_that_may_do_io_and_all_of_them_are_there() -> None:
    page = (ROOT / "docs" / "inside" / "architecture.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"a file may do IO only when .*? lies in (.*?)\.\n", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)/`", named)) == IO_FOLDERS
    assert {folder for path in ALL for folder in path.relative_to(ROOT).parts} >= IO_FOLDERS


def test_cores_do_no_io() -> None:
    check(
        f"{where}: a core gets facts and the time as arguments; IO lives in live.py, main.py or a folder named for it"
        for path, module, where in imported(path for path in ALL if not may_do_io(path))
        if module.split(".")[0] in IO_MODULES - IO_EXCEPTIONS.get(name_of(path), set())
    )


def test_clock_environment_and_chance_come_from_outside() -> None:
    def faults() -> Iterator[str]:
        for path in ALL:
            is_border = path.name == "main.py" or "cli" in path.relative_to(ROOT).parts or name_of(path) == SDK
            for line, owner, name in facts(path).attributes:
                rule = BANNED_CALLS.get((owner, name))
                if rule is None or (is_border and owner == "os") or name_of(path) == "tidegate/clock.py":
                    continue
                yield f"{name_of(path)}:{line}: {rule}"

    check(faults())


def test_the_request_path_imports_nothing_heavy() -> None:
    check(
        f"{where}: the request path stays light (docs/inside/architecture.md)"
        for _, module, where in imported(path for path in ALL if name_of(path).startswith(LIGHT_ROOMS))
        if module.split(".")[0] in HEAVY
    )


def reachable(start: str) -> dict[str, str]:
    """Every module of ours and every foreign top-level module that importing ``start`` brings, with its importer."""
    seen: dict[str, str] = {}
    todo = [(start, "")]
    while todo:
        module, importer = todo.pop()
        path = ROOT / (module.replace(".", "/") + ".py")
        if not path.exists():
            path = ROOT / module.replace(".", "/") / "__init__.py"
        name = module if path.exists() else module.rsplit(".", 1)[0]
        if not path.exists():
            path = ROOT / (name.replace(".", "/") + ".py")
        if not path.exists():
            seen.setdefault(module.split(".")[0], importer)
            continue
        if name in seen:
            continue
        seen[name] = importer
        todo += [(found, name) for _, found in imports(path)]
    return seen


@pytest.mark.parametrize("start", LIGHT_MAINS)
def test_the_data_plane_processes_reach_nothing_heavy(start: str) -> None:
    found = reachable(start)
    for module in sorted(HEAVY & found.keys()):
        raise AssertionError(f"{start} reaches {module} through {found[module]}: the data plane stays light")


def test_the_library_of_redis_is_imported_by_its_stores_alone() -> None:
    check(
        f"{where}: an extra that tidegate/store/redis*.py alone may need, which are imported where `store.url` asks "
        f"for them"
        for path, module, where in imported(ALL)
        if module.split(".")[0] == "redis" and not name_of(path).startswith("tidegate/store/redis")
    )


TOKENS = {"jwt", "cryptography"}
TOKENS_FOR = ("gateway/access/jwt.py", "control/workers/keys.py")
CERTIFICATES = "deploy/kubernetes/webhook/"
"""The one place where certificates are made."""


def test_the_library_of_tokens_is_imported_where_tokens_are_checked_alone() -> None:
    check(
        f"{where}: gateway/access/jwt.py alone checks tokens, and a worker imports it with the first function that "
        f"takes some"
        for path, module, where in imported(ALL)
        if module.split(".")[0] in TOKENS
        and name_of(path) not in TOKENS_FOR
        and not (module.startswith("cryptography") and name_of(path).startswith(CERTIFICATES))
    )


def test_a_worker_starts_without_the_library_of_tokens() -> None:
    """What importing the worker's main really brings, in a process of its own."""
    heavy = "{'jwt', 'cryptography', 'redis', 'httpx'}"
    code = f"import sys, tidegate.gateway.main; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_queue_proxy_runs_without_any_package() -> None:
    """On the bare interpreter: `-S` leaves out site-packages."""
    command = [sys.executable, "-S", "-c", "import tidegate.queue_proxy.main"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", LIGHT_MAINS)
def test_the_names_of_the_sdk_cost_the_data_plane_nothing(start: str) -> None:
    """`from tidegate import Tidegate` works, and nothing of it is imported before it is used."""
    heavy = "{'httpx', 'importlib.metadata', 'tidegate.control'}"
    code = f"import sys, tidegate.{start}; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_a_component_is_imported_below_tidegate() -> None:
    check(
        f"{name_of(path)}:{line} imports {module}: one name is installed, so it is tidegate.{module}"
        for path in ALL
        for line, module in facts(path).imports
        if module.split(".")[0] in COMPONENTS
    )


def test_every_component_is_linked_below_tidegate() -> None:
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "tidegate").iterdir() if path.is_symlink()}
    assert links == {room: f"../{room}" for room in COMPONENTS}


def test_every_package_is_in_the_list_that_is_built() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {
        ("" if room == "tidegate" else "tidegate.") + path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for room in MAY_IMPORT
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == found, "pyproject.toml lists the packages one by one; a new folder is added there"


# --- size, circles, names ---------------------------------------------------------------------------------------------

MAX_MODULES = 14
"""Modules of one folder, without its ``__init__``: more hide a folder that is missing."""
OBJECT_GRAPH = "activator/state/"
"""The one folder with a circle of files: revisions, groups, replicas, lanes and tenants are one graph of objects, which
only ``activator/room.py`` and its parts (``binding.py``, ``waiting.py``) change."""


def test_no_folder_holds_more_modules_than_a_reader_can_keep_apart() -> None:
    modules = Counter(path.parent.relative_to(ROOT).as_posix() for path in ALL if path.name != "__init__.py")
    crowded = {folder: count for folder, count in modules.items() if count > MAX_MODULES}
    assert not crowded, f"at most {MAX_MODULES} modules in a folder; group these by what their names share"


@cache
def file_graph() -> dict[str, set[str]]:
    """Imported files by file; imports for type checkers and inside functions are included."""
    modules = {name_of(path).removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): path for path in ALL}
    graph: dict[str, set[str]] = {}
    for path in ALL:
        named = {module if module in modules else module.rpartition(".")[0] for _, module in imports(path)}
        graph[name_of(path)] = {name_of(modules[module]) for module in named & modules.keys()} - {name_of(path)}
    return graph


def folder_graph() -> dict[str, set[str]]:
    """Imported folders by folder, without those that contain each other: they are one subject."""
    graph: dict[str, set[str]] = {}
    for name, targets in file_graph().items():
        own = Path(name).parent
        others = {Path(target).parent for target in targets}
        apart = {other for other in others if not (own.is_relative_to(other) or other.is_relative_to(own))}
        graph.setdefault(own.as_posix(), set()).update(other.as_posix() for other in apart)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the sets of nodes that reach each other, two or more each."""
    sorter = {node: reached(graph, node) for node in graph}
    found = {tuple(sorted(other for other in seen if node in sorter[other])) for node, seen in sorter.items()}
    return [list(circle) for circle in sorted(found) if len(circle) > 1]


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Returns the nodes that imports lead to from ``start``."""
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += graph.get(node, ())
    return seen


def test_no_two_files_need_each_other() -> None:
    found = [circle for circle in circles(file_graph()) if not all(name.startswith(OBJECT_GRAPH) for name in circle)]
    assert not found, "files in a circle, imports for the type checker included, can only be understood together"


def test_no_two_folders_need_each_other() -> None:
    assert not circles(folder_graph()), "folders in a circle are one folder; move what both need below both"


def test_a_room_has_no_two_classes_of_one_name() -> None:
    def faults() -> Iterator[str]:
        for room in sorted(MAY_IMPORT):
            places: dict[str, list[str]] = {}
            for path in (path for path in ALL if path.relative_to(ROOT).parts[0] == room):
                for name in facts(path).classes:
                    places.setdefault(name, []).append(name_of(path))
            for name, files in places.items():
                if len(files) > 1:
                    yield f"a word means one thing in {room}/: {name} is in {', '.join(files)}"

    check(faults())


def test_a_package_says_what_it_is_and_nothing_else() -> None:
    def faults() -> Iterator[str]:
        for path in (path for path in ALL if path.name == "__init__.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            allowed = ast.Assign | ast.FunctionDef  # its version, and the names of the SDK (docs/adr/0078)
            rest = [
                node for node in body[1:] if name_of(path) != "tidegate/__init__.py" or not isinstance(node, allowed)
            ]
            is_said = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
            if not is_said or rest:
                yield f"{name_of(path)}: one docstring, no code (tidegate/ alone has its version and the SDK's names)"

    check(faults())
