"""A wall that is missing is noticed, whichever it is; then there is no sandbox, and that is said."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.sandbox_git import cleaned, configurations
from endstate_action.system.sandbox_lock import CallLock
from endstate_action.system.sandbox_probe import PROGRAMS, probe
from endstate_action.system.sandbox_sockets import SocketInSight, sockets
from tests.support.own_disk import on_a_disk_of_its_own
from tests.support.sandboxes import SOMEBODY, WAYS, Place, git, interpreter, place


@pytest.fixture(params=WAYS)
def here(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(request.param) as made:
        yield made


@pytest.fixture
def one() -> Iterator[Place]:
    with place("ordinary") as made:
        yield made


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can put a program where the probe trusts it")


# Bubblewrap with options taken out of what it is told, or with others in their place.
WORSE = """\
#!{python} -I
import os, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("bubblewrap {version}")
    sys.exit()
given = open(int(arguments[1]), "rb").read().decode().split("\\0")
{change}
options = os.memfd_create("worse", 0)
os.write(options, "\\0".join(given).encode())
os.lseek(options, 0, 0)
kept = {{name: value for name, value in os.environ.items() if name.startswith("ENDSTATE")}}
os.execve("{program}", ["bwrap", "--args", str(options), *arguments[2:]], kept)
"""


def worse(folder: Path, change: str, version: str = "0.8.0") -> Path:
    program = folder / "bwrap"
    real = next(p for p in PROGRAMS if p.exists())
    program.write_text(WORSE.format(python=interpreter(), version=version, change=change, program=real))
    program.chmod(0o755)
    return program


def without(*words: str) -> str:
    """Changes the options: these words are gone, wherever they stand together."""
    return f"""
w = {list(words)!r}
i = next(i for i in range(len(given)) if given[i:i + len(w)] == w)
del given[i:i + len(w)]
"""


def without_option(option: str, ending: str, *, length: int, place: int = 1, instead: str = "") -> str:
    """Changes the options: the one whose `place`th word ends so, of `length` words, is gone or is another one."""
    return f"""
