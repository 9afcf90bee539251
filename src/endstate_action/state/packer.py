"""The workspace as it leaves the machine: a snapshot's pack, looked through for secrets first."""

from __future__ import annotations

from collections.abc import Callable

from endstate_action.state.checkpoint.build import SecretInside
from endstate_action.state.snapshot.compare import load
from endstate_action.state.snapshot.git_listing import load as load_listing
from endstate_action.state.snapshot.nearby import Nearby
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.pack import pack
from endstate_action.system.names import display, short
from endstate_action.system.redaction import Secrets


class Packer:
    """Packs snapshots of one session for whoever has `base`; with None, for everybody. Used by one thread at a time.

    Args:
        open_store: a view of the object store that is this thread's own.
    """

    def __init__(self, open_store: Callable[[], ObjectStore], base: str | None, secrets: Secrets) -> None:
        self._open_store = open_store
        self._store: ObjectStore | None = None
        self._nearby: Nearby | None = None
        self._base = base
        self._secrets = secrets
        self._clean: set[str] = set()
        self._last: tuple[str, bytes] | None = None

    def pack(self, root: str) -> bytes:
        """Raises: StateError: something is missing. SecretInside: a file holds one, so nothing of it leaves."""
        if self._last is None or self._last[0] != root:
            store = self._store = self._store or self._open_store()
            git = load(store, root).git
            tips = load_listing(store, git).ids if git else set[str]()
            nearby = self._nearby = self._nearby or Nearby(store)
            self._last = (root, pack(store, root, tips - store.missing(tips), self._base, self._look, nearby))
        return self._last[1]

    def _look(self, name: str, path: bytes) -> None:
        if name in self._clean or self._store is None:
            return
        found = self._secrets.in_pieces(self._store.pieces(name))
        if found:
            where = short(display(path)) if path else "a git object"
            raise SecretInside(
                f"{self._secrets.hide(where)} holds the value of {', '.join(found)}, so this workspace does not leave "
                "the machine. It is still whole here.",
                hint="Remove the secret from the file; checkpoints then go out again.",
            )
        self._clean.add(name)
