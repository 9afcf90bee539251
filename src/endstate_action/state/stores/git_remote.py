"""One remote repository, reached from a bare one of our own: what git says comes back as a value.

The bare repository is made anew when it is first used and holds objects only. Its configuration is a constant
that is compared before every use, since settings planted there could send the token elsewhere. Git sees no other
configuration, runs no hook and asks nobody; the token reaches it by the environment, never by an argument or
a file.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from endstate_action.errors import InputError
from endstate_action.state.stores.base import Denied, RateLimited, Unavailable
from endstate_action.state.stores.bounded import Deadline
from endstate_action.state.stores.key_parts import is_name
from endstate_action.system import own_files
from endstate_action.system.git_call import Git, split, text
from endstate_action.system.process import Completed, capture
from endstate_action.system.redaction import Secrets

WAIT_AFTER_429_S = 60.0
"""Git does not show what a server says about when to come back."""

# No user and no password: those would end up in messages and in arguments. The last form is ssh's short one.
_URL = re.compile(
    r"https?://[\w.:\[\]-]+/[^\s?#@\\]+|file:///[^\s\\]+|ssh://([\w.-]+@)?[\w.][\w.-]*(:[0-9]+)?/[^\s\\]+"
    r"|[\w.][\w.-]*@[\w.][\w.-]*:[\w.~][^\s:\\]*",
    re.ASCII,
)
_IS_ELSEWHERE = re.compile(r"[^/]*:")
"""An address with a scheme or a host; git takes anything else for a path."""
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n"
_HEAD = b"ref: refs/heads/none\n"
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "endstate"), ("EMAIL", "endstate@localhost"), ("DATE", "1700000000 +0000"))
}
# How a way out of a closed network is found, and whom to trust there.
_NETWORK = frozenset({"SSH_AUTH_SOCK", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "SSL_CERT_DIR"}) | {
    name for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (proxy, proxy.upper())
}
_SSH = "ssh -o BatchMode=yes"

_DENIED = re.compile(
    r"returned error: 40[13]|HTTP 40[13]|authentication failed|could not read (username|password)|permission denied"
    r"|permission to \S+ denied|access denied|not granted|read.only|GH0(06|13)|protected branch|hook declined"
    r"|not allowed|insufficient|host key verification failed|deny updating|prohibited|service not enabled",
    re.IGNORECASE,
)
_MISSING = re.compile(r"returned error: 404|repository .*not found|not appear to be a git repository", re.IGNORECASE)
_LIMITED = re.compile(r"returned error: 429|rate limit", re.IGNORECASE)
_LOST = re.compile(
    r"stale info|fetch first|non-fast-forward|needs force|already exists|failed to update ref|cannot lock ref"
    r"|failed to lock|incorrect old value",
    re.IGNORECASE,
)
_REMEDY = (
    "It takes the right to push (`permissions: contents: write` for a job, write access for a deploy key), and no "
    "rule that protects refs/endstate/; or use another store."
)
_SHOWN = 200


class Failed(Exception):
    """Git did not do it. `outcome` is what that means for a put, its reason what it means for anybody."""

    def __init__(self, outcome: Denied | RateLimited | Unavailable) -> None:
        super().__init__()
        self.outcome = outcome

    @property
    def reason(self) -> str:
        if isinstance(self.outcome, RateLimited):
            return f"too many requests; try again in {self.outcome.retry_after_s:g} s"
        return self.outcome.reason

    @property
    def remedy(self) -> str:
        """What a person can do, where nothing else helps."""
        return self.outcome.remedy if isinstance(self.outcome, Denied) else ""


@dataclass(frozen=True, slots=True)
class Remote:
    """How the repository at a URL is asked; every method but `ready` raises `Failed`."""

    url: str
    _git: Git
    _secrets: Secrets

    @classmethod
    def at(cls, url: str, place: Path, workspace: Path, environ: Mapping[str, str], token: str) -> Remote:
        """Args: as of `GitRefStore`.

        Raises:
            InputError: the address is none that we go to, or there is no git program.
        """
        if url and not _IS_ELSEWHERE.match(url) and (there := (workspace / url).absolute()).is_dir():
            url = f"file://{quote(str(there))}"
        if not _URL.fullmatch(url) or not url.isprintable():
            raise InputError(
                "store git-ref: the address of the remote origin cannot be used, so nothing was started.",
                hint="It must be a directory, or begin with https://, http://, ssh:// or file://, or be "
                "user@host:path, and hold no password and no query.",
            )
        # Named with the workspace, so that no program of the repository can pass for git.
        git = Git.for_user(workspace, place, environ)
        if git is None:
            raise InputError(
                "store git-ref: there is no git program, so nothing was started.",
                hint="Install git, or use another store.",
            )
        closed = git.closed({}, "none").env
        env = {key: value for key, value in closed.items() if key != "GIT_WORK_TREE"}
        env |= {key: value for key, value in environ.items() if key in _NETWORK}
        env |= _IDENTITY | {
            "GIT_ALLOW_PROTOCOL": "https:http:ssh:file",
            "GIT_SSH_COMMAND": environ.get("GIT_SSH_COMMAND", _SSH),
        }
        if token and url.startswith("http"):
            env = _with_setting(env, f"http.{url}.extraheader", f"AUTHORIZATION: basic {_basic(token)}")
        return cls(url, Git(git.program, place, env), Secrets({"token": token}))

    def ready(self, *, anew: bool) -> bool:
        """Have a repository of our own; True if it was made anew, so that nothing once fetched is there."""
        place = self._git.root
        try:
            if not anew and own_files.get(place / "config") == _CONFIG and own_files.get(place / "HEAD") == _HEAD:
                return False
        except OSError:
            pass  # it was deleted (`git clean`, say)
        try:
            with own_files.directory(place.parent, make=True) as parent:
                own_files.remove(place.name, parent)
            for folder in ("objects", "refs"):
                with own_files.directory(place / folder, make=True):
                    pass
            own_files.put(place / "HEAD", _HEAD)
            own_files.put(place / "config", _CONFIG)
        except OSError as error:
            raise Failed(Unavailable(f"{place} could not be made ({error.strerror})", is_doubtful=False)) from error
        return True

    def tip(self, ref: str, deadline: Deadline) -> str | None:
        """The commit that `ref` names there now; None where there is no such ref."""
        listed = text(self._out(deadline, "ls-remote", "--quiet", "--refs", "--", self.url, ref)).splitlines()
        # The pattern also matches refs that only end so.
        return next((line.partition("\t")[0] for line in listed if line.partition("\t")[2] == ref), None)

    def refs(self, below: str, deadline: Deadline) -> list[str]:
        """The refs there whose names begin with `below`."""
        listed = text(self._out(deadline, "ls-remote", "--quiet", "--refs", "--", self.url, f"{below}*")).splitlines()
        return [name for name in (line.partition("\t")[2] for line in listed) if name.startswith(below)]

    def fetch(self, ref: str, deadline: Deadline) -> str:
        """Get what `ref` names there, without its history; returns the commit.

        Raises:
            Failed: also where it names something else, which somebody else has written and only a person can undo.
        """
        options = ("--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        self._out(deadline, "fetch", *options, "--", self.url, f"+{ref}:{ref}")
        if text(self._out(deadline, "cat-file", "-t", ref)).strip() != "commit":
            remedy = (
                f"Something else has written that ref: delete it (`git push origin --delete {ref}`). What the store "
                "had there is gone, so that the task begins anew then."
            )
            raise Failed(Denied(f"{ref} there names no commit", remedy))
        return text(self._out(deadline, "rev-parse", "--verify", "--quiet", ref)).strip()

    def push(self, ref: str, old: str | None, new: str, deadline: Deadline) -> bool:
        """Make `ref` name `new` there if it names `old` (None: if it does not exist); False if it does not."""
        lease = f"--force-with-lease={ref}:{old or ''}"
        done = self._call(deadline, ("push", "--porcelain", "--no-verify", lease, "--", self.url, f"{new}:{ref}"))
        if done.returncode == 0:
            # The next fetch then need not bring what is here already; without, it brings it.
            with suppress(Failed):
                self._out(deadline, "update-ref", ref, new)
            return True
        rejected = next((line for line in text(done.stdout).splitlines() if line.startswith("!")), "")
        said = f"{rejected} {text(done.stderr)}"
        if _LOST.search(rejected) and not _DENIED.search(said):
            return False
        raise self._failure("push", said)

    def blobs(self, commit: str, deadline: Deadline) -> dict[str, str]:
        """The ids of what the commit's tree holds, by name; what can be no key's is left out."""
        found = {}
        for line in split(self._out(deadline, "ls-tree", "-z", commit)):
            entry, _, name = text(line).partition("\t")
            mode, kind, blob = entry.split(" ")
            if (mode, kind) == ("100644", "blob") and is_name(name):
                found[name] = blob
        return found

    def read(self, blob: str, deadline: Deadline) -> bytes:
        return self._out(deadline, "cat-file", "blob", blob)

    def add(self, data: bytes, deadline: Deadline) -> str:
        """Have a blob of `data` here; returns its id."""
        return text(self._out(deadline, "hash-object", "-w", "--stdin", given=data)).strip()

    def commit(self, blobs: Mapping[str, str], deadline: Deadline) -> str:
        """A commit here without parents, unlike any other; returns its id."""
        listing = "".join(f"100644 blob {blob}\t{name}\0" for name, blob in blobs.items()).encode()
        tree = text(self._out(deadline, "mktree", "-z", given=listing)).strip()
        # Of two writers of the same bytes under the same key, the second would else find "its" commit in place.
        message = f"endstate checkpoints {secrets.token_hex(8)}\n".encode()
        return text(self._out(deadline, "commit-tree", tree, given=message)).strip()

    def _out(self, deadline: Deadline, *args: str, given: bytes | None = None) -> bytes:
        done = self._call(deadline, args, given)
        if done.returncode != 0:
            raise self._failure(args[0], text(done.stderr))
        return done.stdout

    def _call(self, deadline: Deadline, args: tuple[str, ...], given: bytes | None = None) -> Completed:
        left, writes = deadline.left(), args[0] == "push"
        if left <= 0:
            raise Failed(Unavailable(f"no answer within {deadline.timeout_s:g} s", is_doubtful=False))
        try:
            argv, git = [self._git.program, *args], self._git
            return capture(argv, cwd=git.root, env=git.env, input=given, timeout_s=left)
        except TimeoutError:
            reason = f"git {args[0]} did not finish within {left:.1f} s and was ended"
            raise Failed(Unavailable(reason, is_doubtful=writes)) from None
        except OSError as error:
            reason = f"git {args[0]} could not be started ({error.strerror})"
            raise Failed(Unavailable(reason, is_doubtful=False)) from error

    def _failure(self, command: str, said: str) -> Failed:
        reason = f"git {command}: {self._shown(said)}"
        if _LIMITED.search(said):
            return Failed(RateLimited(WAIT_AFTER_429_S))
        if _DENIED.search(said):
            return Failed(Denied(reason, _REMEDY))
        if _MISSING.search(said):
            return Failed(
                Denied(
                    reason,
                    f"Correct the address of the remote origin, or let who runs this see the repository. {_REMEDY}",
                )
            )
        return Failed(Unavailable(reason, is_doubtful=command == "push"))

    def _shown(self, said: str) -> str:
        """On one line, short, without the token: a server may say anything, and repeat what it was sent."""
        line = " ".join(self._secrets.redact(said).split())
        line = "".join(c if c.isprintable() else "?" for c in line)
        return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _basic(token: str) -> str:
    return base64.b64encode(f"x-access-token:{token}".encode()).decode()


def _with_setting(env: Mapping[str, str], key: str, value: str) -> dict[str, str]:
    n = int(env["GIT_CONFIG_COUNT"])
    return {**env, f"GIT_CONFIG_KEY_{n}": key, f"GIT_CONFIG_VALUE_{n}": value, "GIT_CONFIG_COUNT": str(n + 1)}
