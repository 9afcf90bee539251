"""`endstate run` against a Messages API that refuses every malformed history, through the real SDK and real kills."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from endstate_action.agent.providers.prices import DEFAULT_MODEL
from tests.support.command import Ran, begin, endstate
from tests.support.messages_api import (
    Answer,
    MessagesApi,
    Refusal,
    Script,
    answer,
    call,
    overloaded,
    raw_call,
    thinking,
    too_long,
)

pytestmark = pytest.mark.slow

Json = dict[str, Any]
KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def given(api: MessagesApi) -> Mapping[str, str]:
    return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}


def run(workspace: Path, api: MessagesApi, *arguments: str) -> Ran:
    return endstate(workspace, "run", *arguments, env=given(api))


def kill_in_request(workspace: Path, script: list[Script], number: int, *arguments: str) -> MessagesApi:
    """SIGKILL the command while it waits for the reply to request `number` (from 0)."""
    process: list[subprocess.Popen[bytes]] = []
    started = threading.Event()
    seen = [0]

    def on_request(body: Json) -> None:
        if seen[0] == number:
            started.wait(30)
            process[0].kill()
            process[0].wait()
        seen[0] += 1

    with MessagesApi(script, on_request=on_request) as api:
        process.append(begin(workspace, "run", *arguments, env=given(api)))
        started.set()
        process[0].communicate(timeout=60)
    assert process[0].returncode == -9
    return api


def results_of(body: Json) -> list[str]:
    last = body["messages"][-1]["content"]
    return [b["content"] for b in last if b["type"] == "tool_result"]


def test_a_task_is_done_through_the_real_sdk(workspace: Path) -> None:
    script = [answer(thinking("hm"), "I write.", call("write", path="a.txt", content="x")), answer("Done.")]
    with MessagesApi(script) as api:
        ran = run(workspace, api, "do it", "--json")

    assert api.refused == []
    assert (ran.code, ran.json["final-message"], ran.json["conclusion"]) == (0, "Done.", "success")
    assert (workspace / "a.txt").read_text() == "x"
    assert float(ran.json["cost-usd"]) > 0
    assert KEY not in ran.out + ran.err


def test_the_pinned_model_is_asked_when_none_is_named(workspace: Path) -> None:
    with MessagesApi([answer("Done.")]) as api:
        run(workspace, api, "do it")

    assert api.bodies[0]["model"] == "claude-sonnet-5-5"
    assert api.bodies[0]["stream"] is True


def test_completed_results_are_the_same_after_a_kill(workspace: Path) -> None:
    """A04: five calls completed, killed right after the next request; five byte-equal results on resume."""
    calls = [call("write", path=f"{n}.txt", content=str(n) * 5) for n in range(4)] + [
        call("bash", command="echo once >> log")
    ]
    killed = kill_in_request(workspace, [answer(thinking("t"), *calls), answer("never seen")], 1, "do it")

    with MessagesApi([answer("Done.")]) as api:
        # It must know what the first server sent, to check thinking byte for byte.
        api._note(killed_blocks(killed))
        ran = run(workspace, api, "--resume")

    assert (ran.code, ran.out) == (0, "Done.\n")
    assert results_of(api.bodies[0]) == results_of(killed.bodies[1])
    assert api.bodies[0]["messages"] == killed.bodies[1]["messages"]
    assert (workspace / "log").read_text() == "once\n"


def killed_blocks(api: MessagesApi) -> list[Json]:
    return [b for m in api.bodies[-1]["messages"] if m["role"] == "assistant" for b in m["content"]]


def test_killed_in_every_request_the_run_reaches_the_same_tree(workspace: Path, tmp_path: Path) -> None:
    """One request more per kill, no refused history, every file as in the undisturbed run."""
    script: list[Script] = [
        answer("a", call("write", path="a", content="1\n"), call("edit", path="a", old="1", new="1\n2")),
        answer("b", call("bash", command="cat a > b; echo more >> b")),
        answer("Done."),
    ]
    for number in range(3):
        place = tmp_path / f"ws{number}"
        place.mkdir()
        kill_in_request(place, script, number, "do it")
        with MessagesApi(script[number:]) as api:
            ran = run(place, api, "--resume", "--json")
        assert ran.code == 0
        assert api.refused == []
        assert len(api.requests) == len(script) - number
        assert {f.name: f.read_text() for f in place.iterdir() if f.is_file()} == {"a": "1\n2\n", "b": "1\n2\nmore\n"}


@pytest.mark.parametrize("blank", ["", "\u200b", " \n", "\ufeff"])
def test_blank_text_beside_a_call_does_not_poison_the_session(workspace: Path, blank: str) -> None:
    """A09, A10."""
    with MessagesApi([answer(blank, call("bash", command="true")), answer("Done.")]) as api:
        assert run(workspace, api, "do it").out == "Done.\n"

    assert api.refused == []


@pytest.mark.parametrize(
    "command",
    ["printf '\\355\\240\\275'", "head -c 4096 /dev/urandom", "printf '\\360\\377ok'", "true", "printf '\\000'"],
)
def test_any_output_is_a_result_that_the_provider_takes(workspace: Path, command: str) -> None:
    """A11, A12, A24."""
    with MessagesApi([answer(call("bash", command=command)), answer("Done.")]) as api:
        assert run(workspace, api, "do it").code == 0

    assert api.refused == []


def test_a_name_that_is_no_utf8_does_not_poison_the_session(workspace: Path) -> None:
    """A12, F01."""
    (Path(os.fsdecode(os.fsencode(workspace) + b"/caf\xe9.txt"))).write_text("x")
    with MessagesApi([answer(call("glob", pattern="*"), call("read", path="caf\\xe9.txt")), answer("Done.")]) as api:
        assert run(workspace, api, "do it").code == 0

    assert api.refused == []
    assert "caf\\xe9.txt" in results_of(api.bodies[1])[0]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(stop_reason="tool_use"), "no tool call"),
        (answer(stop_reason="end_turn"), "no answer"),
        (answer(thinking("only thinking"), stop_reason="end_turn"), "no answer"),
        (answer("I won't.", stop_reason="refusal"), "declined"),
        (answer("…", stop_reason="pause_turn"), "paused"),
        (answer("so far", stop_reason="max_tokens"), "output limit"),
        (answer("x", stop_reason="model_context_window_exceeded"), "context exceeded"),
    ],
)
def test_nothing_useful_is_never_success(workspace: Path, reply: Answer, reason: str) -> None:
    """A20, A21: bounded, and by its name."""
    with MessagesApi(lambda body, number: reply) as api:
        ran = run(workspace, api, "do it", "--json")

    assert (ran.code, ran.json["conclusion"]) == (1, "stopped")
    assert ran.json["reason"].startswith(reason)
    assert len(api.requests) <= 3
    assert api.refused == []


def test_a_call_cut_by_the_output_limit_wipes_no_file(workspace: Path) -> None:
    """A22."""
    (workspace / "keep.txt").write_text("k" * 100)
    cut = answer(raw_call("write", '{"path": "keep.txt", "cont'), stop_reason="max_tokens")
    with MessagesApi([cut, answer(call("write", path="other", content="x")), answer("Done.")]) as api:
        assert run(workspace, api, "do it").code == 0

    assert api.refused == []
    assert (workspace / "keep.txt").read_text() == "k" * 100


def test_a_stream_that_breaks_is_thrown_away_whole_and_paid(workspace: Path) -> None:
    """A23: half a call, then an error event; the second try counts, the tokens of both are shown."""
    broken = answer(call("bash", command="echo phantom >> log"), usage={"input_tokens": 1000}).failed(after=3)
    whole = answer(call("bash", command="echo real >> log"), usage={"input_tokens": 1000})
    with MessagesApi([broken, whole, answer("Done.", usage={"input_tokens": 1})]) as api:
        ran = run(workspace, api, "do it", "--json")

    assert (workspace / "log").read_text() == "real\n"
    assert ran.json["steps"] == 2
    assert ran.json["input-tokens"] >= 2001


def test_a_history_that_the_provider_finds_too_long_is_cut_and_asked_again(workspace: Path) -> None:
    """A28, A29."""
    (workspace / "big.txt").write_text("line of some length\n" * 3000)
    reads: list[Script] = [answer(call("read", path="big.txt")) for _ in range(4)]
    for refusal in (too_long(), Refusal(413, "too large", "request_too_large")):
        with MessagesApi([*reads, refusal, answer("Done.")]) as api:
            ran = run(workspace, api, "do it")
        assert (ran.code, ran.out) == (0, "Done.\n")
        assert api.refused == []
        assert len(api.requests[-1].raw) < len(api.requests[-2].raw)


@pytest.mark.parametrize(
    ("refusal", "code", "said"),
    [
        (Refusal(401, "invalid x-api-key", "authentication_error"), 2, "invalid x-api-key"),
        (Refusal(403, "no access", "permission_error"), 2, "no access"),
        (Refusal(404, "model: claude-sonnet-5-5", "not_found_error"), 2, "claude-sonnet-5-5"),
        (Refusal(400, "Your credit balance is too low", "invalid_request_error"), 2, "credit balance"),
        (Refusal(400, "something else is wrong", "invalid_request_error"), 2, "something else is wrong"),
    ],
)
def test_what_the_provider_refuses_is_told_in_its_words(
    workspace: Path, refusal: Refusal, code: int, said: str
) -> None:
    with MessagesApi([refusal]) as api:
        ran = run(workspace, api, "do it")

    assert ran.code == code
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert KEY not in ran.err


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(401, "invalid x-api-key", "authentication_error"),
        Refusal(404, "model: claude-sonnet-5-5", "not_found_error"),
        Refusal(400, "something is wrong", "invalid_request_error"),
    ],
)
def test_a_refusal_after_work_was_done_does_not_say_that_nothing_was(workspace: Path, refusal: Refusal) -> None:
    with MessagesApi([answer(call("write", path="a", content="x")), refusal]) as api:
        ran = run(workspace, api, "do it", "--json")

    assert (workspace / "a").read_text() == "x"
    assert "No further call was run" in ran.json["error"]
    assert "othing was" not in ran.err
    assert f"endstate run --resume --session {ran.json['session-id']}" in ran.json["hint"] or refusal.status == 400


def test_an_overloaded_provider_is_asked_again(workspace: Path) -> None:
    with MessagesApi([overloaded(), answer("Done.")]) as api:
        assert run(workspace, api, "do it").out == "Done.\n"

    assert len(api.requests) == 2


def test_a_model_that_is_gone_on_resume_is_a_mismatch(workspace: Path) -> None:
    """A15: never exit 0 with nothing done."""
    kill_in_request(
        workspace, [answer(call("bash", command="true")), answer("x")], 1, "do it", "--model", "claude-opus-5"
    )
    with MessagesApi([Refusal(404, "model: claude-opus-5", "not_found_error")]) as api:
        ran = run(workspace, api, "--resume", "--json")
    assert (ran.code, ran.json["conclusion"]) == (13, "mismatch")
    assert api.bodies[0]["model"] == "claude-opus-5"


def test_another_answering_model_is_a_mismatch(workspace: Path) -> None:
    script = [answer(call("bash", command="true")), answer(call("bash", command="echo x > no"), model="another")]
    with MessagesApi(script) as api:
        ran = run(workspace, api, "do it")

    assert ran.code == 13
    assert not (workspace / "no").exists()


def test_a_prompt_that_is_too_long_for_the_model_is_no_case_for_a_resume(workspace: Path) -> None:
    with MessagesApi([too_long()]) as api:
        ran = run(workspace, api, "do it")

    assert ran.code == 1
    assert "stopped (history too long: " in ran.err
    assert "A resume would stop in the same way." in ran.err
    assert "begin anew there, with a shorter prompt" in ran.err
    assert "goes on" not in ran.err


def test_a_cost_cap_needs_a_known_price(workspace: Path) -> None:
    with MessagesApi([answer("Done.")]) as api:
        refused = run(workspace, api, "do it", "--model", "nobody-knows", "--max-cost-usd", "1")
        unknown = run(workspace, api, "do it", "--model", "nobody-knows", "--json")

    assert (refused.code, "price" in refused.err) == (2, True)
    assert len(api.requests) == 1
    assert unknown.json["cost-usd"] is None
    assert "cost unknown" in unknown.err


def test_a_cost_cap_is_kept_when_another_model_answers_than_was_asked(workspace: Path) -> None:
    """No call of its reply runs; the line that is told then goes on, and a price for it keeps the cap."""
    other: list[Script] = [
        answer(call("write", path="made", content="x"), model="other"),
        answer("Done.", model="other"),
    ]
    with MessagesApi(other) as api:
        ran = run(workspace, api, "do it", "--max-cost-usd", "1", "--json")
        assert (ran.code, ran.json["conclusion"], ran.json["cost-usd"]) == (1, "stopped", None)
        assert ran.json["reason"].startswith("price unknown: 'other' answered")
        assert ran.err.count("'other' answered where") == 1
        assert "max-cost-usd cannot be kept, so nothing more is run or asked" in ran.err
        assert not (workspace / "made").exists()

        (further,) = re.findall(r"Nothing is lost: `endstate (.*)` goes on without a limit of cost", ran.err)
        capped = run(workspace, api, "--resume", "--max-cost-usd", "9", "--json")
        assert (capped.code, len(api.requests)) == (1, 1)
        done = endstate(workspace, *shlex.split(further), env=given(api))
    assert (done.code, done.out, (workspace / "made").read_text()) == (0, "Done.\n", "x")

    (workspace / ".github").mkdir()
    (workspace / ".github" / "endstate.yml").write_text("prices: {other: {input: 3, output: 15}}\n")
    with MessagesApi(other) as api:
        assert run(workspace, api, "do it", "--max-cost-usd", "1").code == 0


def test_that_cost_is_not_bounded_is_told_once_when_another_model_answers(workspace: Path) -> None:
    other: list[Script] = [answer(call("bash", command="true"), model="other"), answer("Done.", model="other")]
    with MessagesApi(other) as api:
        ran = run(workspace, api, "do it", "--json")

    assert (ran.code, ran.json["cost-usd"]) == (0, None)
    assert ran.err.count("'other' answered where") == 1
    assert "from here only steps and time are bounded" in ran.err


def test_to_go_on_over_another_model_keeps_the_cost_cap_too(workspace: Path) -> None:
    other: list[Script] = [
        answer(call("bash", command="true")),
        answer(call("write", path="made", content="x"), model="other"),
        answer("Done.", model="other"),
    ]
    with MessagesApi(other) as api:
        assert run(workspace, api, "do it", "--max-cost-usd", "1").code == 13
        accepted = ("--resume", "--on-mismatch", "continue", "--json")
        stopped = run(workspace, api, *accepted, "--max-cost-usd", "1")
        assert stopped.json["reason"].startswith("price unknown: 'other' answered")
        assert not (workspace / "made").exists()
        assert run(workspace, api, *accepted).code == 0
    assert (workspace / "made").exists()


def test_the_dated_name_of_a_model_has_its_price(workspace: Path) -> None:
    with MessagesApi([answer("Done.", model=f"{DEFAULT_MODEL}-20261101")]) as api:
        ran = run(workspace, api, "do it", "--max-cost-usd", "1", "--json")

    assert ran.code == 0
    assert float(ran.json["cost-usd"]) > 0


def test_a_provider_that_reuses_call_ids_is_answered_call_by_call(workspace: Path) -> None:
    """A18: `t1` in every turn; each call runs, and the wire stays unique."""
    script: list[Script] = [answer(call("write", "t1", path=n, content=n)) for n in "ab"]
    with MessagesApi([*script, answer("Done.")]) as api:
        assert run(workspace, api, "do it").code == 0

    assert api.refused == []
    assert [(workspace / n).read_text() for n in "ab"] == ["a", "b"]


def test_the_same_reply_twice_runs_its_calls_once(workspace: Path) -> None:
    """A17."""
    again = answer(call("bash", "toolu_1", command="echo x >> log"), id="msg_1")
    with MessagesApi([again, again, answer("Done.")]) as api:
        assert run(workspace, api, "do it").code == 0

    assert (workspace / "log").read_text() == "x\n"


@pytest.mark.parametrize("name", ["functions.bash", "multi_tool_use.parallel", "", "read file", "lesen_ä", "x" * 300])
def test_a_tool_that_a_model_makes_up_is_answered_and_ends_no_session(workspace: Path, name: str) -> None:
    """A provider refuses a history with such a name, and every later request has the same history."""
    with MessagesApi([answer("", call(name, x=1)), answer("Done.")]) as api:
        ran = run(workspace, api, "do it")
    assert (ran.code, ran.out) == (0, "Done.\n"), ran.err
    (told,) = results_of(api.requests[1].body)
    assert name[:80] in told


def test_replies_that_are_of_no_use_cost_no_more_than_is_allowed(workspace: Path) -> None:
    broken = answer("", raw_call("write", '{"path": "a", "content": '), usage={"input_tokens": 100_000})
    with MessagesApi([broken] * 9) as api:
        ran = run(workspace, api, "do it", "--max-cost-usd", "0.30")
    assert (ran.code, len(api.requests)) == (1, 2), ran.err
    assert "max-cost-usd" in ran.err
