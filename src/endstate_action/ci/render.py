"""What a reviewer reads: the comment while a run works, the comment with its result, the job summary.

The first line says in plain words what happened; hashes, epochs and fingerprints are folded away. Whatever
the run produced, a comment stays below GitHub's limit, and its first line is the marker by which a later
attempt finds it. Text that is not ours goes through `markdown`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from endstate_action.ci.evidence import Attempt, ChangedFile, Commit, Evidence, Refused, Settlement
from endstate_action.ci.markdown import block, bullets, code, folded, kept_line, link, plain, prose, units
from endstate_action.ci.marker import Marker, parse_marker
from endstate_action.ci.patch import Patch
from endstate_action.messages import count_of, dollars

COMMENT_UNITS = 65_000
"""GitHub takes 65,536 characters; UTF-16 units, counted here, are never fewer."""

SILENT_MINUTES = 15
"""A working comment is edited at least so often while its run lives."""

_EARLIER = "<details><summary>Earlier results</summary>"
_MOST_EARLIER = 10
_EARLIER_UNITS = 600
_SAID_UNITS = 30_000
_DIFF_UNITS = 20_000
BESIDE_IT = "Left beside this result"
"""With this the note begins of what the task left beside what was checked out."""
_IN_THE_FILE = "in the evidence file"
_SHORT = 12
_REASON_UNITS = 4000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")

_DONE = {
    "success": "Done in",
    "stopped": "Stopped after",
    "interrupted": "Interrupted after",
    "mismatch": "Not continued after",
    "undelivered": "Done, but not delivered, in",
    "superseded": "Superseded after",
    "failed": "Failed after",
}
_WHAT_NOW = {
    "success": "",
    "stopped": "Nothing is lost. *Re-run jobs* goes on where it stopped.",
    "interrupted": "Nothing that was shipped is lost. *Re-run failed jobs* and *Re-run all jobs* both go on from the "
    "newest checkpoint.",
    "mismatch": "The session was begun under another contract, so nothing was run. `on-mismatch: continue` goes on all "
    "the same, `on-mismatch: restart` begins anew.",
    "undelivered": "The result is kept and nothing is paid twice: *Re-run failed jobs* delivers it without asking the "
    "model, and `endstate deliver` does so by hand.",
    "superseded": "A newer attempt has taken over. This one has stopped and announces nothing more; look for the "
    "result of the newer one.",
    "failed": "What was recorded is kept. Once the cause is removed, *Re-run failed jobs* goes on from the newest "
    "checkpoint.",
}
_NO_TERMS_HELP = (
    "The session cannot be gone on with here, so nothing was run, and `on-mismatch` changes nothing of that. Put right "
    "what is named above, or ask in a new run, which begins anew; with a `session-key` it also takes `resume: never`."
)
"""Of a mismatch whose reason does not offer `on-mismatch`, since it is refused whatever that says."""
_READ_AGAIN = "a variable or secret is read again on a re-run, the workflow file is not"
_RAISE = f"Nothing is lost. Raise the limit ({_READ_AGAIN}), then choose *Re-run jobs*: it goes on where it stopped."
_WHAT_NOW_BY_REASON = {
    "max-steps": _RAISE,
    "max-cost-usd": _RAISE,
    "max-resumes": _RAISE,
    "max-minutes": "Nothing is lost. *Re-run jobs* goes on where it stopped: time is per attempt.",
    "history too long": "A re-run would stop in the same way. Ask in a new run, with a shorter prompt or instructions, "
    "or where less is said in the thread; long text can stand in a file of the repository that the prompt names.",
    "price unknown": "Nothing is lost. With `max-cost-usd` left empty, or at its default of `5.00`, it goes on without "
    f"a limit of cost ({_READ_AGAIN}): then choose *Re-run jobs*. To keep a limit, give that model a price under "
    "`prices` in the configuration file, and ask in a new run.",
}
"""Of a stop, by the words that its reason begins with."""
LOOK_AGAIN = (
    "The result is kept and nothing is paid twice: a re-run looks again, on a fresh checkout, and delivers it without "
    "asking the model if git can read that. If it cannot, ask in a new run for a change that leaves `.git` alone."
)
LOOKED_AGAIN = (
    "The result is kept and nothing is paid twice. This re-run has looked again, on a fresh checkout, and with what "
    "the agent did to `.git` git cannot read that either: another one would end in the same way. Ask in a new run for "
    "a change that leaves `.git` alone."
)
NOT_KEPT = (
    "No checkpoint of the result could be stored, so it is on this machine alone: take the patch while it is there. A "
    "re-run goes on from the newest checkpoint that was stored, if there is one, and asks the model again for the rest."
)
_REFUSED_FOR_GOOD = "Until that is put right a repeat would be refused in the same way, so nothing more is tried."
_BY_HAND = "Apply the patch by hand (`git apply`; the step's output `patch-file` names it), or ask"
_WITHOUT_IT = "in a new run, for a change without what was refused."
_ALL_BUT_THE_COMMENT = (
    "Only the comment is missing, which would have said what stands here; once it would be taken, a re-run posts it "
    "without asking the model."
)
_SETTLED = {
    "roll_back_and_run": "rolled back and re-run",
    "run": "run on the resume",
    "adopt": "found done and adopted",
    "roll_back": "rolled back and not repeated",
    "give_up": "given up",
}


@dataclass(frozen=True, slots=True)
class Working:
    """What a comment says while its run lives. Moments are `YYYY-MM-DDTHH:MM:SSZ`."""

    session: str
    task: int
    attempt: int
    effects: int
    started: str
    alive: str
    step: int
    store: str
    """In words, as *Actions cache*."""
    is_durable: bool
    sandbox: str
    checkpoint: str = ""
    shipped: str | None = None
    """When the newest checkpoint was."""
    restored_from: str | None = None
    remedy: str = ""
    """What would make it durable."""
    run_url: str | None = None
    asked_in: str | None = None
    """The address of the comment that asked for it."""


def is_unread(evidence: Evidence) -> bool:
    """Whether there are changes, or may be, of which git could make no tree."""
    return evidence.uncommitted is not None and evidence.trees.git_tree is None


def has_looked_again(evidence: Evidence) -> bool:
    """Whether this attempt only delivers, on another checkout than the one that made the result."""
    return evidence.delivered_by is not None and evidence.trees.restored_hash is not None


def look_again(evidence: Evidence, *, is_final: bool, is_kept: bool) -> str:
    """What a re-run can do about a commit that git could not make; empty where something else stands in its way."""
    if evidence.conclusion != "undelivered" or not is_unread(evidence):
        return ""
    if is_final:
        return LOOKED_AGAIN if has_looked_again(evidence) and evidence.reason.startswith("The commit ") else ""
    return LOOK_AGAIN if is_kept else ""


def headline(evidence: Evidence) -> str:
    """What happened, in one line of plain words."""
    attempts = count_of(len(evidence.attempts), "attempt")
    by = f", delivered by attempt {evidence.delivered_by}" if _is_delivered_later(evidence) else ""
    parts = [*_cuts(evidence), *_settled(evidence.settlements)]
    refused = Counter(call.status for call in evidence.refused)
    parts.append(f"{refused['refused']} refused")
    parts += [f"{refused[s]} {s.replace('_', ' ')}" for s in ("denied", "not_run") if refused[s]]
    parts += [f"{count_of(evidence.failed_calls, 'call')} failed"] if evidence.failed_calls else []
    return f"{_DONE[evidence.conclusion]} {attempts}{by}: {', '.join(parts)}"


def comment(
    evidence: Evidence,
    owner: str,
    said: str = "",
    patch: Patch | None = None,
    earlier: Sequence[str] = (),
    *,
    is_final: bool = False,
    is_kept: bool = True,
) -> str:
    """The comment with a result.

    Args:
        owner: whose slot it is, see `marker.owner_of`.
        said: the agent's final message.
        patch: what was changed and is in no commit that was pushed.
        earlier: from `earlier_of` the comment that this one replaces.
        is_final: of what was not delivered, whether a repeat would be refused in the same way.
        is_kept: of the same, whether it is stored where a re-run finds it.
    """
    delivered = _delivered(evidence)
    marker = Marker(
        owner=owner,
        session=evidence.session,
        task=evidence.task,
        effects=evidence.outside_effects,
        state=evidence.conclusion,
        base=evidence.trees.base_commit,
        commit=delivered.id if delivered else None,
        tree=evidence.trees.git_tree,
        hash=evidence.trees.published_hash,
    )
    first = f"{marker.line()}\n{_first_line(evidence)}"
    advice = _advice(evidence, is_final=is_final, is_kept=is_kept)
    return _assembled([first, *_question(evidence.asked_in), *advice], evidence, said, patch, earlier)


def summary(
    evidence: Evidence, said: str = "", patch: Patch | None = None, *, is_final: bool = False, is_kept: bool = True
) -> str:
    """The job summary: the same without a marker; far below the 1 MiB that a step may write."""
    above = [
        _first_line(evidence),
        *_question(evidence.asked_in),
        *_advice(evidence, is_final=is_final, is_kept=is_kept),
    ]
    return _assembled(above, evidence, said, patch, ())


def working(now: Working, owner: str, earlier: Sequence[str] = ()) -> str:
    """The comment while the run lives, which also says what its silence means."""
    marker = Marker(owner, now.session, now.task, now.effects, "working")
    again = f" (attempt {now.attempt}, resumed from {_checkpoint(now.restored_from)})" if now.restored_from else ""
    shipped = f", checkpoint {_checkpoint(now.checkpoint)} shipped {_clock(now.shipped)}" if now.shipped else ""
    first = (
        f"**Working{again}.** Started {_clock(now.started)} UTC, last sign of life {_clock(now.alive)}, "
        f"{count_of(now.step, 'step')} so far{shipped}. {link('Open the run', now.run_url)}."
    )
    facts = [_durable(now), f"Sandbox: {plain(now.sandbox, 300)}."]
    parts = [
        f"{marker.line()}\n{first}",
        *_question(now.asked_in),
        bullets(facts, len(facts), 2000, ""),
        _silence(now),
        *_folded_earlier(earlier),
    ]
    return "\n\n".join(parts) + "\n"


def ended(
    now: Working,
    owner: str,
    conclusion: str,
    reason: str,
    earlier: Sequence[str] = (),
    *,
    is_final: bool = False,
    is_kept: bool = True,
) -> str:
    """The comment of a run that was cut short before it had a result, or could not announce it, as in `comment`."""
    marker = Marker(owner, now.session, now.task, now.effects, conclusion)  # type: ignore[arg-type]  # `State`
    first = f"**{_over(conclusion, now.step)}.** {plain(reason, 800)}"
    advice = _what_now(conclusion, reason, is_final=is_final, is_kept=is_kept)
    parts = [f"{marker.line()}\n{first}", *_question(now.asked_in), advice, f"{link('Open the run', now.run_url)}."]
    return "\n\n".join([*parts, *_folded_earlier(earlier)]) + "\n"


def cut_short(conclusion: str, reason: str, step: int) -> str:
    """The job summary of an attempt that has no result. `step`: the last that it finished; 0 where it did not begin."""
    now = _what_now(conclusion, reason, is_final=False, is_kept=True) if step else ""
    parts = [f"**{_over(conclusion, step)}.**", block(reason, _REASON_UNITS), now]
    return "\n\n".join(filter(None, parts)) + "\n"


def _over(conclusion: str, step: int) -> str:
    return f"{_DONE[conclusion]} {count_of(step, 'step')}" if step else _DONE[conclusion].rpartition(" ")[0].rstrip(",")


def earlier_of(body: str, session: str, task: int) -> tuple[str, ...]:
    """What of a comment of ours the next one keeps, a line each: its result, unless it is of the same task, and
    what it kept itself.

    The caller knows that the comment is ours; a person may have edited it all the same.
    """
    marker = parse_marker(body)
    if marker is None:
        return ()
    lines = body.replace("\r\n", "\n").split("\n")
    kept = _listed_earlier(lines)
    if (marker.session, marker.task) != (session, task):
        kept = [_as_earlier(marker, lines), *kept]
    return tuple(kept_line(line, _EARLIER_UNITS) for line in kept[:_MOST_EARLIER])


# --- The first line ---


def _first_line(evidence: Evidence) -> str:
    reason = (
        f" {plain(evidence.reason.rstrip('.'), 400)}." if evidence.reason and evidence.conclusion != "success" else ""
    )
    return f"**{headline(evidence)}.**{reason} {', '.join(_facts(evidence))}. {_changed_in_short(evidence)}".rstrip()


def _question(asked_in: str | None) -> Iterator[str]:
    """Which of several comments this answers: they share one, and the newest has it."""
    if asked_in:
        yield f"This answers {link('this comment', asked_in)}."


def _facts(evidence: Evidence) -> Iterator[str]:
    yield count_of(evidence.steps, "step")
    least = "at least " if evidence.spent.at_least else ""
    yield f"{least}{dollars(evidence.spent.usd)}" if evidence.spent.usd is not None else "cost unknown"


def _changed_in_short(evidence: Evidence) -> str:
    if evidence.changed_files is None:
        return "What was changed could not be told." if is_unread(evidence) else ""
    if not evidence.changed_files:
        left_out = len(evidence.trees.left_out)
        if left_out:
            return f"{count_of(left_out, 'changed path')}, which no commit can hold."
        return "No file was changed." if _apart(evidence) else "Nothing was changed."
    delivered = _delivered(evidence)
    files = f"{count_of(len(evidence.changed_files), 'file')} changed"
    files += f" (and {len(evidence.trees.left_out)} that no commit can hold)" if evidence.trees.left_out else ""
    if delivered:
        return f"{files}, committed as {delivered.id[:_SHORT]} to {plain(delivered.branch or '', 120)}."
    return f"{files}, not committed." if evidence.uncommitted else f"{files}."


def _apart(evidence: Evidence) -> str:
    return next((note for note in evidence.notes if note.startswith(BESIDE_IT)), "")


def _is_delivered_later(evidence: Evidence) -> bool:
    return evidence.delivered_by is not None and evidence.conclusion != "undelivered"


def _cuts(evidence: Evidence) -> Iterator[str]:
    """How each attempt but the last ended, and that the next one went on."""
    resumed = list(pairwise(evidence.attempts))
    if not resumed:
        if evidence.spent.at_least:
            yield "begun anew, as an earlier attempt left no checkpoint"
        elif evidence.attempts and evidence.delivered_by is None:
            yield "never interrupted"
    elif len(resumed) > 3:
        yield f"cut short and resumed {len(resumed)} times"
    else:
        for attempt, _ in resumed:
            yield f"{attempt.ended} {plain(attempt.where, 60)}".rstrip()
            yield "resumed"


def _settled(settlements: Sequence[Settlement]) -> Iterator[str]:
    counted = Counter(s.action for s in settlements)
    for action, words in _SETTLED.items():
        if counted[action]:  # type: ignore[index]  # the table names actions
            yield f"{count_of(counted[action], 'call')} {words}"  # type: ignore[index]


# --- The parts below it ---


def _assembled(above: list[str], evidence: Evidence, said: str, patch: Patch | None, earlier: Sequence[str]) -> str:
    if said.strip():
        above.append(prose(said, _SAID_UNITS))
    above += [*_attempts(evidence.attempts), *_files(evidence)]
    below = [*_verification(evidence), *_calls(evidence), *_details(evidence), *_folded_earlier(earlier)]
    room = COMMENT_UNITS - units("\n\n".join([*above, *below])) - 500
    return "\n\n".join([*above, *_difference(patch, min(room, _DIFF_UNITS)), *below]) + "\n"


def _what_now(conclusion: str, reason: str, *, is_final: bool, is_kept: bool, has_patch: bool = False) -> str:
    if is_final and reason.startswith("The comment "):
        return f"{_REFUSED_FOR_GOOD} {_ALL_BUT_THE_COMMENT}"
    if is_final:
        return f"{_REFUSED_FOR_GOOD} {_BY_HAND if has_patch else 'Ask'}, {_WITHOUT_IT}"
    if conclusion == "stopped":
        return _WHAT_NOW_BY_REASON.get(reason.partition(":")[0], _WHAT_NOW[conclusion])
    if conclusion == "mismatch" and "on-mismatch" not in reason:
        return _NO_TERMS_HELP
    return NOT_KEPT if conclusion == "undelivered" and not is_kept else _WHAT_NOW[conclusion]


def _advice(evidence: Evidence, *, is_final: bool, is_kept: bool) -> Iterator[str]:
    file = evidence.uncommitted.patch_file if evidence.uncommitted else None
    lacks = evidence.uncommitted.lacks if evidence.uncommitted else None
    now = _what_now(evidence.conclusion, evidence.reason, is_final=is_final, is_kept=is_kept, has_patch=bool(file))
    if now:
        yield look_again(evidence, is_final=is_final, is_kept=is_kept) or now
    if apart := _apart(evidence):
        kept = " and in its newest checkpoint" if evidence.durability.checkpoint else " alone"
        yield (
            f"**{plain(apart, 800)}** What only that has is in no commit and no patch of this result: it is on this "
            f"run's machine{kept}. To have it, ask in a new run for the change in the files that are checked out, with "
            "no other branch and no stash."
        )
    if evidence.accepted_mismatches:
        shown = "; ".join(plain(m, 200) for m in evidence.accepted_mismatches[:5])
        yield f"**Continued on purpose under another contract:** {shown}."
    delivered = _delivered(evidence)
    if delivered and evidence.compare_url:
        compared = link("compare it, or open a pull request", evidence.compare_url)
        yield f"On its own branch {code(delivered.branch or '', 200)}: {compared}."
    if evidence.head_moved_to:
        yield (
            f"**The branch has moved to {evidence.head_moved_to[:_SHORT]} meanwhile.** This result belongs to "
            f"{(evidence.trees.base_commit or 'another commit')[:_SHORT]} and nothing was pushed over it."
        )
    if file:
        named = f"{code(file, 200)}, which the step's output `patch-file` names"
        rest = f"what can leave is in {named}" if lacks else f"the whole patch is in {named}"
        yield f"Changed and not committed is not lost: {rest}."
    elif is_unread(evidence):
        yield _without_git(evidence)
    elif evidence.uncommitted and not lacks:
        yield "**The patch file could not be written.** What was changed is in the workspace, and shown here in part."
    if lacks:
        yield f"**{plain(lacks, 800)}** What no patch has is in the workspace of this run's machine alone."
    if evidence.trees.left_out:
        lines = (f"{code(left.path, 200)}: {plain(left.reason, 200)}" for left in evidence.trees.left_out)
        yield "**No commit can hold these changes, and no patch:**\n\n" + bullets(
            lines, len(evidence.trees.left_out), 1500, _IN_THE_FILE
        )


def _without_git(evidence: Evidence) -> str:
    names = (
        "which files is not known on this machine" if evidence.changed_files is None else "the files are named below"
    )
    kept = " and in its newest checkpoint, which a re-run restores" if evidence.durability.checkpoint else " alone"
    return (
        "**Git cannot read the checkout any more, so what was changed could not be told by it**: there is no patch and "
        f"no difference, and {names}. What was changed is in the workspace of this run's machine{kept}."
    )


def _attempts(attempts: Sequence[Attempt]) -> Iterator[str]:
    if len(attempts) < 2:
        return
    # The first and the newest tell the story of many.
    shown = attempts if len(attempts) <= 8 else (*attempts[:2], *attempts[-6:])
    rows = [
        "| attempt | began (UTC) | went on from | steps | ended |",
        "|---|---|---|---|---|",
        *(_row(attempts.index(attempt) + 1, attempt) for attempt in shown),
    ]
    yield "\n".join(rows)


def _row(number: int, attempt: Attempt) -> str:
    began = attempt.began.replace("T", " ").removesuffix("Z")
    began_here = "the beginning" if number == 1 else "here"
    source = _checkpoint(attempt.restored_from) if attempt.restored_from else began_here
    ended = f"{attempt.ended} {plain(attempt.where, 60)}".rstrip()
    return f"| {number} | {began} | {source} | {attempt.steps} | {ended} |"


def _files(evidence: Evidence) -> Iterator[str]:
    files = evidence.changed_files
    if files:
        listed = bullets(map(_file, files), len(files), 4000, _IN_THE_FILE)
        yield f"Changed files:\n\n{listed}" if len(files) <= 10 else folded(f"{len(files)} changed files", listed)


def _file(changed: ChangedFile) -> str:
    what = {"100755": " (executable)", "120000": " (link)", "160000": " (submodule)"}.get(changed.mode or "", "")
    return f"{changed.change} {code(changed.path, 300)}{what}"


def _difference(patch: Patch | None, room: int) -> Iterator[str]:
    if patch is None or not patch.shown:
        return
    lines = patch.shown.count("\n") + 1
    rest = f"\n\n{patch.hidden_lines} more lines are in the patch." if patch.hidden_lines else ""
    title = f"The difference, {'first ' if rest else ''}{count_of(lines, 'line')}"
    yield folded(title, block(patch.shown, room, "diff") + rest) if room > 1000 else f"{title}, is in the patch file."


def _verification(evidence: Evidence) -> Iterator[str]:
    trees = evidence.trees
    if trees.git_tree is None or trees.published_hash is None:
        if trees.workspace_hash:
            yield folded(
                "Verify it",
                f"No git tree was made of this result. In a copy of the workspace, this must print "
                f"`{trees.workspace_hash}`:\n\n```sh\nendstate tree-hash\n```",
            )
        return
    yield f"Git tree `{trees.git_tree}`, tree hash `{trees.published_hash}`."
    if evidence.uncommitted and evidence.uncommitted.lacks:
        yield "Nobody else can make that tree again, since no patch has all of it."
        return
    yield folded("Verify it with two commands", f"They must print those two:\n\n```sh\n{_commands(evidence)}\n```")


def _commands(evidence: Evidence) -> str:
    """For any clone, with stock git and with ours."""
    trees, delivered = evidence.trees, _delivered(evidence)
    commit = delivered.id if delivered else trees.base_commit
    if delivered or trees.git_tree == trees.base_tree:
        return f"git fetch origin {commit} && git rev-parse '{commit}^{{tree}}'\nendstate tree-hash --commit {commit}"
    checkout = f"git fetch origin {commit} && git checkout {commit} && " if commit else ""
    named = evidence.uncommitted.patch_file if evidence.uncommitted else None
    patch = named if named and _PLAIN_NAME.fullmatch(named) else "the.patch"
    # Of what was staged: on the disk line ends or filters may make it another.
    hashed = 'endstate tree-hash --commit "$(git write-tree)"'
    return f"{checkout}git apply --index ../{patch} && git write-tree\n{hashed}"


def _calls(evidence: Evidence) -> Iterator[str]:
    settled, refused = evidence.settlements, evidence.refused
    if settled:
        listed = bullets(map(_settlement, settled), len(settled), 4000, _IN_THE_FILE)
        yield folded(f"{count_of(len(settled), 'call')} settled after an interruption", listed)
    if refused:
        listed = bullets(map(_refusal, refused), len(refused), 3000, _IN_THE_FILE)
        yield folded(f"{count_of(len(refused), 'call')} denied or refused", listed)


def _settlement(s: Settlement) -> str:
    place = f"attempt {s.attempt}, step {s.step}, call {s.call}, {code(s.tool, 60)}"
    return f"{place}: {s.action.replace('_', ' ')}, since {plain(s.reason, 300)}"


def _refusal(r: Refused) -> str:
    place = f"step {r.step}, call {r.call}, {code(r.tool, 60)}"
    return f"{place}: {r.status.replace('_', ' ')}, since {plain(r.reason, 300)}"


def _details(evidence: Evidence) -> Iterator[str]:
    lines = list(_detail_lines(evidence))
    yield folded("Details", bullets(lines, len(lines), 6000, _IN_THE_FILE))


def _detail_lines(evidence: Evidence) -> Iterator[str]:
    trees, spent, found = evidence.trees, evidence.spent, evidence.fingerprint
    yield from (plain(note, 300) for note in evidence.notes[:10])
    epochs = ", ".join(_epoch(attempt) for attempt in evidence.attempts[-8:])
    yield f"session `{evidence.session}`, task {evidence.task}, {epochs}; {link('the run', evidence.run_url)}"
    yield f"tokens: {'at least ' if spent.at_least else ''}{spent.input_tokens:,} in, {spent.output_tokens:,} out"
    for name, value in (
        ("base commit", trees.base_commit),
        ("base tree", trees.base_tree),
        ("workspace as restored", trees.restored_hash),
        ("workspace at the end, with everything in it", trees.workspace_hash),
    ):
        if value:
            yield f"{name}: `{value}`"
    commits = ", ".join(f"`{commit.id[:_SHORT]}` {plain(commit.subject, 100)}" for commit in evidence.commits[:8])
    yield from ([f"commits: {commits}"] if commits else [])
    age = f", newest checkpoint {evidence.durability.age_s} s old" if evidence.durability.age_s is not None else ""
    yield f"checkpoints: {plain(evidence.durability.store, 200)}{age}"
    yield f"sandbox: {plain(f'{evidence.sandbox.kind} {evidence.sandbox.note}', 300)}"
    answered = ", ".join(plain(model, 80) for model in found.models_answered[:5]) or "nobody"
    yield f"model: {plain(found.provider, 40)} {plain(found.model_asked, 80)}; answered: {answered}"
    yield "tools: " + ", ".join(f"{plain(t.name, 40)} ({plain(t.effect, 20)})" for t in found.tools[:20])
    yield "versions: " + ", ".join(f"{plain(k, 40)} {plain(v, 40)}" for k, v in sorted(evidence.versions.items())[:10])


def _epoch(attempt: Attempt) -> str:
    run = f" (run attempt {attempt.run_attempt})" if attempt.run_attempt else ""
    return f"epoch {attempt.epoch}{run}"


# --- While it works ---


def _durable(now: Working) -> str:
    if now.is_durable:
        return f"Checkpoints: {plain(now.store, 200)}."
    remedy = f" Remedy: {plain(now.remedy, 400)}." if now.remedy else ""
    there = (
        "there is no store for checkpoints"
        if now.store == "none"
        else f"no checkpoint is in {plain(now.store, 200)} yet"
    )
    return f"**If this machine is lost, the work is lost**: {there}.{remedy}"


def _silence(now: Working) -> str:
    what = "it goes on from the newest checkpoint" if now.is_durable else "it begins anew"
    return (
        f"No news for {SILENT_MINUTES} minutes? The machine is gone. {link('Open the run', now.run_url)} and choose "
        f"*Re-run failed jobs* or *Re-run all jobs*: {what}."
    )


def _checkpoint(key: str) -> str:
    """Its name within its line of checkpoints, which is all that tells it from others here."""
    return plain(key.rpartition("/")[2], 40)


def _clock(moment: str) -> str:
    return moment.partition("T")[2].removesuffix("Z")


# --- Earlier results ---


def _folded_earlier(earlier: Sequence[str]) -> Iterator[str]:
    if earlier:
        lines = [f"- {kept_line(line, _EARLIER_UNITS)}" for line in earlier[:_MOST_EARLIER]]
        yield f"{_EARLIER}\n\n" + "\n".join(lines) + "\n\n</details>"


def _listed_earlier(lines: Sequence[str]) -> list[str]:
    """Only a block at the very end is ours: another may stand in a difference, between lines of code."""
    whole = [*lines]
    while whole and not whole[-1]:
        whole.pop()
    starts = [number for number, line in enumerate(whole) if line == _EARLIER]
    if not starts or whole[-2:] != ["", "</details>"]:
        return []
    listed = whole[starts[-1] + 2 : -2]
    return [line.removeprefix("- ") for line in listed] if all(line.startswith("- ") for line in listed) else []


def _as_earlier(marker: Marker, lines: Sequence[str]) -> str:
    if marker.state == "working":
        return f"`{marker.session}`: no result. It had not ended when the next run began."
    result = lines[1].replace("**", "") if len(lines) > 1 else ""
    tree = f" Tree `{marker.tree[:_SHORT]}`." if marker.tree else ""
    return f"`{marker.session}`: {kept_line(result, _EARLIER_UNITS - 100)}{tree}"


# --- Small words ---


def _delivered(evidence: Evidence) -> Commit | None:
    """The newest commit that was pushed."""
    return next((commit for commit in reversed(evidence.commits) if commit.branch is not None), None)
