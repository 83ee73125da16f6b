"""Builds what the Dockerfile describes into a plain directory, and runs it as a container engine would, without one.

Namespaces of the kernel give the process its own root, its own process 1 and read-only mounts. The base image is this machine's
Python and system; the one step that is not done again is the download of dependencies: they come from the running environment.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.deploy_container import dockerfile
from tests.deploy_container.dockerfile import ROOT, Instruction
from tests.waiting import wait_until

BASE_PATH = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64")
ETC = ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "ld.so.cache", "default/useradd")
DEVICES = ("null", "zero", "full", "random", "urandom")
SERVICE = "/opt/racer-csd/bin/racer-csd"  # what process 1 becomes
DEPENDENCIES = "requirements.lock"  # what marks the step that downloads


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a run may write to. volumes: path in the container -> directory here. tmpfs: path -> options."""

    volumes: Mapping[str, Path] = field(default_factory=dict)
    read_only: Mapping[str, Path] = field(default_factory=dict)
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    root_read_only: bool = True


class Image:
    """The last stage in `root`, and its settings."""

    def __init__(self, directory: Path) -> None:
        self._stages = dockerfile.read()
        self._roots: dict[str, Path] = {}
        for name, instructions in self._stages.items():
            self._roots[name] = _base_image(directory / name)
            self._build(self._roots[name], instructions)
        self.root = self._roots["final"]
        final = self._stages["final"]
        self.environment = dockerfile.environment(final, BASE_PATH)
        self.user = dockerfile.last(final, "USER").text
        self.workdir = dockerfile.last(final, "WORKDIR").text
        self.volumes = [path for line in final if line.word == "VOLUME" for path in line.arguments]
        self.command = [*dockerfile.last(final, "ENTRYPOINT").arguments, *dockerfile.last(final, "CMD").arguments]
        check = dockerfile.last(final, "HEALTHCHECK").text
        self.healthcheck = Instruction("CMD", check[check.index("CMD") + 3 :].strip()).arguments

    def _build(self, root: Path, instructions: list[Instruction]) -> None:
        workdir = "/"
        for index, instruction in enumerate(instructions):
            if instruction.word == "WORKDIR":
                workdir = instruction.text
                (root / workdir[1:]).mkdir(parents=True, exist_ok=True)
            elif instruction.word == "COPY":
                self._copy(root, workdir, instruction)
            elif instruction.word == "RUN" and DEPENDENCIES in instruction.text:
                _lend_dependencies(root)
            elif instruction.word == "RUN":
                values = dockerfile.environment(instructions[:index], BASE_PATH)
                # the build of the project's own wheel takes setuptools from here, too
                values |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
                command = _enter(root, Mounts(root_read_only=False), workdir, values, None, ["/bin/sh", "-c", instruction.text])
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                assert done.returncode == 0, f"RUN {instruction.text}\n{done.stdout}\n{done.stderr}"

    def _copy(self, root: Path, workdir: str, instruction: Instruction) -> None:
        *sources, target = instruction.paths
        origin = self._roots[instruction.options["from"]] if "from" in instruction.options else ROOT
        place = root / os.path.join(workdir, target).lstrip("/")
        for source in sources:
            found = origin / source.lstrip("/")
            to = place if found.is_dir() or not target.endswith("/") else place / found.name
            if len(sources) > 1 and not found.is_dir():
                to = place / found.name
            to.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                hidden = shutil.ignore_patterns("__pycache__") if origin == ROOT else None
                shutil.copytree(found, to, symlinks=True, ignore=hidden, dirs_exist_ok=True)
            else:
                shutil.copy2(found, to)
                to.chmod(int(instruction.options.get("chmod", "0644"), 8))


