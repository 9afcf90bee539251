"""What kind of file system a path is on, and how much room it has."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# Locks, fsync and SQLite's journal cannot be relied on where another machine holds the file.
_NETWORK = {
    "9p", "acfs", "afp_fs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "gfs", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb2", "smb3",
    "smbfs", "vboxsf", "virtiofs", "vmhgfs", "webdav",
}  # fmt: skip
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.ext4", "fuse.exfat"}


def is_network_filesystem(kind: str) -> bool:
    """Whether files of this type may be on another machine, as `filesystem_type` names it.

    FUSE types count as such unless known to be local. `""` (unknown) is False: the caller decides.
    """
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """The type of the mount that `path` is or would be on, such as `ext4`; `""` where that is unknown.

    `mountinfo` is text in the format of `/proc/self/mountinfo`, which is read by default.
    """
    if mountinfo is None:
        try:
            mountinfo = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return ""
    place = path.resolve()
    best, kind = -1, ""
    for point, found in _mounts(mountinfo):
        # Equal is better, too: a later mount on the same point covers the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), found
    return kind


def _mounts(mountinfo: str) -> Iterator[tuple[Path, str]]:
    for line in mountinfo.splitlines():
        mount, _, described = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) > 4 and described:
            yield Path(re.sub(r"\\([0-7]{3})", lambda c: chr(int(c[1], 8)), fields[4])), described.split(" ")[0]


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the file system of `path`, which must exist."""
    return shutil.disk_usage(path).free
