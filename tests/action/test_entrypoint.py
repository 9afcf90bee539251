"""From a runner to Python: on every kind of machine, past everything that a pull request can plant, in time."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from endstate_action import __version__
from tests.support.checkouts import (
    PYTHON,
    ROOT,
    TOOLS,
    Runner,
    index_of,
    link,
    pretends_to_be,
    put_checkout,
    put_stand_in,
    runner,
    stub,
    wheel,
    wheels_of_here,
)
from tests.support.command import wait_for
from tests.support.ladder import INTERRUPT_S, REQUEST_S, climb

pytestmark = pytest.mark.slow

UV = shutil.which("uv", path=os.path.dirname(sys.executable))
BUSYBOX = shutil.which("busybox")
SHELLS = [
    (),
    *(
        pytest.param(
            (shell,), marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"there is no {shell} here")
        )
        for shell in ("dash", "bash")
    ),
    pytest.param(("busybox", "ash"), marks=pytest.mark.skipif(BUSYBOX is None, reason="there is no busybox here")),
]
INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(UV is None, reason="there is no uv here"))]


def with_installer(machine: Runner, name: str) -> None:
    if name == "uv":
        link(machine, "uv", str(UV))


def said_once(done, text):
    """As one annotation, on a line of its own."""
    lines = [line for line in done.out.splitlines() if line.startswith("::error")]
    return len(lines) == 1 and text in lines[0]


def arguments_of_all() -> str:
    """What whoever lists processes can read."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(found)


# The way there


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("installer", INSTALLERS)
def test_the_command_starts_isolated_and_outside_the_workspace(machine, shell, installer):
    with_installer(machine, installer)
    for name in shell:
        link(machine, name, str(shutil.which(name)))
    if "busybox" in shell:
        for name in TOOLS:
            link(machine, name, str(BUSYBOX))
    done = replace(machine, shell=shell).run("action", "two words")
    warned = "There is no git on this runner. Install it, or use an image that has it."
    assert (done.code, done.out) == (0, f"::warning title=endstate::{warned}\n")
    assert done.seen["argv"] == ["action", "two words"]
    assert (done.seen["isolated"], done.seen["cwd"], done.seen["release"]) == (1, "/", "locked")
    (environment,) = machine.environments()
    # A Python without pip brings its own, which then lies beside the package.
    (package,) = environment.glob("lib/*/*/endstate_stand_in-*.dist-info/INSTALLER")
    assert package.read_text().strip() == installer
    assert re.fullmatch(r"endstate: Python environment made in \d+\.\d\d s \(.+\)\n", done.err)


def test_with_a_git_there_is_nothing_to_warn_of(machine):
    link(machine, "git", str(shutil.which("git")))
    done = machine.run()
    assert (done.code, done.out) == (0, "")


def test_the_watcher_needs_no_git(machine):
    done = machine.run("rerun-preempted")
    assert (done.code, done.out) == (0, "")


def test_an_environment_is_made_once_and_ready_within_a_second(machine, index):
    assert machine.run().code == 0
    asked = len(index.requests)
    # Time of the processor, since a busy machine's clock proves nothing.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    again = machine.run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1
    assert " reused in " in again.err
    assert (again.code, len(index.requests)) == (0, asked)
    assert len(machine.environments()) == 1


@pytest.mark.parametrize("change", ["requirements.lock", "src/endstate_action/__init__.py"])
def test_another_release_has_another_environment(machine, change):
    first = machine.run().seen["file"]
    with (machine.action / change).open("a") as file:
        file.write("# another\n")
    second = machine.run().seen["file"]
    assert first != second
    assert len(machine.environments()) == 2


def test_the_same_release_elsewhere_has_the_same_environment(machine, package):
    """By tag, by commit or from a fork: the folder's name says nothing."""
    first = machine.run().seen["file"]
    elsewhere = machine.where / "actions" / "a fork's" / "0123abc"
    put_stand_in(elsewhere, package)
    assert machine.run(GITHUB_ACTION_PATH=str(elsewhere)).seen["file"] == first


def test_a_release_that_is_moved_during_a_run_changes_nothing_beneath_it(machine):
    seen = machine.run().seen
    assert not seen["file"].startswith(str(machine.action))
    assert [entry for entry in seen["path"] if entry.startswith(str(machine.action))] == []