class Container:
    """One run of the image. Use as a context: at its end everything in it is killed."""

    def __init__(self, image: Image, mounts: Mounts, *, user: str | None = None, wrapper: Sequence[str] = (), **variables: str):
        self._image = image
        self._user = user or image.user
        self._variables = {**image.environment, **variables}
        command = _enter(image.root, mounts, image.workdir, self._variables, self._user, image.command)
        self._unshare = subprocess.Popen(
            [*wrapper, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unshare.poll() is None:
            for child in psutil.Process(self._unshare.pid).children():
                child.kill()  # process 1: all others in the container die with it
        self._unshare.communicate(timeout=30)

    @property
    def pid(self) -> int:
        """Of process 1, once it has become the service, as this machine numbers it."""
        wait_until(lambda: bool(self._server()) or self._unshare.poll() is not None)
        assert self._unshare.poll() is None, self.wait()
        return int(self._server()[0].pid)

    def _server(self) -> list[psutil.Process]:
        children = psutil.Process(self._unshare.pid).children() if self._unshare.poll() is None else []
        return [child for child in children if child.cmdline()[1:2] == [SERVICE]]

    def execute(self, command: Sequence[str], user: str | None = None) -> subprocess.CompletedProcess[str]:
        """As `docker exec`."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", "--wd"]
        whole = [*inside, *_as_user(user or self._user), *_with(self._variables), *command]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)

    def healthy(self) -> bool:
        assert self._unshare.poll() is None, self.wait()
        return self.execute(self._image.healthcheck).returncode == 0

    def wait(self, seconds: float = 120.0) -> tuple[int, str]:
        """Exit code, and all that was written."""
        output, _ = self._unshare.communicate(timeout=seconds)
        return self._unshare.returncode, output


def _base_image(root: Path) -> Path:
    """A root with this machine's system, Python under the name of the official images, and files that may be changed."""
    for name in ("proc", "dev", "tmp", "etc/default", "opt/python/bin", "var/cache", "run"):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    (root / "tmp").chmod(0o1777)
    for name in SYSTEM:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(os.readlink(host))
    for name in ETC:
        if Path("/etc", name).exists():
            shutil.copy2(Path("/etc", name), root / "etc" / name)
    (root / "opt/python/bin/python").symlink_to(os.path.realpath(sys.executable))
    return root


def _lend_dependencies(root: Path) -> None:
    packages = next(root.glob("opt/racer-csd/lib/python3*/site-packages"))
    for name in ("setuptools", "_distutils_hack"):  # older Pythons bring one that hides the one lent
        shutil.rmtree(packages / name, ignore_errors=True)
    (packages / "distutils-precedence.pth").unlink(missing_ok=True)
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))


def _enter(
    root: Path, mounts: Mounts, workdir: str, variables: Mapping[str, str], user: str | None, command: Sequence[str]
) -> list[str]:
    """A command line that runs `command` as process 1 of its own root."""
    lent = [Path("/", name) for name in SYSTEM if not Path("/", name).is_symlink() and Path("/", name).exists()]
    lent += [Path(path) for path in (sys.prefix, sys.base_prefix) if not Path(path).is_relative_to("/usr")]
    steps = [f"mount --bind {_quoted(root)} {_quoted(root)}", f"mount -t proc proc {_quoted(_inside(root, '/proc'))}"]
    for name in DEVICES:
        steps += _bind(Path("/dev", name), _inside(root, f"/dev/{name}", folder=False), read_only=False)
    # what every engine gives a container
    for path, options in {"/dev/shm": "noexec,nosuid,nodev,size=64m,mode=1777", **mounts.tmpfs}.items():
        steps.append(f"mount -t tmpfs -o {options} tmpfs {_quoted(_inside(root, path))}")
    for host in lent:  # after the tmpfs, which would hide an environment below /tmp
        place = root / str(host).lstrip("/")
        steps += [f"mkdir -p {_quoted(place)}", *_bind(host, place, read_only=True)]
    for path, here in mounts.volumes.items():
        steps += _bind(here, _inside(root, path), read_only=False)
    for path, here in mounts.read_only.items():
        steps += _bind(here, _inside(root, path), read_only=True)
    if mounts.root_read_only:
        steps.append(f"mount -o remount,bind,ro {_quoted(root)}")
    inside = [*(_as_user(user) if user else []), *_with(variables), "/bin/sh", "-c", 'cd "$1"; shift; exec "$@"', "sh", workdir]
    steps.append("exec chroot " + shlex.join([str(root), *inside, *command]))
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    return [*namespaces, "/bin/sh", "-euc", "\n".join(steps)]


def _inside(root: Path, path: str | Path, *, folder: bool = True) -> Path:
    """The place of an absolute path below `root`, made if need be."""
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    return place


def _bind(source: Path, target: Path, *, read_only: bool) -> list[str]:
    bound = [f"mount --rbind {_quoted(source)} {_quoted(target)}"]
    return [*bound, f"mount -o remount,bind,ro {_quoted(target)}"] if read_only else bound


def _as_user(user: str) -> list[str]:
    uid, gid = user.split(":")
    return [
        *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"),
        *("--bounding-set=-all", "--inh-caps=-all"),
    ]


def _with(variables: Mapping[str, str]) -> list[str]:
    return ["env", "--ignore-environment", *(f"{name}={value}" for name, value in variables.items())]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
