"""The images of our Dockerfile without Docker: each instruction is carried out in a folder, each service of
docker-compose.yml runs in it as its root, with the user, command, volumes and read-only file system that it states.

A base image from elsewhere is this machine's ``/usr``, so Redis and Prometheus are Debian's and Python is the one that
runs the tests. All services share one network namespace, in which each name is an address of its own. Needs root.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
COPIED: Final = ("passwd", "group", "nsswitch.conf", "resolv.conf", "ssl", "ca-certificates", "pip.conf", "ld.so.cache")
LINKED: Final = ("bin", "sbin", "lib", "lib64")
PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
NETWORK: Final = {
    name: os.environ[name]
    for name in ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    if name in os.environ
}
"""How this machine reaches PyPI."""
ENTER: Final = """
set -e
root=$1 user=$2 mode=$3 folder=$4
shift 4
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind /usr "$root/usr"
[ "$BASE" = /usr ] || mount --bind "$BASE" "$root/usr/local"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
while [ "$1" != -- ]; do
  case $1 in
    tmpfs) mount -t tmpfs -o "$3" tmpfs "$root$2" ;;
    *) mount --bind "$2" "$root$3"; [ "$1" = rw ] || mount -o remount,bind,ro "$root$3" ;;
  esac
  shift 3
done
shift
[ "$mode" = rw ] || mount -o remount,bind,ro "$root"
cd "$root$folder"
if [ "$user" = 0:0 ]; then exec chroot "$root" env -C "$folder" "$@"; fi
exec chroot "$root" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups --no-new-privs \\
  --bounding-set=-all env -C "$folder" "$@"
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The list of its JSON form."""
        return [str(word) for word in json.loads(self.rest)]


@dataclass(slots=True)
class Stage:
    """``FROM base AS name`` and what follows."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [each.rest for each in self.instructions if each.word == word]


def stages(text: str) -> dict[str, Stage]:
    """Parses a Dockerfile; by name, in order."""
    found: dict[str, Stage] = {}
    stage = Stage("", "")
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if not word or word.startswith("#"):
            continue
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = found[name] = Stage(name, base)
        else:
            stage.instructions.append(Instruction(word, rest))
    return found


def in_context(name: str, ignore: str) -> bool:
    """Returns whether .dockerignore keeps a path in the context: its last line that matches decides."""
    kept = True
    for line in filter(None, ignore.splitlines()):
        pattern = line.lstrip("!")
        above = [name, *(str(parent) for parent in Path(name).parents)]
        if any(fnmatch(each, pattern) or fnmatch(f"/{each}", pattern.replace("**", "*")) for each in above):
            kept = line.startswith("!")
    return kept


@cache
def context() -> list[str]:
    """Returns the files of git that .dockerignore keeps."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ignore = "\n".join(line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#"))
    return [name for name in listed.stdout.splitlines() if in_context(name, ignore)]


class Image:
    """One stage as a folder, with what its instructions state of user, environment, folder and command."""

    def __init__(self, root: Path, base: "Image | None") -> None:
        self.root = root
        self.user: str = base.user if base else "0:0"
        self.folder: str = base.folder if base else "/"
        self.environment: dict[str, str] = (
            dict(base.environment) if base else {"PATH": PATH, "LD_LIBRARY_PATH": "/usr/local/lib"}
        )
        self.command: list[str] = []
        self.entry: list[str] = []
        if base:
            subprocess.run(["cp", "-a", f"{base.root}/.", str(root)], check=True)
            return
        for name in ("usr", "proc", "dev", "sys", "tmp", "etc", "data", "var/lib"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        shutil.chown(root / "data", "redis")  # as the image of Redis has it
        for name in LINKED:
            if (link := Path("/") / name).is_symlink():
                (root / name).symlink_to(link.readlink())
        for name in COPIED:
            if (source := Path("/etc") / name).exists():
                subprocess.run(["cp", "-a", str(source.resolve()), str(root / "etc" / name)], check=True)

    def enter(self, words: Sequence[str], *, mode: str = "rw", mounts: Sequence[str] = (), **more: str) -> list[str]:
        """Returns the command that runs ``words`` in the image."""
        user = self.user if ":" in self.user or self.user.isdigit() else _ids(self.user)
        user = user if ":" in user else f"{user}:{user}"
        named = [f"{key}={value}" for key, value in (self.environment | more).items()]
        inside = ["sh", "-c", ENTER, "enter", str(self.root), user, mode, self.folder, *mounts, "--", "-i", *named]
        return ["unshare", "--mount", *inside, *words]

    def path(self, name: str) -> Path:
        """The place of a path of the image on this machine."""
        return self.root / os.path.normpath(Path(self.folder) / name).lstrip("/")


def _ids(name: str) -> str:
    line = next(line for line in Path("/etc/passwd").read_text().splitlines() if line.startswith(f"{name}:"))
    return ":".join(line.split(":")[2:4])


class Builder:
    """Builds stages below a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages = stages((ROOT / "Dockerfile").read_text())
        self._images: dict[str, Image] = {}
        self._context = context()

    def image(self, name: str) -> Image:
        if name not in self._images:
            self._images[name] = self._build(self._stages[name])
        return self._images[name]

    def _build(self, stage: Stage) -> Image:
        root = self._folder / stage.name
        root.mkdir()
        image = Image(root, self.image(stage.base) if stage.base in self._stages else None)
        for each in stage.instructions:
            match each.word:
                case "ENV":
                    image.environment |= dict(pair.split("=", 1) for pair in each.rest.split())
                case "USER":
                    image.user = each.rest
                case "WORKDIR":
                    image.folder = each.rest
                    image.path(".").mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(image, each.rest.split())
                case "RUN":
                    self._run(image, each.words)
                case "ENTRYPOINT":
                    image.entry = each.words
                case "CMD":
                    image.command = each.words
        return image

    def _run(self, image: Image, words: list[str]) -> None:
        command = image.enter(words, **NETWORK)
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"RUN {words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    def _copy(self, image: Image, words: list[str]) -> None:
        source, target = words[-2], words[-1]
        place = image.path(target)
        if words[0].startswith("--from="):
            place.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                ["cp", "-a", str(self.image(words[0].removeprefix("--from=")).path(source)), str(place)], check=True
            )
            return
        names = [name for name in self._context if fnmatch(name, source) or _below(name, source)]
        assert names, f"COPY {source}: the context has no such file"
        for name in names:
            below = os.path.relpath(name, source) if _below(name, source) else Path(name).name
            goal = place if name == source and not target.endswith("/") else place / below
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, goal, follow_symlinks=False)


