"""The bench runs, and its verdicts are those of its figures. Sizes are tiny: the figures mean nothing here."""

from __future__ import annotations

import shutil

import pytest

from bench import appending, checkpoints, commands, counting, loading, report, sandboxes, trees
from bench.limits import Outcome, Size, counted, is_broken, ratios, timed
from bench.peers import Peer
from bench.writers import Ours, Raw, items, payload

TINY = Size(runs=1, paired=4, growth=20, counted=40, calls=4, loaded=10, files=60, big_file_mb=1, peers=0,
            checkpoints=1, sessions=(10,), steps=10, shell=2)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "lines"),
    [(counting, 3), (appending, 4), (loading, 2), (trees, 4), (commands, 2), (checkpoints, 9), (sandboxes, 1)],
)
def test_every_part_measures_its_limits(part, lines, tmp_path):
    assert [type(outcome) for outcome in part.measure(tmp_path, TINY)] == [Outcome] * lines


def test_a_session_takes_exactly_one_sync_per_record(tmp_path):
    found = counting.syncs("bench.writers:Ours", 20, tmp_path)
    if found is None:
        pytest.skip("nothing here can count syncs")
    assert set(found.plain) == {1}
    assert len(found.per_record) == 20


def test_a_writer_that_syncs_more_often_is_found_out(tmp_path):
    """Each record of a rollback journal takes several."""
    found = counting.syncs("tests.unit.test_bench:Rollback", 5, tmp_path)
    if found is None:
        pytest.skip("nothing here can count syncs")
    assert all(count > 1 for count in found.per_record)


class Rollback(Raw):
    def __init__(self, directory):
        super().__init__(directory)
        self._db.execute("PRAGMA journal_mode=DELETE")


def test_nothing_is_claimed_where_nothing_can_count(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("strace") is None
    assert counting.syncs("bench.writers:Ours", 1, tmp_path) is None
    uncounted = counted("syncs", 1, None, "")
    assert uncounted.verdict == uncounted.measured == "not counted here"
    assert not is_broken([uncounted], strict=True)


def test_a_run_that_fails_has_no_time(tmp_path, monkeypatch):
    """As where the sandbox that it requires cannot be had."""
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    lines = list(checkpoints.slow_store(tmp_path, TINY))
    assert [line.verdict for line in lines] == ["not counted here"] * 2
    assert not is_broken(lines, strict=True)


def test_a_broken_count_fails_the_bench_and_a_broken_time_only_when_strict():
    assert not is_broken([counted("bytes", 18, 18, "kB"), timed("p50", 1.3, 1.29)], strict=True)
    assert is_broken([counted("bytes", 18, 18.1, "kB")], strict=False)
    assert not is_broken([timed("p50", 1.3, 1.31)], strict=False)
    assert is_broken([timed("p50", 1.3, 1.31)], strict=True)


def test_a_slow_second_slows_both_partners_of_a_ratio():
    assert ratios([1.0, 10.0, 1.1], [1.0, 10.0, 1.0]) == 1.0


def test_all_writers_are_given_the_same_records(tmp_path):
    taken = items(6)
    assert [item.record.kind for item in taken] == ["replied", "finished"] * 3
    assert payload(taken) / len(taken) == pytest.approx(3_300, rel=0.1)
    for made in (Ours, Raw):
        writer = made(tmp_path)
        for item in taken:
            writer.append(item)
        writer.close()


def test_the_page_holds_every_limit_every_peer_and_nothing_of_the_machine_s_name(tmp_path):
    outcomes = [timed("a | b", 1.0, 1.5), counted("bytes", 18, None, "kB")]
    page = report.page(outcomes, [Peer("raw row", 1.0, 16.5, "0.3 ms", 1.0, 1.01)], 400, tmp_path)
    assert "| a \\| b | 1x | 1.5x | does not hold |" in page
    assert "| bytes | 18 kB | not counted here | not counted here |" in page
    assert "| raw row | 1 | 16.5 kB | 0.3 ms | 1x | 1.01x |" in page
    assert str(tmp_path) not in page
    assert "could not be installed" in report.page(outcomes, None, 400, tmp_path)
