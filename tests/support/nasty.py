"""A workspace with one of everything, and what a careless command makes of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.trees import _socket as make_socket
from tests.support.workspaces import swap_in

ODD_NAMES = (
    b"new\nline",
    b"tab\there",
    b"carriage\rreturn",
    b'"quoted"',
    b"-dash",
    b"*?[x]",
    b":(top)",
    b"n" * 255,
    b"not utf-8 \xff\xfe",
    "caf\u00e9".encode(),
    "cafe\u0301".encode(),
    b"git~1",
    b".GIT",
    b".Git2",
    b"Foo",
    b"foo",
    b" ",
    b"\\x41",
)


def furnish(root: Path) -> None:
    """`root/../outside` is what links lead to."""
    outside = root.parent / "outside"
    (outside / "inner").mkdir(parents=True, exist_ok=True)
    for name in ("file", "inner/file", "keep"):
        (outside / name).write_text(f"outside {name}")
    for odd in ODD_NAMES:
        _write(os.path.join(os.fsencode(root), odd), b"content of " + odd)
        os.mkdir(os.path.join(os.fsencode(root), b"odd-" + odd[:200]))
    for number in range(30):
        _put(root, f"many/{number % 5}/file{number}", f"content {number}\n", 0o644 if number % 7 else 0o755)
    for name, mode in (("private", 0o600), ("read-only", 0o444), ("none", 0o000), ("all", 0o666), ("program", 0o755)):
        _put(root, name, name, mode)
    for name, target in (("link", "program"), ("dangling", "nowhere"), ("absolute", "/etc/passwd"), ("up", "../..")):
        (root / name).symlink_to(target)
    (root / "out").symlink_to(outside)
    for name in ("empty", "empty-nested/a/b", "swap-empty"):
        (root / name).mkdir(parents=True)
    _put(root, "swap-file", "file", 0o644)
    for name in ("swap-dir/file", "swap-dir/inner/file", "turned-link/file", "turned-link/inner/file"):
        _put(root, name, name, 0o640)
    for name in ("nested/.git/HEAD", "nested/.git/objects/x", "nested/x", "fake/.git", "big/one", "gone/with/all"):
        _put(root, name, name, 0o644)
    os.mkfifo(root / "pipe", 0o620)
    _put(root, "becomes-pipe", "x", 0o644)
    os.link(root / "program", root / "hard-link")
    _put(root, "closed/inner/file", "closed", 0o400)
    (root / "closed" / "inner").chmod(0o000)
    (root / "closed").chmod(0o555)
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o1777)


def ruin(root: Path) -> None:
    """Everything is changed in every way there is."""
    outside = root.parent / "outside"
    for odd in ODD_NAMES[::2]:
        os.unlink(os.path.join(os.fsencode(root), odd))
    for odd in ODD_NAMES[1::2]:
        _write(os.path.join(os.fsencode(root), odd), b"changed")
    shutil.rmtree(root / "many" / "2")
    for number in range(0, 30, 3):
        _put(root, f"many/{number % 5}/file{number}", f"CONTENT {number}\n", 0o644)
    for number in range(20):
        _put(root, f"extra/{number % 4}/deep/er/file{number}", str(number), 0o600)
    for name, mode in (("private", 0o644), ("program", 0o644), ("all", 0o600)):
        (root / name).chmod(mode)
    (root / "none").chmod(0o600)
    (root / "none").write_text("no longer")
    swap_in(root / "link", lambda path: path.write_text("was a link"))
    swap_in(root / "dangling", lambda path: path.symlink_to("elsewhere"))
    swap_in(root / "up", lambda path: path.mkdir())
    swap_in(root / "empty", lambda path: path.write_text("was empty"))
    shutil.rmtree(root / "empty-nested" / "a")
    _put(root, "swap-empty/now/filled", "x", 0o644)
    swap_in(root / "swap-file", lambda path: (path / "inner" / "more").mkdir(parents=True))
    swap_in(root / "swap-dir", lambda path: path.write_text("was a directory"))
    # The names below are those that a restore will want to write and remove.
    swap_in(root / "turned-link", lambda path: path.symlink_to(outside))
    swap_in(root / "out", lambda path: path.mkdir())
    _put(root, "out/file", "not outside", 0o644)
    shutil.rmtree(root / "nested" / ".git")
    _put(root, "fake/.git2/x", "x", 0o644)
    shutil.rmtree(root / "gone")
    swap_in(root / "pipe", lambda path: path.write_text("was a pipe"))
    swap_in(root / "becomes-pipe", os.mkfifo)
    (root / "hard-link").write_text("through the link")
    (root / "closed").chmod(0o755)
    (root / "closed" / "inner").chmod(0o755)
    _put(root, "closed/inner/file2", "more", 0o644)
    (root / "closed" / "inner" / "file").unlink()
    (root / "sticky").chmod(0o700)
    (root / "locked").mkdir()
    _put(root, "locked/in/file", "x", 0o400)
    (root / "locked" / "in").chmod(0o500)
    (root / "locked").chmod(0o000)


def add_socket(root: Path) -> None:
    make_socket(os.fsencode(root / "socket"))


def outside_picture(root: Path) -> dict[str, str]:
    outside = root.parent / "outside"
    return {str(path.relative_to(outside)): path.read_text() for path in outside.rglob("*") if path.is_file()}


def _put(root: Path, name: str, text: str, mode: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _write(path: bytes, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
