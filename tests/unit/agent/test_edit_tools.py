"""A write or an edit is planned, then carried out by content: twice is as good as once."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.agent.tools import edit
from endstate_action.agent.tools.base import ABSENT, CallContext, FileChange, Tool, ToolError, check_arguments
from endstate_action.agent.tools.edit import Edit, Write
from endstate_action.effects import EffectClass, digest
from endstate_action.messages import is_blank, scrub
from endstate_action.system.files import Workspace
from endstate_action.system.redaction import Secrets


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def context(root: Path) -> CallContext:
    return CallContext(Workspace(root), "key", "digest", 0.0, "tag")


def plan(tool: Tool, root: Path, **arguments: Any) -> FileChange:
    check_arguments(tool.parameters, arguments)
    change = tool.plan(arguments, context(root))
    assert change is not None
    return change


def call(tool: Tool, root: Path, **arguments: Any) -> str:
    change = plan(tool, root, **arguments)
    said = tool.run(arguments, context(root), change)
    assert scrub(said) == said
    assert not is_blank(said)
    return said


def refusal(tool: Tool, root: Path, **arguments: Any) -> str:
    """Why a call was refused; with the tree as it was."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ToolError) as refused:
        call(tool, root, **arguments)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert scrub(str(refused.value)) == str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("tool", [Write(), Edit()])
def test_changing_a_file_may_be_repeated(tool: Tool) -> None:
    assert tool.effect is EffectClass.IDEMPOTENT


# --- write


def test_a_write_says_what_it_wrote(root: Path) -> None:
    assert call(Write(), root, path="./src//a.py", content="é\n") == "Wrote src/a.py (3 bytes, new)."
    assert call(Write(), root, path="src/a.py", content="x" * 1200) == "Wrote src/a.py (1,200 bytes, was 3)."
    assert (root / "src" / "a.py").read_text() == "x" * 1200


def test_a_plan_changes_nothing_and_has_the_whole_change(root: Path) -> None:
    change = plan(Write(), root, path=f"{root}/a/b", content="new")
    assert change == FileChange("a/b", ABSENT, digest(b"new"), b"new")
    assert list(root.iterdir()) == []


def test_a_write_that_was_applied_already_changes_nothing(root: Path) -> None:
    change = plan(Write(), root, path="a", content="new")
    Write().run({"path": "a", "content": "new"}, context(root), change)
    first = (root / "a").stat()
    said = Write().run({"path": "a", "content": "new"}, context(root), change)
    assert said == "a already has this content (3 bytes); nothing was changed."
    assert (root / "a").stat().st_ino == first.st_ino


@pytest.mark.parametrize("tool", [Write(), Edit()])
@pytest.mark.parametrize("meanwhile", [b"someone else's", None])
def test_a_file_that_someone_else_changed_is_left_alone(root: Path, tool: Tool, meanwhile: bytes | None) -> None:
    (root / "a").write_bytes(b"old")
    arguments = {"path": "a", "content": "new"} if tool.name == "write" else {"path": "a", "old": "old", "new": "new"}
    change = plan(tool, root, **arguments)
    (root / "a").unlink() if meanwhile is None else (root / "a").write_bytes(meanwhile)
    with pytest.raises(ToolError, match="someone else changed it"):
        tool.run(arguments, context(root), change)
    assert ((root / "a").read_bytes() if (root / "a").exists() else None) == meanwhile


def test_a_write_without_content_is_an_error_and_never_an_empty_file(root: Path) -> None:
    (root / "keep.txt").write_bytes(b"k" * 100)
    assert "content is missing" in refusal(Write(), root, path="keep.txt")


def test_text_is_written_as_given(root: Path) -> None:
    text = "\N{ZERO WIDTH NO-BREAK SPACE}a\r\nb\n\rc\0d\u2028e"
    call(Write(), root, path="a", content=text)
    assert (root / "a").read_bytes() == text.encode()


def test_an_empty_file_may_be_wanted(root: Path) -> None:
    assert call(Write(), root, path="__init__.py", content="") == "Wrote __init__.py (0 bytes, new)."
    assert (root / "__init__.py").read_bytes() == b""


def test_half_a_character_is_not_written(root: Path) -> None:
    assert "character 2" in refusal(Write(), root, path="a", content="a\ud83d")


def test_a_content_that_is_too_large_is_refused(root: Path) -> None:
    assert "longer than 10,000,000 bytes" in refusal(Write(), root, path="a", content="é" * 5_000_001)