def _below(name: str, folder: str) -> bool:
    return folder == "." or name.startswith(f"{folder.rstrip('/')}/")


def _environment() -> dict[str, str]:
    return {**os.environ, "BASE": sys.base_prefix}


class Compose:
    """Services of docker-compose.yml, run from their images in one network namespace."""

    def __init__(self, folder: Path) -> None:
        self.file: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self._folder = folder
        self._builder = Builder(folder)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._network = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"])

    def image(self, service: str) -> Image:
        names = {each["image"]: each["build"]["target"] for each in self.file["services"].values() if "build" in each}
        image = self._builder.image(names[self.file["services"][service]["image"]])
        hosts = [f"127.0.0.{10 + at} {name}" for at, name in enumerate(self.file["services"])]
        (image.root / "etc" / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        return image

    def command(self, service: str, words: Sequence[str] | None = None) -> list[str]:
        """Returns the command of a service, or of other words in its place, as Docker would run them."""
        stated, image = self.file["services"][service], self.image(service)
        inside = [*image.entry, *stated.get("command", image.command)] if words is None else list(words)
        mounts = []
        for volume in stated.get("volumes", ()):
            name, target, *mode = volume.split(":")
            (place := image.path(target)).mkdir(parents=True, exist_ok=True)
            mounts += [mode[0] if mode else "rw", str(self._volume(name, place)), target]
        for each in stated.get("tmpfs", ()):
            target, _, options = each.partition(":")
            mounts += ["tmpfs", target, options]
        mode = "ro" if stated.get("read_only") else "rw"
        entered = image.enter(inside, mode=mode, mounts=mounts, **stated.get("environment", {}))
        return ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", *entered]

    def _volume(self, name: str, place: Path) -> Path:
        """Returns the folder of a volume; a new one begins as what the image has there, its owner included."""
        volume = self._folder / "volumes" / name
        if not volume.exists():
            volume.parent.mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", str(place), str(volume)], check=True)
        return volume

    def start(self, service: str) -> None:
        with (self._folder / f"{service}.log").open("ab") as log:
            self._running[service] = subprocess.Popen(
                self.command(service), env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, service: str) -> int:
        """SIGTERM, as Docker sends it; the exit code within the service's ``stop_grace_period``."""
        process = self._running.pop(service)
        process.send_signal(signal.SIGTERM)
        return process.wait(int(self.file["services"][service]["stop_grace_period"].removesuffix("s")))

    def run(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a service, or ``words`` in its image, to its end."""
        command = self.command(service, words or None)
        return subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=60.0)

    def is_healthy(self, service: str) -> bool:
        """Runs the health check of a service; one that has ended is started again first, as ``restart`` states."""
        if self._running[service].poll() is not None:
            assert self.file["services"][service]["restart"] == "unless-stopped", self.log(service)
            self.start(service)
        return self.run(service, *self.file["services"][service]["healthcheck"]["test"][1:]).returncode == 0

    def log(self, service: str) -> str:
        return (self._folder / f"{service}.log").read_text()[-3000:]

    def close(self) -> None:
        """Ends what shares the network namespace: the services and all that they have started."""
        own = Path(f"/proc/{self._network.pid}/ns/net").readlink()
        for each in Path("/proc").glob("[0-9]*/ns/net"):
            with suppress(OSError):
                if each.readlink() == own:
                    os.kill(int(each.parts[2]), signal.SIGKILL)
        for process in (*self._running.values(), self._network):
            process.wait()


@contextmanager
def composed(folder: Path) -> Iterator[Compose]:
    found = Compose(folder)
    try:
        yield found
    finally:
        found.close()
