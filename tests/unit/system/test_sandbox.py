"""Commands that try to get out of the sandbox, and honest ones that must not notice it."""

from __future__ import annotations

import os
import pickle
import random
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from endstate_action.errors import StateError
from endstate_action.system import proctable
from endstate_action.system.process import decode
from endstate_action.system.sandbox import NotStarted
from endstate_action.system.sandbox_lock import CallLock
from tests.support.sandboxes import SOURCE, WAYS, Place, git, interpreter, place


@pytest.fixture(params=WAYS)
def here(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(request.param) as made:
        yield made


@pytest.fixture
def one() -> Iterator[Place]:
    """One way is enough, where who runs the call makes no difference."""
    with place("ordinary") as made:
        yield made


@pytest.fixture
def seconds() -> str:
    """An argument of `sleep` by which this test's processes, and only they, can be recognised."""
    return f"600.{random.SystemRandom().randrange(10**12):012}"


def running(seconds: str) -> list[int]:
    found = []
    for process in proctable.everything():
        with suppress(OSError):
            if not process.gone and seconds in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0"):
                found.append(process.pid)
    return found


def end(seconds: str) -> None:
    for pid in running(seconds):
        process = proctable.look(pid)
        if process is not None:
            proctable.send(process, signal.SIGKILL)


def wait_until(condition, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def python(script: str) -> str:
    """A command that runs a script in the sandbox."""
    return f"{shlex.quote(interpreter())} -I -c {shlex.quote(script)}"


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


# What stays out of reach


def test_the_state_directory_can_be_neither_seen_nor_touched(here: Place):
    (here.state_dir / "session").write_text("the journal")
    before = contents(here.state_dir)

    code, said = here.run(
        "ls -A .endstate; cat .endstate/session; echo forged > .endstate/session; mkdir .endstate/new; "
        "mv .endstate aside; mv .endstate /tmp/aside; rmdir .endstate; rm -rf .endstate; "
        "umount .endstate; umount -l .endstate; ln -s / .endstate; mount --bind . .endstate; touch ok"
    )

    assert code == 0
    assert "the journal" not in said
    assert (here.workspace / "ok").exists()
    assert contents(here.state_dir) == before | {"call-lock": b""}
    assert sorted(os.listdir(here.workspace)) == [".endstate", ".git", "ok"]


def test_a_state_directory_further_down_does_not_move_with_a_directory_above_it(one: Place):
    inner = Place(one.root, one.who)
    state = one.workspace / "a" / "b" / "state"
    (state / "tmp").mkdir(parents=True)
    (state / "session").write_text("the journal")
    found = inner.probe(tmp=state / "tmp")
    one.__dict__["sandbox"] = type(one.sandbox)(
        **{f: getattr(found, f) for f in found.__slots__} | {"state_dir": state}
    )

    _, said = one.run(
        "mv a a2; mv a/b a/b2; mkdir -p a/b/state; echo forged > a/b/state/session; cat a*/b*/state/session"
    )

    assert "the journal" not in said
    assert (state / "session").read_text() == "the journal"
    assert sorted(os.listdir(one.workspace)) == [".endstate", ".git", "a"]


def test_git_s_configuration_and_hooks_can_be_neither_written_nor_swapped(here: Place):
    before = (here.workspace / ".git" / "config").read_bytes()
    hooks = sorted(os.listdir(here.workspace / ".git" / "hooks"))

    here.run(
        "git config core.fsmonitor ./evil; echo x >> .git/config; rm -f .git/config; mv .git/config .git/c2; "
        "echo evil > .git/hooks/pre-commit; rm -rf .git/hooks; mv .git/hooks .git/h2; "
        "mv .git .git2; cp -r .git2 .git; rm -rf .git; umount -l .git/config .git/hooks .git"
    )

    assert (here.workspace / ".git" / "config").read_bytes() == before
    assert sorted(os.listdir(here.workspace / ".git" / "hooks")) == hooks
    assert not (here.workspace / ".git2").exists()


def test_a_git_directory_without_a_configuration_cannot_be_swapped_either(here: Place):
    (here.workspace / ".git" / "config").unlink()
    here.run("mv .git .git2; mkdir .git; cp -r .git2/* .git; echo x > .git/config")
    assert not (here.workspace / ".git2").exists()


def test_hooks_cannot_be_added_where_there_are_none(here: Place):
    shutil.rmtree(here.workspace / ".git" / "hooks")
    here.run("mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit")
    assert list((here.workspace / ".git").glob("hooks/*")) == []


def test_the_packs_that_hold_the_history_cannot_be_destroyed(here: Place):
    (here.workspace / "a").write_text("a")
    git(here.workspace, "add", "a")
    git(here.workspace, "commit", "--quiet", "--message=a")
    git(here.workspace, "gc", "--quiet")
    head = git(here.workspace, "rev-parse", "HEAD")

    here.run("git gc --prune=now; rm -rf .git/objects/pack/*; rm -rf .git/objects")

    assert "a" in git(here.workspace, "ls-tree", "--name-only", head)


TOKEN = "t0ken-0f-the-ch3ckout"


def test_a_token_in_a_git_configuration_is_not_seen(here: Place):
    """As checkout steps leave it: in a header, in a URL, in an included file; here, around, below, at home."""
    header = f'[http "https://h/"]\n\textraheader = AUTHORIZATION: basic {TOKEN}\n'
    url = f'[remote "origin"]\n\turl = https://x-access-token:{TOKEN}@h.invalid/r.git\n\tfetch = +refs/heads/*:x\n'
    (here.root / "temp").mkdir()
    (here.root / "temp" / "credentials").write_text(header)
    (here.root / "temp").chmod(0o755)
    here.env["RUNNER_TEMP"] = str(here.root / "temp")
    git(here.root, "init", "--quiet")
    for folder in ("nested", "nested/deeper"):
        git(here.workspace, "init", "--quiet", folder)
    module = here.workspace / ".git" / "modules" / "m"
    shutil.copytree(here.workspace / ".git", module, ignore=lambda *_: ["modules"])
    places = [here.root, here.workspace, here.workspace / "nested", here.workspace / "nested" / "deeper"]
    for config in [*(p / ".git" / "config" for p in places), module / "config", here.home / ".gitconfig"]:
        with config.open("a") as file:
            file.write(header + url)
            file.write(f'[includeIf "gitdir:**"]\n\tpath = {here.root}/temp/credentials\n')

    search = f"git config --list; grep -rs {TOKEN} . .. ~ {here.root}/temp"
    _, said = here.run(search)
    here.run("mv nested moved; mv nested/.git aside; mv .git/modules/m .git/modules/n")
    _, later = here.run(f"grep -rs {TOKEN} . .. ~; true")

    assert TOKEN not in said + later
    assert "remote.origin.url=https://h.invalid/r.git" in said
    assert "user.name=A Tester" in said
    assert TOKEN in (here.workspace / ".git" / "config").read_text()


def test_the_environment_of_who_started_the_call_is_not_seen(here: Place):
    """Nor what was made of it: neither the variables of bubblewrap, nor its arguments."""
    code, said = here.run(
        "cat /proc/1/environ /proc/*/environ | tr '\\0' '\\n' | grep -v ^ENDSTATE_CALL; cat /proc/1/cmdline",
        GIVEN="given-to-the-call",
    )
    assert code == 0
    assert "given-to-the-call" in said
    assert "given-to-the-call" not in said.rpartition("--args")[2]
    assert os.environ["PATH"] + "\n" in said

    _, first = here.run("tr '\\0' '\\n' < /proc/1/environ", GIVEN="given-to-the-call")
    assert [line.partition("=")[0] for line in first.splitlines()] == ["ENDSTATE_CALL"]


def test_nobody_outside_reads_a_call_s_variables_from_the_arguments_of_a_program(one: Place, seconds: str):
    found: list[bytes] = []

    def look() -> None:
        wait_until(lambda: running(seconds))
        for process in proctable.everything():
            with suppress(OSError):
                found.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        end(seconds)

    watcher = threading.Thread(target=look)
    watcher.start()
    one.call(["/bin/sleep", seconds], DATABASE_URL="postgres://me:s3cret@db")
    watcher.join()

    assert any(b"bwrap" in line for line in found)
    assert not any(b"s3cret" in line for line in found)


def test_no_descriptor_is_passed_on(here: Place):
    """Of ours, only the call lock, and that to bubblewrap alone."""
    _, said = here.run("readlink /proc/self/fd/*; echo; readlink /proc/1/fd/*")
    ours, bubblewraps = (
        {line for line in part.splitlines() if not line.startswith(("pipe:", "/dev/null", "/proc/"))}
        for part in said.split("\n\n")
    )
    assert ours == set()
    assert bubblewraps == {f"{here.state_dir}/call-lock", "anon_inode:[eventfd]"}


def test_the_kernel_s_settings_cannot_be_written(here: Place):
    pattern = Path("/proc/sys/kernel/core_pattern").read_bytes()
    _, said = here.run(
        "for f in /proc/sys/{kernel/core_pattern,vm/drop_caches,net/core/somaxconn} /proc/sysrq-trigger; "
        'do (echo 1 > "$f") 2>/dev/null && echo written "$f"; done'
    )
    assert said == ""
    assert Path("/proc/sys/kernel/core_pattern").read_bytes() == pattern


def test_there_are_no_privileges_and_none_to_be_had(here: Place):
    _, said = here.run(
        "grep -E '^(NoNewPrivs|Cap)' /proc/self/status; unshare -U true && echo a user namespace; "
        "unshare -m true && echo a mount namespace; mount -t tmpfs none /tmp && echo mounted; "
        "mknod /tmp/n c 1 3 && echo a device; touch f && chown 1 f && echo given away; sudo -n true && echo sudo"
    )
    values = dict(line.split(":\t") for line in said.splitlines() if ":\t" in line)
    assert values == {"NoNewPrivs": "1"} | {f"Cap{n}": "0" * 16 for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    for gained in ("namespace\n", "mounted\n", "a device\n", "given away\n", "sudo\n"):
        assert gained not in said.replace("unshare: ", "")


def test_nothing_outside_the_workspace_can_be_written(here: Place):
    name = f"endstate-test-{random.SystemRandom().randrange(10**12)}"
    places = ["/", "/etc", "/usr", "/usr/local/bin", "/opt", "/var", "/var/lib", "/srv", "/home", "/sys"]
    places += ["/dev", "/dev/shm", "/tmp", "/var/tmp", "/run", "/boot", "/mnt", str(here.home), str(here.root)]

    here.run(
        "; ".join(f"touch {p}/{name}; mkdir {p}/{name}-d" for p in places) + "; chmod 777 ~; touch -d 2000-01-01 ~"
    )

    assert [p for p in places if os.path.lexists(f"{p}/{name}") or os.path.lexists(f"{p}/{name}-d")] == []
    assert here.home.stat().st_mode & 0o777 != 0o777


def test_the_machine_s_processes_cannot_be_seen(here: Place):
    _, said = here.run("ls /proc | grep -c '^[0-9]'; cat /proc/1/comm; kill -0 " + str(os.getpid()) + " && echo found")
    number, comm, *more = said.splitlines()
    assert int(number) < 6
    assert comm == "bwrap"
    assert "found" not in more


# The network


CONNECT = """
import socket, sys
for address in {addresses!r}:
    s = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(address)
        print("reached", address)
    except OSError:
        pass
"""


def listening(*addresses) -> list[socket.socket]:
    servers = []
    for address in addresses:
        server = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
        server.bind(address)
        server.listen()
        servers.append(server)
        if isinstance(address, str) and address.startswith("/"):
            os.chmod(address, 0o777)
    return servers


def test_no_service_of_this_machine_can_be_reached(here: Place):
    """Not by TCP, not by an abstract name, and not by a path: under /run, at home, or in the workspace itself."""
    (here.home / ".docker" / "run").mkdir(parents=True)
    paths = [f"{here.root}/s", f"{here.home}/s", f"{here.home}/.docker/run/docker.sock", f"{here.workspace}/s"]
    abstract = f"\0endstate-test-{os.getpid()}-{here.who}"
    if os.geteuid() == 0:
        paths.append(f"/run/endstate-test-{os.getpid()}-{here.who}.sock")
    servers = listening(("127.0.0.1", 0), abstract, *paths)
    addresses = [servers[0].getsockname(), abstract, *paths]

    code, said = here.run(python(CONNECT.format(addresses=addresses)))
    for server in servers:
        server.close()
    if os.geteuid() == 0:
        os.unlink(paths[-1])

    assert (code, said) == (0, "")


def test_with_network_on_a_port_of_this_machine_is_reached_and_a_path_still_is_not(here: Place):
    servers = listening(("127.0.0.1", 0), f"{here.home}/s")
    addresses = [servers[0].getsockname(), f"{here.home}/s"]

    _, said = here.networked().run(python(CONNECT.format(addresses=addresses)))
    for server in servers:
        server.close()

    assert said.splitlines() == [f"reached {addresses[0]}"]


def test_names_can_be_looked_up_with_network_on(one: Place):
    """Also where resolv.conf is a link to a place below /run, which calls do not see."""
    expected = Path("/etc/resolv.conf").read_text() if Path("/etc/resolv.conf").exists() else ""
    _, said = one.networked().run("cat /etc/resolv.conf 2>/dev/null; true")
    assert said == expected


def test_a_socket_with_a_relative_name_is_found_where_its_owner_works(one: Place):
    script = (
        "import os, socket, sys; os.chdir(sys.argv[1]); s = socket.socket(socket.AF_UNIX); s.bind('rel'); s.listen(); "
    )
    script += "os.chmod('rel', 0o777); print('ready', flush=True); sys.stdin.read()"
    one.owned()
    with one.in_process(f"import sys; sys.argv.append({str(one.home)!r}); {script}") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert one.run(python(CONNECT.format(addresses=[f"{one.home}/rel"]))) == (0, "")


# What ends, and when


def test_a_background_process_is_gone_after_the_call(here: Place, seconds: str):
    code, said = here.run(f"(setsid nohup sleep {seconds} >/dev/null 2>&1 &) ; sleep {seconds} & disown; echo hi")
    assert (code, said) == (0, "hi\n")
    assert running(seconds) == []
    assert CallLock.of(here.state_dir).is_free()


def test_a_call_that_takes_too_long_is_ended_with_all_that_it_started(here: Place, seconds: str):
    finished = here.call(["/bin/bash", "-c", f"trap '' TERM; setsid sleep {seconds} & sleep {seconds}"], timeout_s=1)
    assert finished.timed_out
    assert running(seconds) == []
    assert CallLock.of(here.state_dir).is_free()


def test_everything_ends_when_who_started_the_call_is_killed(here: Place, seconds: str):
    script = f"""
import pickle, sys
sys.path.insert(0, {str(SOURCE)!r})
sandbox = pickle.load(sys.stdin.buffer)
command = "setsid sleep {seconds} & sleep {seconds}"
sandbox.run(["/bin/bash", "-c", command], env={{}}, moment=0, timeout_s=600, tag="{seconds}/1/1")
"""
    sandbox = here.sandbox
    here.owned()
    with here.in_process(script) as process:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(sandbox))
        process.stdin.close()
        process.stdin = None
        wait_until(lambda: len(running(seconds)) >= 2)
        assert not CallLock.of(here.state_dir).is_free()
        process.kill()
        process.wait()

    assert CallLock.of(here.state_dir).is_free(timeout_s=30)
    # The first process of the namespace lets go of its files just before the kernel kills the others.
    wait_until(lambda: running(seconds) == [])


def test_a_call_from_a_thread_that_ends_with_it_is_a_call_like_any_other(one: Place):
    answers: list[tuple[int | None, str]] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: answers.append(one.run("sleep 0.1; echo hi")))
        thread.start()
        thread.join()
    assert answers == [(0, "hi\n")] * 3


def test_a_sandbox_that_outlives_us_holds_the_call_lock_until_it_ends(one: Place, seconds: str):
    lock = CallLock.of(one.state_dir)
    with lock.held() as descriptor:
        orphan = subprocess.Popen(
            [
                *(str(one.sandbox.program), "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--dev", "/dev"),
                *("--sync-fd", str(descriptor), "/bin/sleep", seconds),
            ],
            pass_fds=[descriptor],
        )
    wait_until(lambda: running(seconds))

    assert not lock.is_free(timeout_s=0.1)
    end(seconds)
    orphan.wait()
    assert lock.is_free(timeout_s=30)


@pytest.mark.parametrize("what", ["pipe", "directory", "link"])
def test_what_stands_in_the_place_of_the_call_lock_is_refused_at_once(tmp_path, what):
    lock = CallLock.of(tmp_path)
    link = tmp_path / "elsewhere"
    {"pipe": os.mkfifo, "directory": os.mkdir, "link": lambda path: os.symlink(link, path)}[what](lock.path)
    with pytest.raises(StateError, match="call-lock is not a regular file"):
        lock.is_free()
    assert not link.exists()


def test_no_call_starts_while_another_one_s_sandbox_lives(one: Place, monkeypatch):
    if one.who == "ordinary" and os.geteuid() == 0:
        with place("owner") as other, CallLock.of(other.state_dir).held():
            monkeypatch.setattr("endstate_action.system.sandbox.LOCK_PATIENCE_S", 0.1)
            with pytest.raises(NotStarted, match="has not ended yet"):
                other.run("touch it")
            assert not (other.workspace / "it").exists()
        return
    with CallLock.of(one.state_dir).held():
        monkeypatch.setattr("endstate_action.system.sandbox.LOCK_PATIENCE_S", 0.1)
        with pytest.raises(NotStarted, match="has not ended yet"):
            one.run("touch it")
    assert not (one.workspace / "it").exists()


def test_a_sandbox_that_cannot_be_set_up_runs_nothing_and_says_so(here: Place):
    sandbox = here.sandbox
    shutil.rmtree(here.workspace)
    with pytest.raises(NotStarted):
        sandbox.run(["/bin/true"], env={}, moment=0, timeout_s=60, tag=f"{here.root.name}/1/1")


def test_a_wall_that_is_gone_is_no_failing_command(here: Place):
    """What bubblewrap says when it fails must not pass for the output of a command that failed."""
    sandbox = here.sandbox
    here.workspace.rename(here.root / "moved")
    here.workspace.mkdir()
    here.state_dir.mkdir()
    here.owned()
    for path in (here.workspace, here.state_dir):
        path.chmod(0o700)
    if os.geteuid() == 0 and here.who == "owner":
        os.chown(here.workspace, 0, 0)  # now the calls' user cannot come there
        with pytest.raises(NotStarted, match="could not be set up: bwrap"):
            sandbox.run(["/bin/true"], env={}, moment=0, timeout_s=60, tag=f"{here.root.name}/1/1")


# What a call sees


def test_home_can_be_read_and_credentials_in_it_are_empty(here: Place):
    files = {
        ".ssh/id_ed25519": "k", ".aws/credentials": "k", ".config/gcloud/token": "k", ".docker/config.json": "k",
        ".netrc": "k", ".npmrc": "k", ".pypirc": "k", ".git-credentials": "k", ".config/gh/hosts.yml": "k",
        ".kube/config": "k", ".gnupg/key": "k", ".azure/token": "k", ".cargo/credentials.toml": "k",
        ".m2/settings.xml": "k", ".gem/credentials": "k", ".terraform.d/credentials.tfrc.json": "k",
        ".anthropic/key": "k", ".claude/.credentials.json": "k", "actions-runner/.credentials": "k",
    }  # fmt: skip
    kept = {".cargo/bin/tool": "t", ".m2/repository/a.jar": "t", ".cache/pip/wheel": "t", "go/pkg/mod/m": "t"}
    for name, content in {**files, **kept}.items():
        (here.home / name).parent.mkdir(parents=True, exist_ok=True)
        (here.home / name).write_text(content)
    (here.home / ".vault-token").symlink_to(here.home / ".netrc")

    _, said = here.run(f"cd ~ && cat {' '.join(files)} .vault-token 2>/dev/null; echo; cat {' '.join(kept)}")

    assert said == "{}\n<settings/>\n\ntttt"


def test_credentials_that_a_variable_names_are_empty_unless_the_call_is_to_see_them(here: Place):
    """Some steps leave them in the workspace itself."""
    named = {
        "GOOGLE_APPLICATION_CREDENTIALS": here.workspace / "gha-creds.json",
        "KUBECONFIG": here.home / "k8s",
        "MY_SERVICE_KEY_FILE": here.home / "service.pem",
    }
    moved = {"CARGO_HOME": here.home / "cargo", "XDG_CONFIG_HOME": here.home / "conf"}
    files = [*named.values(), here.home / "cargo" / "credentials.toml", here.home / "conf" / "gh" / "hosts.yml"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("k")
    here.env.update({name: str(path) for name, path in {**named, **moved}.items()})

    assert here.run(f"cat {' '.join(map(str, files))} 2>/dev/null")[1] == "{}\n"
    _, said = here.run('cat "$MY_SERVICE_KEY_FILE"', MY_SERVICE_KEY_FILE=str(named["MY_SERVICE_KEY_FILE"]))
    assert said == "k"
    assert all(file.read_text() == "k" for file in files)


def test_the_directory_of_a_self_hosted_runner_shows_no_credentials(here: Place):
    """The workspace lies inside it."""
    (here.root / ".credentials").write_text("k")
    (here.root / ".credentials").chmod(0o644)
    assert here.run("cat ../.credentials") == (0, "")


def test_the_runner_s_temporary_files_are_not_seen_but_a_toolchain_there_is(here: Place):
    temp = here.root / "_temp"
    for name in ("_runner_file_commands/set_env", "venv/bin/tool", "venv/lib/x"):
        (temp / name).parent.mkdir(parents=True, exist_ok=True)
        (temp / name).write_text("#!/bin/sh\necho tool\n")
        (temp / name).chmod(0o755)
    here.env["RUNNER_TEMP"] = str(temp)

    _, said = here.run(
        f"ls -A {temp}; echo LD_PRELOAD=x >> {temp}/_runner_file_commands/set_env; tool; ls {temp}/venv",
        PATH=f"{temp}/venv/bin:{os.environ['PATH']}",
    )

    assert [line for line in said.splitlines() if "No such file" not in line] == ["venv", "tool", "bin", "lib"]
    assert (temp / "_runner_file_commands" / "set_env").read_text() == "#!/bin/sh\necho tool\n"


def test_temporary_files_are_the_call_s_own_and_gone_after_it(here: Place):
    name = f"endstate-test-{os.getpid()}"
    command = f"ls -A /tmp /run /var/tmp | grep -c {name}; "
    command += f'for d in "$TMPDIR" /tmp /run /var/tmp /dev/shm; do touch "$d"/{name}; done'
    for _ in range(2):
        assert here.run(command) == (0, "0\n")
    assert not Path("/tmp", name).exists()


def test_what_must_be_written_outside_the_workspace_has_an_empty_place(here: Place):
    (here.home / ".cache" / "ms-playwright").mkdir(parents=True)
    code, said = here.run(
        'for d in "$XDG_CACHE_HOME" "$npm_config_cache" "$PIP_CACHE_DIR" "$GOCACHE"; do '
        'mkdir -p "$d" && ls -A "$d" && touch "$d"/x || exit 1; done; '
        'echo "$PLAYWRIGHT_BROWSERS_PATH" "$HOME" "$GOROOT"',
        GOROOT="/opt/go",
        npm_config_cache=str(here.home / ".npm"),
    )
    assert (code, said) == (0, f"{here.home}/.cache/ms-playwright {here.home} /opt/go\n")
    assert list((here.home / ".cache").iterdir()) == [here.home / ".cache" / "ms-playwright"]


def test_a_repeated_call_makes_commits_with_the_same_ids(one: Place):
    """Git believes to be at the call's recorded start."""
    heads = []
    for _ in range(2):
        code, said = one.run("echo a > a; git add a && git commit -qm a && git rev-parse HEAD", moment=1_700_000_000.7)
        assert code == 0, said
        heads.append(said)
        shutil.rmtree(one.workspace / ".git")
        git(one.workspace, "init", "--quiet", "--initial-branch=main")
        time.sleep(1.1)
    assert heads[0] == heads[1]


def test_git_works_as_it_does_outside(here: Place):
    (here.workspace / ".gitignore").write_text(".endstate\n")
    code, said = here.run(
        "set -e; git add -A; git commit -qm one; git checkout -qb topic; echo t > t; git add t; git commit -qm two; "
        "git checkout -q main; echo m > m; git add m; git commit -qm three; git merge -q --no-edit topic; "
        "git stash list; git clean -fdq; git worktree add -q /tmp/other topic; git status --short; git log --format=%s"
    )
    assert (code, said.splitlines()[1:]) == (0, ["three", "two", "one"]), said
    assert git(here.workspace, "ls-files").splitlines() == [".gitignore", "m", "t"]
    assert (here.workspace / "t").stat().st_uid == here.workspace.stat().st_uid


def test_a_linked_work_tree_can_be_read_and_its_git_file_not_swapped(one: Place):
    main = one.root / "main"
    git(one.root, "init", "--quiet", "main")
    git(main, "commit", "--quiet", "--allow-empty", "--message=a")
    with (main / ".git" / "config").open("a") as file:
        file.write(f'[http "https://h/"]\n\textraheader = {TOKEN}\n')
    shutil.rmtree(one.workspace / ".git")
    shutil.rmtree(one.workspace)
    git(main, "worktree", "add", "--quiet", str(one.workspace))
    (one.state_dir / "tmp").mkdir(parents=True)

    _, said = one.run(f"git -c safe.directory='*' log --format=%s; echo x > .git; mv .git g; cat {main}/.git/config")

    assert said.splitlines()[0] == "a"
    assert TOKEN not in said
    assert (one.workspace / ".git").read_text().startswith("gitdir:")


def test_the_exit_code_comes_through(here: Place):
    assert here.run("exit 7")[0] == 7
    assert here.run("kill -KILL $$")[0] == 128 + signal.SIGKILL
    assert here.run("read x; echo $?") == (0, "1\n")


def test_a_program_that_is_not_there_is_an_error_of_the_start(here: Place, tmp_path: Path):
    with pytest.raises(NotStarted, match="No such file"):
        here.call([str(tmp_path / "no-program")])


def test_output_of_a_call_is_bounded_as_elsewhere(one: Place):
    finished = one.call(["/bin/bash", "-c", "seq 1 200000"])
    assert decode(finished.output).left_out_bytes > 0


@pytest.mark.parametrize("hide", [False, True], ids=["plain", "hardened"])
def test_a_hardened_process_can_start_calls(hide, one: Place):
    script = f"""
import pickle, sys
sys.path.insert(0, {str(SOURCE)!r})
from endstate_action.system.process import harden
{"harden()" if hide else ""}
sandbox = pickle.load(sys.stdin.buffer)
print(sandbox.run(["/bin/echo", "hi"], env={{}}, moment=0, timeout_s=60, tag="{one.root.name}/1/1").exit_code)
"""
    sandbox = one.sandbox
    one.owned()
    with one.in_process(script) as process:
        said, _ = process.communicate(pickle.dumps(sandbox))
    assert said == b"0\n"


# Ordinary test suites, offline


def program(name: str, here: Place) -> None:
    if here.run(f"command -v {name}")[0] != 0:
        pytest.skip(f"{name} is not installed for that user")


def test_a_python_project_s_tests_run(here: Place):
    (here.workspace / "shop.py").write_text("def total(prices):\n    return sum(prices)\n")
    (here.workspace / "test_shop.py").write_text(
        "import http.server, tempfile, threading, unittest, urllib.request\nfrom shop import total\n"
        "class T(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
        "    def test_server(self):\n"
        "        s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "        threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "        self.assertEqual(urllib.request.urlopen(f'http://127.0.0.1:{s.server_port}/shop.py').status, 200)\n"
        "        s.shutdown(); s.server_close()\n"
        "    def test_temporary(self):\n        tempfile.TemporaryDirectory().cleanup()\n"
    )
    code, said = here.run(f"{shlex.quote(interpreter())} -m unittest -q")
    assert (code, "Ran 3 tests" in said) == (0, True), said
    assert (here.workspace / "__pycache__").is_dir()


def test_a_node_project_s_tests_run(here: Place):
    program("node", here)
    (here.workspace / "package.json").write_text('{"name": "x", "scripts": {"test": "node --test"}}')
    (here.workspace / "a.test.js").write_text(
        "const test = require('node:test'); const assert = require('node:assert');\n"
        "test('adds', () => assert.strictEqual(1 + 1, 2));\n"
    )
    code, said = here.run("node --test")
    assert (code, "pass 1" in said) == (0, True), said
    program("npm", here)
    code, said = here.run("npm test")
    assert (code, "pass 1" in said) == (0, True), said


def test_a_make_file_s_tests_run(here: Place):
    program("make", here)
    (here.workspace / "Makefile").write_text("test: a.out\n\t./a.out\n\na.out: a.c\n\t$(CC) a.c\n")
    (here.workspace / "a.c").write_text('#include <stdio.h>\nint main(void) { puts("passed"); return 0; }\n')
    program("cc", here)
    code, said = here.run("make test")
    assert (code, said.splitlines()[-1]) == (0, "passed"), said
