"""`python -m bench [--quick] [--strict]`: measure, say how each limit fares, and write the page."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench import appending, checkpoints, commands, counting, loading, peers, report, sandboxes, snapshots, trees
from bench.fresh import ROOT
from bench.limits import FULL, QUICK, Outcome, is_broken

PARTS = (counting, appending, loading, trees, commands, sandboxes, checkpoints)
DISK = "/var/tmp"  # which is on disk where /tmp is not


def main() -> int:
    """0, or 1 where a counted limit is broken (with `--strict`, any)."""
    options = _options()
    size = QUICK if options.quick else FULL
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="endstate-bench-", dir=DISK) as made:
        scratch = Path(made)
        for part in PARTS:
            for outcome in part.measure(scratch, size):
                outcomes.append(outcome)
                print(report.line(outcome), flush=True)
        sizes = snapshots.LIMITS if not options.quick else {100: snapshots.LIMITS[100]}
        for outcome in snapshots.measure(scratch, sizes, snapshots.RESTORED, 3 if options.quick else 8):
            outcomes.append(outcome)
            print(report.line(outcome), flush=True)
        beside = peers.measure(scratch, size.peers) if size.peers else None
        for peer in beside or ():
            print(report.peer_line(peer), flush=True)
        if not options.quick:
            report.PAGE.write_text(report.page(outcomes, beside, size.peers, scratch))
            print(f"written to {report.PAGE.relative_to(ROOT)}")
    return int(is_broken(outcomes, options.strict))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=sys.modules["bench"].__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute, without the peers; writes no page")
    parser.add_argument("--strict", action="store_true", help="a broken limit of time counts as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
