"""The runner obeys our commands and no other; it gets our outputs whole, and nobody else's."""

from __future__ import annotations

import os
import resource
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endstate_action.ci.conclusions import CONCLUSIONS, ending
from endstate_action.ci.workflow import (
    MAX_OUTPUT_BYTES,
    MAX_SUMMARY_BYTES,
    Log,
    RunnerFiles,
    as_inputs,
    command,
    harmless,
    output_entry,
)
from endstate_action.cli import EXIT_CODES
from endstate_action.errors import StateError
from tests.support.markdown import open_fence
from tests.support.runner_log import Obeyed, lines_of, obeyed, outputs

anything = st.text(max_size=200)
hostile = st.lists(
    st.sampled_from(
        [
            *("::", "##[", "error", "set-output name=a", "add-mask", "stop-commands", "::abc::", "]", "%0A", "%", ":"),
            *("\n", "\r", " ", "\t", "\u2028", "\x85", "\x1c", "\u3000", "\ufeff", "\ud800", "x", ","),
        ]
    ),
    max_size=30,
).map("".join)


class Lines(list[str]):
    @property
    def commands(self) -> list[Obeyed]:
        return obeyed(self)


# The log


@given(anything | hostile, anything | hostile)
def test_whatever_a_command_says_it_is_one_command(message: str, title: str):
    line = command("error", message, title=title)

    assert len(lines_of(line)) == 1
    assert obeyed(line) == [Obeyed("error", message, {"title": title} if title else {})]


@given(anything | hostile)
def test_text_of_others_holds_no_command(text: str):
    """E13: `::set-output`, `##[error]` and the like in the output of a tool, wherever they stand in a line."""
    assert obeyed(harmless(text)) == []
    assert len(lines_of(harmless(text))) == text.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "::set-output name=x::1",
        " \t::add-mask::a",
        "\u3000::error::x",
        "##[error]boo",
        "text before ##[add-mask]a",
        "a\r::error::x",
    ],
)
def test_known_ways_to_smuggle_a_command_are_closed(text: str):
    assert obeyed(text) != []
    assert obeyed(harmless(text)) == []


def test_ordinary_text_is_shown_as_it_is():
    text = "12:30 tests/a.py::test_b PASSED\n\tGrüße 🎉 [1] # [x]"

    assert harmless(text) == text


@given(anything | hostile)
def test_untrusted_text_is_obeyed_in_nothing_and_what_follows_is_obeyed_again(text: str):
    lines = Lines()
    log = Log(lines.append)
    log.untrusted(text)
    log.annotate("notice", "after")

    assert [c.data for c in lines.commands] == ["after"]


@example("::error::x\n##[error]y")
@given(anything | hostile)
def test_the_runner_is_told_to_obey_nothing_while_untrusted_text_is_shown(text: str):
    """The second guard holds alone: the very text, between the two lines that stand around it, does nothing."""
    lines = Lines()
    Log(lines.append).untrusted("x")

    assert obeyed([lines[0], text, lines[-1]]) == []


def test_the_word_that_ends_the_guard_does_not_occur_in_what_it_guards():
    lines = Lines()
    words = iter(["guessed", "free"])
    Log(lines.append, lambda: next(words)).untrusted("::guessed::\n::error::out")

    assert lines[0] == "::stop-commands::free"
    assert lines.commands == []


def test_there_are_three_annotations_and_the_last_is_for_an_error():
    lines = Lines()
    log = Log(lines.append)
    for number in range(4):
        log.annotate("notice", f"n{number}", title="Note")
    log.annotate("error", "why it ended")
    log.annotate("error", "too many\n::error::x")

    assert [(c.name, c.data) for c in lines.commands] == [("notice", "n0"), ("notice", "n1"), ("error", "why it ended")]
    assert "notice: Note: n3" in lines
    assert "error: too many" in lines


def test_an_annotation_is_no_longer_than_github_takes_and_shows_no_hidden_text():
    lines = Lines()
    Log(lines.append).annotate("error", "\u202e" * 5_000, title="t" * 500)

    assert len(lines.commands[0].data) <= 4096
    assert lines.commands[0].data.startswith(r"\u202e")
    assert len(lines.commands[0].properties["title"]) == 200


def test_a_group_is_closed_whatever_happens_in_it():
    lines = Lines()
    log = Log(lines.append)
    with pytest.raises(ZeroDivisionError), log.group("step 1\n::error::x"):
        log.say(str(1 / 0))

    assert [c.name for c in lines.commands] == ["group", "endgroup"]


