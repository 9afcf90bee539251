"""Leaving the machine: uploads, the barrier, and a restore that was killed."""

from __future__ import annotations

from tests.mutants.row import Mutant

ROWS: tuple[Mutant, ...] = (
    Mutant(
        name="upload-ours",
        guard="What cannot be built is answered at once, since waiting changes nothing",
        file="src/endstate_action/state/uploader.py",
        old="outcome.is_final or outcome.is_ours:",
        new="outcome.is_final:",
        tests=(
            "tests/unit/state/test_uploader.py::test_what_cannot_be_built_is_answered_at_once_since_waiting_changes_nothing",
        ),
    ),
    Mutant(
        name="upload-retry-after",
        guard="A store that asks to wait is left alone for so long",
        file="src/endstate_action/state/uploader.py",
        old="self._not_before = self._clock() + answer.retry_after_s",
        new="pass",
        tests=(
            "tests/unit/state/test_uploader.py::test_a_store_that_asks_to_wait_is_left_alone_for_so_long_by_everybody",
        ),
    ),
    Mutant(
        name="upload-urgent",
        guard="After the last periodic upload, what is urgent still goes",
        file="src/endstate_action/state/uploader.py",
        old="return math.inf if wait is None else",
        new="return None if wait is None else",
        tests=("tests/unit/state/test_uploader.py::test_after_the_last_periodic_one_what_is_urgent_still_goes",),
    ),
    Mutant(
        name="upload-newest",
        guard="An upload that was overtaken is not the newest",
        file="src/endstate_action/state/uploader.py",
        old="if self._newest is None or built.key > self._newest.key:",
        new="if True:",
        tests=("tests/unit/state/test_uploader.py::test_who_waits_does_not_wait_for_the_one_that_is_stuck",),
    ),
    Mutant(
        name="barrier-fence",
        guard="Behind a barrier stands the fence",
        file="src/endstate_action/shipper.py",
        old="return self._pass_fence(deadline)",
        new="return None",
        tests=("tests/unit/test_shipper.py::test_a_barrier_that_meets_a_newer_attempt_ends_this_one",),
    ),
    Mutant(
        name="restore-log-deep",
        guard="A restore log that tells nothing is refused, however it is nested",
        file="src/endstate_action/restoring.py",
        old="ValueError, TypeError, KeyError, RecursionError)",
        new="ValueError, TypeError, KeyError)",
        tests=("tests/unit/test_restoring.py::test_a_record_that_tells_nothing_is_refused_with_what_to_do",),
    ),
    Mutant(
        name="restore-half",
        guard="A session does not go on in the half-restored workspace of another",
        file="src/endstate_action/successor.py",
        old="refuse_unfinished(self.place({}).state)",
        new="pass",
        tests=(
            "tests/cli/test_store.py::test_a_session_that_is_here_does_not_go_on_in_the_half_restored_workspace_of_another",
        ),
    ),
    Mutant(
        name="restore-base-carried",
        guard="A base commit that was never pushed travels with the checkpoint",
        file="src/endstate_action/restoring.py",
        old="            note_base(objects, base)\n            return",
        new="            pass",
        tests=(
            "tests/recovery/test_fresh_machine.py::test_a_base_commit_that_was_never_pushed_travels_with_the_checkpoint",
        ),
    ),
    Mutant(
        name="start-shipped",
        guard="From the second attempt on, a start is shipped before it runs",
        file="src/endstate_action/agent/calls.py",
        old="if self.epoch > 1 and tool.effect is EffectClass.CONTAINED:",
        new="if False:",
        tests=(
            "tests/recovery/test_fresh_machine.py::test_from_the_second_attempt_on_a_start_is_shipped_before_it_runs_whatever_it_is",
        ),
    ),
    Mutant(
        name="barrier",
        guard="An outside effect waits until its start is off the machine",
        file="src/endstate_action/agent/calls.py",
        old="return self.shipping.barrier()",
        new="return None",
        tests=(
            "tests/recovery/test_fresh_machine.py::test_a_machine_that_is_lost_in_an_outside_effect_has_left_its_start_behind",
        ),
    ),
    Mutant(
        name="nearby-parents",
        guard="Earlier commits of the agent travel as well",
        file="src/endstate_action/state/snapshot/nearby.py",
        old="            pending |= parents - missing\n",
        new="",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_what_is_followed_here_is_what_git_follows",),
    ),
    Mutant(
        name="nearby-lost-parent",
        guard="A commit whose parent is lost is left to git",
        file="src/endstate_action/state/snapshot/nearby.py",
        old="            if missing and not cut([commit]):\n                raise _Unusual\n",
        new="",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_commit_whose_parent_is_lost_is_left_to_git",),
    ),
    Mutant(
        name="nearby-bounded",
        guard="More than a little is left to git",
        file="src/endstate_action/state/snapshot/nearby.py",
        old="        if len(self._named) > MOST:\n            raise _Unusual\n",
        new="",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_more_than_a_little_is_left_to_git_and_arrives_whole",),
    ),
    Mutant(
        name="nearby-tags",
        guard="What a tag stands for is left to git",
        file="src/endstate_action/state/snapshot/nearby.py",
        old='            if kind not in ("commit", "blob"):\n                raise _Unusual\n',
        new="",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_tag_with_a_message_is_left_to_git_and_travels",),
    ),
    Mutant(
        name="pack-one-process",
        guard="A pack of few changes takes one process of git",
        file="src/endstate_action/state/snapshot/nearby.py",
        old="            return _Walk(self.objects, base).of(root, self._by_kind(tips))\n",
        new="            return None\n",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_pack_of_few_changes_takes_one_process_of_git",),
    ),
    Mutant(
        name="pack-wrapper-travels",
        guard="The commit around a snapshot is in its pack",
        file="src/endstate_action/state/snapshot/pack.py",
        old='            content = _joined(done.stdout, entry("commit", wrapper), objects.object_format)\n',
        new="            content = done.stdout\n",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_pack_of_few_changes_takes_one_process_of_git",),
    ),
    Mutant(
        name="pack-refused-by-git",
        guard="What git would not pack is asked of git once more",
        file="src/endstate_action/state/snapshot/pack.py",
        old="        if listed is not None and done is not None and done.returncode == 0:\n",
        new="        if listed is not None and done is not None:\n",
        tests=(
            "tests/unit/state/snapshot/test_nearby.py::test_a_snapshot_without_the_content_of_one_file_is_not_packed",
        ),
    ),
    Mutant(
        name="arrival-contents",
        guard="A pack that lacks a file's content is refused",
        file="src/endstate_action/state/snapshot/pack.py",
        old="    if listed is not None and not objects.missing({wrapper, *listed.named}):\n",
        new="    if listed is not None:\n",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_pack_without_the_content_of_one_file_is_refused",),
    ),
    Mutant(
        name="arrival-wrapper",
        guard="A pack that lacks its wrapper is refused",
        file="src/endstate_action/state/snapshot/pack.py",
        old="not objects.missing({wrapper, *listed.named})",
        new="not objects.missing(listed.named)",
        tests=("tests/unit/state/snapshot/test_nearby.py::test_a_pack_without_its_wrapper_is_refused",),
    ),
)
