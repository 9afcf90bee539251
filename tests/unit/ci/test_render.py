"""The comment: plain words first, everything of others harmless, never over the limit, found again by its marker."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.ci.evidence import Attempt, ChangedFile, Evidence, LeftOut, Refused, Settlement, Trees
from endstate_action.ci.markdown import units
from endstate_action.ci.marker import Marker, parse_marker
from endstate_action.ci.patch import Patch
from endstate_action.ci.render import (
    COMMENT_UNITS,
    Working,
    comment,
    cut_short,
    earlier_of,
    ended,
    headline,
    summary,
    working,
)
from tests.support.results import BASE, COMMIT, HASH, OWNER, SESSION, TREE, interrupted_result, plain_result

GITHUB_CHARACTERS = 65_536
OURS = {"<details>", "<summary>", "</summary>", "</details>"}
PATCH = Patch(b"...", "diff --git a/x b/x\n-old\n+new </details> @user", 0)
NOW = Working(
    session=SESSION,
    task=1,
    attempt=1,
    effects=2,
    started="2026-11-29T12:00:25Z",
    alive="2026-11-29T12:01:10Z",
    step=7,
    store="Actions cache",
    is_durable=True,
    sandbox="isolated, no network",
    checkpoint="3",
    shipped="2026-11-29T12:01:05Z",
    run_url="https://github.com/o/r/actions/runs/7",
)


def first_line(body: str) -> str:
    return body.split("\n")[1]


def tags(body: str) -> set[str]:
    """Everything that could be a tag, but for the marker and what stands in a code block."""
    text = re.sub(r"(?ms)^(> )?(`{3,})[\w.+#-]*$.*?^(> )?\2$", "", body.partition("\n")[2])
    return {found if found in OURS else text[at : at + 20] for found, at in _found(text)}


def _found(text: str) -> list[tuple[str, int]]:
    return [(match[0], match.start()) for match in re.finditer(r"<[A-Za-z/!?][^>\n]*>?", text)]


# --- What the first line says ---


def test_an_interruption_is_told_in_plain_words():
    told = "Done in 2 attempts: preempted after call 7, resumed, 1 call rolled back and re-run, 0 refused"
    assert headline(interrupted_result()) == told
    line = first_line(comment(interrupted_result(), OWNER))
    assert line == f"**{told}.** 23 steps, at least $0.41. 3 files changed, not committed."


def test_a_quiet_run_is_one_short_line():
    line = first_line(comment(plain_result(), OWNER))
    assert line == "**Done in 1 attempt: never interrupted, 0 refused.** 23 steps, $0.38. Nothing was changed."


def test_a_commit_is_named_with_its_branch():
    pushed = [{"id": COMMIT, "subject": "Fix it", "branch": "endstate/7f3a00112233"}]
    line = first_line(comment(interrupted_result(commits=pushed, uncommitted=None), OWNER))
    assert line.endswith(r"3 files changed, committed as dddddddddddd to endstate/7f3a00112233.")


def test_a_branch_of_its_own_comes_with_a_link_to_compare_it():
    pushed = [{"id": COMMIT, "subject": "Fix it", "branch": "endstate/7f3a00112233"}]
    url = "https://github.com/org/repo/compare/topic...endstate/7f3a00112233?expand=1"
    body = comment(interrupted_result(commits=pushed, uncommitted=None, **{"compare-url": url}), OWNER)
    assert f"\n\nOn its own branch `endstate/7f3a00112233`: [compare it, or open a pull request]({url}).\n\n" in body
    assert "own branch" not in comment(interrupted_result(commits=pushed, uncommitted=None), OWNER)


def test_a_checkpoint_is_named_so_that_a_table_stays_narrow():
    key = f"es1/{'7' * 32}/c0001-000002-00000"
    attempts = [
        {"epoch": 1, "run-attempt": 1, "began": "2026-11-29T12:00:25Z", "steps": 1, "ended": "preempted"},
        {"epoch": 2, "began": "2026-11-29T12:00:25Z", "steps": 1, "ended": "finished", "restored-from": key},
    ]
    assert r"| c0001\-000002\-00000 |" in comment(plain_result(attempts=attempts), OWNER)


def test_an_unknown_price_is_no_zero():
    spent = {"input-tokens": 1, "output-tokens": 1, "usd": None}
    assert "cost unknown" in first_line(comment(plain_result(spent=spent), OWNER))


@pytest.mark.parametrize(("usd", "shown"), [("0", "$0.00"), ("0.00042", "$0.00042"), ("12.345", "$12.35")])
def test_money_is_shown_as_far_as_it_says_something(usd, shown):
    spent = {"input-tokens": 1, "output-tokens": 1, "usd": usd}
    assert f" {shown}. " in first_line(comment(plain_result(spent=spent), OWNER))


@pytest.mark.parametrize("actions", [["adopt", "adopt"], ["roll_back"], ["give_up"], ["run"]])
def test_every_kind_of_settlement_is_counted(actions):
    words = {"adopt": "adopted", "roll_back": "not repeated", "give_up": "given up", "run": "run on the resume"}
    settled = [
        {"step": 1, "call": 1, "tool": "bash", "action": action, "reason": "so", "attempt": 2} for action in actions
    ]
    told = headline(interrupted_result(settlements=settled))
    assert re.search(rf"{len(actions)} calls? [a-z ]*{words[actions[0]]}", told)


def test_refused_and_denied_calls_are_counted_apart():
    refused = [
        {"step": 1, "call": n, "tool": "bash", "status": status, "reason": "so"}
        for n, status in enumerate(("refused", "denied", "denied", "not_run"), 1)
    ]
    assert headline(plain_result(refused=refused)).endswith("1 refused, 2 denied, 1 not run")


def test_calls_that_failed_are_counted_where_there_are_any():
    assert headline(plain_result(**{"failed-calls": 2})).endswith("0 refused, 2 calls failed")
    assert "failed" not in headline(plain_result())


def test_an_attempt_that_only_delivered_is_no_attempt_that_worked():
    told = headline(plain_result(**{"delivered-by": 4}))
    assert told == "Done in 1 attempt, delivered by attempt 4: 0 refused"
    undelivered = headline(plain_result(conclusion="undelivered", **{"delivered-by": 4}))
    assert undelivered == "Done, but not delivered, in 1 attempt: 0 refused"


def test_many_interruptions_are_summed_up():
    attempt = {"epoch": 1, "began": "2026-11-29T12:00:25Z", "steps": 1, "ended": "preempted", "where": "after call 1"}
    told = headline(plain_result(attempts=[attempt | {"epoch": n} for n in range(1, 31)]))
    assert told == "Done in 30 attempts: cut short and resumed 29 times, 0 refused"


@pytest.mark.parametrize(
    ("conclusion", "word", "remedy"),
    [
        ("stopped", "Stopped after 1 attempt", "Raise the limit"),
        ("interrupted", "Interrupted after 1 attempt", "go on from the newest checkpoint"),
        ("mismatch", "Not continued after 1 attempt", "on-mismatch"),
        ("undelivered", "Done, but not delivered, in 1 attempt", "endstate deliver"),
        ("superseded", "Superseded after 1 attempt", "newer attempt"),
        ("failed", "Failed after 1 attempt", "Re-run"),
    ],
)
def test_every_other_end_says_why_and_what_to_do(conclusion, word, remedy):
    body = comment(plain_result(conclusion=conclusion, reason="max-cost-usd: $5.00 is spent"), OWNER)
    assert first_line(body).startswith(f"**{word}")
    assert r"max\-cost\-usd" in first_line(body)
    assert remedy in body
    marker = parse_marker(body)
    assert marker is not None
    assert marker.state == conclusion


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("max-steps: 200 of 200 steps are used", "Raise the limit"),
        ("max-minutes: the 90 min of this attempt are over", "goes on where it stopped: time is per attempt."),
        ("history too long: it cannot be made short enough for a request", "A re-run would stop in the same way"),
        ("price unknown: 'm' answered", "`max-cost-usd` left empty, or at its default of `5.00`"),
        ("declined: the model declined to go on", "*Re-run jobs* goes on where it stopped"),
    ],
)
def test_what_to_do_about_a_stop_is_what_helps_against_its_reason(reason, remedy):
    body = comment(plain_result(conclusion="stopped", reason=reason), OWNER)
    assert remedy in body
    assert ("Raise the limit" in body) == (remedy == "Raise the limit")


# --- What stands below ---


def test_the_marker_carries_what_others_need():
    body = comment(interrupted_result(**{"outside-effects": 4}), OWNER)
    assert parse_marker(body) == Marker(OWNER, SESSION, 1, 4, "success", BASE, None, TREE, HASH)


def test_how_to_verify_is_two_commands_and_what_they_print():
    uncommitted = comment(interrupted_result(), OWNER)
    assert (
        f"git checkout {BASE} && git apply --index ../endstate.patch && git write-tree\n"
        'endstate tree-hash --commit "$(git write-tree)"\n'
    ) in uncommitted
    assert f"Git tree `{TREE}`, tree hash `{HASH}`." in uncommitted
    pushed = [{"id": COMMIT, "subject": "Fix it", "branch": "b"}]
    committed = comment(interrupted_result(commits=pushed, uncommitted=None), OWNER)
    assert f"git rev-parse '{COMMIT}^{{tree}}'\nendstate tree-hash --commit {COMMIT}\n" in committed


def test_the_hashes_can_be_seen_without_unfolding_anything():
    body = comment(interrupted_result(), OWNER)
    assert f"\n\nGit tree `{TREE}`, tree hash `{HASH}`.\n\n<details><summary>Verify it" in body


@pytest.mark.parametrize("file", ["endstate.patch", None])
def test_of_a_patch_that_lacks_something_nobody_is_told_that_it_is_whole_or_gives_the_tree(file):
    lacks = "The patch is without key, since that holds the value of A_TOKEN."
    body = comment(interrupted_result(uncommitted={"patch-file": file, "lacks": lacks}), OWNER)
    assert "The patch is without key, since that holds the value of A\\_TOKEN" in body
    assert "the whole patch" not in body
    assert "could not be written" not in body
    assert "They must print" not in body
    assert "git apply" not in body
    assert f"Git tree `{TREE}`, tree hash `{HASH}`." in body


def test_a_patch_with_an_odd_name_does_not_reach_a_command():
    body = comment(interrupted_result(uncommitted={"patch-file": "x; rm -rf ~"}), OWNER)
    assert "../the.patch" in body
    assert "../x; rm" not in body


def test_a_moved_head_is_said_and_the_result_labelled():
    body = comment(interrupted_result(**{"head-moved-to": "9" * 40}), OWNER)
    assert "moved to 999999999999" in body
    assert "belongs to aaaaaaaaaaaa" in body


def test_what_was_refused_and_what_no_commit_can_hold_is_named():
    refused = [{"step": 2, "call": 1, "tool": "bash", "status": "denied", "reason": "no network tools"}]
    trees = interrupted_result().trees.model_copy(update={"left_out": (LeftOut(path="sub", reason="A repository."),)})
    body = comment(interrupted_result(refused=refused).model_copy(update={"trees": trees}), OWNER)
    assert "denied, since no network tools" in body
    assert "- `sub`: A repository" in body


def test_a_result_that_no_commit_can_hold_is_not_called_nothing():
    trees = plain_result().trees.model_copy(update={"left_out": (LeftOut(path="sub", reason="A repository."),)})
    assert first_line(comment(plain_result().model_copy(update={"trees": trees}), OWNER)).endswith(
        "1 changed path, which no commit can hold."
    )
    both = interrupted_result().model_copy(update={"trees": trees})
    assert first_line(comment(both, OWNER)).endswith("3 files changed (and 1 that no commit can hold), not committed.")


def test_what_is_refused_for_good_is_not_said_to_be_delivered_by_a_re_run():
    body = comment(interrupted_result(conclusion="undelivered"), OWNER, is_final=True)
    assert "would be refused in the same way" in body
    assert "git apply" in body.partition("Verify it")[0]
    assert "Re-run" not in body
    lost = interrupted_result(conclusion="undelivered", uncommitted={"patch-file": None})
    assert "by hand" not in comment(lost, OWNER, is_final=True)
    assert "Ask, in a new run, for a change without what was refused." in comment(lost, OWNER, is_final=True)
    assert "could not be written" in comment(lost, OWNER, is_final=True)


def test_a_plain_directory_is_verified_by_its_workspace():
    trees = {"workspace-hash": HASH}
    body = comment(plain_result(trees=trees, **{"changed-files": None}), OWNER)
    assert "endstate tree-hash\n" in body
    assert "git apply" not in body


def test_the_difference_is_folded_and_its_rest_counted():
    body = comment(interrupted_result(), OWNER, "Fixed.", Patch(b"", PATCH.shown, 500))
    assert "<details><summary>The difference, first 3 lines</summary>\n\n```diff\ndiff --git a/x b/x\n" in body
    assert "500 more lines are in the patch." in body
    assert tags(body) == OURS


def test_the_summary_is_the_comment_without_a_marker():
    shown = summary(interrupted_result(), "Fixed.", PATCH)
    assert shown == comment(interrupted_result(), OWNER, "Fixed.", PATCH).partition("\n")[2]
    assert len(summary(interrupted_result(), "\U0001f600" * 10**6).encode()) < 1024 * 1024


# --- Whatever the run produced ---

hostile = st.lists(
    st.one_of(
        st.sampled_from(["</details>", "<!-- endstate:v1 {} -->", "@user", "```", "\n", "|", "`", "<b>", "\U0001f600"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=40)
@given(st.data())
def test_no_text_of_others_leaves_its_place(data):
    def text() -> str:
        return str(data.draw(hostile))

    made = interrupted_result().model_copy(
        update={
            "reason": text(),
            "attempts": tuple(
                Attempt(
                    epoch=n,
                    began="2026-11-29T12:00:25Z",
                    steps=1,
                    ended="preempted",
                    where=text(),
                    restored_from=text(),
                )
                for n in (1, 2)
            ),
            "settlements": (Settlement(step=1, call=1, tool=text(), action="adopt", reason=text(), attempt=1),),
            "refused": (Refused(step=1, call=1, tool=text(), status="denied", reason=text()),),
            "changed_files": (ChangedFile(path=text(), change="added", mode="100644", blob="1" * 40),),
            "accepted_mismatches": (text(),),
            "notes": (text(),),
            "run_url": text(),
            "asked_in": text(),
            "conclusion": "stopped",
        }
    )
    body = comment(made, OWNER, text(), Patch(b"", text(), 0), [text()])
    assert_is_ours(body)
    table = [line for line in body.split("\n") if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) == 6 for line in table)


def assert_is_ours(body: str) -> None:
    """One marker, our tags alone and each closed, nobody mentioned outside of code."""
    assert parse_marker(body) is not None
    prose = re.sub(r"(?ms)^(> )?(`{3,})[\w.+#-]*$.*?^(> )?\2$", "", body.partition("\n")[2])
    spans = re.sub(r"(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)", "", prose)
    assert not re.search(r"@[A-Za-z0-9]", spans)
    assert {match[0] for match in re.finditer(r"<[A-Za-z/!?][^>\n]*>?", spans)} <= OURS
    assert prose.count("\n<details>") == prose.count("\n</details>")
    assert units(body) <= COMMENT_UNITS < GITHUB_CHARACTERS


def enormous(text: str) -> Evidence:
    files = tuple(ChangedFile(path=text, change="added", mode="100755", blob="1" * 40) for _ in range(2000))
    return interrupted_result().model_copy(
        update={
            "reason": text,
            "conclusion": "stopped",
            "attempts": tuple(
                Attempt(
                    epoch=10**15 + n,
                    run_attempt=10**15,
                    began="2026-11-29T12:00:25Z",
                    steps=10**15,
                    ended="preempted",
                    where=text,
                    restored_from=text,
                )
                for n in range(300)
            ),
            "settlements": tuple(
                Settlement(step=n, call=1, tool=text, action="adopt", reason=text, attempt=2) for n in range(500)
            ),
            "refused": tuple(Refused(step=n, call=1, tool=text, status="denied", reason=text) for n in range(500)),
            "changed_files": files,
            "accepted_mismatches": (text,) * 50,
            "notes": (text,) * 100,
            "trees": Trees(
                base_commit=BASE,
                git_tree=TREE,
                published_hash=HASH,
                left_out=tuple(LeftOut(path=text, reason=text) for _ in range(500)),
            ),
            "versions": {f"{text}{n}": text for n in range(50)},
            "head_moved_to": "9" * 40,
        }
    )


@pytest.mark.parametrize("text", ["x" * 3000, "\U0001f600" * 3000, "|`<@a&" * 500, "```\n" * 900])
def test_a_comment_is_never_too_long(text):
    patch = Patch(b"", "\n".join([text[:90]] * 200), 10**6)
    body = comment(enormous(text), OWNER, text * 30, patch, [text] * 100)
    assert_is_ours(body)
    assert len(body) < GITHUB_CHARACTERS
    assert body.count("Earlier results") == 1


def test_an_open_fence_of_emoji_is_cut_and_closed():
    body = comment(plain_result(), OWNER, "See:\n```\n" + "\U0001f600" * 70_000)
    assert_is_ours(body)
    assert "\n> ```\n> \n" in body or "\n> ```\n>\n" in body
    assert "How" not in body
    assert "<summary>Details</summary>" in body


# --- While it works ---


def test_a_working_comment_says_what_its_silence_means():
    body = working(NOW, OWNER)
    assert first_line(body) == (
        "**Working.** Started 12:00:25 UTC, last sign of life 12:01:10, 7 steps so far, checkpoint 3 shipped 12:01:05. "
        "[Open the run](https://github.com/o/r/actions/runs/7)."
    )
    assert "No news for 15 minutes? The machine is gone." in body
    assert "goes on from the newest checkpoint" in body
    assert "Sandbox: isolated, no network." in body
    assert parse_marker(body) == Marker(OWNER, SESSION, 1, 2, "working")


@pytest.mark.parametrize(
    ("store", "why"),
    [("none", "there is no store for checkpoints"), ("Actions cache", "no checkpoint is in Actions cache yet")],
)
def test_a_run_that_cannot_ship_says_so_first(store, why):
    told = working(replace(NOW, is_durable=False, store=store, remedy="`store: git-ref`"), OWNER)
    assert f"**If this machine is lost, the work is lost**: {why}. Remedy:" in told
    assert "it begins anew" in told


# --- What it answers ---

ASKED_IN = "https://github.com/o/r/pull/7#issuecomment-12"


def test_each_form_of_the_comment_and_the_summary_say_which_comment_they_answer():
    now, result = replace(NOW, asked_in=ASKED_IN), plain_result(**{"asked-in": ASKED_IN})
    forms = [working(now, OWNER), ended(now, OWNER, "stopped", "max-steps: 7"), comment(result, OWNER), summary(result)]
    for body in forms:
        assert body.count(f"This answers [this comment]({ASKED_IN}).") == 1
    for body in (working(NOW, OWNER), comment(plain_result(), OWNER)):
        assert "This answers" not in body


# --- Older results ---


def test_the_newest_result_wins_and_older_ones_are_folded():
    first = comment(plain_result(session="0" * 12), OWNER)
    second = comment(plain_result(session="1" * 12), OWNER, earlier=earlier_of(first, "1" * 12, 1))
    third = working(NOW, OWNER, earlier_of(second.replace("\n", "\r\n"), SESSION, 1))
    listed = third.partition("Earlier results</summary>\n\n")[2].split("\n")
    assert [line[:16] for line in listed[:3]] == ["- `111111111111`", "- `000000000000`", ""]
    assert "Done in 1 attempt" in listed[0]


def test_the_result_of_the_same_task_takes_its_working_comment_s_place():
    older = comment(plain_result(session="0" * 12), OWNER)
    now = working(NOW, OWNER, earlier_of(older, SESSION, 1))
    assert earlier_of(now, SESSION, 1) == earlier_of(older, SESSION, 1)
    assert len(earlier_of(now, SESSION, 2)) == 2


def test_a_run_that_left_no_result_is_said_to_have_left_none():
    assert earlier_of(working(NOW, OWNER), "1" * 12, 1) == (
        f"`{SESSION}`: no result. It had not ended when the next run began.",
    )


def test_older_results_do_not_pile_up():
    earlier: tuple[str, ...] = ()
    for number in range(40):
        body = comment(plain_result(session=f"{number:012x}"), OWNER, earlier=earlier)
        earlier = earlier_of(body, "f" * 12, 1)
    assert len(earlier) == 10
    assert earlier[0].startswith(f"`{39:012x}`")


def test_a_message_cannot_pretend_to_be_an_earlier_result():
    forged = "<details><summary>Earlier results</summary>\n\n- all is well\n\n</details>"
    body = comment(plain_result(session="0" * 12), OWNER, f"{forged}\n```\n{forged}\n```", Patch(b"", forged, 0))
    assert [line[:14] for line in earlier_of(body, SESSION, 1)] == ["`000000000000`"]


def test_what_a_person_wrote_into_an_older_comment_stays_harmless():
    body = comment(plain_result(session="0" * 12), OWNER, earlier=["x"]).replace("- x", "- @user </details> <b>")
    kept = earlier_of(body, SESSION, 1)
    assert not any(re.search(r"@[a-z]|<[/b]", line) for line in kept)


@pytest.mark.parametrize("body", ["", "hello", "> " + working(NOW, OWNER)])
def test_nothing_is_kept_of_a_comment_without_our_marker(body):
    assert earlier_of(body, SESSION, 1) == ()


def test_what_has_no_step_of_its_own_is_told_in_a_whole_phrase():
    assert cut_short("undelivered", "GitHub answered 503", 0).startswith("**Done, but not delivered.**")
    assert cut_short("undelivered", "GitHub answered 503", 2).startswith("**Done, but not delivered, in 2 steps.**")
