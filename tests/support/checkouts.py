"""The action as a runner has it: a checkout of it, a workspace that is not to be trusted, and a place to work.

The real `action.yml` and `entrypoint.sh`; and either our package with the packages that it needs, packed
again from where the tests run, or a stand-in for it that writes down what has reached it, with one small
package. Either way they come from an index on loopback, with hashes, so that no network is needed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
PACKAGE = "endstate-stand-in"

# What the entrypoint may use: what every slim image has.
TOOLS = ("cat", "chmod", "cp", "date", "env", "find", "grep", "id", "mkdir", "mktemp", "rm", "sed", "sh", "tail", "tr",
         "uname")  # fmt: skip

_RECORDER = """
import json, os, signal, sys, time
import endstate_stand_in  # from the lock file

def main():
    heard = []
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), lambda number, _: heard.append(signal.Signals(number).name))
    seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path, "pid": os.getpid(), "env": dict(os.environ),
            "isolated": sys.flags.isolated, "file": __file__, "release": endstate_stand_in.RELEASE}
    name = os.environ.get("RECORD", "/dev/null")
    with open(name + ".part", "w") as file:
        json.dump(seen, file)
    if name != "/dev/null":
        os.rename(name + ".part", name)
    if "GITHUB_OUTPUT" in os.environ:
        with open(os.environ["GITHUB_OUTPUT"], "a") as file:
            file.write("conclusion=success\\nsession-id=0123456789ab\\n")
    seconds = float(os.environ.get("NEEDS_S", "0"))
    if seconds:
        patience = time.monotonic() + 30
        while not heard and time.monotonic() < patience:
            time.sleep(0.005)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.005)
        print("heard", *heard, flush=True)
        sys.exit(75)