def test_two_steps_at_once_do_not_break_each_other(machine):
    both = [machine.start(RECORD=str(machine.where / f"record-{n}.json")) for n in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    for process in both:
        process.communicate()
    assert len(machine.environments()) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_half_made_environment_is_never_used(tmp_path, package, number, installer):
    with index_of(package, stall=True) as stalled:
        machine = runner(tmp_path / "machine", stalled)
        put_stand_in(machine.action, package)
        with_installer(machine, installer)
        process = machine.start()
        deadline = time.monotonic() + 30
        while not stalled.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        done = machine.done(process.returncode, out, err)
    if number == signal.SIGKILL:
        assert done.code == -signal.SIGKILL
    else:
        assert done.code == 75
        assert said_once(done, "Interrupted while Python was made ready. Nothing was run and nothing was spent.")
        assert done.outputs == "conclusion=interrupted\n"
    with index_of(package) as answering:
        again = machine.run(PIP_INDEX_URL=answering.url, UV_DEFAULT_INDEX=answering.url)
    assert (again.code, again.seen["release"]) == (0, "locked")
    assert " made in " in again.err


def test_a_step_that_is_interrupted_takes_nothing_from_another(machine, package):
    with index_of(package, stall=True) as stalled:
        first = machine.start(PIP_INDEX_URL=stalled.url, RECORD=str(machine.where / "never.json"))
        deadline = time.monotonic() + 30
        while not stalled.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert machine.run().code == 0
        first.terminate()
        first.communicate(timeout=30)
    assert first.returncode == 75
    assert " reused in " in machine.run().err


def test_an_environment_of_somebody_else_is_not_used(machine):
    """It could hold anything. (As root one can make somebody else's; others only see their own.)"""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make what belongs to somebody else")
    assert machine.run().code == 0
    (environment,) = machine.environments()
    os.chown(environment, 12345, 12345)
    os.chown(environment.parent, 12345, 12345)
    done = machine.run()
    assert done.code == 0
    assert not done.seen["file"].startswith(str(environment))


@pytest.mark.parametrize("gone", ["bin", "bin/python", "lib", "a module", "half of a module"])
def test_a_damaged_environment_is_made_anew(machine, gone):
    """As where a clean-up of the machine took files of it."""
    assert machine.run().code == 0
    (environment,) = machine.environments()
    (module,) = environment.glob("lib/*/*/endstate_stand_in.py")
    if gone == "half of a module":
        module.write_bytes(module.read_bytes()[:9])
    elif gone in ("bin", "lib"):
        shutil.rmtree(environment / gone)
    else:
        (module if gone == "a module" else environment / gone).unlink()
    again = machine.run()
    assert (again.code, again.seen["release"]) == (0, "locked"), again.said
    assert " made in " in again.err
    assert machine.environments() == [environment]
    assert " reused in " in machine.run().err


# What a pull request can plant


@pytest.mark.parametrize("installer", INSTALLERS)
def test_nothing_in_the_workspace_has_a_say(machine, installer):
    with_installer(machine, installer)
    work, planted = machine.workspace, machine.where / "planted"
    code = f"open({str(planted)!r}, 'a').write(__name__ + '\\n')\n"
    for name in ("sitecustomize", "usercustomize", "pip", "venv", "hashlib", "endstate_stand_in"):
        (work / f"{name}.py").write_text(code)
    for name in ("anthropic", "endstate_action", "click"):
        (work / name).mkdir()
        (work / name / "__init__.py").write_text(code)
        (work / name / "__main__.py").write_text(code)
    (work / "evil.pth").write_text(f"import os; exec({code!r})\n")
    (work / "uv.toml").write_text('index-url = "http://127.0.0.1:9/simple"\n')
    (work / "pyproject.toml").write_text('[tool.uv]\nindex-url = "http://127.0.0.1:9/simple"\n')
    (work / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/simple\n")
    (work / ".python-version").write_text("2.7\n")
    tools = work / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python3", "uv", "sed", "find", "mktemp", "git"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >>{planted}\nexit 1\n")
        (tools / name).chmod(0o755)
    done = machine.run(
        PATH=f"{tools}:.venv/bin::{machine.bin}",
        PYTHONPATH=str(work),
        PYTHONHOME=str(work),
        PYTHONSTARTUP=str(work / "sitecustomize.py"),
        PYTHONUSERBASE=str(work),
        VIRTUAL_ENV=str(work / ".venv"),
        PIP_CONFIG_FILE=str(work / "pip.conf"),
        PIP_TARGET=str(work),
        UV_CONFIG_FILE=str(work / "uv.toml"),
        UV_PYTHON=str(tools / "python3"),
        UV_PROJECT=str(work),
    )
    assert (done.code, planted.exists()) == (0, False), done.said
    assert done.seen["release"] == "locked"
    assert [entry for entry in done.seen["path"] if str(work) in entry] == []


def test_settings_are_cleared_but_an_administrators_index_and_authorities_are_kept(machine):
    given = dict.fromkeys(("PYTHONPATH", "PIP_TARGET", "UV_PYTHON", "UV_CACHE_DIR", "VIRTUAL_ENV"), "/gone")
    kept = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), "/etc/ssl/certs/ca-certificates.crt")
    tokens = {"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "t", "ACTIONS_ID_TOKEN_REQUEST_URL": "u"}
    seen = machine.run(**given, **kept, **tokens, INPUT_PROMPT="two\nlines\nUV_PYTHON=no", LC_ALL="C.UTF-8").seen["env"]
    assert sorted(name for name in (*given, *tokens) if name in seen) == []
    assert {name: seen[name] for name in kept} == kept
    assert seen["PIP_INDEX_URL"] == machine.env["PIP_INDEX_URL"]
    assert seen["INPUT_PROMPT"] == "two\nlines\nUV_PYTHON=no"
    assert (seen["PATH"], seen["LC_ALL"]) == (str(machine.bin), "C.UTF-8")


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_password_of_the_index_is_used_and_never_said(tmp_path, package, installer):
    with index_of(package, stall=True) as stalled:
        machine = runner(tmp_path / "machine", stalled)
        put_stand_in(machine.action, package)
        with_installer(machine, installer)
        url = stalled.url.replace("//", "//who:s3cr3t-word@")
        process = machine.start(PIP_INDEX_URL=url, UV_DEFAULT_INDEX=url)
        deadline = time.monotonic() + 30
        while not stalled.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        listed = arguments_of_all()
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert stalled.requests
    assert "requirements.lock" in listed
    assert "s3cr3t-word" not in listed
    assert "s3cr3t-word" not in out + err


# Machines that lack something: each with its message, and nothing run


def test_a_machine_without_python_says_what_to_do(machine):
    (machine.bin / "python3").unlink()
    done = machine.run()
    assert (done.code, done.seen, done.outputs) == (2, {}, "conclusion=failed\n")
    assert said_once(done, "There is no Python 3.11 or newer on this runner.")
    assert said_once(done, "Nothing was run and nothing was spent. Add a step with actions/setup-python")


def test_a_python_that_is_too_old_is_named(machine):
    pretends_to_be(machine, "python3", (3, 9, 18))
    done = machine.run()
    assert done.code == 2
    assert said_once(done, "too old: 3.9.18 (python3).")


def test_beside_an_old_python_a_newer_one_is_found(machine):
    pretends_to_be(machine, "python3", (3, 9, 18))
    link(machine, "python3.11", PYTHON)
    assert machine.run().code == 0


@pytest.mark.parametrize("variable", ["RUNNER_TOOL_CACHE", "AGENT_TOOLSDIRECTORY"])
@pytest.mark.parametrize(("complete", "code"), [(True, 0), (False, 2)])
def test_python_is_found_in_the_tool_cache_where_its_download_was_finished(machine, variable, complete, code):
    pretends_to_be(machine, "python3", (3, 10, 12))
    cache = machine.where / "hosted tools"
    (cache / "Python/3.12.1/x64/bin").mkdir(parents=True)
    (cache / "Python/3.12.1/x64/bin/python3").symlink_to(PYTHON)
    if complete:
        (cache / "Python/3.12.1/x64.complete").touch()
    assert machine.run(**{variable: str(cache)}).code == code


def test_uv_finds_a_python_or_brings_one(machine):
    """The stand-in for uv knows of a Python only once it has installed one."""
    (machine.bin / "python3").unlink()
    there = machine.where / "installed"
    stub(
        machine,
        "uv",
        f'case "$*" in *"python find"*) [ -e {there} ] && echo {PYTHON} ;; *"python install"*) : >{there} ;; '
        f"*) exit 1 ;; esac",
    )
    assert machine.run(UV_PYTHON_DOWNLOADS="never").code == 2
    assert not there.exists()
    assert machine.run().code == 0


@pytest.mark.parametrize("installer", INSTALLERS)
def test_without_a_network_it_is_said_that_packages_are_missing(machine, installer):
    with_installer(machine, installer)
    gone = "http://who:s3cr3t-word@127.0.0.1:9/simple"
    done = machine.run(PIP_INDEX_URL=gone, UV_DEFAULT_INDEX=gone, UV_HTTP_RETRIES="0")
    assert (done.code, done.seen, machine.environments()) == (2, {}, [])
    assert said_once(done, "packages that endstate needs could not be installed")
    assert "s3cr3t-word" not in done.said
    assert [line for line in done.err.splitlines() if not line.startswith(("  | ", "endstate: "))] == []


def test_what_an_installer_says_is_shown_without_passwords_and_is_no_command_of_the_runner(machine):
    stub(machine, "uv", "echo '::error::from http://who:s3cr3t-word@index.invalid/simple'; exit 2")
    done = machine.run(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert done.code == 2
    assert "  | ::error::from http://***@index.invalid/simple" in done.err.splitlines()


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_package_that_is_not_the_locked_one_is_not_installed(tmp_path, package, installer):
    with index_of(wheel(tmp_path, 'RELEASE = "forged"\n')) as forged:
        machine = runner(tmp_path / "machine", forged)
        put_stand_in(machine.action, package)
        with_installer(machine, installer)
        done = machine.run()
    assert (done.code, done.seen, machine.environments()) == (2, {}, [])
    assert said_once(done, "is not the one that this release was tested with")


@pytest.mark.parametrize(
    ("absent", "code", "said"),
    [(("pip",), 0, ""), (("pip", "ensurepip"), 2, "There is neither uv nor pip nor ensurepip for ")],
)
def test_a_python_without_pip_brings_it_or_says_so(machine, absent, code, said):
    """The Pythons of distributions often lack one or both; here the question after them gets that answer."""
    script = machine.action / "entrypoint.sh"
    text = script.read_text()
    for name in absent:
        assert text.count(f"-c 'import {name}'") == 1
        text = text.replace(f"-c 'import {name}'", "-c 'import no_such_module'")
    script.write_text(text)
    done = machine.run()
    assert (done.code, bool(done.seen)) == (code, code == 0), done.said
    assert not said or said_once(done, said)


@pytest.mark.parametrize("installer", INSTALLERS)
def test_packages_come_through_a_proxy(machine, index, installer):
    with_installer(machine, installer)
    behind = "http://index.invalid/simple"
    proxy = index.url.removesuffix("/simple")
    done = machine.run(
        http_proxy=proxy,
        HTTP_PROXY=proxy,
        PIP_INDEX_URL=behind,
        PIP_TRUSTED_HOST="index.invalid",
        UV_DEFAULT_INDEX=behind,
    )
    assert (done.code, done.seen.get("release")) == (0, "locked"), done.said
    assert all(path.startswith("http://index.invalid/") for path in index.requests)


def test_where_uv_cannot_reach_its_index_pip_is_asked(machine):
    stub(machine, "uv", "exit 2")
    assert machine.run().seen["release"] == "locked"


def test_a_tool_cache_that_cannot_be_written_is_passed_over(machine):
    done = machine.run(RUNNER_TOOL_CACHE="/proc/none")
    assert done.seen["file"].startswith(str(machine.temp))


def test_a_home_that_cannot_be_written_is_not_needed(machine):
    assert machine.run(HOME="/proc/none").code == 0


def test_a_machine_where_nothing_can_be_written_says_so(machine):
    done = machine.run(RUNNER_TOOL_CACHE="/proc/a", RUNNER_TEMP="/proc/b")
    assert (done.code, done.seen) == (2, {})
    assert said_once(done, "/proc/a, /proc/b, each is read-only, full, mounted noexec or somebody else's.")


def run_with_a_disk(machine, place, options, **more):
    """With a file system of its own at `place`; skips where none can be mounted."""
    place.mkdir(exist_ok=True)
    there = f"{shutil.which('mount')} -t tmpfs -o {options} none {place} || exit 77"
    stub(machine, "beside", f'exec {shutil.which("unshare")} -rm sh -c \'{there}; exec "$@"\' sh "$@"')
    done = replace(machine, shell=("beside",)).run(**more)
    if done.code == 77 or "unshare" in done.err:
        pytest.skip(f"no file system can be mounted here: {done.err.strip()}")
    return done


def test_a_place_that_programs_cannot_run_from_is_passed_over(machine):
    """Libraries of packages could not be loaded from it."""
    place = machine.where / "noexec"
    done = run_with_a_disk(machine, place, "noexec", RUNNER_TOOL_CACHE=str(place))
    assert done.seen["file"].startswith(str(machine.temp)), done.said
    done = run_with_a_disk(machine, place, "noexec", RUNNER_TOOL_CACHE=str(place), RUNNER_TEMP=str(place))
    assert (done.code, done.seen) == (2, {})
    assert said_once(done, "mounted noexec or somebody else's. Nothing was run and nothing was spent.")


@pytest.mark.parametrize("installer", INSTALLERS)
def test_where_the_disk_is_full_that_is_said(tmp_path, installer):
    large = wheel(tmp_path, 'RELEASE = "locked"\n' + f"A = {os.urandom(500_000).hex()!r}\n")
    with index_of(large) as index:
        machine = runner(tmp_path / "machine", index)
        put_stand_in(machine.action, large)
        with_installer(machine, installer)
        place = machine.where / "tiny"
        done = run_with_a_disk(machine, place, "size=512k", RUNNER_TOOL_CACHE=str(place))
    assert (done.code, done.seen, done.outputs) == (2, {}, "conclusion=failed\n")
    assert said_once(
        done, f"the disk is full or read-only. Nothing was run and nothing was spent. Free some space under {place}"
    )


@pytest.mark.parametrize("system", ["MINGW64_NT-10.0-20348", "MSYS_NT-10.0", "CYGWIN_NT-10.0"])
def test_windows_is_refused(machine, system):
    stub(machine, "uname", f"echo {system}")
    done = machine.run()
    assert (done.code, done.seen) == (2, {})
    assert said_once(done, "Windows is not supported. Nothing was run and nothing was spent. Use a Linux runner")


def test_a_message_cannot_become_another_command_of_the_runner(machine):
    link(machine, "git", str(shutil.which("git")))
    done = machine.run(RUNNER_TOOL_CACHE="/proc/a\n::set-output name=x::y", RUNNER_TEMP="/proc/50%\r")
    assert done.code == 2
    assert said_once(done, "/proc/a ::set-output name=x::y, /proc/50%25 , each")
    assert done.out.count("\n") == 1


def test_outside_of_workflows_messages_are_for_people(machine):
    (machine.bin / "python3").unlink()
    done = machine.run(GITHUB_ACTIONS="")
    assert done.out == ""
    assert done.err.startswith("endstate: There is no Python 3.11 or newer")


# Signals: the runner's ladder, thirty times as fast


@pytest.mark.parametrize(
    ("needs_s", "heard", "code"),
    [
        (1.0, "heard SIGINT\n", 75),
        (9.0, "heard SIGINT SIGTERM\n", 75),
        (60.0, "", -signal.SIGKILL),
    ],
)
def test_every_signal_of_the_runner_reaches_python(machine, needs_s, heard, code):
    link(machine, "git", str(shutil.which("git")))
    scale = 0.2
    process = machine.start(NEEDS_S=str(needs_s * scale))
    wait_for(machine.where / "record.json")
    time.sleep(0.05)
    climbed = climb(process, scale=scale)
    assert (climbed.code, climbed.out) == (code, heard)
    assert climbed.seconds <= INTERRUPT_S + REQUEST_S + 2
    assert machine.done(0, "", "").seen["pid"] == process.pid


# The real thing


@pytest.mark.parametrize("installer", INSTALLERS)
def test_our_own_package_starts_from_its_locked_packages(tmp_path, installer):
    packages = wheels_of_here(tmp_path)
    with index_of(*packages) as index:
        machine = runner(tmp_path / "machine", index)
        with_installer(machine, installer)
        put_checkout(machine.action, packages)
        done = machine.run("--version")
    assert (done.code, done.out.splitlines()[-1:]) == (0, [f"endstate {__version__}"]), done.said
    assert sum(path.stat().st_size for path in packages) <= 16_000_000


def test_the_scripts_are_clean():
    script = [str(ROOT / "entrypoint.sh"), str(ROOT / "scripts" / "setup-env")]
    checked = subprocess.run([Path(sys.executable).parent / "shellcheck", "--shell=sh", *script], check=False)
    assert checked.returncode == 0
    assert os.access(ROOT / "entrypoint.sh", os.X_OK)
