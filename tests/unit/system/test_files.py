"""File access ends at the workspace's edge, and a file is old or new, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.effects import digest
from endstate_action.messages import scrub
from endstate_action.system.files import ABSENT, PathMissing, PathRefused, Workspace, atomic_write
from endstate_action.system.mounts import filesystem_type, free_bytes, is_network_filesystem
from endstate_action.system.names import display, parse

OLD = b"#!/bin/sh\necho old\n" * 1000
NEW_BYTES = 50_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / ".endstate" / "tmp").mkdir(parents=True)
    return made


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root, staging=root / ".endstate" / "tmp")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory next to the workspace that nothing may touch."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "victim").write_bytes(b"untouched")
    return made


def content(root: Path) -> dict[str, bytes]:
    """Every file below `root` that is not in the state directory."""
    files = (path for path in root.rglob("*") if path.is_file() and ".endstate" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


# --- names


@given(st.binary(max_size=40))
def test_every_name_has_a_printable_form_that_leads_back_to_it(name: bytes) -> None:
    shown = display(name)
    assert shown.isprintable()
    assert scrub(shown) == shown
    assert parse(shown) == name


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_two_names_never_look_the_same(one: bytes, other: bytes) -> None:
    assert (display(one) == display(other)) == (one == other)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"caf\xe9.txt", r"caf\xe9.txt"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"two\nlines", r"two\x0alines"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}txt.exe".encode(), r"\xe2\x80\xaetxt.exe"),
        ("grüße 日本.txt".encode(), "grüße 日本.txt"),
        (rb"a\b", r"a\b"),
        (rb"a\xe9", r"a\x5cxe9"),
        (b"-n", "-n"),
    ],
)
def test_names_are_shown_escaped_where_they_do_not_print(name: bytes, shown: str) -> None:
    assert display(name) == shown


@pytest.mark.parametrize("spelling", [r"\x2egit", r".github\x2fworkflows/x.yml", r"gr\xc3\xbc\xc3\x9fe", r"\x41"])
def test_a_printable_name_has_no_escaped_spelling(workspace: Workspace, root: Path, spelling: str) -> None:
    """So that no rule about paths can be avoided by one: it is refused, or it is a name with a backslash."""
    with contextlib.suppress(PathRefused):
        workspace.write(spelling, b"x")
        assert "\\" in workspace.relative(spelling)
    assert all("\\" in name for name in content(root))


# --- paths


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("a/b.txt", "a/b.txt"),
        ("./a//b.txt/", "a/b.txt"),
        ("a/../b", "b"),
        (".", "."),
        ("a/..", "."),
        (r"C:\temp\x", r"C:\temp\x"),
        ("./~notes", "~notes"),
        (" ", " "),
        ("...", "..."),
        (".gitignore", ".gitignore"),
        (".github/x", ".github/x"),
        ("sub/.endstate", "sub/.endstate"),
    ],
)
def test_a_path_has_one_spelling_from_the_root(workspace: Workspace, path: str, relative: str) -> None:
    assert workspace.relative(path) in (relative, relative.removeprefix("./"))


def test_an_absolute_path_below_the_root_is_taken_as_relative(workspace: Workspace, root: Path) -> None:
    assert workspace.relative(f"{root}/a/b") == "a/b"
    assert workspace.relative(str(root)) == "."


def test_the_root_may_be_reached_by_a_link_of_the_user(tmp_path: Path, root: Path) -> None:
    (tmp_path / "short").symlink_to(root)
    workspace = Workspace(tmp_path / "short")
    workspace.write(f"{tmp_path}/short/x", b"1")
    assert workspace.relative(f"{root}/x") == workspace.relative(f"{tmp_path}/short/x") == "x"
    assert (root / "x").read_bytes() == b"1"


@pytest.mark.parametrize(
    "path",
    [
        "", "..", "../x", "a/../../x", "/", "/etc/passwd", "/proc/self/environ", "~", "~/x", "~root/x", "a\0b",
        "\ud83d", "x" * 256, "d/" * 2100, "ü" * 128,
        ".git", ".git/config", ".GIT/config", "a/b/.Git/hooks/x", ".g\N{ZERO WIDTH JOINER}it/config",
        ".endstate", ".endstate/session.db", ".EndState/x", "a/../.endstate/x",
    ],
)  # fmt: skip
def test_a_path_that_is_not_for_tools_is_refused(workspace: Workspace, root: Path, path: str) -> None:
    before = content(root)
    for use in (workspace.relative, workspace.stat, workspace.open, workspace.digest):
        with pytest.raises(PathRefused) as refused:
            use(path)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 500
    with pytest.raises(PathRefused):
        workspace.write(path, b"x")
    assert workspace.digest_or_none(path) is None
    assert content(root) == before


def test_a_sibling_whose_name_begins_like_the_root_is_outside(workspace: Workspace, root: Path) -> None:
    with pytest.raises(PathRefused, match="outside"):
        workspace.relative(f"{root}-other/x")


@pytest.mark.parametrize("spelling", ["state/dir", "./state/dir/", "{root}/state/dir", "x/../state//dir"])
def test_the_state_directory_is_hidden_however_it_was_named(root: Path, spelling: str) -> None:
    (root / "state" / "dir").mkdir(parents=True)
    workspace = Workspace(root, hidden=(spelling.format(root=root), "../elsewhere", "/elsewhere"))
    with pytest.raises(PathRefused, match="closed to file tools"):
        workspace.relative("state/dir/session.db")
    assert [entry.path for entry in workspace.walk()] == [".endstate", ".endstate/tmp", "state"]


# --- links and other odd things


@pytest.mark.parametrize("path", ["notes.md", "d/victim", "d/new", "new.txt", "inside", "deep/inside/x"])
def test_links_are_neither_followed_nor_replaced(workspace: Workspace, root: Path, outside: Path, path: str) -> None:
    (root / "real.md").write_bytes(b"real")
    (root / "deep").mkdir()
    links = {"notes.md": outside / "victim", "d": outside, "new.txt": outside / "nowhere", "inside": Path("real.md")}
    links["deep/inside"] = Path("..")
    for name, target in links.items():
        (root / name).symlink_to(target)
    with pytest.raises(PathRefused, match="is a link to"):
        workspace.write(path, b"evil")
    for use in (workspace.open, workspace.digest, lambda p: workspace.read(p, 10)):
        with pytest.raises(PathRefused, match="is a link to"):
            use(path)
    assert content(outside) == {"victim": b"untouched"}
    assert (root / "real.md").read_bytes() == b"real"
    assert all(os.readlink(root / name) == str(target) for name, target in links.items())


def test_a_refused_link_names_its_target(workspace: Workspace, root: Path) -> None:
    (root / "a.md").symlink_to("docs/real.md")
    with pytest.raises(PathRefused, match=r"a\.md is a link to docs/real\.md"):
        workspace.open("a.md")


@pytest.mark.skipif(sys.platform != "linux", reason="swaps two names in one step")
def test_a_link_swapped_in_by_another_process_leads_nowhere(workspace: Workspace, root: Path, outside: Path) -> None:
    """However the swap and the write interleave, the file outside stays as it is."""
    (root / "d").mkdir()
    (root / "link").symlink_to(outside)
    exchange, here, two_names = ctypes.CDLL(None).renameat2, -100, 2
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(here, os.fsencode(root / "d"), here, os.fsencode(root / "link"), two_names)

    other = threading.Thread(target=swap)
    other.start()
    try:
        for n in range(200):
            with contextlib.suppress(PathRefused):
                workspace.write("d/victim", b"evil %d" % n)
            with contextlib.suppress(PathRefused):
                assert workspace.read("d/victim", 100) != b"untouched"
    finally:
        stop.set()
        other.join()
    assert content(outside) == {"victim": b"untouched"}


@pytest.mark.parametrize("by", ["link", "directory"])
def test_another_directory_in_the_place_of_the_root_is_not_used(
    workspace: Workspace, root: Path, outside: Path, by: str
) -> None:
    root.rename(root.with_name("moved"))
    if by == "link":
        root.symlink_to(outside)
    else:
        root.mkdir()
    with pytest.raises(PathRefused):
        workspace.write("victim", b"evil")
    assert content(outside) == {"victim": b"untouched"}
    assert by == "link" or content(root) == {}


def test_writing_gives_a_hard_link_a_file_of_its_own(workspace: Workspace, root: Path, outside: Path) -> None:
    os.link(outside / "victim", root / "same")
    workspace.write("same", b"new")
    assert content(root) == {"same": b"new"}
    assert content(outside) == {"victim": b"untouched"}


def test_a_fifo_is_refused_and_nobody_waits_for_it(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for use in (workspace.open, workspace.digest, lambda path: workspace.write(path, b"x")):
        with pytest.raises(PathRefused, match="fifo"):
            use("pipe")
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)


def test_a_directory_is_no_file(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    (root / "f").write_bytes(b"")
    for path in ("d", "."):
        with pytest.raises(PathRefused, match="directory"):
            workspace.write(path, b"x")
    with pytest.raises(PathRefused, match="f is not a directory"):
        workspace.write("f/x", b"x")
    assert content(root) == {"f": b""}


SPOTS = [
    "",
    ".",
    "..",
    "a",
    "d",
    "out",
    "in",
    "victim",
    "secret",
    "~",
    ".git",
    ".endstate",
    "new",
    "é",
    "\N{KELVIN SIGN}",
]


@given(
    parts=st.lists(st.sampled_from(SPOTS) | st.text(max_size=4), max_size=6),
    start=st.sampled_from(["", "/", "//", "{root}/", "{outside}/", "{root}/../"]),
)
@settings(max_examples=150)
def test_no_path_leads_out_of_the_workspace(parts: list[str], start: str) -> None:
    """Files outside, in .git and in the state directory are neither read nor written, whatever the path."""
    with tempfile.TemporaryDirectory() as place:
        root, outside = Path(place, "workspace"), Path(place, "outside")
        for directory in (root / ".git", root / ".endstate", root / "d", outside / "d"):
            directory.mkdir(parents=True)
        kept = [outside / "victim", outside / "d" / "secret", root / ".git" / "victim", root / ".endstate" / "victim"]
        for one in kept:
            one.write_bytes(b"secret")
        for name, target in {"out": outside, "in": Path("d"), "victim": outside / "victim"}.items():
            (root / name).symlink_to(target)
        workspace = Workspace(root)
        path = start.format(root=root, outside=outside) + "/".join(parts)
        with contextlib.suppress(PathRefused):
            assert workspace.read(path, 100) != b"secret"
        with contextlib.suppress(PathRefused):
            workspace.write(path, b"written")
            assert (root / os.fsdecode(parse(workspace.relative(path)))).resolve().is_relative_to(root.resolve())
        assert [one.read_bytes() for one in kept] == [b"secret"] * 4
        assert {one.name for one in outside.rglob("*")} == {"victim", "d", "secret"}
        assert sorted(one.name for one in Path(place).iterdir()) == ["outside", "workspace"]
        assert all((root / name).is_symlink() for name in ("out", "in", "victim"))


# --- reading


def test_the_digest_is_the_one_of_the_bytes(workspace: Workspace, root: Path) -> None:
    data = os.urandom(3_000_000)
    (root / "x").write_bytes(data)
    assert workspace.digest("x") == workspace.digest_or_none("x") == digest(data)
    assert workspace.digest("missing") == workspace.digest("no/where") == ABSENT


def test_what_is_missing_is_told_apart_from_what_is_refused(workspace: Workspace) -> None:
    with pytest.raises(PathMissing, match="does not exist"):
        workspace.open("a/b")
    assert workspace.stat("a/b") is None


def test_more_than_asked_for_is_not_read(workspace: Workspace, root: Path) -> None:
    (root / "x").write_bytes(b"12345")
    assert workspace.read("x", 5) == b"12345"
    with pytest.raises(PathRefused, match="larger than 4 bytes"):
        workspace.read("x", 4)


def test_a_name_that_is_not_utf8_can_be_used_as_it_is_shown(workspace: Workspace, root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.txt")).write_bytes(b"old")
    (shown,) = [entry.path for entry in workspace.walk()]
    workspace.write(shown, b"new")
    assert workspace.read(shown, 10) == b"new"
    assert os.listdir(os.fsencode(root)) in ([b"caf\xe9.txt", b".endstate"], [b".endstate", b"caf\xe9.txt"])


# --- writing


def test_a_write_makes_the_directories_that_are_missing(workspace: Workspace, root: Path) -> None:
    workspace.write("a/b/c.txt", b"1")
    assert content(root) == {"a/b/c.txt": b"1"}
    assert list((root / ".endstate" / "tmp").iterdir()) == []


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o755), (0o600, 0o600), (0o444, 0o444), (0o6755, 0o755)])
def test_a_write_keeps_the_permissions(workspace: Workspace, root: Path, before: int, after: int) -> None:
    (root / "x").write_bytes(b"old")
    (root / "x").chmod(before)
    workspace.write("x", b"new")
    assert stat.S_IMODE((root / "x").stat().st_mode) == after


def test_a_new_file_gets_the_permissions_that_the_user_wants(workspace: Workspace, root: Path) -> None:
    mask = os.umask(0o027)
    try:
        workspace.write("x", b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((root / "x").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_write_keeps_the_owner(workspace: Workspace, root: Path) -> None:
    (root / "x").write_bytes(b"old")
    os.chown(root / "x", 12345, 23456)
    workspace.write("x", b"new")
    assert ((root / "x").stat().st_uid, (root / "x").stat().st_gid) == (12345, 23456)


def test_without_its_private_directory_a_write_still_works(root: Path) -> None:
    workspace = Workspace(root, staging=root / ".endstate" / "tmp")
    shutil.rmtree(root / ".endstate")
    workspace.write("x", b"1")
    assert content(root) == {"x": b"1"}


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a second mount")
def test_a_private_directory_on_another_mount_is_passed_by(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        (root / "x").write_bytes(b"old")
        (root / "x").chmod(0o755)
        Workspace(root, staging=Path(elsewhere)).write("x", b"new")
        assert os.listdir(elsewhere) == []
    assert content(root) == {"x": b"new"}
    assert stat.S_IMODE((root / "x").stat().st_mode) == 0o755


WRITER = """
import sys
from pathlib import Path
from endstate_action.system.files import Workspace
root, size, staged = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "staged"
workspace = Workspace(root, staging=root / ".endstate" / "tmp" if staged else None)
data = b"n" * size
print("ready", flush=True)
while True:
    workspace.write("tool.sh", data)
