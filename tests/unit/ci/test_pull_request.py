"""What we say on a pull request stands there once, and what others say is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import Absent, Ambiguous, Applied, Denied, Rejected, TooLate, Unavailable
from endstate_action.ci.pull_request import (
    Author,
    Conversation,
    RunNow,
    Viewer,
    permission_of,
    read_pull_request,
    read_run,
    viewer_of,
)
from endstate_action.errors import InputError
from tests.support.github_server import FOREVER, TOKEN, GitHubServer, bare_repository
from tests.support.github_shapes import BOT

MARKER = "<!-- endstate:one -->"
OTHER = "<!-- endstate:two -->"
ME = Viewer(BOT)
APP = "github-actions"

# Kinds of fault, and whether the request was applied when it strikes.
LOST = [
    ("applied-502", True),
    ("502", False),
    ("drop-before", False),
    ("drop-after", True),
    ("stall-after", True),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_repository(tmp_path_factory.mktemp("github"))


@pytest.fixture
def server(bare) -> Iterator[GitHubServer]:
    with GitHubServer(bare) as github:
        yield github


@pytest.fixture
def github(server, request) -> Iterator[GitHub]:
    timeout_s = 1 if "stall" in request.node.name else 30
    connected = GitHub(server.url, TOKEN, {}, timeout_s=timeout_s, pauses_s=(0, 0))
    yield connected
    connected.close()


@pytest.fixture
def conversation(github) -> Conversation:
    return Conversation(github, "org/repo", 7, wait=lambda seconds: None)


def ours(marker: str = MARKER) -> Callable[[str, Author], bool]:
    return lambda body, author: body.startswith(marker) and ME.wrote(author)


def always() -> bool:
    return True


def never() -> bool:
    return False


def once() -> Callable[[], bool]:
    """Yes the first time, no ever after."""
    answers = iter([True])
    return lambda: next(answers, False)


def stick(conversation: Conversation, words: str, marker: str = MARKER, **more: Any) -> Any:
    return conversation.stick(f"{marker}\n{words}", ours(marker), more.pop("may_write", always), **more)


def bodies(server: GitHubServer) -> list[str]:
    return [comment["body"] for comment in server.comments]


# The sticky comment.


def test_our_comment_is_found_behind_a_hundred_others(server, conversation):
    for number in range(132):
        server.say("alice", f"comment {number}")
    mine = server.say(BOT, f"{MARKER}\nworking", APP)
    for number in range(2):
        server.say("bob", f"late comment {number}")

    outcome = stick(conversation, "done")

    assert (outcome.value.comment.id, outcome.value.was) == (mine, "edited")
    assert bodies(server)[132] == f"{MARKER}\ndone"
    assert len(server.comments) == 135


@pytest.mark.parametrize(
    ("login", "app"),
    [("mallory", None), ("github-actions", None), ("mallory", "github-actions"), ("other[bot]", "other")],
)
def test_a_stranger_who_quotes_our_marker_is_left_alone(server, conversation, login, app):
    server.say(login, f"{MARKER}\nI am you", app)

    outcome = stick(conversation, "done")

    assert outcome.value.was == "created"
    assert bodies(server) == [f"{MARKER}\nI am you", f"{MARKER}\ndone"]


def test_two_slots_on_one_pull_request_never_touch_each_others_comment(server, conversation):
    for words in ("first", "second"):
        for marker in (MARKER, OTHER):
            stick(conversation, f"{words} of {marker}", marker)

    assert bodies(server) == [f"{MARKER}\nsecond of {MARKER}", f"{OTHER}\nsecond of {OTHER}"]


def test_a_comment_that_says_it_already_is_not_edited(server, conversation):
    stick(conversation, "done")

    outcome = stick(conversation, "done")

    assert outcome.value.was == "unchanged"
    assert server.count("comment.edit") == 0


def test_our_comment_is_ours_whatever_people_have_made_of_its_text(server, conversation):
    known = stick(conversation, "working").value.comment.id
    server.change(known, "I have removed the marker.")

    outcome = stick(conversation, "done", known=known)

    assert (outcome.value.comment.id, outcome.value.was) == (known, "edited")
    assert bodies(server) == [f"{MARKER}\ndone"]


def test_a_deleted_comment_is_posted_again_once(server, conversation):
    known = stick(conversation, "working").value.comment.id
    server.delete(known)

    again = stick(conversation, "working", known=known).value
    server.delete(again.comment.id)
    outcome = stick(conversation, "done", known=again.comment.id, may_recreate=False)

    assert again.was == "recreated"
    assert isinstance(outcome, Absent)
    assert server.comments == []


def test_a_comment_that_is_deleted_under_our_hands_is_posted_again(server, conversation):
    known = stick(conversation, "working").value.comment.id
    server.fault("comment.edit", "meanwhile", act=lambda: server.delete(known))

    outcome = stick(conversation, "done")

    assert outcome.value.was == "recreated"
    assert bodies(server) == [f"{MARKER}\ndone"]


@pytest.mark.parametrize(("kind", "is_applied"), LOST)
def test_a_post_whose_answer_is_lost_ends_in_one_comment(server, conversation, kind, is_applied):
    server.fault("comment.create", kind)

    outcome = stick(conversation, "done")

    assert isinstance(outcome, Applied)
    assert bodies(server) == [f"{MARKER}\ndone"]
    assert server.count("comment.create") == (1 if is_applied else 2)


@pytest.mark.parametrize("kind", ["502", "drop-before"])
def test_a_post_that_is_lost_twice_is_not_sent_a_third_time(server, conversation, kind):
    server.fault("comment.create", kind, times=FOREVER)

    outcome = stick(conversation, "done")

    assert isinstance(outcome, Ambiguous)
    assert server.count("comment.create") == 2
    assert server.comments == []


def test_who_cannot_look_does_not_post_again(server, conversation):
    server.fault("comment.create", "applied-502", times=FOREVER)
    server.fault("comment.list", "403", at=2, times=FOREVER)

    outcome = stick(conversation, "done")

    assert isinstance(outcome, Ambiguous)
    assert bodies(server) == [f"{MARKER}\ndone"]


def test_nothing_is_posted_when_the_comments_cannot_be_read(server, conversation):
    server.fault("comment.list", "403", times=FOREVER)

    assert isinstance(stick(conversation, "done"), Denied)
    assert server.comments == []


def test_a_second_page_that_cannot_be_read_is_no_ground_to_post(server, conversation):
    for number in range(120):
        server.say("alice", str(number))
    server.fault("comment.list", "403", at=2, times=FOREVER)

    assert isinstance(stick(conversation, "done"), Denied)
    assert len(server.comments) == 120


@pytest.mark.parametrize(("kind", "is_applied"), LOST)
def test_an_edit_whose_answer_is_lost_is_made(server, conversation, kind, is_applied):
    stick(conversation, "working")
    server.fault("comment.edit", kind)

    outcome = stick(conversation, "done")

    assert outcome.value.was == "edited"
    assert bodies(server) == [f"{MARKER}\ndone"]
    assert server.count("comment.edit") == (1 if is_applied else 2)


def test_own_duplicates_but_the_first_are_removed(server, conversation):
    first, second, third = (server.say(BOT, f"{MARKER}\nworking", APP) for _ in range(3))
    server.say("mallory", f"{MARKER}\nme too")

    outcome = stick(conversation, "done")

    assert (outcome.value.comment.id, outcome.value.removed, outcome.value.left) == (first, (second, third), ())
    assert bodies(server) == [f"{MARKER}\ndone", f"{MARKER}\nme too"]


def test_a_duplicate_that_cannot_be_removed_is_told_and_what_we_say_is_said(server, conversation):
    _, second, third = (server.say(BOT, f"{MARKER}\nworking", APP) for _ in range(3))
    server.fault("comment.delete", "403")

    outcome = stick(conversation, "done")

    assert (outcome.value.removed, outcome.value.left) == ((third,), (second,))
    assert bodies(server)[0] == f"{MARKER}\ndone"


def test_a_sender_that_is_too_late_changes_nothing(server, conversation):
    server.say(BOT, f"{MARKER}\nworking", APP)

    assert stick(conversation, "done", may_write=never) == TooLate()
    assert stick(conversation, "done", OTHER, may_write=never) == TooLate()
    assert bodies(server) == [f"{MARKER}\nworking"]


def test_a_sender_that_has_become_too_late_does_not_send_again(server, conversation):
    server.fault("comment.create", "502")

    outcome = stick(conversation, "done", may_write=once())

    assert isinstance(outcome, Ambiguous)
    assert server.count("comment.create") == 1


def test_a_sign_of_life_is_one_request(server, conversation):
    known = stick(conversation, "working").value.comment.id
    before = len(server.received)

    conversation.edit(known, f"{MARKER}\nstill working", always)

    assert len(server.received) == before + 1
    assert bodies(server) == [f"{MARKER}\nstill working"]


def test_a_sign_of_life_on_a_deleted_comment_is_absent(server, conversation):
    assert isinstance(conversation.edit(12345, "x", always), Absent)


@pytest.mark.parametrize(
    ("kind", "outcome"), [("401", Denied), ("403", Denied), ("404", Absent), ("422", Rejected), ("503", Ambiguous)]
)
def test_a_post_that_fails_leaves_nothing_behind(server, conversation, kind, outcome):
    server.fault("comment.create", kind, times=FOREVER)

    assert isinstance(stick(conversation, "done"), outcome)
    assert server.comments == []


def test_a_locked_conversation_is_told_in_githubs_words(server, conversation):
    server.is_locked = True

    assert "locked" in stick(conversation, "done").reason


# Comments that are posted once and never changed.


@pytest.mark.parametrize(("kind", "is_applied"), LOST)
def test_a_keyed_comment_is_posted_once(server, conversation, kind, is_applied):
    server.fault("comment.create", kind)

    first = conversation.post(f"{MARKER}\nhello", ours(), always)
    second = conversation.post(f"{MARKER}\nhello", ours(), always)

    assert isinstance(first, Applied)
    assert first == second == conversation.find(ours())
    assert len(server.comments) == 1


def test_a_probe_tells_absent_from_cannot_tell(server, conversation):
    assert isinstance(conversation.find(ours()), Absent)

    server.fault("comment.list", "503", times=FOREVER)

    assert isinstance(conversation.find(ours()), Unavailable)


@pytest.mark.parametrize("kind", ["meanwhile", "applied-502", "502", "drop-after"])
@pytest.mark.parametrize("is_review_comment", [False, True])
def test_a_reaction_is_there_once(server, conversation, kind, is_review_comment):
    asked = server.say_at_line("alice", "hi") if is_review_comment else server.say("alice", "hi")
    server.fault("reaction.create", kind)

    for _ in range(2):
        outcome = conversation.react(asked, "eyes", always, is_review_comment=is_review_comment)
        assert outcome == Applied(None)

    assert server.reactions == [{"comment": asked, "login": BOT, "content": "eyes"}]


def test_a_reaction_that_is_too_late_is_not_sent(server, conversation):
    asked = server.say("alice", "hi")

    assert conversation.react(asked, "eyes", never) == TooLate()
    assert server.reactions == []


# Who we are.


def test_we_know_who_we_are(github):
    assert viewer_of(github) == Viewer(BOT)


def test_where_github_does_not_say_who_we_are_only_an_app_can_be_us(server, github):
    server.does_viewer_answer = False

    me = viewer_of(github)

    assert me == Viewer(None)
    assert me.wrote(Author(BOT, is_bot=True))
    assert not me.wrote(Author("mallory", is_bot=False))


def test_a_personal_token_writes_as_its_person():
    me = Viewer("Alice")

    assert me.wrote(Author("alice", is_bot=False))
    assert not me.wrote(Author("alice[bot]", is_bot=True))
    assert not me.wrote(Author("", is_bot=False))


# What is read.


def test_a_pull_request_is_read_as_it_is_now(server, github):
    now = read_pull_request(github, "org/repo", 7).value  # type: ignore[union-attr]

    assert (now.is_open, now.is_merged) == (True, False)
    assert (now.pull_request.head_ref, now.pull_request.base_ref) == ("change", "main")
    assert now.pull_request.head_sha == server.tip("change")


def test_a_closed_one_whose_fork_is_gone_is_read(server, github):
    server.is_open, server.is_merged, server.is_fork_gone = False, True, True

    now = read_pull_request(github, "org/repo", 7).value  # type: ignore[union-attr]

    assert (now.is_open, now.is_merged, now.pull_request.head_repository) == (False, True, None)


def test_a_pull_request_that_is_not_there_is_absent(github):
    assert isinstance(read_pull_request(github, "org/repo", 8), Absent)


@pytest.mark.parametrize(("login", "level"), [("alice", "maintain"), ("eve", "none")])
def test_a_permission_is_read(github, login, level):
    assert permission_of(github, "org/repo", login) == Applied(level)


@pytest.mark.parametrize("login", ["nobody", "../../pulls/7", "a/b", "alice?x=1", ""])
def test_a_name_that_nobody_has_reaches_nothing_else(github, login):
    assert isinstance(permission_of(github, "org/repo", login), Absent)


def test_a_run_that_was_started_again_shows_a_higher_attempt(server, github):
    server.run(5, attempt=2)

    assert read_run(github, "org/repo", 5) == Applied(RunNow(2, "in_progress", None))
    assert isinstance(read_run(github, "org/repo", 6), Absent)


@pytest.mark.parametrize("repository", ["", "org", "org/repo/x", "org/..", "./repo", "org/re po", "org/repo\n"])
def test_what_is_no_repository_is_refused(github, repository):
    with pytest.raises(InputError):
        read_run(github, repository, 5)
