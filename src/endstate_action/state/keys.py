"""The names under which things are stored: lower case, fixed width, so that order by name is order by time.

`es1/<lineage>/e<epoch>` is a claim, `es1/<lineage>/c<epoch>-<sequence>-<effects>` a checkpoint. The number of outside
effects started is part of the name, since a name can still be read where the content cannot: it is the witness
against a gap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

ROOT = "es1/"
MAX_EPOCH = 9_999
MAX_SEQUENCE = 999_999
MAX_EFFECTS = 99_999

_LINEAGE = re.compile(r"[0-9a-f]{12,32}")
_CHECKPOINT = re.compile(r"es1/([0-9a-f]{12,32})/c([0-9]{4})-([0-9]{6})-([0-9]{5})")
_CLAIM = re.compile(r"es1/([0-9a-f]{12,32})/e([0-9]{4})")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointKey:
    """Where a checkpoint is. Ordered by lineage, then epoch, then sequence."""

    lineage: str
    epoch: int
    sequence: int
    effects: int

    def __str__(self) -> str:
        return f"{sequence_prefix(self.lineage, self.epoch, self.sequence)}{self.effects:05}"

    @property
    def in_words(self) -> str:
        """For people."""
        return f"checkpoint {self.sequence} of attempt {self.epoch}"

    @classmethod
    def parse(cls, text: str) -> CheckpointKey | None:
        """None where it is no such key: names come from the store and are not trusted."""
        found = _CHECKPOINT.fullmatch(text)
        return cls(found[1], *(int(number) for number in found.groups()[1:])) if found else None


def lineage_of(repository: str, lineage: str) -> str:
    """What lets attempts of one task find each other, as 32 hex digits that say nothing of what they are made of."""
    return blake2b(
        f"{len(repository)}:{repository}/{lineage}".encode(), digest_size=16, person=b"endstate-line"
    ).hexdigest()


def is_lineage(text: str) -> bool:
    return _LINEAGE.fullmatch(text) is not None


def claim_key(lineage: str, epoch: int) -> str:
    return f"{ROOT}{lineage}/e{epoch:04}"


def claims_prefix(lineage: str) -> str:
    return f"{ROOT}{lineage}/e"


def claimed_epoch(key: str) -> int | None:
    found = _CLAIM.fullmatch(key)
    return int(found[2]) if found else None


def checkpoints_prefix(lineage: str) -> str:
    return f"{ROOT}{lineage}/c"


def epoch_prefix(lineage: str, epoch: int) -> str:
    return f"{checkpoints_prefix(lineage)}{epoch:04}-"


def sequence_prefix(lineage: str, epoch: int, sequence: int) -> str:
    return f"{epoch_prefix(lineage, epoch)}{sequence:06}-"