i = next(i for i, w in enumerate(given) if w == {option!r} and given[i + {place}].endswith({ending!r}))
path = given[i + {place}]
given[i:i + {length}] = [{instead}]
"""


WALLS = {
    "network": (without("--unshare-net"), "net namespace"),
    "processes": (without("--unshare-pid"), "pid namespace"),
    "ipc": (without("--unshare-ipc"), "ipc namespace"),
    "host name": (without("--unshare-uts"), "uts namespace"),
    "further namespaces": (without("--disable-userns"), "further user namespace"),
    "state is seen": (
        without_option("--ro-bind-data", "/.endstate/.gitignore", length=3, place=2)
        + without_option("--tmpfs", "/.endstate", length=2, instead="'--ro-bind', path, path"),
        "state directory can be read",
    ),
    "state is writable": (without_option("--remount-ro", "/.endstate", length=2), "state directory can be written"),
    "git moves": (without_option("--bind", "/.git", length=3), r"\.git can be renamed"),
    "git's configuration": (
        without_option("--ro-bind-data", "/.git/config", length=3, place=2),
        r"\.git/config can be written",
    ),
    "hooks": (without_option("--ro-bind", "/hooks", length=3), "hooks/.* can be written"),
    "sockets": (
        without_option("--ro-bind-data", "/s", length=3, place=2),
        "a socket in the file system can be reached",
    ),
    "workspace": ("given[given.index('--bind')] = '--ro-bind'", "workspace cannot be written"),
}


def test_this_machine_s_sandbox_holds(here: Place):
    found = here.probe()
    assert isinstance(found, Sandbox), found
    assert found.is_boundary is (here.who != "root")
    assert ("no boundary" in found.note) is (here.who == "root")
    assert "no network" in found.note
    assert sorted(os.listdir(here.workspace)) == [".endstate", ".git"]
    assert os.listdir(here.state_dir / "tmp") == []


def test_with_network_it_says_so(one: Place):
    found = one.probe(network=True)
    assert isinstance(found, Sandbox), found
    assert "with network: what a call does outside cannot be undone" in found.note


@needs_root
@pytest.mark.parametrize("wall", WALLS)
def test_without_a_wall_there_is_no_sandbox(wall, one: Place):
    change, said = WALLS[wall]
    found = one.probe(programs=(worse(one.root, change),))
    assert isinstance(found, NoSandbox), wall
    assert "does not hold here" in found.reason
    assert re.search(said, found.reason), found.reason


@needs_root
def test_as_root_there_are_more_walls():
    with place("root") as here:
        found = here.probe(programs=(worse(here.root, without("--ro-bind", "/proc/sys", "/proc/sys")),))
        root = here.probe(programs=(worse(here.root, "given[given.index('--ro-bind')] = '--bind'"),))
        capabilities = here.probe(programs=(worse(here.root, without("--cap-drop", "ALL")),))
    assert isinstance(found, NoSandbox)
    assert "/proc/sys/kernel/core_pattern can be opened for writing" in found.reason
    assert isinstance(root, NoSandbox)
    assert "/usr/local/bin could be written" in root.reason
    assert list(Path("/usr/local/bin").glob("endstate-probe-*")) == []
    assert isinstance(capabilities, NoSandbox)
    assert "there are capabilities" in capabilities.reason


@needs_root
def test_a_program_that_runs_commands_without_any_wall_is_not_believed(one: Place):
    stub = one.root / "bwrap"
    stub.write_text('#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 9.0 && exit\nshift 3\nexec "$@"\n')
    stub.chmod(0o755)
    found = one.probe(programs=(stub,))
    assert isinstance(found, NoSandbox)
    assert "the state directory can be read" in found.reason
    assert (one.workspace / ".git").is_dir()


@needs_root
def test_an_old_bubblewrap_is_refused(one: Place):
    found = one.probe(programs=(worse(one.root, "", version="0.6.1"),))
    assert found == NoSandbox("bubblewrap 0.6.1 is too old; 0.8.0 is needed.")


@needs_root
def test_what_bubblewrap_says_is_passed_on(one: Place):
    stub = one.root / "bwrap"
    stub.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\n'
        'echo "bwrap: setting up uid map: Permission denied"\nexit 1\n'
    )
    stub.chmod(0o755)
    found = one.probe(programs=(stub,))
    assert found == NoSandbox("The sandbox could not be set up: bwrap: setting up uid map: Permission denied")


@needs_root
def test_checks_that_break_are_told_in_one_line(one: Place):
    """Not as the traceback that they end with."""
    found = one.probe(programs=(worse(one.root, "arguments[-1] = '{}'"),))
    assert found == NoSandbox("The sandbox could not be tried: KeyError: 'tag'")


def test_a_workspace_whose_name_is_no_text_has_a_sandbox(one: Place):
    odd = one.root / os.fsdecode(b"wei\xffrd")
    one.owned()
    one.workspace.rename(odd)
    found = probe(odd, odd / ".endstate", one._seen, network=False, tmp=odd / ".endstate" / "tmp")
    assert isinstance(found, Sandbox)


def test_without_bubblewrap_there_is_no_sandbox(one: Place, tmp_path):
    found = one.probe(programs=(Path("/proc/none/bwrap"),))
    assert found == NoSandbox("bubblewrap (the program bwrap) is not installed.")


def test_a_program_that_others_than_root_can_change_is_not_used(one: Place):
    """A workspace, or whoever may write to a directory of PATH, must not bring its own."""
    stub = one.root / "bwrap"
    stub.write_text("#!/bin/sh\necho bubblewrap 9.0\n")
    stub.chmod(0o777)
    found = one.probe(programs=(stub,))
    assert isinstance(found, NoSandbox)
    assert "can be changed by others than root" in found.reason


def test_a_state_directory_that_is_a_link_is_refused(one: Place):
    state = one.workspace / "linked"
    state.symlink_to(".endstate")
    found = probe(one.workspace, state, {"PATH": os.environ["PATH"]}, network=False, tmp=one.root)
    assert isinstance(found, NoSandbox)
    assert "reached by a link" in found.reason


def test_the_fingerprint_is_the_same_wherever_calls_can_do_the_same(here: Place):
    sandbox = here.sandbox
    with place(here.who) as other:
        assert other.sandbox.fingerprint == sandbox.fingerprint
        assert other.networked().sandbox.fingerprint != sandbox.fingerprint
    assert len(sandbox.fingerprint) == 12


@needs_root
def test_the_fingerprint_tells_root_s_calls_from_a_user_s():
    with place("root") as roots, place("owner") as owners, place("ordinary") as ordinary:
        assert owners.sandbox.fingerprint == ordinary.sandbox.fingerprint != roots.sandbox.fingerprint


@needs_root
def test_as_root_calls_get_the_rights_of_the_workspace_s_owner():
    with place("owner") as here:
        assert here.run("id -u; id -G; touch it") == (0, f"{SOMEBODY}\n{SOMEBODY}\n")
        assert (here.workspace / "it").stat().st_uid == SOMEBODY
        assert f"as user {SOMEBODY}" in here.sandbox.note


@needs_root
def test_a_home_that_the_owner_cannot_enter_is_not_given_to_him():
    with place("owner") as here:
        closed = here.root / "closed"
        (closed / "roots").mkdir(parents=True)
        closed.chmod(0o700)
        here.env["HOME"] = str(closed / "roots")
        assert here.run("echo $HOME; touch $HOME/x") == (0, "/tmp\n")


# Sockets


HEAD = b"Num       RefCount Protocol Flags    Type St Inode Path\n"


def row(name: str, flags: str = "00010000", kind: str = "0001", inode: int = 5) -> bytes:
    return f"0000000000000000: 00000002 00000000 {flags} {kind} 01 {inode} {name}\n".encode()


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "a b"
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(path))
    except OSError as error:
        pytest.skip(str(error))
    server.listen()
    yield path
    server.close()


def test_a_socket_that_listens_is_found_in_the_kernel_s_table(bound):
    assert bound in sockets()


def test_only_what_answers_and_is_there_counts(bound, tmp_path):
    table = HEAD + row(str(bound)) + row(str(tmp_path / "gone")) + row("@abstract")
    assert sockets(table, b"") == {bound}
    assert sockets(HEAD + row(str(bound), flags="00000000"), b"") == set()
    assert sockets(HEAD + row(str(bound), flags="00000000", kind="0002"), b"") == {bound}
    assert sockets(HEAD, b"") == set()


def test_a_socket_that_is_mounted_from_elsewhere_is_found(bound):
    """As a container is given the docker socket of its host."""
    mount = f"36 35 98:0 / {str(bound).replace(' ', chr(92) + '040')} rw - ext4 /dev/x rw\n".encode()
    assert sockets(HEAD, mount) == {bound}


def test_a_relative_name_is_followed_to_its_holder(bound, tmp_path):
    process = tmp_path / "proc" / "12"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[77]")
    (process / "cwd").symlink_to(bound.parent)
    assert bound in sockets(HEAD + row("a b", inode=77), b"", tmp_path / "proc")


@pytest.mark.parametrize("name", ["rel", "./rel", "/proc/self/fd/3/rel"])
def test_a_socket_of_which_nobody_can_tell_where_it_is_is_refused(name, tmp_path):
    with pytest.raises(SocketInSight, match="rel"):
        sockets(HEAD + row(name), b"", tmp_path)


def test_a_name_of_several_lines_is_refused(tmp_path):
    with pytest.raises(SocketInSight, match="several lines"):
        sockets(HEAD + row("/a\n/b"), b"", tmp_path)


# Git's configuration


def test_a_configuration_is_cleaned_by_an_allow_list(tmp_path):
    file = tmp_path / "config"
    file.write_text(
        '[core]\n\tbare\n\tsshCommand = evil\n\teditor = "a \\"b\\" \\\\ c"\n'
        '[remote "o.r\\"i"]\n\turl = https://u:p@h/x\n\turl = ssh://git@h/y\n'
        '[http "https://h/"]\n\textraheader = AUTH\n[credential]\n\thelper = store\n'
        '[url "https://t@h/"]\n\tinsteadOf = https://h/\n[unheard]\n\tof = secret\n[include]\n\tpath = /x\n'
        "[commit]\n\tgpgSign = true\n\ttemplate = x\n[extensions]\n\tobjectFormat = sha256\n"
    )
    clean = tmp_path / "clean"
    clean.write_bytes(cleaned(file, {"PATH": os.environ["PATH"]}))
    lines = git(tmp_path, "config", "--file", str(clean), "--list").splitlines()
    assert lines == [
        "core.bare",
        'core.editor=a "b" \\ c',
        'remote.o.r"i.url=https://h/x',
        'remote.o.r"i.url=ssh://h/y',
        "commit.template=x",
        "extensions.objectformat=sha256",
    ]


@pytest.mark.parametrize("content", ["[core\n", "\0\xff", "[a]\n" * 300_000], ids=["broken", "bytes", "huge"])
def test_a_configuration_that_git_cannot_read_is_shown_empty(content, tmp_path):
    file = tmp_path / "config"
    file.write_text(content)
    assert cleaned(file, {"PATH": os.environ["PATH"]}) == b""


def test_without_git_nothing_of_a_configuration_is_shown(tmp_path):
    (tmp_path / "config").write_text("[core]\n\tbare = true\n")
    assert cleaned(tmp_path / "config", {"PATH": "/nonexistent"}) == b""


def test_configurations_are_found_around_and_below_but_not_where_a_link_leads(tmp_path):
    for folder in ("", "work", "work/a", "work/a/b", "work/a/b/c", "elsewhere"):
        git(tmp_path, "init", "--quiet", str(tmp_path / folder))
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "work" / "a" / ".git")
    (tmp_path / "work" / "a" / ".git").write_text("gitdir: nowhere")
    found = configurations(tmp_path / "work", tmp_path / "home")
    inside = [str(p.relative_to(tmp_path)) for p in found if p.is_relative_to(tmp_path)]
    assert inside == [".git/config", "work/.git/config", "work/a/b/.git/config"]


@pytest.mark.skipif(sys.platform == "linux", reason="says what other systems are told")
def test_elsewhere_than_on_linux_there_is_no_sandbox(tmp_path):
    found = probe(tmp_path, tmp_path / "s", {}, network=False, tmp=tmp_path)
    assert isinstance(found, NoSandbox)
    assert "needs Linux" in found.reason


ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from endstate_action.errors import DiskFull
from endstate_action.system.sandbox_probe import probe
work = Path(sys.argv[1])
(work / ".endstate").mkdir()
for number in range(1000):
    try:
        (work / str(number)).touch()
    except OSError:
        break
try:
    print(probe(work, work / ".endstate", dict(os.environ), network=False, tmp=work))
except DiskFull as error:
    print("disk full:", error, error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="in a user namespace, bubblewrap belongs to somebody unknown")
def test_a_full_disk_is_no_machine_without_a_sandbox(tmp_path):
    done = on_a_disk_of_its_own(tmp_path, "nr_inodes=20", ON_A_FULL_DISK, tmp_path)
    assert "disk full: The sandbox could not be tried, since the disk is full" in done.stdout, done.stderr


def test_what_a_dead_attempt_left_running_does_not_hide_the_sandbox(one: Place):
    with CallLock.of(one.state_dir).held():
        assert isinstance(one.probe(), Sandbox)
