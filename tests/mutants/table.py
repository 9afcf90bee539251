"""The guards, and what fails without them: one row a guard.

A guard is a check whose absence no user may have to discover. Its mutant takes it out of a copy of
the source; at least one of the named tests must then fail (`python -m tests.mutants.run`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands exactly once in `file` (a path below the repository's root) and becomes `new`."""

    name: str
    guard: str
    """What is taken out, as a sentence that ends without a full stop."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """pytest node ids, paths from the repository's root."""


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="blank-result",
        guard="A result without visible text is sent as *(no output)*: a provider refuses an empty block",
        file="src/endstate_action/messages.py",
        old='self.content if not is_blank(self.content) else "(no output)"',
        new="self.content",
        tests=("tests/unit/test_messages.py::test_a_result_without_visible_text_is_never_an_empty_block",),
    ),
    Mutant(
        name="per-call-record",
        guard="Each outcome is recorded the moment it lands, not when its batch is done",
        file="src/endstate_action/agent/calls.py",
        old="        self.session.append(*records)\n",
        new=(
            "        held = self.session.__dict__.setdefault('held', [])\n"
            "        held += records\n"
            "        if asked.index == max(i for s, i in self.session.state.requested if s == asked.step):\n"
            "            self.session.append(*held)\n"
            "            held.clear()\n"
        ),
        tests=("tests/unit/agent/test_loop.py::test_each_outcome_is_recorded_before_the_next_call_runs",),
    ),
    Mutant(
        name="settle-before-prompt",
        guard="Pending calls are settled before a new prompt is added",
        file="src/endstate_action/agent/loop.py",
        old="        calls.settle()\n        if prompt is not None:\n            self._add_prompt(prompt, prompt_id)",
        new="        if prompt is not None:\n            self._add_prompt(prompt, prompt_id)\n        calls.settle()",
        tests=("tests/unit/agent/test_loop.py::test_resume_settles_before_a_new_prompt_is_added",),
    ),
    Mutant(
        name="prompt-order",
        guard="The session itself refuses a prompt while calls are unanswered",
        file="src/endstate_action/state/session.py",
        old="            case Prompt() | Replied() if state.pending:",
        new="            case Replied() if state.pending:",
        tests=("tests/unit/state/test_session.py::test_records_out_of_order_are_refused_and_not_written",),
    ),
    Mutant(
        name="started-record",
        guard="A start is on record before the call acts",
        file="src/endstate_action/agent/calls.py",
        old="        self.session.append(self._started(asked, tool, context, change))\n",
        new="",
        tests=("tests/unit/agent/test_loop.py::test_a_start_is_recorded_before_the_call_acts",),
    ),
    Mutant(
        name="refuse-opaque",
        guard="An interrupted opaque call is refused",
        file="src/endstate_action/agent/settle.py",
        old='return Settlement(Action.REFUSE, "it was interrupted; nothing tells whether, or how far, it ran")',
        new='return Settlement(Action.RUN, "again")',
        tests=(
            "tests/unit/agent/test_settle.py::test_an_opaque_or_networked_call_never_runs_twice",
            "tests/unit/agent/test_loop.py::test_an_interrupted_opaque_call_is_answered_as_unknown_and_the_rest_not_run",
        ),
    ),
    Mutant(
        name="edit-by-content",
        guard="An interrupted edit is decided by what its file holds",
        file="src/endstate_action/agent/settle.py",
        old='            return _by_content(started.path or "", found.content)',
        new='            return Settlement(Action.RUN, "again")',
        tests=(
            "tests/unit/agent/test_loop.py::test_an_edit_is_decided_by_what_the_file_holds",
            "tests/unit/agent/test_loop.py::test_a_third_content_is_refused_and_kept",
        ),
    ),
    Mutant(
        name="denial-on-settle",
        guard="A recorded denial is final",
        file="src/endstate_action/agent/settle.py",
        old="    if call.denied is not None:\n        return Settlement(Action.DENY, call.denied)\n",
        new="",
        tests=(
            "tests/unit/agent/test_loop.py::test_a_recorded_denial_is_final_on_resume",
            "tests/unit/agent/test_settle.py::test_a_recorded_denial_is_final_whatever_else_is_found",
        ),
    ),
    Mutant(
        name="start-limit",
        guard="A call is started three times at most",
        file="src/endstate_action/agent/settle.py",
        old="    if not verdict.runs or call.starts < MAX_STARTS:",
        new="    if True:",
        tests=("tests/unit/agent/test_loop.py::test_a_call_is_started_three_times_at_most",),
    ),
    Mutant(
        name="rest-not-run",
        guard="After a refusal the rest of the batch is not run",
        file="src/endstate_action/agent/settle.py",
        old="    if found.blocked_by is not None:",
        new="    if False:",
        tests=(
            "tests/unit/agent/test_loop.py::test_an_interrupted_opaque_call_is_answered_as_unknown_and_the_rest_not_run",
            "tests/unit/agent/test_loop.py::test_the_rest_of_a_batch_stays_not_run_when_the_resume_is_killed_too",
        ),
    ),
    Mutant(
        name="cut-call",
        guard="A call that the output limit cut is not run",
        file="src/endstate_action/agent/settle.py",
        old="    if call.void is not None:",
        new="    if False:",
        tests=("tests/unit/agent/test_loop.py::test_a_call_cut_by_the_output_limit_is_never_run",),
    ),
    Mutant(
        name="probe-first",
        guard="A keyed effect is probed before it runs in any attempt after the first",
        file="src/endstate_action/agent/settle.py",
        old="    if found.effect is EffectClass.KEYED and not found.is_first_attempt:",
        new="    if False:",
        tests=("tests/unit/agent/test_loop.py::test_a_keyed_effect_is_probed_before_it_runs",),
    ),
    Mutant(
        name="recorded-class",
        guard="The effect class recorded at the start decides",
        file="src/endstate_action/agent/settle.py",
        old="    match started.effect:",
        new="    match found.effect or started.effect:",
        tests=("tests/unit/agent/test_settle.py::test_the_recorded_class_decides_and_not_a_better_one_of_today",),
    ),
    Mutant(
        name="guard-before-start",
        guard="Lock and database are compared with their paths before every start",
        file="src/endstate_action/agent/calls.py",
        old="        self.guard()\n",
        new="",
        tests=("tests/unit/agent/test_loop.py::test_a_guard_that_fails_stops_before_the_call_starts",),
    ),
    Mutant(
        name="lock-identity",
        guard="A deleted or replaced lock file is noticed",
        file="src/endstate_action/state/lock.py",
        old="(ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)",
        new="False",
        tests=("tests/unit/state/test_lock.py::test_a_lock_file_deleted_under_the_holder_is_noticed",),
    ),
    Mutant(
        name="lock-link",
        guard="A link at the lock's path is refused",
        file="src/endstate_action/state/lock.py",
        old="        if not stat.S_ISREG(mode):",
        new="        if stat.S_ISDIR(mode):",
        tests=("tests/unit/state/test_lock.py::test_a_link_at_the_lock_path_is_refused_and_its_target_untouched",),
    ),
    Mutant(
        name="database-identity",
        guard="A deleted or replaced database is noticed",
        file="src/endstate_action/state/session.py",
        old="        if _identity(self.path) != self._file:",
        new="        if False:",
        tests=(
            "tests/unit/state/test_session.py::test_a_deleted_database_stops_the_session_before_anything_else",
            "tests/unit/state/test_session.py::test_a_replaced_database_is_noticed",
        ),
    ),
    Mutant(
        name="durable-first",
        guard="A record is committed before memory changes",
        file="src/endstate_action/state/session.py",
        old="            self._commit([(r.kind, encode(r)) for r in fresh])\n            for record in fresh:\n                self._state.add(record)",  # noqa: E501
        new="            for record in fresh:\n                self._state.add(record)\n            self._state.records -= len(fresh)\n            self._commit([(r.kind, encode(r)) for r in fresh])\n            self._state.records += len(fresh)",  # noqa: E501
        tests=("tests/unit/state/test_session.py::test_a_full_disk_records_nothing_and_stops_the_session",),
    ),
    Mutant(
        name="no-overwrite",
        guard="A key that is taken is never overwritten",
        file="src/endstate_action/state/session.py",
        old="            elif encode(known) != encode(record):",
        new="            elif False:",
        tests=("tests/unit/state/test_session.py::test_a_key_is_never_overwritten_with_other_content",),
    ),
    Mutant(
        name="wal-on-network",
        guard="WAL is never used where memory is not shared",
        file="src/endstate_action/state/session.py",
        old='wanted = "delete" if kind == "" or is_network_filesystem(kind) else "wal"',
        new='wanted = "wal"',
        tests=("tests/unit/state/test_session.py::test_wal_is_never_used_where_memory_is_not_shared",),
    ),
    Mutant(
        name="newer-format",
        guard="A session of a newer format is refused",
        file="src/endstate_action/state/session.py",
        old="    if version > FORMAT:",
        new="    if False:",
        tests=("tests/unit/state/test_session.py::test_a_newer_format_is_refused_with_both_versions",),
    ),
    Mutant(
        name="no-hole",
        guard="A journal with a hole is damage, never a shorter history",
        file="src/endstate_action/state/session.py",
        old="        if seq != expected:",
        new="        if False:",
        tests=("tests/unit/state/test_session.py::test_a_journal_with_a_hole_is_never_a_shorter_history",),
    ),
    Mutant(
        name="state-link",
        guard="A state directory that is a link is refused",
        file="src/endstate_action/state/directory.py",
        old="        if self.path.is_symlink():",
        new="        if False:",
        tests=("tests/unit/state/test_directory.py::test_a_link_is_refused_and_its_target_untouched",),
    ),
    Mutant(
        name="state-foreign",
        guard="A state directory that is not ours is refused",
        file="src/endstate_action/state/directory.py",
        old="        if not unfinished and not self._is_marked():",
        new="        if False:",
        tests=("tests/unit/state/test_directory.py::test_a_directory_of_somebody_else_is_refused_and_left_alone",),
    ),
    Mutant(
        name="state-tracked",
        guard="A state directory that the repository tracks is refused",
        file="src/endstate_action/run.py",
        old="    if repository is not None and repository.is_tracked(name):",
        new="    if False:",
        tests=("tests/cli/test_run.py::test_a_state_directory_in_the_repository_is_refused",),
    ),
    Mutant(
        name="history-check",
        guard="The whole history is checked before each request",
        file="src/endstate_action/agent/context.py",
        old="        if answered != leading or sorted(answered) != sorted(asked):",
        new="        if False:",
        tests=("tests/unit/agent/test_context.py::test_the_whole_history_is_checked_before_it_is_sent",),
    ),
    Mutant(
        name="wire-ids",
        guard="A call id that repeats is made unique on the wire",
        file="src/endstate_action/agent/context.py",
        old="        while chosen in self._taken:",
        new="        while False:",
        tests=("tests/unit/agent/test_context.py::test_a_repeated_call_id_is_unique_on_the_wire_in_both_halves",),
    ),
    Mutant(
        name="blank-text",
        guard="Blank text blocks are not sent",
        file="src/endstate_action/agent/context.py",
        old='                if not is_blank(str(block.get("text", ""))):',
        new="                if True:",
        tests=("tests/unit/agent/test_context.py::test_blank_text_is_not_sent",),
    ),
    Mutant(
        name="odd-replies",
        guard="Odd replies are asked about a bounded number of times",
        file="src/endstate_action/agent/verdict.py",
        old="return Stop(oddity) if sum(1 for _ in recent) >= MAX_ODD_REPLIES else Ask()",
        new="return Ask()",
        tests=("tests/unit/agent/test_verdict.py::test_an_odd_reply_is_asked_about_a_bounded_number_of_times",),
    ),
    Mutant(
        name="refusal-stops",
        guard="A refusal is not a success",
        file="src/endstate_action/agent/verdict.py",
        old='    if last.stop_reason == "refusal":',
        new="    if False:",
        tests=("tests/unit/agent/test_verdict.py::test_a_refusal_stops_by_its_name",),
    ),
    Mutant(
        name="repeated-reply",
        guard="A reply that is sent again is not run again",
        file="src/endstate_action/agent/loop.py",
        old="            if not self._is_repeat(reply):",
        new="            if True:",
        tests=("tests/unit/agent/test_loop.py::test_a_reply_that_is_repeated_is_not_run_twice",),
    ),
    Mutant(
        name="fingerprint",
        guard="A changed contract is refused",
        file="src/endstate_action/agent/fingerprint.py",
        old='    if found and on_mismatch != "continue":',
        new="    if False:",
        tests=("tests/unit/agent/test_loop.py::test_a_changed_contract_is_refused_with_what_changed",),
    ),
    Mutant(
        name="answering-model",
        guard="Another answering model stops before any call of its reply",
        file="src/endstate_action/agent/loop.py",
        old='        if changed is not None and self._setup.on_mismatch != "continue":',
        new="        if False:",
        tests=("tests/unit/agent/test_loop.py::test_another_answering_model_stops_before_any_call_of_its_reply",),
    ),
    Mutant(
        name="steps-add-up",
        guard="The step budget adds up over attempts",
        file="src/endstate_action/agent/loop.py",
        old="        steps = self._state.steps - self._state.first_step_of_task()\n        if steps >= limits.max_steps:",  # noqa: E501
        new="        steps = sum(r.epoch == self._state.epoch for r in self._state.replies)\n        if steps >= limits.max_steps:",  # noqa: E501
        tests=("tests/unit/agent/test_loop.py::test_the_step_budget_adds_up_over_attempts",),
    ),
    Mutant(
        name="resumes-end",
        guard="Attempts killed without progress end",
        file="src/endstate_action/agent/loop.py",
        old="        if len(lost) > self._limits.max_resumes:",
        new="        if False:",
        tests=("tests/unit/agent/test_loop.py::test_attempts_killed_without_progress_end",),
    ),
    Mutant(
        name="redaction",
        guard="A result is redacted before it is recorded",
        file="src/endstate_action/agent/calls.py",
        old="bounded(self.redact(scrub(text)))",
        new="bounded(scrub(text))",
        tests=(
            "tests/unit/agent/test_loop.py::test_a_result_is_bounded_scrubbed_redacted_and_never_blank",
            "tests/cli/test_run.py::test_a_secret_in_a_file_is_not_recorded",
        ),
    ),
    Mutant(
        name="arguments",
        guard="Arguments are checked before anything starts",
        file="src/endstate_action/agent/calls.py",
        old="            check_arguments(tool.parameters, asked.call.arguments)\n            change = tool.plan",
        new="            change = tool.plan",
        tests=("tests/unit/agent/test_loop.py::test_wrong_arguments_are_answered_and_never_started",),
    ),
    Mutant(
        name="told-once",
        guard="A change between attempts is told",
        file="src/endstate_action/agent/loop.py",
        old="            self._session.append(note, observed)",
        new="            self._session.append(observed)",
        tests=("tests/unit/agent/test_loop.py::test_an_edit_made_between_two_attempts_is_kept_recorded_and_told_once",),
    ),
    Mutant(
        name="group-kill",
        guard="All that a call started is ended with it",
        file="src/endstate_action/system/process.py",
        old="        ended = end(self._living, courtesy_s=courtesy_s)",
        new="        ended = Ended((), ())",
        tests=("tests/unit/system/test_process.py::test_a_background_child_does_not_outlive_the_call",),
    ),
    Mutant(
        name="running-calls-look",
        guard="A running call looks whether it is asked to stop",
        file="src/endstate_action/system/process.py",
        old="                self._check()\n",
        new="",
        tests=("tests/unit/system/test_process.py::test_what_the_caller_s_check_raises_ends_the_call",),
    ),
    Mutant(
        name="leftovers",
        guard="What a dead attempt left running is ended by the resume",
        file="src/endstate_action/agent/loop.py",
        old="        self._leftovers()\n",
        new="",
        tests=("tests/cli/test_run.py::test_what_a_killed_run_left_running_is_ended_by_the_resume",),
    ),
    Mutant(
        name="clean-environment",
        guard="Calls see an allow-list of the environment",
        file="src/endstate_action/system/secrets.py",
        old="{n: v for n, v in environ.items() if n in _ALLOWED or n.startswith(_ALLOWED_PREFIXES)}",
        new="dict(environ)",
        tests=("tests/unit/system/test_secrets.py::test_calls_see_an_allow_list",),
    ),
    Mutant(
        name="links",
        guard="No path leads through a link",
        file="src/endstate_action/system/files.py",
        old="_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        new="_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC",
        tests=("tests/unit/system/test_files.py::test_links_are_neither_followed_nor_replaced",),
    ),
    Mutant(
        name="commit-trust",
        guard="A changed git configuration stops a commit",
        file="src/endstate_action/system/git.py",
        old="            same = self.trust() == expected",
        new="            same = True",
        tests=("tests/unit/agent/test_commit.py::test_a_changed_git_configuration_stops_the_call",),
    ),
    Mutant(
        name="commit-trust-at-the-commit",
        guard="The trust in the configuration is checked by the commit itself",
        file="src/endstate_action/system/git.py",
        old="        self.check_trust(trust)\n",
        new="",
        tests=("tests/unit/system/test_git.py::test_what_is_planted_in_a_git_directory_is_refused_and_never_runs",),
    ),
    Mutant(
        name="dirty-at-start",
        guard="What the user had changed before the session is not swept into a commit",
        file="src/endstate_action/agent/tools/commit.py",
        old="path not in left_out and ",
        new="",
        tests=("tests/unit/agent/test_commit.py::test_changes_from_before_the_session_stay_the_user_s",),
    ),
    Mutant(
        name="adopt-what-is-there",
        guard="An effect that is there after a kill is adopted, not repeated",
        file="src/endstate_action/agent/settle.py",
        old='            return Settlement(Action.ADOPT, "its key was found: it was applied")',
        new='            return Settlement(Action.RUN, "again")',
        tests=(
            "tests/recovery/test_kill_matrix.py::test_an_effect_that_is_there_after_a_kill_is_adopted_and_not_repeated",
        ),
    ),
    Mutant(
        name="removal-order",
        guard="Of a session that is removed the database goes first",
        file="src/endstate_action/state/session.py",
        old='            for suffix in ("", "-wal", "-shm", "-journal"):',
        new='            for suffix in ("-wal", "-shm", "-journal", ""):',
        tests=("tests/recovery/test_crash_windows.py::test_a_session_whose_removal_is_killed_is_whole_or_gone",),
    ),
    Mutant(
        name="file-sync",
        guard="A file is synced before it is renamed into its place",
        file="src/endstate_action/system/files.py",
        old="            os.fsync(file.fileno())\n        os.rename",
        new="            pass\n        os.rename",
        tests=(
            "tests/recovery/test_crash_windows.py::test_a_file_is_synced_then_renamed_then_its_directory_is_synced_then_its_call_is_finished",
        ),
    ),
    Mutant(
        name="roll-back-needs-snapshot",
        guard="A call is rolled back only to a snapshot that is whole",
        file="src/endstate_action/agent/settle.py",
        old="if not found.can_roll_back:",
        new="if False:",
        tests=("tests/unit/agent/test_settle.py::test_a_roll_back_needs_a_whole_snapshot",),
    ),
)