main()
"""


@dataclass(frozen=True)
class Index:
    """A package index on loopback, and what it was asked."""

    url: str
    requests: list[str]


def wheel(where: Path, content: str = 'RELEASE = "locked"\n') -> Path:
    """A package of one module, always of the same bytes."""
    info = "endstate_stand_in-1.0.dist-info"
    files = {
        "endstate_stand_in.py": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = where / "endstate_stand_in-1.0-py3-none-any.whl"
    return _packed(path, info, {name: text.encode() for name, text in files.items()})


def wheels_of_here(where: Path) -> list[Path]:
    """The packages of our lock file, packed again from the environment that the tests run in: no network is needed."""
    return [_packed_again(where, name) for name in _locked() if _is_here(name)]


def _locked() -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)


def _is_here(name: str) -> bool:
    return bool(list(metadata.distributions(name=name)))


def _packed_again(where: Path, name: str) -> Path:
    distribution = metadata.distribution(name)
    names = [file for file in distribution.files or [] if ".." not in file.parts and "__pycache__" not in file.parts]
    left_out = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    files = {str(n): Path(str(n.locate())).read_bytes() for n in names if n.name not in left_out}
    (info,) = {n.parts[0] for n in names if n.parts[0].endswith(".dist-info")}
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)
    tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    return _packed(where / f"{info.removesuffix('.dist-info')}-{tag}.whl", info, files)


def _packed(path: Path, info: str, files: Mapping[str, bytes]) -> Path:
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _project(package: Path) -> tuple[str, str]:
    name, version, *_ = package.name.split("-")
    return name.lower().replace("_", "-"), version


@contextmanager
def index_of(*packages: Path, stall: bool = False) -> Iterator[Index]:
    """Serve packages as an index does that asks nobody who he is; with `stall`, take requests and never answer."""
    files = {path.name: path for path in packages}
    pages = {_project(path)[0]: f'<a href="/files/{path.name}">{path.name}</a>'.encode() for path in packages}
    requests: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            if stall:
                over.wait(60)
                return
            name = unquote(self.path.rstrip("/").rpartition("/")[2])
            if name in files:
                self._answer(files[name].read_bytes(), "application/octet-stream")
            elif name in pages:
                self._answer(pages[name], "text/html")
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Index(f"http://127.0.0.1:{server.server_port}/simple", requests)
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    outputs: str
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Runner:
    """One machine: what a step finds there. All of it lies below `where`."""

    where: Path
    shell: tuple[str, ...] = ()
    """What runs the entrypoint; nothing: what its first line says."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def action(self) -> Path:
        return self.where / "actions" / "endstate-action" / "v1"

    @property
    def workspace(self) -> Path:
        return self.where / "work" / "repo"

    @property
    def temp(self) -> Path:
        return self.where / "temp"

    @property
    def tool_cache(self) -> Path:
        return self.where / "tools"

    @property
    def bin(self) -> Path:
        return self.where / "bin"

    def environments(self) -> list[Path]:
        """Every environment that is there, half-made ones too."""
        return sorted(p for root in (self.tool_cache, self.temp) for p in root.glob("endstate-action-*/*"))

    def variables(self, **more: str) -> dict[str, str]:
        """What a run step has in its environment."""
        given = {
            "PATH": str(self.bin),
            "HOME": str(self.where / "home"),
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_OUTPUT": str(self.where / "outputs"),
            "RUNNER_TEMP": str(self.temp),
            "RUNNER_TOOL_CACHE": str(self.tool_cache),
            "TMPDIR": str(self.temp),
            "RECORD": str(self.where / "record.json"),
        }
        return {**given, **self.env, **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """What `run:` of the action does, in the workspace, as the runner's own child."""
        script = self.where / "step.sh"
        script.write_text(f'exec {" ".join((*self.shell, ""))}"$GITHUB_ACTION_PATH/entrypoint.sh" "$@"\n')
        return subprocess.Popen(
            ["/bin/sh", "-e", str(script), *(arguments or ("action",))],
            cwd=self.workspace,
            env=self.variables(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> Done:
        (self.where / "record.json").unlink(missing_ok=True)
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=110)
        return self.done(process.returncode, out, err)

    def done(self, code: int, out: str, err: str) -> Done:
        outputs, record = self.where / "outputs", self.where / "record.json"
        seen = json.loads(record.read_text()) if record.exists() else {}
        return Done(code, out, err, outputs.read_text() if outputs.exists() else "", seen)


def runner(where: Path, index: Index) -> Runner:
    """A machine with the tools of a slim image, our Python, pip, and no uv; packages come from `index`."""
    made = Runner(where, env={"PIP_INDEX_URL": index.url, "UV_DEFAULT_INDEX": index.url})
    for folder in (made.workspace, made.temp, made.tool_cache, made.bin, where / "home"):
        folder.mkdir(parents=True)
    for name in TOOLS:
        link(made, name, str(shutil.which(name)))
    link(made, "python3", PYTHON)
    return made


def put_stand_in(where: Path, package: Path) -> None:
    """A checkout of the action with a package in the place of ours that writes down what reaches it."""
    _put_action(where, [package])
    source = where / "src" / "endstate_action"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "__main__.py").write_text(_RECORDER)


def put_checkout(where: Path, packages: Sequence[Path]) -> None:
    """A checkout of the action as it is, but for the lock file's hashes: those of `packages`."""
    _put_action(where, packages)
    shutil.copytree(ROOT / "src", where / "src", ignore=shutil.ignore_patterns("__pycache__"))


def _put_action(where: Path, packages: Sequence[Path]) -> None:
    for name in ("action.yml", "entrypoint.sh", "resume/action.yml"):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, where / name)
    lines = [_lock_line(package) for package in packages]
    (where / "requirements.lock").write_text("".join(lines))


def _lock_line(package: Path) -> str:
    name, version = _project(package)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(package.read_bytes()).hexdigest()}\n"


def link(machine: Runner, name: str, target: str) -> None:
    (machine.bin / name).unlink(missing_ok=True)
    (machine.bin / name).symlink_to(target)


def stub(machine: Runner, name: str, script: str) -> None:
    """A program of the machine that does what `script` says."""
    path = machine.bin / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def pretends_to_be(machine: Runner, name: str, version: tuple[int, int, int]) -> None:
    """A Python that is as old as it says."""
    age = f"sys.version_info = ({', '.join(map(str, version))}, 'final', 0)"
    code = f"import sys; {age}; code = sys.argv[1]; sys.argv = ['-c', *sys.argv[2:]]; exec(code)"
    stub(machine, name, f'exec {PYTHON} -I -S -c "{code}" "$4" "$5"')