def test_a_secret_of_several_lines_is_masked_whole_and_a_blank_one_not_at_all():
    lines = Lines()
    log = Log(lines.append)
    for secret in ("a%0A\nb", "", " \n"):
        log.mask(secret)

    assert lines == ["::add-mask::a%250A%0Ab"]


# The files


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The files that a runner makes for a step."""
    environ = {}
    for name in ("OUTPUT", "STEP_SUMMARY", "ENV", "PATH", "STATE"):
        path = tmp_path / name.lower()
        path.touch()
        environ[f"GITHUB_{name}"] = str(path)
    return environ


def text_of(environ: dict[str, str], name: str) -> str:
    return Path(environ[name]).read_text()


@given(anything.filter(lambda t: not any("\ud800" <= c <= "\udfff" or c == "\0" for c in t)))
def test_an_output_arrives_as_it_was_given(value: str):
    assert outputs(output_entry("final-message", value)) == {"final-message": value}


def test_no_value_can_end_itself():
    words = iter(["a", "b", "free"])
    entry = output_entry("final-message", "end-a\nend-b\nconclusion=success", lambda: next(words))

    assert outputs(entry) == {"final-message": "end-a\nend-b\nconclusion=success"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "true"), (False, "false"), (3, "3"), (Decimal("0.380"), "0.380"), ("a\0b", "a\ufffdb")],
)
def test_values_of_every_type_are_text(value: str | float | Decimal | None, shown: str):
    assert outputs(output_entry("x", value)) == {"x": shown}


def test_a_long_output_is_cut_between_characters():
    value = outputs(output_entry("final-message", "🎉" * 20_000))["final-message"]

    assert MAX_OUTPUT_BYTES - 10 < len(value.encode()) <= MAX_OUTPUT_BYTES
    assert "\ufffd" not in value


def test_a_name_that_is_no_name_of_an_output_is_our_own_mistake():
    with pytest.raises(ValueError, match="no name of an output"):
        output_entry("a=b", "c")


def test_outputs_stated_twice_take_the_later_value(runner: dict[str, str]):
    files = RunnerFiles(runner)
    files.outputs({"session-id": "3f", "attempt": 1})
    files.outputs({"conclusion": "success", "attempt": 2})

    stated = outputs(text_of(runner, "GITHUB_OUTPUT"))
    assert stated == {"session-id": "3f", "attempt": "2", "conclusion": "success"}
    assert files.undo_foreign() == ()


def test_the_summary_stays_below_what_github_takes_however_often_it_is_added_to(runner: dict[str, str]):
    files = RunnerFiles(runner)
    for _ in range(4):
        files.summary("```\n" + "🎉" * 100_000 + "\n```\n")

    summary = text_of(runner, "GITHUB_STEP_SUMMARY")
    assert MAX_SUMMARY_BYTES - 100 < len(summary.encode()) <= MAX_SUMMARY_BYTES < 1024 * 1024
    assert open_fence(summary) == ""


def test_outside_a_runner_nothing_is_written(tmp_path: Path):
    files = RunnerFiles({"GITHUB_OUTPUT": ""})
    files.outputs({"a": "b"})
    files.summary("c")

    assert list(tmp_path.iterdir()) == []
    assert files.undo_foreign() == ()


def test_what_a_tool_wrote_into_the_files_of_the_runner_is_undone_and_named(runner: dict[str, str]):
    """E14: lines in these files set the environment and the programs of all later steps."""
    files = RunnerFiles(runner)
    files.outputs({"session-id": "3f"})
    for path in runner.values():
        with open(path, "a") as file:
            file.write("LD_PRELOAD=x.so\n")

    assert set(files.undo_foreign()) == set(runner)
    assert outputs(text_of(runner, "GITHUB_OUTPUT")) == {"session-id": "3f"}
    assert text_of(runner, "GITHUB_ENV") == text_of(runner, "GITHUB_PATH") == ""
    assert files.undo_foreign() == ()


@pytest.mark.parametrize("how", ["link", "fifo", "gone"])
def test_a_tool_that_puts_something_else_in_a_files_place_reaches_nothing(runner: dict[str, str], tmp_path, how: str):
    files = RunnerFiles(runner)
    files.outputs({"session-id": "3f"})
    path, victim = Path(runner["GITHUB_OUTPUT"]), tmp_path / "victim"
    victim.write_text("untouched")
    path.unlink()
    if how == "link":
        path.symlink_to(victim)
    elif how == "fifo":
        os.mkfifo(path)

    if how != "gone":
        with pytest.raises(StateError, match="GITHUB_OUTPUT cannot be written"):
            files.outputs({"conclusion": "success"})
    assert files.undo_foreign() == ("GITHUB_OUTPUT",)
    assert victim.read_text() == "untouched"
    assert outputs(text_of(runner, "GITHUB_OUTPUT"))["session-id"] == "3f"


def test_a_disk_that_fills_up_costs_no_output_that_was_stated(runner: dict[str, str]):
    """The kernel takes a part of the entry and refuses the rest."""
    files = RunnerFiles(runner)
    files.outputs({"session-id": "3f"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StateError, match=r"GITHUB_OUTPUT cannot be written \(File too large"):
            files.outputs({"final-message": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert outputs(text_of(runner, "GITHUB_OUTPUT")) == {"session-id": "3f"}
    files.outputs({"conclusion": "failed"})
    assert outputs(text_of(runner, "GITHUB_OUTPUT")) == {"session-id": "3f", "conclusion": "failed"}


@pytest.mark.parametrize("path", ["/dev/full", "/", "/nowhere/output"])
def test_a_file_that_cannot_be_written_is_said_and_is_no_traceback(path: str):
    with pytest.raises(StateError, match="GITHUB_OUTPUT cannot be written") as caught:
        RunnerFiles({"GITHUB_OUTPUT": path}).outputs({"a": "b"})

    assert caught.value.hint


def test_what_was_no_plain_file_before_any_tool_ran_is_no_tool_s_doing(runner: dict[str, str], tmp_path: Path):
    directory, fifo = tmp_path / "directory", tmp_path / "fifo"
    directory.mkdir()
    os.mkfifo(fifo)
    files = RunnerFiles({**runner, "GITHUB_OUTPUT": str(directory), "GITHUB_STEP_SUMMARY": str(fifo)})
    assert files.undo_foreign() == ()
    assert directory.is_dir()
    assert fifo.is_fifo()
    Path(runner["GITHUB_ENV"]).write_text("EVIL=1\n")
    assert files.undo_foreign() == ("GITHUB_ENV",)


# The table


def test_every_exit_code_of_the_command_has_a_conclusion():
    assert {row.exit_code for row in CONCLUSIONS} == set(EXIT_CODES)


def test_what_was_cut_short_fails_its_step_and_only_that_is_run_again():
    assert [row.conclusion for row in CONCLUSIONS if row.step == "success"] == ["success", "skipped"]
    assert {row.exit_code for row in CONCLUSIONS if row.watcher == "runs it again"} == {75}


@pytest.mark.parametrize(
    ("row", "conclusion"),
    [
        (ending(0), "success"),
        (ending(0, is_skipped=True), "skipped"),
        (ending(75), "interrupted"),
        (ending(75, is_undelivered=True), "undelivered"),
        (ending(11), "superseded"),
        (ending(137), "failed"),
        (ending(20, is_undelivered=True), "failed"),
    ],
)
def test_an_ending_is_found_by_its_code(row, conclusion: str):
    assert row.conclusion == conclusion


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "`--on-mismatch continue` goes on, `restart` does not.",
            "`on-mismatch: continue` goes on, `restart` does not.",
        ),
        ("`endstate run --resume --model M --on-mismatch continue` does.", "`model: M, on-mismatch: continue` does."),
        ("Name a store, or do without --store.", "Name a store, or do without store."),
        ("Free some space, then `endstate run --resume`.", "Free some space, then a re-run of this job."),
        ("`endstate run --resume` asks again.", "A re-run of this job asks again."),
        ("It broke. `endstate run --resume` goes on.", "It broke. A re-run of this job goes on."),
        ("Check it, and run again with --resume: it goes on.", "Check it, and re-run this job: it goes on."),
        # What no input can say stays a command.
        ("`endstate run --resume --session a --store dir:x`", "`endstate run --resume --session a --store dir:x`"),
        ("`endstate run PROMPT --store x`, or --script FILE", "`endstate run PROMPT --store x`, or --script FILE"),
        ("`git log --all` tells -- or `", "`git log --all` tells -- or `"),
    ],
)
def test_a_remedy_is_told_in_inputs_where_an_input_can_do_it(said, told):
    assert as_inputs(said, ("on-mismatch", "model", "store")) == told