@pytest.mark.parametrize("tool", [Write(), Edit()])
@pytest.mark.parametrize(
    "path", ["../x", "/etc/motd", ".git/config", "a/.GIT/hooks/x", ".endstate/x", "d", ".", "", "link/x", "f/x", "pipe"]
)
def test_what_is_no_file_of_the_workspace_is_refused(root: Path, tmp_path: Path, tool: Tool, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "d").mkdir()
    (root / "f").touch()
    os.mkfifo(root / "pipe")
    arguments = {"content": "evil"} if tool.name == "write" else {"old": "a", "new": "evil"}
    assert refusal(tool, root, path=path, **arguments)
    assert list((tmp_path / "outside").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "workspace"}


@pytest.mark.parametrize("name", ["notes.md", "new.txt"])
def test_a_link_is_not_written_through(root: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").write_bytes(b"untouched")
    (root / "notes.md").symlink_to(tmp_path / "victim")
    (root / "new.txt").symlink_to(tmp_path / "nowhere")
    assert f"{name} is a link to" in refusal(Write(), root, path=name, content="evil")
    assert f"{name} is a link to" in refusal(Edit(), root, path=name, old="untouched", new="evil")
    assert (tmp_path / "victim").read_bytes() == b"untouched"
    assert not (tmp_path / "nowhere").exists()
    assert (root / name).is_symlink()


def test_a_link_put_there_after_the_plan_is_not_written_through(root: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"old")
    (root / "a").write_bytes(b"old")
    change = plan(Write(), root, path="a", content="new")
    (root / "a").unlink()
    (root / "a").symlink_to(tmp_path / "victim")
    with pytest.raises(ToolError, match="is a link"):
        Write().run({"path": "a", "content": "new"}, context(root), change)
    assert (tmp_path / "victim").read_bytes() == b"old"


# --- edit


def edited(root: Path, data: bytes, old: str, new: str, **more: bool) -> bytes:
    (root / "f").write_bytes(data)
    call(Edit(), root, path="f", old=old, new=new, **more)
    return (root / "f").read_bytes()


def test_an_edit_replaces_the_one_place(root: Path) -> None:
    assert edited(root, b"one two three", "two", "2") == b"one 2 three"
    assert edited(root, b"one two three", " two", "") == b"one three"


def test_an_edit_keeps_the_permissions(root: Path) -> None:
    (root / "f").write_bytes(b"old")
    (root / "f").chmod(0o755)
    call(Edit(), root, path="f", old="old", new="new")
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "b", "B", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\nb\n", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b\n", "", b"a\r\nc\r\n"),
        (b"a\r\nb\r\nc", "c", "c\nd", b"a\r\nb\r\nc\r\nd"),
        (b"a\r\nb\nc\r\n", "a\nb\nc", "a\nB\nc", b"a\r\nB\nc\r\n"),
        (b"a\nb\r\nc\n", "a\nb\nc", "x\ny\nz", b"x\ny\r\nz\n"),
        (b"a\nb\r\nc\n", "b", "b\nB", b"a\nb\r\nB\r\nc\n"),
        (b"a\r\nb\nc\n", "a\nb\nc", "x\na\nb\nc", b"x\r\na\r\nb\nc\n"),
        (b"a\nb\r\n\r\n", "\n\n", "\n", b"a\nb\r\n"),
        (b"a\r\nb\r\n", "a\r\n", "a\n", b"a\nb\r\n"),
        (b"a\nb\n", "a\n", "a\r\n", b"a\r\nb\n"),
        (b"a\rb\rc", "b", "B", b"a\rB\rc"),
        (b"\xef\xbb\xbfa\r\nb", "a", "x", b"\xef\xbb\xbfx\r\nb"),
        (b"\xef\xbb\xbfa", "\N{ZERO WIDTH NO-BREAK SPACE}a", "a", b"a"),
        (b"caf\xe9 na\xefve\r\n", "café", "cafés", b"caf\xe9s na\xefve\r\n"),
        (b"\x80\x9f\xff x", "x", "ÿ", b"\x80\x9f\xff \xff"),
        (b"one line", "one line", "two\nlines", b"two\nlines"),
        ("é\n".encode(), "é", "è", "è\n".encode()),
    ],
)
def test_every_other_byte_stays(root: Path, before: bytes, old: str, new: str, after: bytes) -> None:
    """Line endings, byte order mark and encoding are the file's, not ours."""
    assert edited(root, before, old, new) == after


