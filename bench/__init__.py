"""What recording, loading and hashing cost, as ratios against the plainest way to do the same, in the same run.

`python -m bench` measures and writes `docs/performance.md`. Counts (syncs, bytes, memory, modules) hold on
any machine and fail the bench; times only warn, unless `--strict` is given.
"""
