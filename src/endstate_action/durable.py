"""Where one task's checkpoints are kept, or why they cannot be kept anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from endstate_action.errors import InputError, UnknownSession
from endstate_action.state.checkpoint.read import Expected
from endstate_action.state.seal import Key, derive_key
from endstate_action.state.stores.base import Denied, Store
from endstate_action.state.stores.choice import StoreChoice, refuse_inside
from endstate_action.state.stores.directory import DirectoryStore
from endstate_action.state.stores.git_ref import GitRefStore
from endstate_action.state.stores.objectstore import ObjectStore
from endstate_action.state.uploader import CACHE_PACE, EAGER, REMOTE_PACE, Pace
from endstate_action.system.files import sync_directory
from endstate_action.system.git import Repository

_STATE_KEYS = ("ENDSTATE_STATE_KEY", "INPUT_STATE_KEY")
_API_KEYS = ("ANTHROPIC_API_KEY", "INPUT_ANTHROPIC_API_KEY")


@dataclass(frozen=True, slots=True)
class Depot:
    """A store with the key that seals what goes there."""

    store: Store
    sealing: Key
    is_chosen: bool
    """Whether a person named it; else it was found."""
    pace: Pace
    shown: str
    """As `--store` names it, a directory with its whole path."""
    is_near: bool = False
    """Whether it is a directory on the workspace's own file system, which is lost with the disk that both are on."""

    def expected(self, line: Line) -> Expected:
        return Expected(line.repository, line.lineage)


@dataclass(frozen=True, slots=True)
class Line:
    """What lets the attempts of one task find each other. `repository` is empty where nobody named it."""

    lineage: str
    repository: str = ""


@dataclass(frozen=True, slots=True)
class NoDepot:
    """Why checkpoints stay on this machine."""

    reason: str
    remedy: str = ""


def open_depot(
    choice: StoreChoice,
    environ: Mapping[str, str],
    workspace: Path,
    place: Path,
    repository: Repository | None,
    *,
    git_token: str = "",
    is_to_be_read: bool = False,
) -> Depot | NoDepot:
    """The store that was chosen. Nothing is asked of it yet.

    Args:
        is_to_be_read: whether something is looked for there, so that a directory that is not there is a mistake.
        place: inside the state directory, for what a store needs on this machine.
        git_token: authorises pushes over https; without one the user's own configuration does.

    Raises:
        InputError: it cannot be used at all.
        UnknownSession: it is to be read, and is not there.
    """
    if choice.kind == "none":
        return NoDepot("that was asked for")
    store, pace = _store(choice, environ, workspace, place, repository, git_token)
    if isinstance(store, Denied):
        return NoDepot(store.reason, store.remedy)
    sealing = _sealing(environ)
    if sealing is None:
        return NoDepot(
            "there is no secret that outlives this job to seal checkpoints with",
            "Set ENDSTATE_STATE_KEY (the input state-key) to what the session had, or for a new one to the output "
            "of `openssl rand -hex 32`.",
        )
    if isinstance(store, DirectoryStore):
        choice = replace(choice, path=str(store.path))
        if is_to_be_read:
            _refuse_missing(store.path)
        else:
            _make_above(store.path)
    return Depot(store, sealing, choice.kind != "auto", pace, choice.text, _is_near(store, workspace))


def _make_above(path: Path) -> None:
    """Once, before anything is begun: what is taken away later is not made anew."""
    with suppress(OSError):  # why not is said by whoever uses it
        missing = [place for place in path.parents if not place.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_directory(made.parent)


def _refuse_missing(path: Path) -> None:
    """What is not there may be a slip, or lie on a disk that is not mounted."""
    try:
        path.stat()
    except FileNotFoundError:
        raise UnknownSession(
            f"There is no directory {path}, so it was not looked at as a store. Nothing was restored and nothing "
            "was run.",
            hint="Is that the path, and is its disk mounted? `--store none` goes on with what is on this machine.",
        ) from None
    except OSError:
        pass  # what it is instead is said by whoever uses it


def _is_near(store: Store, workspace: Path) -> bool:
    """Whether both are on one file system."""
    if not isinstance(store, DirectoryStore):
        return False
    with suppress(OSError):  # that it is no directory is said by whoever uses it
        place = store.path if store.path.exists() else store.path.parent
        return place.stat().st_dev == workspace.stat().st_dev
    return False


def _store(
    choice: StoreChoice,
    environ: Mapping[str, str],
    workspace: Path,
    place: Path,
    repository: Repository | None,
    git_token: str,
) -> tuple[Store | Denied, Pace]:
    match choice.kind:
        case "auto" if not environ.get("GITHUB_ACTIONS") and not environ.get("ACTIONS_RUNTIME_TOKEN"):
            return Denied("no store was named", "Name one: `--store dir:PATH`, outside the workspace."), EAGER
        case "auto" | "cache":
            # Its transport takes a fifth of a second to load.
            from endstate_action.state.stores.cache import cache_store

            return cache_store(environ), CACHE_PACE
        case "dir":
            path = refuse_inside(choice.path, workspace, home=environ.get("HOME"))
            return DirectoryStore(path), EAGER
        case "git-ref":
            url = repository.remote_url() if repository else None
            if url is None:
                raise InputError(
                    "store: git-ref needs a repository with a remote named origin, and there is none here. "
                    "Nothing was run.",
                    hint="Add the remote, or name another store.",
                )
            return GitRefStore(url, place, workspace, environ, token=git_token), REMOTE_PACE
        case "s3" | "gs" | "az":
            return ObjectStore(choice.kind, choice.bucket, choice.path, environ), REMOTE_PACE
        case "none":
            raise AssertionError("there is nothing to open")


def _sealing(environ: Mapping[str, str]) -> Key | None:
    for names, explicit in ((_STATE_KEYS, True), (_API_KEYS, False)):
        for name in names:
            if environ.get(name, "").strip():
                return derive_key(environ[name], explicit=explicit)
    return None