ENDING = st.sampled_from(["\n", "\r\n"])
LINE = st.tuples(st.text("ab\xe9\N{SNOWMAN}", max_size=3), ENDING).map("".join)


def test_the_hint_at_a_long_line_shows_nothing_of_a_secret(root: Path) -> None:
    canary = "canary-0123456789-abcdefghijklmn"
    (root / "f").write_text(f"some_variable = call_a_function({'x' * 82}{canary}{'y' * 300})\n")
    context = CallContext(Workspace(root), "key", "digest", 0.0, "tag", secrets=Secrets({"TOKEN": canary}))
    with pytest.raises(ToolError, match="The nearest is line 1") as caught:
        Edit().plan(
            {
                "path": "f",
                "new": "b",
                "old": f"some_variable = call_a_functiom({'x' * 82}",
            },
            context,
        )
    assert not any(canary[n : n + 6] in str(caught.value) for n in range(len(canary) - 5))


@given(st.lists(LINE, max_size=6), st.lists(LINE, min_size=1, max_size=3), st.lists(LINE, max_size=6), st.data())
def test_bytes_outside_the_place_never_change(
    before: list[str], inside: list[str], after: list[str], data: st.DataObject
) -> None:
    """Whatever the endings around it, only the marked place is replaced, in the form that the model sees."""
    head, tail = "".join(before) + "<", ">" + "".join(after)
    old = f"<{''.join(inside)}>".replace("\r\n", "\n")
    new = data.draw(st.text("ab\n", max_size=6))
    real = (head + "".join(inside) + tail).encode()
    changed = edit._edited("f", real, old, new, Secrets({}), replace_all=False)
    assert changed.startswith(head[:-1].encode())
    assert changed.endswith(tail[1:].encode())
    assert changed.decode().replace("\r\n", "\n") == (head[:-1] + new + tail[1:]).replace("\r\n", "\n")


def test_all_places_are_replaced_when_asked(root: Path) -> None:
    assert edited(root, b"a\r\na\na", "a", "b\nc", replace_all=True) == b"b\r\nc\r\nb\nc\nb\nc"


@pytest.mark.parametrize(("text", "old"), [(b"x\ny\nx\n", "x"), (b"}\n}\n}\n", "}\n}"), (b"aaa", "aa")])
def test_a_choice_between_places_is_not_ours(root: Path, text: bytes, old: str) -> None:
    (root / "f").write_bytes(text)
    assert "2 times (lines 1, " in refusal(Edit(), root, path="f", old=old, new="new")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "x", "`old` is empty"),
        ("def", "def", "are the same"),
        ("  def f():", "x", "From line 2 on it differs in white space only"),
        ("def f():\nreturn 1", "x", "From line 2 on it differs in white space only"),
        ("     2\t\tdef f():", "x", "Leave out the line numbers"),
        ("def ff():", "x", "The nearest is line 2: def f():"),
        ("nothing like it whatsoever", "x", "Read the file again"),
    ],
)
def test_an_edit_that_cannot_be_made_says_why(root: Path, old: str, new: str, reason: str) -> None:
    (root / "f").write_bytes(b"class A:\n\tdef f():\n\t\treturn 1\n")
    assert reason in refusal(Edit(), root, path="f", old=old, new=new)


def test_an_edit_of_a_missing_file_is_refused(root: Path) -> None:
    assert "does not exist" in refusal(Edit(), root, path="f", old="a", new="b")


def test_a_binary_file_is_not_edited(root: Path) -> None:
    (root / "f").write_bytes(b"a\0b")
    assert "binary" in refusal(Edit(), root, path="f", old="a", new="b")


def test_a_file_that_is_not_utf8_never_changes_its_encoding(root: Path) -> None:
    (root / "f").write_bytes(b"caf\xe9")
    assert "latin-1 cannot hold" in refusal(Edit(), root, path="f", old="caf", new="\N{EURO SIGN}")


def test_a_file_that_is_too_large_is_not_edited(root: Path) -> None:
    (root / "f").write_bytes(b"a" * 10_000_001)
    assert "larger than 10,000,000 bytes" in refusal(Edit(), root, path="f", old="a", new="b")


def test_an_edit_carried_out_twice_by_its_plan_inserts_once(root: Path) -> None:
    (root / "f").write_bytes(b"import a\n")
    arguments = {"path": "f", "old": "import a\n", "new": "import a\nimport b\n"}
    change = plan(Edit(), root, **arguments)
    for _ in range(2):
        Edit().run(arguments, context(root), change)
    assert (root / "f").read_bytes() == b"import a\nimport b\n"