"""


def killed_while_writing(root: Path, *, after_s: float, staged: str) -> None:
    command = [sys.executable, "-c", WRITER, str(root), str(NEW_BYTES), staged]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_write_leaves_the_old_or_the_new_file(root: Path, seed: int) -> None:
    (root / "tool.sh").write_bytes(OLD)
    (root / "tool.sh").chmod(0o755)
    killed_while_writing(root, after_s=random.Random(seed).uniform(0, 0.12), staged="staged")
    assert list(content(root)) == ["tool.sh"]
    found = (root / "tool.sh").read_bytes()
    assert found == OLD or found == b"n" * NEW_BYTES
    assert stat.S_IMODE((root / "tool.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize(("killed", "next_one"), [("staged", "staged"), ("beside", "beside"), ("beside", "staged")])
def test_what_a_killed_write_left_behind_is_gone_after_the_next(root: Path, killed: str, next_one: str) -> None:
    private = root / ".endstate" / "tmp"
    (root / "tool.sh").write_bytes(OLD)
    for _ in range(50):
        killed_while_writing(root, after_s=0.01, staged=killed)
        if list(private.iterdir()) or len(content(root)) > 1:
            break
    else:
        pytest.fail("no kill came in the middle of a write")
    Workspace(root, staging=private if next_one == "staged" else None).write("tool.sh", b"next")
    assert content(root) == {"tool.sh": b"next"}
    assert list(private.iterdir()) == []


def test_a_write_that_the_disk_refuses_changes_nothing(root: Path) -> None:
    """A file size limit stands for the full disk: the write breaks off in the middle."""
    (root / "x").write_bytes(b"old")
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from endstate_action.system.files import PathRefused, Workspace\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: Workspace(Path(sys.argv[1])).write('x', b'n' * 1_000_000)\n"
        "except PathRefused as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, check=True).stdout
    assert said == "x could not be written: File too large.\n"
    assert content(root) == {"x": b"old"}


def test_a_file_of_our_own_is_replaced_whole(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "state").symlink_to(outside / "victim")
    atomic_write(tmp_path / "state", b"one")
    atomic_write(tmp_path / "state", b"two", 0o644)
    assert (tmp_path / "state").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "state").lstat().st_mode) == 0o644
    assert sorted(os.listdir(tmp_path)) == ["outside", "state"]
    assert content(outside) == {"victim": b"untouched"}


def test_a_file_of_our_own_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(OSError, match="directory"):
        atomic_write(tmp_path / "state", b"one")
    assert os.listdir(tmp_path) == ["state"]


# --- walking


def walked(workspace: Workspace) -> Iterator[tuple[str, str]]:
    return ((entry.path, entry.kind) for entry in workspace.walk())


def test_a_walk_shows_everything_but_what_is_hidden(workspace: Workspace, root: Path, outside: Path) -> None:
    for path in (".git/config", "b/.git/config", "b/x", ".endstate/db", "a-c", "a/z", ".hidden"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "pipe")
    assert list(walked(workspace)) == [
        (".hidden", "file"),
        ("a", "directory"),
        ("a/z", "file"),
        ("a-c", "file"),
        ("b", "directory"),
        ("b/x", "file"),
        ("link", "link"),
        ("loop", "link"),
        ("pipe", "other"),
    ]


def test_a_walk_reaches_what_is_deeper_than_a_path_may_be_long(workspace: Workspace, root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("directory-of-20-bytes", dir_fd=here)
        inner = os.open("directory-of-20-bytes", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert sum(1 for _ in workspace.walk()) == 300
    finally:
        shutil.rmtree(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every directory")
def test_a_walk_names_a_directory_that_it_cannot_list(workspace: Workspace, root: Path) -> None:
    (root / "closed").mkdir(mode=0)
    assert list(walked(workspace)) == [("closed", "unreadable")]


# --- file systems

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
23 21 0:40 / /mnt rw shared:7 master:1 - ext4 /dev/sdb1 rw
24 23 0:41 / /mnt/with\040space rw - nfs4 server:/export rw
25 23 0:42 / /mnt rw - xfs /dev/sdc1 rw
26 21 0:43 / /data rw - fuse.sshfs host: rw
damaged line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/usr/lib", "ext4"),
        ("/mnt/x", "xfs"),
        ("/mnt/with space/deep", "nfs4"),
        ("/data", "fuse.sshfs"),
        ("/database", "ext4"),
    ],
)
def test_the_longest_and_latest_mount_tells_the_file_system(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_a_file_system_nobody_knows_is_unknown(tmp_path: Path) -> None:
    assert filesystem_type(tmp_path, "") == ""
    assert filesystem_type(tmp_path) or not Path("/proc/self/mountinfo").exists()


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("fuse.unheard-of", True), ("9p", True), ("virtiofs", True),
     ("ext4", False), ("overlay", False), ("tmpfs", False), ("fuseblk", False), ("fuse.fuse-overlayfs", False)],
)  # fmt: skip
def test_file_systems_of_other_machines_are_known(kind: str, network: bool) -> None:
    assert is_network_filesystem(kind) is network


def test_free_space_is_counted_in_bytes(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) >= 4096


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can work in somebody else's workspace")
def test_what_is_new_in_somebody_else_s_workspace_is_theirs(tmp_path: Path):
    theirs = tmp_path / "ws"
    theirs.mkdir()
    os.chown(theirs, 1234, 1235)
    Workspace(theirs).write("made/deep/file.txt", b"new")
    for made in (theirs / "made", theirs / "made" / "deep", theirs / "made" / "deep" / "file.txt"):
        assert (made.stat().st_uid, made.stat().st_gid) == (1234, 1235)
