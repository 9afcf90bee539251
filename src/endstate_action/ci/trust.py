"""Who may have an agent work here: decided from values alone, before anything is spent.

*Skipped* is no failure: the event was not meant for us, or comes from where no secrets are. *Refused*
is: somebody asked who may not. What the payload does not say and nobody could find out counts against.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from endstate_action.ci.event import Actor, Event, PullRequest
from endstate_action.config import parse_boolean, parse_choice, reveal
from endstate_action.config.text import quoted
from endstate_action.errors import InputError

Level = Literal["none", "read", "triage", "write", "maintain", "admin"]
Required = Literal["write", "maintain", "admin"]
"""Nothing less: in a public repository everybody can read."""
LEVELS: tuple[Level, ...] = get_args(Level)

DEFAULT_PHRASE = "/endstate"
INPUTS = ("trigger-phrase", "required-permission", "allowed-bots", "allow-forks")

_PHRASE = re.compile(r"\S(.{0,98}\S)?")
_BOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\[bot\])?")
_DEPENDABOT = "dependabot"
# Each is there from the moment that it begins; a later word about it starts nothing.
_FIRST_ACTIONS = {"issue_comment": "created", "pull_request_review_comment": "created",
                  "pull_request_review": "submitted"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """What the workflow's author allows."""

    required: Required = "write"
    bots: frozenset[str] = frozenset()
    """Logins without `[bot]`, casefolded."""
    forks: bool = False
    phrase: str = DEFAULT_PHRASE


@dataclass(frozen=True, slots=True)
class Recorded:
    """Who a session says asked, and in which run."""

    actor: Actor
    run_id: int


