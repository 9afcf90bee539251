"""Git for a repository that an agent can write to: nothing found in it is executed, and no commit is made twice.

Work-tree files are read (compared, converted, hashed) only through a *view*: a git directory written here,
with a configuration written here, over the project's objects. What git could execute is defined by
configuration, so in a view there is nothing to execute, whatever the project's configuration and attributes
say. Only refs and the index are reached in the project's own git directory, by commands that open no
work-tree file, and in front of the commit stands `check_trust`.

A commit is built aside, then staged, then published by a compare-and-swap of HEAD. Killed anywhere, there is
either no commit (and at most staged paths), or the commit and an index that agrees with it.

Git 2.31 or newer. The work tree needs its `.git` (directory, link or file) at the root: a workspace inside a
bigger repository counts as a plain directory, since a commit there could take paths from outside of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from endstate_action.errors import InputError
from endstate_action.system.git_call import (
    Doubtful,
    Git,
    GitError,
    HeadMoved,
    LeftLocked,
    UntrustedConfig,
    common_dir,
    join,
    split,
    text,
)
from endstate_action.system.git_message import identity, signature, with_trailer
from endstate_action.system.git_owner import give_back
from endstate_action.system.git_paths import Kind, at, kind, kind_of, problem, refused_name
from endstate_action.system.git_trust import content_digest, file_digest, is_from, is_held, trust_digest
from endstate_action.system.git_view import view
from endstate_action.system.names import display, parse
from endstate_action.system.tree import scan

ATTRIBUTES = ("filter", "text", "eol", "ident", "working-tree-encoding")

NEWEST_COMMITS = 10_000
"""How many commits `find_by_trailer` looks through, newest first."""

_UNFINISHED = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}
_GITLINK = b"160000 "
_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize [0-9]+\n")
_SPARSE = b"S"
_OWN_REFS = ("refs/heads", "refs/tags", "refs/stash")


class NoFile(Exception):
    """What stands in a commit under the name of a file; the text goes on after that name."""


@dataclass(frozen=True, slots=True)
class Head:
    """`commit` is None on a branch without commits; `ref` is None when HEAD is detached."""

    commit: str | None
    ref: str | None


def discover(root: Path, env: Mapping[str, str], tmp: Path) -> Repository | None:
    """The repository whose work tree is exactly `root`.

    Args:
        env: gives PATH and HOME; nothing else of it reaches git.
        tmp: a private directory, made when needed, where a view lives for the length of a call.

    Returns:
        None without a git program, without `.git` at `root`, or when git cannot read what is there.
    """
    root = root.absolute()
    git_dir = _git_dir(root)
    user = Git.for_user(root, git_dir, env) if git_dir else None
    if git_dir is None or user is None:
        return None
    try:
        # A path may have line breaks in it.
        common, _, object_format = user.line("rev-parse", "--git-common-dir", "--show-object-format").rpartition("\n")
        settings = user.settings()
    except GitError:
        return None
    return _repository(user, git_dir, root / common, object_format, settings, tmp)


def presume(root: Path, env: Mapping[str, str], tmp: Path, object_format: str) -> Repository | None:
    """The repository that was at `root` with this object format, whatever has become of it; for who puts it back.

    A call can break a repository so that git does not take it for one. Its configuration, which a call in the sandbox
    cannot write, is read from its file.

    Args:
        env, tmp: as for `discover`.

    Returns:
        None without a git program.
    """
    root = root.absolute()
    git_dir = _git_dir(root) or root / ".git"
    user = Git.for_user(root, git_dir, env)
    if user is None:
        return None
    common = common_dir(git_dir)
    settings: dict[str, str] = {}
    for where in ((), ("--file", str(common / "config"))):
        with suppress(GitError):
            settings |= user.settings(*where)
    return _repository(user, git_dir, common, object_format, settings, tmp)


def is_in_index(root: Path, path: str, env: Mapping[str, str]) -> bool:
    """Whether the index of the repository at `root` holds `path` or anything below it, by one call of git.

    For a cheap warning: False where there is no repository or git cannot tell. `Repository.is_tracked` decides.
    """
    git_dir = _git_dir(root)
    user = Git.for_user(root, git_dir, env) if git_dir else None
    try:
        return user is not None and bool(user.closed({}, "all").out("ls-files", "-z", "--", path))
    except GitError:
        return False


@dataclass(frozen=True, slots=True)
class Repository:
    """A work tree and its git directory. Paths are bytes below `root`, as git stores them, without a last slash.

    Every method raises `GitError` when git fails, in git's own words.
    """

    root: Path
    git_dir: Path
    common_dir: Path
    """Where objects, branches, configuration and hooks are; another than `git_dir` in a linked work tree."""
    view_place: Path
    object_format: str
    """`sha1` or `sha256`."""
    identity: tuple[str, str]
    """Name and mail address of author and committer, from the configuration as it was on opening."""
    _user: Git
    _git: Git
    _viewing: Git

    def head(self) -> Head:
        commit = self._git.ask("rev-parse", "-q", "--verify", "HEAD^{commit}")
        return Head(text(commit).strip() if commit else None, self._ref())

    def tree_of(self, commit: str) -> str:
        """The id of the commit's tree."""
        return self._git.line("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")

    def tree_id(self, name: str) -> str | None:
        """The whole id of a tree that is here, named by itself or by a commit; None where there is no such tree."""
        found = self._git.ask("rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{tree}}")
        return text(found).strip() if found else None

    def full_id(self, commit: str) -> str | None:
        """The whole id of a commit that is here; None where there is no such commit."""
        found = self._git.ask("rev-parse", "-q", "--verify", "--end-of-options", f"{commit}^{{commit}}")
        return text(found).strip() if found else None

    def has_any(self, commits: Iterable[str]) -> bool:
        """Whether one of these full ids is a commit that is here."""
        asked = "".join(f"{name}\n" for name in commits).encode()
        options = ("--no-walk", "--ignore-missing", "--max-count=1", "--stdin")
        return bool(self._git.out("rev-list", *options, given=asked).strip()) if asked else False

    def is_published(self, commit: str) -> bool:
        """Whether a branch of a remote repository had it when it was last looked at."""
        listed = self._git.out(
            "for-each-ref", "--count=1", "--format=%(refname)", f"--contains={commit}", "refs/remotes"
        )
        return bool(listed)

    def unpublished(self, but: Iterable[str]) -> list[str]:
        """Refs of local branches and of the newest stash that lead to commits of this repository alone.

        That is, which no branch of a remote repository had when it was last looked at; nor has what `but` names them.
        """
        listed = self._git.out("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/stash")
        refs = [line.split(" ", 1) for line in text(listed).splitlines()]
        known = self._git.out(
            *("rev-list", "--ignore-missing", *(tip for tip, _ in refs), "--not", "--remotes", *but)
        ) if refs else b""  # fmt: skip
        alone = set(text(known).split())
        return [ref for tip, ref in refs if tip in alone]

    def apart(self, but: Iterable[str]) -> dict[str, str]:
        """Of `tips`, those whose work is neither in HEAD, nor in a branch of a remote repository, nor in `but`."""
        tips, head = self.tips(), self.head().commit
        peeled = text(self._git.out("for-each-ref", "--format=%(refname) %(*objectname)", "refs/tags")).splitlines()
        commits = tips | {name: commit for name, _, commit in (line.rpartition(" ") for line in peeled) if commit}
        known = [*but, head] if head else [*but]
        asked = "".join(f"{name}\n" for name in (*commits.values(), *(f"^{name}" for name in known))).encode()
        options = ("rev-list", "--ignore-missing", "--stdin", "--not", "--remotes")
        found = self._git.out(*options, given=asked) if commits else b""
        alone = set(text(found).split())
        return {name: commit for name, commit in commits.items() if commit in alone}

    def file(self) -> str | None:
        """What the file `.git` of a linked work tree or submodule says; None where `.git` is the git directory."""
        place = self.root / ".git"
        return display(place.read_bytes().rstrip()) if place.is_file() else None

    def refs(self) -> dict[str, str]:
        """Local branches, tags and the newest stash, by their full names; of each the id of what it names."""
        listed = self._git.out("for-each-ref", "--format=%(refname) %(objectname)", *_OWN_REFS)
        return dict(line.rsplit(" ", 1) for line in text(listed).splitlines())

    def tips(self) -> dict[str, str]:
        """`refs`, and what else has a name alone to keep it: older stashes, and HEAD where it is on no branch."""
        found, head = self.refs(), self.head()
        if head.ref is None and head.commit is not None:
            found["HEAD"] = head.commit
        stashed = self._git.ask("log", "-g", "--format=%H", "refs/stash", "--") if "refs/stash" in found else None
        older = text(stashed or b"").split()[1:]
        return found | {f"stash@{{{number}}}": name for number, name in enumerate(older, start=1)}

    def paths_at(self, commit: str) -> set[bytes]:
        """All files of a commit."""
        return set(split(self._git.out("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)))

    def remote_url(self) -> str | None:
        """Where the checkout came from, as its configuration says; None where it says nothing."""
        found = self._user.settings().get("remote.origin.url")
        with suppress(GitError):
            # The file is asked where git does not take what is here for a repository.
            found = found or self._user.settings("--file", str(self.common_dir / "config")).get("remote.origin.url")
        return found

    def read_at(self, commit: str, path: str) -> bytes | None:
        """A file's content as `commit` has it, through links that stay in it; None where there is nothing of that name.

        Raises:
            NoFile: there is something else.
        """
        if "\n" in path:
            raise NoFile("has a name of several lines")
        asked = f"{commit}:{path}\n".encode()
        found = self._git.out("cat-file", "--batch", "--follow-symlinks", given=asked)
        head, _, content = found.partition(b"\n")
        match text(head).split(" "):
            case [_, "blob", size] if size.isdecimal():  # what is missing is named, and may be called so
                return content[: int(size)]
            case [_, "tree", size] if size.isdecimal():
                raise NoFile("is a directory")
            case ["symlink", _]:
                raise NoFile("is a link that leads out of the repository")
            case ["dangling" | "loop" | "notdir", _]:
                raise NoFile("is a link that git cannot follow to a file")
            case _:
                pass
        # Of a submodule git has no content; nor does it tell that one stands on the way.
        above = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]
        listed = split(self._git.out("ls-tree", "-z", "--full-tree", commit, "--", *above))
        if any(item.startswith(b"160000 ") for item in listed):
            raise NoFile("is in a submodule")
        return None

    def parted(self, commit: str) -> str | None:
        """Where HEAD and the commit parted; None where the history that is here does not tell."""
        if not os.path.lexists(self.common_dir / "shallow"):
            found = self._git.ask("merge-base", commit, "HEAD")
            return text(found).strip() if found else None
        # What HEAD follows it names itself, also where that was not fetched.
        named = text(self._git.out("cat-file", "commit", "HEAD")).partition("\n\n")[0].split("\n")
        return commit if f"parent {commit}" in named or self.head().commit == commit else None

    def diff_stat(self, since: str) -> str:
        """Which files differ between two commits, `since` and HEAD, and by how many lines."""
        options = ("--stat=100", "--stat-count=200", "--no-ext-diff", "--no-textconv", "-M")
        return text(self._git.out("diff", *options, since, "HEAD", "--")).encode("utf-8", "replace").decode()

    def subject_of(self, commit: str) -> str:
        shown = self._git.line("rev-list", "-n1", "--encoding=UTF-8", "--format=%s", commit, "--")
        return shown.partition("\n")[2]

    def files_of(self, commit: str) -> list[bytes]:
        """The paths in which the commit differs from its first parent; a rename makes two."""
        options = ("--root", "--no-commit-id", "--no-renames", "--name-only", "-r", "-z")
        return split(self._git.out("diff-tree", *options, commit, "--"))

    def is_tracked(self, path: str) -> bool:
        """Whether the index or HEAD holds `path` or anything below it."""
        commit = self.head().commit
        listed = self._git.out("ls-tree", "-z", commit, "--", path) if commit else b""
        return bool(listed or self._git.out("ls-files", "-z", "--", path))

    def changed_paths(self, since: str | None) -> list[bytes]:
        """The paths whose state in the work tree is not that of commit `since` (None: an empty tree), sorted.

        Deleted and new paths are among them, ignored ones only if the index has them. Compared by content,
        after git's own conversion of line ends. A repository inside the work tree is one path. What a
        sparse checkout left out is no deletion.
        """
        with self._view(since) as seen:
            listed = split(seen.out("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"))
            committed = set(split(seen.out("ls-files", "-z")))
        changed = {path.rstrip(b"/") for path in listed}
        for entry in split(self._git.out("ls-files", "-z", "-t")):
            tag, _, path = entry.partition(b" ")
            if path not in committed and self._kind(path) != "absent":
                changed.add(path)
            elif tag == _SPARSE and self._kind(path) == "absent":
                changed.discard(path)
        return sorted(changed)

    def changes(self, since: str | None) -> dict[str, str]:
        """`changed_paths`, spelled as by `names.display`, each with a digest that tells whether it changes again."""
        changed = self.changed_paths(since)
        return {display(path): self._digest(path) for path in changed}

    def stored_elsewhere(self, commit: str, changes: Mapping[str, str]) -> set[str]:
        """Those of `changes` since the commit that are the very content for which it has a pointer of git LFS."""
        attributes = self.attributes(map(parse, changes))
        paths = {path for path, found in attributes.items() if found["filter"] == "lfs"}
        listed = split(self._git.out("ls-tree", "-r", "-z", "--full-tree", commit)) if paths else []
        found = set()
        for about, _, path in (entry.partition(b"\t") for entry in listed):
            mode, kind, blob = about.split(b" ")
            if path not in paths or kind != b"blob":
                continue
            pointer, name = b"", display(path)
            with suppress(GitError):  # a partial clone may not have it
                pointer = self._git.out("cat-file", "blob", text(blob))
            named = _POINTER.fullmatch(pointer)
            stored = named and content_digest(bytes.fromhex(text(named[1])), is_program=mode == b"100755")
            if changes[name] == stored:
                found.add(name)
        return found

    def nested(self) -> dict[str, str]:
        """The repositories inside the work tree, submodules that are checked out among them, ignored ones not: by name,
        as `names.display` spells it, a digest of what is in them.
        """
        with self._view(None) as seen:
            listed = split(seen.out("ls-files", "-z", "--others", "--exclude-standard"))
        found = [path.rstrip(b"/") for path in listed if path.endswith(b"/")]
        return {display(path): _content(at(self.root, path)) for path in found}

    def ignored(self, paths: Iterable[bytes]) -> list[bytes]:
        """Those of `paths` that are there and that ignore rules match, tracked or not."""
        there = [path for path in paths if self._kind(path) != "absent"]
        with self._view(None) as seen:
            # This command knows no literal pathspecs; behind the prefix nothing is magic.
            asked = seen.with_env({"GIT_LITERAL_PATHSPECS": "0"})
            given = join(b"./" + path for path in there)
            listed = asked.ask("check-ignore", "-z", "--stdin", "--no-index", given=given)
        return [path.removeprefix(b"./") for path in split(listed or b"")]

    def attributes(self, paths: Iterable[bytes]) -> dict[bytes, dict[str, str]]:
        """For each path its `ATTRIBUTES`, in git's words: `unspecified`, `set`, `unset`, or a value."""
        with self._view(None) as seen:
            words = split(seen.out("check-attr", "-z", "--stdin", *ATTRIBUTES, given=join(paths)))
        found: dict[bytes, dict[str, str]] = {}
        for path, name, value in zip(words[::3], words[1::3], words[2::3], strict=True):
            found.setdefault(path, {})[text(name)] = text(value)
        return found

    def find_by_trailer(self, key: str, since: str | None, also: Iterable[str] = ()) -> list[tuple[str, str]]:
        """(commit, value) for every trailer `key`, of commits that `since` does not reach.

        Looked through is what a ref, HEAD or one of the commits in `also` reaches.
        """
        layout = f"--format=%H%x00%(trailers:key={key},valueonly,unfold,separator=%x00)"
        options = ("--encoding=UTF-8", "--ignore-missing", f"--max-count={NEWEST_COMMITS}", layout, "--all", "--stdin")
        given = "".join(f"{commit}\n" for commit in also).encode()
        left_out = ("--not", since) if since else ()
        lines = self._git.line("rev-list", *options, *left_out, "--", given=given).split("\n")
        # Every second line is a heading of git's own.
        shown = (line.split("\0") for line in lines[1::2])
        return [(commit, value) for commit, *values in shown for value in values if value]

    def left_behind(self) -> list[str]:
        """The commits that HEAD was at before, as its reflog tells; each once, the newest first.

        An entry alone does not count: it is written before HEAD moves, and a git that was killed in
        between leaves the entry of a move that never was. What a later move set out from was there.

        Raises:
            GitError: the reflog is missing or damaged, or does not lead to where HEAD is.
        """
        here = self.head().commit or text(_nothing(self.object_format))
        moves = _moves(self.git_dir / "logs" / "HEAD", self.object_format)
        if here not in (moves[-1] if moves else (text(_nothing(self.object_format)),)):
            raise GitError("The reflog of HEAD does not tell where HEAD has been.")
        return list(dict.fromkeys(old for old, _ in reversed(moves)))[:NEWEST_COMMITS]

    def trust(self) -> str:
        """A digest of all that could make git execute something or write elsewhere; see `git_trust`.

        It belongs to one checkout: another one has, for instance, another token in its configuration.
        """
        listing = self._user.out("config", "--list", "-z", "--show-scope", "--includes")
        return trust_digest(listing, self.root, self.git_dir, self.common_dir, self._ref())

    def check_trust(self, expected: str) -> None:
        """Raises: UntrustedConfig: `trust` is not `expected`, or cannot be told."""
        try:
            same = self.trust() == expected
        except GitError:
            same = False
        if not same:
            raise UntrustedConfig(
                "The git configuration (.git/config, a file that it includes, or the user's own) or something in "
                ".git/hooks is not what it was when the session began."
            )

    def check_committable(self, paths: Sequence[bytes]) -> None:
        """Refuse, each by its name, the paths that a commit could not take faithfully.

        Raises:
            GitError: for submodules and repositories inside the work tree and what lies in them, special
                files, content made by a filter; and while a merge is unfinished.
        """
        for name, action in _UNFINISHED.items():
            if kind_of(self.git_dir / name) != "absent":
                raise GitError(f"A {action} is in progress, and this tool cannot conclude it.")
        commit = self.head().commit
        links = _gitlinks(self._git.out("ls-tree", "-r", "-z", commit)) if commit else set()
        filters = self.attributes(path for path in paths if self._kind(path) == "file")
        problems = [problem(self.root, path, links, filters.get(path, {})) for path in paths]
        if any(problems):
            raise GitError(" ".join(sorted(set(filter(None, problems)))))

    def commit(
        self,
        paths: Sequence[bytes],
        message: str,
        trailer: tuple[str, str],
        when: float,
        expected_head: Head,
        trust: str,
    ) -> str:
        """Commit exactly `paths`, as they are in the work tree, on top of `expected_head`; returns the id.

        The same state is staged; what else is staged stays staged. The id depends on content, message,
        trailer, identity, parent and `when` (seconds since the epoch) alone, so a repeat makes the same commit.

        Raises:
            UntrustedConfig, LeftLocked: nothing was done.
            HeadMoved, GitError: nothing was committed; the paths may have been staged.
            Doubtful: whether it was published cannot be told.
        """
        self.check_trust(trust)
        self.check_committable(paths)
        self._refuse_locks()
        parents = ("-p", expected_head.commit) if expected_head.commit else ()
        author = signature(self.identity, when)
        try:
            with self._view(expected_head.commit) as seen:
                staged = self._stage(seen, paths)
                tree = seen.line("write-tree", "--missing-ok")
                if expected_head.commit and tree == self.tree_of(expected_head.commit):
                    raise GitError("The last commit has these paths as they are.")
                signed = with_trailer(message, *trailer).encode("utf-8", "replace")
                commit = seen.with_env(author).line("commit-tree", tree, *parents, given=signed)
            # Staged before published: the other order could leave a commit that the index seems to take back.
            self._git.out("update-index", "-z", "--index-info", given=staged)
            self._move_head(commit, expected_head, author)
        finally:
            # It is said by whoever then cannot write there; the commit is made all the same.
            with suppress(OSError):
                for top in {self.git_dir, self.common_dir}:
                    give_back(top)
        return commit

    def remove_stale_locks(self, younger_than: float) -> list[Path]:
        """Remove and return the lock files that a killed git of ours left; any other lock stays.

        Ours: made by this user after `younger_than` (seconds since the epoch), with no process that holds
        the file open and no git at work in this repository.
        """
        stale = [lock for lock in self._locks() if is_from(lock, younger_than)]
        stale = [lock for lock in stale if not is_held(lock, (self.root, self.git_dir))]
        for lock in stale:
            lock.unlink(missing_ok=True)
        return stale

    def _stage(self, seen: Git, paths: Sequence[bytes]) -> bytes:
        """Put `paths` into the view's index; returns the same as `--index-info` for another index."""
        # A directory at a path that may be committed stands where a file was.
        gone = [path for path in paths if self._kind(path) not in ("file", "link")]
        there = set(paths) - set(gone)
        removals = join(b"0 " + _nothing(self.object_format) + b"\t" + path for path in gone)
        seen.out("update-index", "-z", "--index-info", given=removals)
        seen.out("update-index", "-z", "--add", "--replace", "--stdin", given=join(sorted(there)))
        entries = {entry.partition(b"\t")[2]: entry for entry in split(seen.out("ls-files", "-z", "-s"))}
        # Of a name that it refuses git says nothing by its end.
        if refused := sorted(there - entries.keys()):
            raise GitError(" ".join(map(refused_name, refused)))
        return removals + join(entry for path, entry in entries.items() if path in there)

    def _move_head(self, commit: str, expected: Head, author: Mapping[str, str]) -> None:
        old = expected.commit or text(_nothing(self.object_format))
        note = f"commit: {self.subject_of(commit)}"
        try:
            self._git.with_env(author).out("update-ref", "-m", note, "HEAD", commit, old)
        except GitError as error:
            self._explain(error, commit, expected)

    def _explain(self, error: GitError, commit: str, expected: Head) -> None:
        """Tell, after a failed move of HEAD, what became of it."""
        try:
            now = self.head().commit
        except GitError:
            raise Doubtful(f"{error} HEAD cannot be read either.") from error
        if now not in (commit, expected.commit):
            raise HeadMoved(f"HEAD moved to {now} in the meantime.") from error
        if now != commit:
            raise error

    def _locks(self) -> list[Path]:
        ref = self._ref()
        locks = [self.git_dir / "index.lock", self.git_dir / "HEAD.lock"]
        locks += [self.common_dir / f"{ref}.lock"] if ref else []
        return [lock for lock in locks if kind_of(lock) != "absent"]

    def _refuse_locks(self) -> None:
        for lock in self._locks():
            raise LeftLocked(
                f"{lock} is there: another git is at work, or was killed. It was not made by this call, "
                "so it was left alone. Try again later; remove it only when no git is running."
            )

    def _ref(self) -> str | None:
        ref = self._git.ask("symbolic-ref", "-q", "HEAD")
        return text(ref).strip() if ref else None

    def _view(self, commit: str | None) -> AbstractContextManager[Git]:
        """One at a time."""
        return view(self._viewing, self.view_place, self.common_dir, self.object_format, commit)

    def _kind(self, path: bytes) -> Kind:
        return kind(self.root, path)

    def _digest(self, path: bytes) -> str:
        found = self._kind(path)
        return file_digest(at(self.root, path)) if found in ("file", "link") else found


def _repository(
    user: Git, git_dir: Path, common_dir: Path, object_format: str, settings: Mapping[str, str], tmp: Path
) -> Repository:
    durable, viewing = user.closed(settings, "all"), user.closed(settings, "loose-object")
    place, who = tmp.absolute() / "git-view", identity(settings)
    return Repository(user.root, git_dir, common_dir, place, object_format, who, user, durable, viewing)


def is_bare(place: Path) -> bool:
    """Whether it is the directory of a repository itself, as far as its names tell: no clone with files in it."""
    return not os.path.lexists(place / ".git") and all((place / name).exists() for name in ("HEAD", "objects", "refs"))


def enclosing(place: Path) -> Path | None:
    """The top of the checkout that `place` is a directory of, as far as names tell; None where it is no part of one."""
    place = place.absolute().resolve()
    if os.path.lexists(place / ".git"):
        return None
    return next((above for above in place.parents if os.path.lexists(above / ".git")), None)


def _git_dir(root: Path) -> Path | None:
    """Where `.git` leads. A linked work tree and a submodule have a file there that names the directory."""
    place = root / ".git"
    if place.is_dir():
        return place
    named = re.match(rb"gitdir: (.+)", place.read_bytes()[:8192], re.DOTALL) if place.is_file() else None
    return root / os.fsdecode(named[1].rstrip(b"\r\n")) if named else None


def _content(place: Path) -> str:
    try:
        return scan(place, [b".git"]).tree_hash
    except InputError:
        return "unreadable"


def _nothing(object_format: str) -> bytes:
    return b"0" * (64 if object_format == "sha256" else 40)


def _moves(reflog: Path, object_format: str) -> list[tuple[str, str]]:
    """From where to where HEAD moved, the oldest move first."""
    digits = len(_nothing(object_format))
    entry = re.compile(rb"([0-9a-f]{%d}) ([0-9a-f]{%d}) " % (digits, digits))
    try:
        found = [entry.match(line) for line in reflog.read_bytes().splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise GitError(f"The reflog of HEAD cannot be read ({error.strerror}).") from error
    if not all(found):
        raise GitError("The reflog of HEAD is damaged.")
    return [(text(move[1]), text(move[2])) for move in found if move]


def _gitlinks(tree: bytes) -> set[bytes]:
    return {entry.partition(b"\t")[2] for entry in split(tree) if entry.startswith(_GITLINK)}
