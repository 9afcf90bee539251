"""Looking changes nothing, shows what is there, and ends."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from endstate_action.agent.tools.base import CallContext, Tool, ToolError, check_arguments
from endstate_action.agent.tools.read import Glob, Grep, Read
from endstate_action.agent.tools.window import OUTPUT_BYTES
from endstate_action.effects import EffectClass
from endstate_action.messages import is_blank, scrub
from endstate_action.system.files import Workspace
from endstate_action.system.redaction import Secrets

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\x23\x28" * 2 + b"\0" * 500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def call(tool: Tool, root: Path, *, time_left_s: float = 60.0, secret: str = "", **arguments: Any) -> str:
    """What the model is told; held to what every result must be."""
    check_arguments(tool.parameters, arguments)
    secrets = Secrets({"TOKEN": secret})
    context = CallContext(Workspace(root), "key", "digest", 0.0, "tag", time_left_s=time_left_s, secrets=secrets)
    assert tool.plan(arguments, context) is None
    said = tool.run(arguments, context, None)
    assert scrub(said) == said
    assert not is_blank(said)
    return said


def put(root: Path, **files: bytes) -> None:
    for name, data in files.items():
        (root / name).write_bytes(data)


@pytest.mark.parametrize("tool", [Read(), Glob(), Grep()])
def test_looking_is_a_read(tool: Tool) -> None:
    assert tool.effect is EffectClass.READS
    assert tool.idempotent


# --- read


def test_lines_are_shown_as_they_are_with_their_numbers(root: Path) -> None:
    put(root, f=b"def f():\n\treturn 'x' \n\n  # end\n")
    assert call(Read(), root, path="f") == "     1\tdef f():\n     2\t\treturn 'x' \n     3\t\n     4\t  # end"


def test_an_empty_file_is_said_to_be_empty(root: Path) -> None:
    put(root, f=b"")
    assert call(Read(), root, path="f") == "(empty file)"


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"a\r\nb\r\n", "[line endings are CRLF]"),
        (b"a\r\nb", "[line endings are CRLF; no newline at the end]"),
        (b"a\r\nb\nc\r\n", "[line endings: 2 CRLF, 1 LF]"),
        (b"\xef\xbb\xbfa\n", "[begins with a byte order mark]"),
        (b"a", "[no newline at the end]"),
        (b"caf\xe9\n", "[decoded as latin-1, since it is not UTF-8]"),
        (b"\xed\xa0\xbd\n", "[decoded as latin-1, since it is not UTF-8]"),
        (b"caf\xc3", "[decoded as latin-1, since it is not UTF-8; no newline at the end]"),
    ],
)
def test_what_the_lines_do_not_show_is_noted(root: Path, data: bytes, note: str) -> None:
    put(root, f=data)
    assert call(Read(), root, path="f").splitlines()[-1] == note


def test_line_endings_and_the_byte_order_mark_are_not_in_the_lines(root: Path) -> None:
    put(root, f=b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert call(Read(), root, path="f").split("\n")[:2] == ["     1\tone", "     2\ttwo"]


def test_a_character_across_two_pieces_is_still_utf8(root: Path) -> None:
    put(root, f=b"a" * (2**20 - 1) + "é\r".encode() + b"\n")
    assert "latin-1" not in call(Read(), root, path="f")


def test_a_window_says_where_to_go_on(root: Path) -> None:
    put(root, f=b"".join(b"line %d\n" % n for n in range(1, 11)))
    assert call(Read(), root, path="f", offset=4, limit=2) == (
        "     4\tline 4\n     5\tline 5\n[5 more lines; continue with offset 6]"
    )
    assert call(Read(), root, path="f", offset=9, limit=5) == "     9\tline 9\n    10\tline 10"
    with pytest.raises(ToolError, match="has 10 lines, so there is nothing at line 11"):
        call(Read(), root, path="f", offset=11)


def test_windows_put_together_are_the_file(root: Path) -> None:
    lines = [f"{'x' * (n % 97)}{n}" for n in range(20_000)]
    put(root, f="\n".join(lines).encode() + b"\n")
    seen: list[str] = []
    while len(seen) < len(lines):
        rows = call(Read(), root, path="f", offset=len(seen) + 1).split("\n")
        seen += [row.partition("\t")[2] for row in rows if not row.startswith("[")]
    assert seen == lines


@pytest.mark.parametrize("line", [b"", b"x" * 60, b"\xc3\xa9" * 3000, b"\xe9" * 30])
def test_of_a_long_file_beginning_and_end_are_shown_and_the_gap_is_named(root: Path, line: bytes) -> None:
    count = 40_000 if len(line) < 100 else 400
    put(root, f=(line + b"\n") * count)
    said = call(Read(), root, path="f")
    assert len(said.encode()) <= OUTPUT_BYTES + 500
    rows = said.split("\n")
    gap = next(n for n, row in enumerate(rows) if row.startswith("[lines "))
    first, last = rows[gap].split()[1], rows[gap].split()[3]
    assert rows[0].startswith("     1\t")
    assert rows[gap - 1].split("\t")[0].strip() == str(int(first) - 1)
    assert rows[gap + 1].split("\t")[0].strip() == str(int(last) + 1)
    assert [row.split("\t")[0].strip() for row in rows if "\t" in row][-1] == str(count)


def test_a_file_just_over_the_first_part_has_no_gap(root: Path) -> None:
    put(root, f=b"".join(b"%055d\n" % n for n in range(1000)))
    rows = call(Read(), root, path="f").split("\n")
    assert [int(row.split("\t")[1]) for row in rows] == list(range(1000))


def test_a_line_that_is_too_long_is_cut_and_says_so(root: Path) -> None:
    put(root, f=b"a" * 2_000_000 + b"\nshort\n")
    assert call(Read(), root, path="f") == f"     1\t{'a' * 2000} [the line goes on]\n     2\tshort"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "a PNG image"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "a WebP image"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"text\0text", "a binary file"),
        (b"a" * 2_000_000 + b"\0", "a binary file"),
        ("wide".encode("utf-16"), "UTF-16 text"),
    ],
)
def test_a_binary_file_is_described_and_not_dumped(root: Path, data: bytes, kind: str) -> None:
    (root / "logo.txt").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    expected = f"logo.txt is {kind} of {len(data):,} bytes, sha256 {sha256}. Its content is not shown."
    assert call(Read(), root, path="logo.txt") == expected


def test_the_content_tells_what_a_file_is_and_not_its_name(root: Path) -> None:
    (root / "logo.png").write_bytes(b"<html>404</html>\n")
    assert call(Read(), root, path="logo.png") == "     1\t<html>404</html>"


def test_a_directory_is_answered_with_the_way_to_list_it(root: Path) -> None:
    (root / "src").mkdir()
    for path, listing in (("src", r"src/\*"), (".", r"\*")):
        with pytest.raises(ToolError, match=f"is a directory. List it with glob {listing}$"):
            call(Read(), root, path=path)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ".git/config", "missing", "link", "pipe", "a\0b"])
def test_what_cannot_be_read_is_an_answer_and_no_failure_of_the_run(root: Path, path: str) -> None:
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    with pytest.raises(ToolError):
        call(Read(), root, path=path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the peak of this process alone")
def test_the_end_of_a_huge_file_is_read_without_holding_it_in_memory(root: Path) -> None:
    line = b"0123456789" * 10 + b"\n"
    with (root / "huge").open("wb") as file:
        for _ in range(300):
            file.write(line * 10_000)
    script = (
        "import re, sys; from pathlib import Path\n"
        "from endstate_action.agent.tools.base import CallContext\n"
        "from endstate_action.agent.tools.read import Read\n"
        "from endstate_action.system.files import Workspace\n"
        "context = CallContext(Workspace(Path(sys.argv[1])), 'k', 'd', 0.0, 't')\n"
        "for more in ({}, {'offset': 2_999_999}):\n"
        "    print(Read().run({'path': 'huge', **more}, context, None).splitlines()[-1][:12])\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, check=True)
    *ends, peak_kib = ran.stdout.split("\n")[:3]
    (root / "huge").unlink()
    assert ends == ["3000000\t0123"] * 2
    assert int(peak_kib) < 100_000


# --- glob


@pytest.fixture
def tree(root: Path) -> Path:
    for path in ("a.py", "b.txt", "src/a.py", "src/deep/er/c.py", "src/deep/d.ts", ".github/w.yml", ".git/config"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n")
    return root


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("*.py", ["a.py"]),
        ("./*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/a.py", "src/deep/er/c.py"]),
        ("src/**/*.py", ["src/a.py", "src/deep/er/c.py"]),
        ("src/**", ["src/", "src/a.py", "src/deep/", "src/deep/d.ts", "src/deep/er/", "src/deep/er/c.py"]),
        ("src/*", ["src/a.py", "src/deep/"]),
        ("*", [".github/", "a.py", "b.txt", "src/"]),
        ("**/deep/**/*.{py,ts}", ["src/deep/d.ts", "src/deep/er/c.py"]),
        ("{a,b}.{py,txt}", ["a.py", "b.txt"]),
        ("[!b]*.??", ["a.py"]),
        ("**/c.py", ["src/deep/er/c.py"]),
        ("**/**/c.py", ["src/deep/er/c.py"]),
        ("src/a.py", ["src/a.py"]),
        ("A.PY", ["No path matches A.PY"]),
        ("**/config", ["No path matches **/config"]),
    ],
)
def test_a_pattern_lists_what_it_matches(tree: Path, pattern: str, paths: list[str]) -> None:
    assert call(Glob(), tree, pattern=pattern).split("\n") == paths


def test_a_pattern_may_be_absolute_below_the_root(tree: Path) -> None:
    assert call(Glob(), tree, pattern=f"{tree}/*.py") == "a.py"


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "**/../../*", "{a,../*}", ".git/*", "~/*", "", "{a,b}" * 10])
def test_a_pattern_never_leads_out(tree: Path, pattern: str) -> None:
    with pytest.raises(ToolError):
        call(Glob(), tree, pattern=pattern)


def test_links_are_listed_and_not_followed(tree: Path) -> None:
    (tree / "loop").symlink_to(".")
    (tree / "out").symlink_to("/etc")
    assert call(Glob(), tree, pattern="{loop,out}/**").split("\n") == ["loop [link]", "out [link]"]


def test_names_that_do_not_print_are_listed_in_a_form_that_read_takes(root: Path) -> None:
    for name in (b"caf\xe9.txt", b"two\nlines", b"-n"):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"text\n")
    os.symlink(b"\xff\xfe", os.fsencode(root) + b"/link")
    listed = call(Glob(), root, pattern="*").split("\n")
    assert listed == ["-n", r"caf\xe9.txt", "link [link]", r"two\x0alines"]
    assert all(call(Read(), root, path=name) == "     1\ttext" for name in listed if "link" not in name)


def test_a_long_list_is_bounded_and_says_so(root: Path) -> None:
    for n in range(1100):
        (root / f"{n:04}").touch()
    listed = call(Glob(), root, pattern="*").split("\n")
    assert listed[:1000] == [f"{n:04}" for n in range(1000)]
    assert listed[1000:] == ["[more than 1000 paths match; narrow the pattern]"]


# --- grep


def test_lines_that_match_are_listed_with_path_and_number(tree: Path) -> None:
    (tree / "src" / "a.py").write_bytes(b"one\r\nTWO\nthree one\n")
    assert call(Grep(), tree, pattern="one$") == "src/a.py:1:one\nsrc/a.py:3:three one"
    assert call(Grep(), tree, pattern="two", ignore_case=True) == "src/a.py:2:TWO"
    assert call(Grep(), tree, pattern="nowhere") == "No line matches."


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("*.py", ["a.py", "src/a.py", "src/deep/er/c.py"]),
        ("src/*.py", ["src/a.py"]),
        ("*.{ts,yml}", [".github/w.yml", "src/deep/d.ts"]),
    ],
)
def test_a_glob_chooses_the_files(tree: Path, glob: str, paths: list[str]) -> None:
    assert [row.split(":")[0] for row in call(Grep(), tree, pattern=".", glob=glob).split("\n")] == paths


def test_binary_files_are_counted_and_links_are_not_followed(root: Path) -> None:
    put(root, text=b"needle\n", binary=b"needle\0\n", latin=b"needle caf\xe9\n")
    (root / "link").symlink_to("text")
    (root / "out").symlink_to("/etc")
    assert call(Grep(), root, pattern="needle") == ("latin:1:needle café\ntext:1:needle\n[1 binary files were skipped]")


def test_of_a_long_line_the_match_is_shown(root: Path) -> None:
    put(root, f=b"x" * 5000 + b"needle" + b"y" * 5000 + b"\n")
    said = call(Grep(), root, pattern="needle")
    assert "needle" in said
    assert len(said) < 420


def test_many_matches_are_bounded_and_it_is_said(root: Path) -> None:
    put(root, f=b"match\n" * 100_000)
    said = call(Grep(), root, pattern="m")
    assert len(said) < OUTPUT_BYTES + 200
    assert said.endswith("[more lines match; narrow the pattern or the glob]")


@pytest.mark.parametrize("pattern", ["(", "[a", "a{99999999999999}", "(" * 900, "x" * 1001, "(?P<n>"])
def test_what_is_no_regular_expression_is_told(root: Path, pattern: str) -> None:
    with pytest.raises(ToolError, match="Nothing was searched"):
        call(Grep(), root, pattern=pattern)


def test_an_expression_that_python_warns_of_is_searched_in_silence(root: Path) -> None:
    put(root, f=b"[[\n")
    assert call(Grep(), root, pattern="[[]") == "f:1:[["


def test_an_expression_that_would_never_end_is_stopped(root: Path) -> None:
    put(root, a=b"aaa\n", f=b"a" * 60 + b"b\n")
    began = time.monotonic()
    said = call(Grep(), root, pattern="(a+)+$", time_left_s=0.3)
    assert said == "a:1:aaa\n[the search was stopped after 0.3 s; use a simpler pattern or fewer files]"
    assert time.monotonic() - began < 60


def test_a_search_in_another_thread_ends_between_lines(root: Path) -> None:
    put(root, f=b"text\n" * 3_000_000)
    said: list[str] = []
    search = threading.Thread(target=lambda: said.append(call(Grep(), root, pattern="nowhere", time_left_s=0.1)))
    search.start()
    search.join(60)
    assert said == ["No line matches.\n[the search was stopped after 0.1 s; use a simpler pattern or fewer files]"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_could_not_be_searched_is_counted(root: Path) -> None:
    put(root, f=b"needle\n", closed=b"needle\n")
    (root / "closed").chmod(0)
    (root / "d").mkdir(mode=0)
    assert call(Grep(), root, pattern="needle") == "f:1:needle\n[2 files or directories could not be read]"


@pytest.mark.parametrize(
    ("before", "length"),
    [*itertools.product([0, 90, 290, 380, 1975, 1992, 7980, 65_520], [32, 2500]), (100, 9000), (65_000, 9000)],
)
def test_a_secret_at_the_limit_of_a_line_is_not_shown(root: Path, before: int, length: int) -> None:
    """The line is redacted before it is cut: of the middle of a secret nobody could tell what it is."""
    canary = "".join(random.Random(length).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))
    put(root, f=b"NEEDLE" + b"." * before + canary.encode() + b"." * 100_000 + b"\nlast\n")
    for told in (
        call(Read(), root, secret=canary, path="f"),
        call(Grep(), root, secret=canary, pattern="NEEDLE"),
        call(Grep(), root, secret=canary, pattern=canary[10:20]),
    ):
        assert not any(canary[n : n + 6] in told for n in range(length - 6)), told[:3000]