@dataclass(frozen=True, slots=True)
class Allowed:
    actor: Actor
    """To be recorded with the prompt: on a re-run it decides again."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Exit 0 with a notice; `reason` is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    hint: str


Decision = Allowed | Skipped | Refused


def parse_rules(inputs: Mapping[str, str]) -> Rules:
    """The rules from the action's inputs; one that is missing or `""` takes its default.

    Raises:
        InputError: naming the input, what was given and what is allowed.
    """
    given = {name: text for name, text in inputs.items() if text != ""}
    return Rules(
        required=parse_choice("required-permission", given.get("required-permission", "write"), get_args(Required)),
        bots=_parse_bots(given.get("allowed-bots", "")),
        forks=parse_boolean("allow-forks", given.get("allow-forks", "false")),
        phrase=_parse_phrase(given.get("trigger-phrase", DEFAULT_PHRASE)),
    )


def _parse_bots(text: str) -> frozenset[str]:
    names = re.split(r"[\s,]+", text.strip()) if text.strip() else []
    for name in names:
        if not _BOT.fullmatch(name):
            raise InputError(
                f"allowed-bots: {quoted(name)} cannot be used, so nothing was started.",
                hint="allowed-bots must be logins of bots, such as renovate[bot], with commas between them. "
                "There is no way to allow all.",
            )
    return frozenset(map(_bot_key, names))


def _parse_phrase(text: str) -> str:
    if not _PHRASE.fullmatch(text) or not text.isprintable():
        raise InputError(
            f"trigger-phrase: {quoted(text)} cannot be used, so nothing was started.",
            hint="trigger-phrase must be up to 100 characters on one line, with no space around them.",
        )
    return text


def permission_level(permission: str, role: str = "") -> Level:
    """GitHub's answer about an account, of which `role` is finer; a role of an organisation's own is not known here."""
    return next((level for told in (role, permission) for level in LEVELS if level == told), "none")


def with_pull_request(event: Event, pull_request: PullRequest) -> Event:
    """The event of a comment, with the pull request that its payload only numbers."""
    return replace(event, pull_request=pull_request, is_fork=pull_request.is_fork)


def actor_of(event: Event, recorded: Recorded | None = None) -> Actor:
    """Whose permission counts. On a re-run it is who asked in this run, whoever asks for the re-run.

    A session can be shared by several runs, so a record of another run says nothing about this one.
    """
    if event.run.attempt > 1 and recorded is not None and recorded.run_id == event.run.id:
        return recorded.actor
    if event.comment is not None and event.comment.author is not None:
        return event.comment.author
    return event.actor


def request(body: str, phrase: str) -> str | None:
    """What a comment asks: all that follows the phrase, which begins a line and ends with it or before a space.

    None where the phrase is not there. What a person cannot see asks nothing.
    """
    found = re.search(rf"^{re.escape(phrase)}(?!\S)", reveal(body.replace("\r\n", "\n")), re.MULTILINE)
    return found.string[found.end() :].strip() if found else None


def skipped(event: Event, rules: Rules, recorded: Recorded | None = None) -> Skipped | None:
    """The reason to do nothing that needs no question to GitHub, if there is one."""
    return _not_meant(event, rules) or _without_secrets(event, rules, actor_of(event, recorded))


def decide(event: Event, rules: Rules, level: Level | None, recorded: Recorded | None = None) -> Decision:
    """Whether the agent may begin, or go on.

    Args:
        level: the permission of `actor_of(event, recorded)` today; None: GitHub would not say.
    """
    actor = actor_of(event, recorded)
    reason = skipped(event, rules, recorded)
    if reason is not None:
        return reason
    if event.is_fork is None and not rules.forks:
        return Refused(
            f"Whether #{event.number} comes from a fork could not be found out, so nothing was run.",
            "Give the job `pull-requests: read`, or set allow-forks: true.",
        )
    # A schedule is asked for by nobody but the workflow on the default branch; its actor is whoever last touched it.
    if event.name == "schedule" or _is_listed(actor, rules):
        return Allowed(actor)
    return _permitted(actor, rules, level)


def _permitted(actor: Actor, rules: Rules, level: Level | None) -> Decision:
    if level is None:
        return Refused(
            f"GitHub did not say which permission {actor.login} has here, so nothing was run.",
            "Run the job again. If it stays so, see that `github-token` is the job's own token or may read this.",
        )
    if LEVELS.index(level) < LEVELS.index(rules.required):
        return Refused(
            f"{actor.login} has the permission {level} here, and {rules.required} is required, so nothing was run.",
            "Somebody who has it can ask instead. A re-run asks for the same person again.",
        )
    return Allowed(actor)


def _not_meant(event: Event, rules: Rules) -> Skipped | None:
    if event.name == "merge_group":
        return Skipped("A merge queue tests what was reviewed already. Nothing was run.")
    comment = event.comment
    if comment is None:
        return None
    if comment.is_ours:
        return Skipped("The comment is our own. Nothing was run.")
    first = _FIRST_ACTIONS[event.name]
    if event.action != first:
        return Skipped(f"A comment asks when it is {first}, not when it is {_word(event.action)}. Nothing was run.")
    if request(comment.body, rules.phrase) is None:
        return Skipped(f"No line of the comment begins with {rules.phrase}. Nothing was run.")
    return None


def _without_secrets(event: Event, rules: Rules, actor: Actor) -> Skipped | None:
    if event.name == "schedule":
        return None
    if _bot_key(actor.login) == _DEPENDABOT and actor.is_bot and not _is_listed(actor, rules):
        return Skipped("Runs for Dependabot get no secrets. Nothing was run.")
    if actor.is_bot and not _is_listed(actor, rules):
        return Skipped(f"{actor.login} is a bot that allowed-bots does not list. Nothing was run.")
    if event.is_fork and not rules.forks:
        return Skipped(
            "The code comes from a fork, which gets no secrets, and allow-forks is not true. Nothing was run."
        )
    return None


def _is_listed(actor: Actor, rules: Rules) -> bool:
    return actor.is_bot and _bot_key(actor.login) in rules.bots


def _bot_key(login: str) -> str:
    return login.casefold().removesuffix("[bot]")


def _word(action: str) -> str:
    return action if action.isidentifier() and len(action) < 40 else "something else"
