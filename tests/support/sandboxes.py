"""A small world with a real sandbox in it: a workspace under git, a home, a state directory.

There are three ways in which calls can run, and each promise holds in all: by an *ordinary* user,
by root for the *owner* of the workspace, and by root in *root*'s own workspace.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from endstate_action.system import sandbox_probe
from endstate_action.system.process import Finished, User, decode
from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.sandbox_view import is_readable

Who = Literal["ordinary", "owner", "root"]
WAYS: tuple[Who, ...] = ("ordinary", "owner", "root")
SOMEBODY = 54321
"""A user of whom the machine knows nothing."""
SOURCE = Path(sandbox_probe.__file__).parents[2]
_ELSEWHERE = f"""
import pickle, sys
sys.path.insert(0, {str(SOURCE)!r})
from endstate_action.system import sandbox, sandbox_probe
name, arguments, more = pickle.load(sys.stdin.buffer)
try:
    given = sandbox.Sandbox.run if name == "run" else sandbox_probe.probe
    answer = given(*arguments, **more)
except sandbox.NotStarted as error:
    answer = error
pickle.dump(answer, sys.stdout.buffer)
"""


@dataclass(frozen=True)
class Place:
    """`root` holds everything and can be entered by everybody."""

    root: Path
    who: Who
    env: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.root / "work"

    @property
    def state_dir(self) -> Path:
        return self.workspace / ".endstate"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def owned(self) -> None:
        """Give what was written meanwhile to those whose place it is."""
        if os.geteuid() == 0 and self.who != "root":
            subprocess.run(["chown", "-Rh", f"{SOMEBODY}:{SOMEBODY}", str(self.workspace), str(self.home)], check=True)

    def probe(self, **more: Any) -> Sandbox | NoSandbox:
        """The sandbox of this place as a run would find it."""
        self.owned()
        arguments = (self.workspace, self.state_dir, self._seen)
        given: dict[str, Any] = {"network": False, "tmp": self.state_dir / "tmp", **more}
        if self._is_elsewhere:
            found: Sandbox | NoSandbox = self._elsewhere("probe", arguments, given)
            return found
        return sandbox_probe.probe(*arguments, **given)

    @property
    def _seen(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), **self.env}

    @functools.cached_property
    def sandbox(self) -> Sandbox:
        """As `probe` makes it, which has been tried once for each way and is not again for every test."""
        self.owned()
        found = sandbox_probe._candidate(self.workspace, self.state_dir, self._seen, False, sandbox_probe.PROGRAMS)
        return replace(found, user=None) if self._is_elsewhere else found

    def networked(self) -> Place:
        """The same place, where calls may use the network."""
        other = Place(self.root, self.who, self.env)
        other.__dict__["sandbox"] = replace(self.sandbox, network=True)
        return other

    def run(self, command: str, *, timeout_s: float = 60, moment: float = 0.0, **env: str) -> tuple[int | None, str]:
        """Exit code and output of a command line."""
        finished = self.call(["/bin/bash", "-c", command], timeout_s=timeout_s, moment=moment, **env)
        return finished.exit_code, decode(finished.output).text

    def call(self, argv: list[str], *, timeout_s: float = 60, moment: float = 0.0, **env: str) -> Finished:
        self.owned()
        given: dict[str, Any] = {
            "argv": argv,
            "env": {"PATH": os.environ["PATH"], **env},
            "moment": moment,
            "timeout_s": timeout_s,
            "tag": f"test-{os.getpid()}/1/1.0",
        }
        if self._is_elsewhere:
            answer: Finished = self._elsewhere("run", (self.sandbox,), given)
            return answer
        return self.sandbox.run(**given)

    @property
    def _is_elsewhere(self) -> bool:
        return self.who == "ordinary" and os.geteuid() == 0

    def _elsewhere(self, name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
        with self.in_process(_ELSEWHERE) as process:
            said, _ = process.communicate(pickle.dumps((name, arguments, more)))
        assert process.returncode == 0
        answer = pickle.loads(said)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextmanager
    def in_process(self, script: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A Python process that runs `script` as the user who would run us here; killed at the block's end."""
        user: dict[str, Any] = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []} if self._is_elsewhere else {}
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [interpreter(), "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={"PATH": os.environ["PATH"]} | options.pop("env", {}),
            **user,
            **options,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def interpreter() -> str:
    """A Python that every user of this machine can run."""
    if os.geteuid() != 0:
        return sys.executable
    nobody = User(SOMEBODY, SOMEBODY)
    for program in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(program) and is_readable(Path(os.path.realpath(program)), nobody):
            return program
    pytest.skip("no Python here can be run by an ordinary user")


@contextmanager
def place(who: Who) -> Iterator[Place]:
    """Skips, with the reason, where this machine cannot have that sandbox."""
    if os.geteuid() != 0 and who != "ordinary":
        pytest.skip("only root can give up root's rights")
    missing = _missing()
    if missing is not None:
        pytest.skip(f"there can be no sandbox here: {missing}")
    with _empty(who) as made:
        yield made


@functools.cache
def _missing() -> str | None:
    """Why bubblewrap cannot run here. Where it can, whatever else is wrong is for the tests to find."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    user: dict[str, Any] = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    options = ["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/"]
    command = [program, *options, "--proc", "/proc", "true"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **user)
    return done.stderr.strip() if done.returncode != 0 else None


@contextmanager
def _empty(who: Who) -> Iterator[Place]:
    root = Path(os.path.realpath(tempfile.mkdtemp(prefix="sandbox-")))
    try:
        root.chmod(0o755)
        made = Place(root, who)
        (made.state_dir / "tmp").mkdir(parents=True)
        made.home.mkdir()
        git(made.workspace, "init", "--quiet", "--initial-branch=main")
        (made.home / ".gitconfig").write_text("[user]\n\tname = A Tester\n\temail = tester@example.invalid\n")
        yield made
    finally:
        shutil.rmtree(root, ignore_errors=True)


def git(where: Path, *arguments: str) -> str:
    safe = ["-c", "safe.directory=*", "-c", "user.name=A Tester", "-c", "user.email=tester@example.invalid"]
    done = subprocess.run(["git", *safe, "-C", str(where), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
