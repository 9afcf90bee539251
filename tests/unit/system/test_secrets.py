"""Values that must not get out, the ways in which they try to, and an interpreter that starts without them."""

from __future__ import annotations

import base64
import html
import json
import os
import secrets as random_values
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import urllib.parse
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.errors import InputError
from endstate_action.system import secrets as under_test
from endstate_action.system.redaction import Secrets
from endstate_action.system.secrets import call_environment, split_environment, take_sealed

CANARY = "cAnary/42+x?&z_Zq9"
MARK = "[redacted: NAME]"
NAME = Secrets({"NAME": CANARY})
PACKAGE = Path(under_test.__file__).parents[1]


def wrapped(text: str, columns: int, end: str = "\n") -> str:
    return end.join(text[i : i + columns] for i in range(0, len(text), columns))


DISGUISES: dict[str, Any] = {
    "raw": CANARY,
    "base64": base64.b64encode(CANARY.encode()).decode(),
    "base64-url": base64.urlsafe_b64encode(CANARY.encode()).decode().rstrip("="),
    "base64-inside-1": base64.b64encode(b"x" + CANARY.encode() + b"yy").decode(),
    "base64-inside-2": base64.b64encode(b"xx" + CANARY.encode() + b"yy").decode(),
    "base64-inside-3": base64.b64encode(b"xxx" + CANARY.encode() + b"y").decode(),
    "base64-wrapped": wrapped(base64.b64encode(b"HOME=/x\nA=" + CANARY.encode() + b"\nB=2" * 9).decode(), 10),
    "base64-wrapped-as-json": json.dumps(wrapped(base64.b64encode(CANARY.encode()).decode(), 7)),
    "hex": CANARY.encode().hex(),
    "hex-upper": CANARY.encode().hex().upper(),
    "hex-wrapped": wrapped(CANARY.encode().hex(), 6),
    "hex-spaced": CANARY.encode().hex(" "),
    "hex-colons": CANARY.encode().hex(":"),
    "hex-dashes": CANARY.encode().hex("-").upper(),
    "hex-commas": CANARY.encode().hex(","),
    "hex-numbers": ", ".join(map(hex, CANARY.encode())),
    "hex-numbers-spaced": " ".join(map(hex, CANARY.encode())),
    "hex-numbers-over-lines": wrapped(", ".join(f"0x{byte:02X}" for byte in CANARY.encode()), 36),
    "decimal": str(list(CANARY.encode())),
    "decimal-spaced": " ".join(map(str, CANARY.encode())),
    "decimal-over-lines": json.dumps(list(CANARY.encode()), indent=2),
    "base32": base64.b32encode(CANARY.encode()).decode(),
    "base32-lower": base64.b32encode(CANARY.encode()).decode().lower().rstrip("="),
    "base32-wrapped": wrapped(base64.b32encode(b"HOME=/x\nA=" + CANARY.encode() + b"\nB=2" * 9).decode(), 10),
    "base32-hex": base64.b32hexencode(CANARY.encode()).decode(),
    "url": urllib.parse.quote(CANARY, safe=""),
    "url-lower": urllib.parse.quote(CANARY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "url-path": urllib.parse.quote(CANARY),
    "url-all": "".join(f"%{ord(c):02x}" for c in CANARY),
    "url-some": CANARY.replace("n", "%6E").replace("9", "%39"),
    "source-hex": "".join(rf"\x{ord(c):02x}" for c in CANARY),
    "source-unicode": "".join(rf"\u{ord(c):04X}" for c in CANARY),
    "source-braces": "".join(rf"\u{{{ord(c):x}}}" for c in CANARY),
    "source-long": "".join(rf"\U{ord(c):08x}" for c in CANARY),
    "source-octal": "".join(rf"\{ord(c):03o}" for c in CANARY),
    "source-octal-short": "".join(rf"\{ord(c):o}" for c in CANARY),
    "shell-octal": "".join(rf"\0{ord(c):o}" for c in CANARY),
    "json-in-json": json.dumps("".join(rf"\u{ord(c):04x}" for c in CANARY)),
    "json-as-for-html": json.dumps(CANARY).replace("&", r"\u0026").replace("/", r"\/"),
    "html": html.escape(CANARY),
    "html-decimal": "".join(f"&#{ord(c)};" for c in CANARY),
    "html-hex": "".join(f"&#x{ord(c):02X};" for c in CANARY),
    "shell": shlex.join([CANARY]) + "".join(f"\\{c}" if not c.isalnum() else c for c in CANARY),
    "escaped-over-lines": wrapped("".join(f"&#{ord(c)};" for c in CANARY), 7),
    "reversed": CANARY[::-1],
    "folded": wrapped(CANARY, 5),
    "folded-and-numbered": "".join(f"{n:6}\t{row}\n" for n, row in enumerate(wrapped(CANARY, 5).split("\n"), 9)),
    "folded-and-numbered-as-json": json.dumps(
        "".join(f"{n:6}\t{row}\n" for n, row in enumerate(wrapped(CANARY, 5).split("\n"), 1))
    ),
    "spaced": " ".join(CANARY),
}


SPACED = 'a pass phrase: "42" & <more>'
WAYS: list[Callable[[str], str]] = [
    str,
    lambda c: f"%{ord(c):02x}",
    lambda c: rf"\x{ord(c):02X}",
    lambda c: rf"\u{ord(c):04x}",
    lambda c: rf"\\u{ord(c):04x}",
    lambda c: rf"\u{{{ord(c):X}}}",
    lambda c: rf"\U{ord(c):08x}",
    lambda c: rf"\{ord(c):03o}",
    lambda c: rf"\0{ord(c):03o}",
    lambda c: f"&#{ord(c)};",
    lambda c: f"&#x{ord(c):04x};",
    html.escape,
]


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES)
def test_a_known_value_is_found_in_the_usual_disguises(disguise):
    text = f"before {disguise} after"

    assert NAME.contains(text) == ["NAME"]
    assert NAME.contains(text.encode() + b"\xff") == ["NAME"]
    shown = NAME.redact(text)
    assert MARK in shown
    assert NAME.contains(shown) == []
    assert shown.startswith("before ")
    assert shown.endswith(" after")


@given(
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(1, 90),
    st.sampled_from([base64.b32encode, base64.b32hexencode, lambda data: base64.b32encode(data).lower()]),
)
def test_no_place_and_no_wrapping_hides_a_value_in_base32(before, after, columns, encode):
    shown = wrapped(encode(before + CANARY.encode() + after).decode(), columns)

    assert NAME.contains(shown) == ["NAME"]
    assert NAME.contains(NAME.redact(shown)) == []


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(1, 90))
def test_no_place_and_no_wrapping_hides_a_value_in_base64(before, after, columns):
    shown = NAME.redact(wrapped(base64.b64encode(before + CANARY.encode() + after).decode(), columns))

    assert MARK in shown
    assert CANARY.encode() not in _decoded("".join(shown.replace(MARK, "").split()))


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""


@given(st.text(min_size=8, max_size=40).filter(lambda t: len("".join(t.split())) >= 8), st.text(max_size=40))
def test_no_value_survives_as_it_is(value, around):
    shown = Secrets({"N": value}).redact(f"{around}{value}{around}")

    assert value.strip() not in shown.replace("[redacted: N]", "\0")


def test_of_a_value_of_several_lines_each_long_line_is_hidden():
    lines = ["-----BEGIN THING-----", "bG9uZyBlbm91Z2ggdG8gYmUgYSBzZWNyZXQ", "YW5vdGhlciBzZWNyZXQgbGluZSBvZiBpdA", "x"]
    known = Secrets({"KEY": "\n".join(lines) + "\n"})

    assert known.redact(f"a {lines[2]} b") == "a [redacted: KEY] b"
    assert known.redact("\n".join(lines)) == "[redacted: KEY]"
    assert known.redact(json.dumps("\n".join(lines))) == '"[redacted: KEY]"'
    assert known.redact("x") == "x"


def test_each_value_goes_by_its_own_name():
    known = Secrets({"A": "first-value-1", "B\\1": "second-value-2", "C": "first-value-1-and-more"})

    text = "first-value-1-and-more first-value-1 second-value-2"
    assert known.redact(text) == r"[redacted: C] [redacted: A] [redacted: B\1]"
    assert known.contains(text) == ["A", "B\\1", "C"]
    assert repr(known) == "Secrets(A, B\\1, C)"


@given(st.lists(st.sampled_from(WAYS), min_size=len(SPACED), max_size=len(SPACED)))
def test_each_character_may_be_escaped_in_its_own_way(ways):
    text = "".join(way(character) for way, character in zip(ways, SPACED, strict=True))
    secrets = Secrets({"NAME": SPACED})
    assert secrets.contains(text) == ["NAME"]
    assert secrets.redact(f"<{text}>") == f"<{MARK}>"


def test_escapes_of_other_texts_stay():
    text = r"100%, 50%20 of \u00e9t\xe9 &amp; &#128512; &#x110000; \u{110000} &nbsp; \\ \"q\" %zz"
    text += r" \U00110000 \1 \60 \377 \999"
    assert NAME.redact(text) == text
    assert NAME.contains(text) == []


def test_a_short_value_is_not_hidden():
    short = b"7-chars"
    disguises = (short, base64.b32encode(short), short.hex(":").encode(), str(list(short)).encode())
    assert [Secrets({"N": "7-chars"}).contains(text) for text in disguises] == [[]] * 4
    assert Secrets({"N": "7-chars"}).redact("7-chars") == "7-chars"


TOKENS = {
    "an Anthropic key": ["sk-ant-" + "api03-AbCdEf_123-456789"],
    "a GitHub token": ["ghp_" + "a1B2" * 9, "ghs_" + "a1B2" * 9, "github_pat_" + "11ABCDE_" * 5],
    "an AWS access key": ["AKIA" + "IOSFODNN7EXAMPLE"],
    "a Slack token": ["xoxb-" + "123456789012-abcdef"],
    "a private key": [
        f"-----BEGIN {kind}PRIVATE KEY-----\n{head}{'MIIEvQIBADANBg+/AQEF' * 4}\nA==\n-----END {kind}PRIVATE KEY-----"
        for kind, head in [("", ""), ("RSA ", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"), ("OPENSSH ", "")]
    ],
}


@pytest.mark.parametrize(("kind", "token"), [(kind, token) for kind, tokens in TOKENS.items() for token in tokens])
def test_what_looks_like_a_token_is_hidden_though_nobody_knows_it(kind, token):
    assert Secrets({}).redact(f'a="{token}", b') == f'a="[redacted: looks like {kind}]", b'
    assert Secrets({}).contains(token) == []


def test_a_private_key_that_was_cut_off_is_hidden_as_far_as_it_goes():
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0B\n" * 4

    assert Secrets({}).redact(key + "\n[... 9 bytes left out ...]") == (
        "[redacted: looks like a private key][... 9 bytes left out ...]"
    )


@pytest.mark.parametrize(
    "text",
    [
        'if "-----BEGIN PRIVATE KEY-----" in text: raise Refused',
        "ghp_ is the prefix, sk-ant-... too; AKIA and xoxb-",
        "sha256:" + "a1" * 32,
        "MAX_TOKENS=4096",
    ],
)
def test_what_only_mentions_secrets_stays(text):
    assert Secrets({}).redact(text) == text


@pytest.mark.timeout(15)
def test_a_text_full_of_beginnings_takes_no_time_to_speak_of():
    """Hidden or not, these must not take quadratic time; the bound is generous."""
    known = Secrets({f"K{i}": random_values.token_urlsafe(40) for i in range(12)})
    for text in ("-----BEGIN PRIVATE KEY-----" * 20_000, "gh" * 300_000, "c\n" * 300_000, "sk-ant-" * 90_000):
        known.redact(text)
    for text in ("\\" * 300_000, "\\1" * 200_000, "\\U0000" * 90_000, "0x" * 300_000, "115, " * 90_000):
        known.redact(text)


# Which variables are secrets


def test_credentials_are_told_by_name_and_values_that_hide_nothing_are_not_collected():
    environ = {
        "PATH": "/usr/bin",
        "ANTHROPIC_API_KEY": "sk-ant-something",
        "INPUT_STATE-KEY": "plainlower",
        "MY_WEIRD_CRED": "weird-value",
        "DB_PASSWORD": "correct horse",
        "POSTGRES_PASSWORD": "postgres",
        "GITHUB_TOKEN": "short",
        "INPUT_PROMPT": "fix the login page",
        "SSH_AUTH_SOCK": "/run/user/1000/agent",
        "SSH_KEY_PATH": "/home/me/.ssh/id_ed25519",
        "PWD": "/home/me/project",
        "MAX_TOKENS": "4096",
    }
    harmless, hidden = split_environment(environ)

    assert set(hidden) == {"ANTHROPIC_API_KEY", "INPUT_STATE-KEY", "MY_WEIRD_CRED", "DB_PASSWORD"}
    assert set(harmless) == {"PATH", "INPUT_PROMPT", "SSH_AUTH_SOCK", "SSH_KEY_PATH", "PWD"}


# What calls see

CANARIES = {
    name: f"canary-{i:02}-{'x' * i}-value"
    for i, name in enumerate(
        [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "INPUT_ANTHROPIC_API_KEY",
            "INPUT_ANTHROPIC-API-KEY",
            "GITHUB_TOKEN",
            "GH_TOKEN",
            "ACTIONS_RUNTIME_TOKEN",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
            "ACTIONS_ID_TOKEN_REQUEST_URL",
            "MY_WEIRD_CRED",
            "NOTHING_SUSPICIOUS",
            "AWS_SESSION",
        ]
    )
}


def test_calls_see_an_allow_list():
    environ = CANARIES | {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "JAVA_HOME_17_X64": "/opt/java",
        "GITHUB_ENV": "/tmp/env",
        "GITHUB_OUTPUT": "/tmp/out",
        "RUNNER_TEMP": "/tmp/runner",
        "PYTHONPATH": "/somewhere",
        "LD_PRELOAD": "/x.so",
        "BASH_ENV": "/x.sh",
        "ENDSTATE_SEALED_FD": "3",
        "TERM": "xterm",
    }
    assert call_environment(environ, tag="s/1/2.0") == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "JAVA_HOME_17_X64": "/opt/java",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "ENDSTATE_CALL": "s/1/2.0",
    }


def test_the_configuration_can_show_calls_more_but_never_our_credentials():
    environ = {
        "DATABASE_URL": "postgres://postgres:postgres@localhost/test",
        "NPM_TOKEN": "npm-token-value",
        "GITHUB_TOKEN": "github-token-value",
        "REMOTE": "https://x:github-token-value@example.invalid/",
        "INPUT_STATE-KEY": "state-key-value",
        "GH_TOKEN": "short",
    }
    seen = call_environment(environ, extra_names=[*environ, "MISSING"], tag="t")

    assert {n: v for n, v in seen.items() if n in environ} == {n: environ[n] for n in ("DATABASE_URL", "NPM_TOKEN")}


def test_an_allowed_variable_that_holds_a_secret_is_left_out():
    assert "TMPDIR" not in call_environment({"DEPLOY_TOKEN": "deploy-value", "TMPDIR": "/tmp/deploy-value"}, tag="t")


def test_text_is_utf8_where_nobody_has_chosen():
    assert call_environment({}, tag="t")["LANG"] == "C.UTF-8"
    assert "LANG" not in call_environment({"LC_ALL": "de_DE.UTF-8"}, tag="t")


# An interpreter that starts without them


DRIVER = """
import json, os, sys
from endstate_action.system.process import harden, identity
from endstate_action.system.secrets import reexecute_clean, take_sealed

given = take_sealed(os.environ)
if given is None:
    reexecute_clean(os.environ, sys.argv[1:])
with open("/proc/self/environ") as file:
    raw = file.read()
harden()

PLANTED = ("planted_here", "planted_beside", "sitecustomize_ran", "click", "json", "filelock")

def importable(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True

print(json.dumps({
    "given": given,
    "environ": dict(os.environ),
    "raw": raw,
    "cmdline": open("/proc/self/cmdline").read(),
    "argv": sys.argv[1:],
    "descriptors": [d for d in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{d}")],
    "isolated": sys.flags.isolated,
    "file": __file__,
    "identity": identity(),
    "planted": [n for n in PLANTED if importable(n) and getattr(sys.modules[n], "planted", False)],
}))
if sys.argv[-1:] == ["bash"]:
    from pathlib import Path
    from endstate_action.system.process import decode, run
    from endstate_action.system.secrets import call_environment
    env = call_environment(given, tag="t")
    print(decode(run(["/bin/bash", "-c", given["COMMAND"]], cwd=Path("/"), env=env, timeout_s=60, tag="t").output).text)
"""


@pytest.fixture
def package() -> Iterator[Path]:
    """A copy of the package, readable by everybody, whose command only tells how it was started."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        copy = root / "src" / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        (copy / "__main__.py").write_text(DRIVER)
        for path in (root, *root.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0))
        yield copy


def start(python: str, package: Path, *argv: str, cwd: Path, env: dict[str, str], **options) -> list[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"} | env
    # Without the working directory on the path: the interpreter before ours is the caller's to protect.
    command = [python, "-P", "-m", PACKAGE.name, *argv]
    done = subprocess.run(
        command, cwd=cwd, env=environ, check=False, capture_output=True, text=True, timeout=60, **options
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout).splitlines()


def plant(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("planted_here", "planted_beside", "click", "json", "filelock"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("planted = True")
    ran = "import sys, types; sys.modules['sitecustomize_ran'] = types.SimpleNamespace(planted=True)"
    (folder / "sitecustomize.py").write_text(ran)
    (folder / "planted.pth").write_text(ran)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks through /proc")


@needs_proc
def test_the_clean_interpreter_has_the_environment_and_shows_none_of_it(package, tmp_path):
    odd = os.fsdecode(b"\xff\xfe odd")
    env = CANARIES | {"ODD": odd, "HOME": "/home/me", "LC_CTYPE": "C.UTF-8"}
    told = json.loads(start(sys.executable, package, "run", "--x", "a b", cwd=tmp_path, env=env)[0])

    assert {n: told["given"][n] for n in env} == env
    assert told["argv"] == ["run", "--x", "a b"]
    for place in ("raw", "cmdline"):
        assert [name for name, value in CANARIES.items() if value in told[place]] == []
    assert set(told["environ"]) == {"PATH", "HOME", "LC_CTYPE", "ENDSTATE_SEALED_FD"}
    assert set(told["descriptors"]) <= {"0", "1", "2"}


@needs_proc
def test_what_lies_in_the_workspace_or_beside_the_package_is_not_imported(package, tmp_path):
    plant(workspace := tmp_path / "workspace")
    plant(package.parent)
    shutil.rmtree(package.parent / "json")  # the interpreter before ours needs the real one
    env = {"PYTHONPATH": str(package.parent), "PYTHONSTARTUP": str(workspace / "sitecustomize.py")}
    told = json.loads(start(sys.executable, package, cwd=workspace, env=env)[0])

    assert told["isolated"] == 1
    assert told["planted"] == []
    assert Path(told["file"]).is_relative_to(package)


@needs_proc
def test_an_installed_package_is_started_as_a_module(package, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python3*/site-packages"))
    shutil.copytree(package, site / package.name)
    plant(workspace := tmp_path / "workspace")
    python = str(tmp_path / "venv/bin/python")
    told = json.loads(start(python, package, "-h", cwd=workspace, env={"PYTHONPATH": str(site)}, input="")[0])

    assert told["cmdline"].split("\0")[:-1] == [python, "-I", "-m", package.name, "-h"]
    assert (told["isolated"], told["planted"]) == (1, [])


@needs_proc
def test_no_call_of_an_ordinary_user_finds_a_secret_anywhere(package):
    """12 canaries, a runtime token among them; env, /proc and what the harness holds open are searched.

    As root this runs as nobody, since root can read anything, whatever we do.
    """
    python, identity = _for_an_ordinary_user()
    command = (
        "env; for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do tr '\\0' '\\n' < $f; done 2>/dev/null; "
        "ls -l /proc/$PPID/fd; cat /proc/$PPID/environ; cat <(head -c 1 /proc/$PPID/mem); echo searched"
    )
    env = CANARIES | {"COMMAND": command}
    first, *lines = start(python, package, "bash", cwd=Path("/"), env=env, **identity)
    told = "\n".join(lines)

    assert "searched" in told
    assert "PATH=" in told
    assert [name for name, value in CANARIES.items() if value in told] == []
    assert told.count("Permission denied") >= 2
    # Hardened, we may still look at ourselves.
    assert json.loads(first)["identity"]["pid_namespace"] == os.readlink("/proc/self/ns/pid")


def _for_an_ordinary_user() -> tuple[str, dict[str, Any]]:
    if os.getuid() != 0:
        return sys.executable, {}
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    for python in (sys.executable, *map(str, Path("/usr/bin").glob("python3.[0-9]*[0-9]"))):
        check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, check=False, capture_output=True, cwd="/", **nobody).returncode == 0:
                return python, nobody
        except OSError:
            continue
    pytest.skip("nobody can run no Python here")


def test_without_a_predecessor_there_is_nothing_to_take():
    assert take_sealed({"PATH": "/bin"}) is None


@pytest.mark.parametrize("number", ["", "x", "0", "2", "-1", "987654"])
def test_a_descriptor_that_is_not_ours_is_refused(number):
    with pytest.raises(InputError, match=r"Nothing was run\.") as refused:
        take_sealed({"ENDSTATE_SEALED_FD": number})
    assert "ENDSTATE_SEALED_FD" in refused.value.hint


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b'"text"'])
def test_a_descriptor_that_holds_something_else_is_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    number = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(InputError, match=r"Nothing was run\."):
        take_sealed({"ENDSTATE_SEALED_FD": str(number)})
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(number)


def test_where_there_is_no_nameless_memory_a_pipe_will_do():
    sealed = under_test._seal_in_pipe(json.dumps(CANARIES).encode())

    assert os.get_inheritable(sealed)
    assert take_sealed({"ENDSTATE_SEALED_FD": str(sealed)}) == CANARIES


def test_an_environment_that_no_pipe_takes_is_refused_rather_than_waited_for():
    with pytest.raises(InputError, match="too large"):
        under_test._seal_in_pipe(b"x" * 2_000_000)


def test_the_text_of_the_loader_is_one_program():
    compile(textwrap.dedent(under_test._LOAD_FROM_SOURCE), "loader", "exec")


DISGUISES = {
    "raw": lambda data: data.decode(),
    "wrapped": lambda data: wrapped(data.decode(), 5),
    "base64": lambda data: base64.b64encode(b"x" + data).decode(),
    "base64 over lines": lambda data: wrapped(base64.b64encode(data).decode(), 7),
    "base32": lambda data: base64.b32encode(b"x" + data).decode(),
    "hex": lambda data: data.hex().upper(),
    "hex with colons": lambda data: data.hex(":"),
    "hex numbers": lambda data: ", ".join(map(hex, data)),
    "decimal": lambda data: str(list(data)),
    "url": lambda data: urllib.parse.quote(data.decode(), safe=""),
    "reversed": lambda data: data.decode()[::-1],
}
ESCAPED = {
    "html": lambda data: wrapped("".join(f"&#{byte};" for byte in data), 11),
    "source": lambda data: "".join(rf"\\U{byte:08x}" for byte in data),
    "octal": lambda data: "".join(rf"\{byte:03o}" for byte in data),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_what_a_cut_leaves_of_a_value_is_hidden_too(disguise: str):
    """Wherever the cut goes, at most three characters of the value are seen on either side of it."""
    shown = DISGUISES[disguise](CANARY.encode())
    plain = "".join(shown.split()).rstrip("=")
    for at in range(1, len(shown)):
        before = NAME.redact(f"some words: {shown[:at]}", ends_torn=True)
        after = NAME.redact(f"{shown[at:]} and more", begins_torn=True)
        for seen in ("".join(before.split()), "".join(after.split())):
            parts = [plain[n : n + 6] for n in range(len(plain) - 5)]
            assert not any(part in seen for part in parts), (at, before, after)
        assert before.startswith("some words: ")
        assert after.endswith(" and more")


def test_a_text_that_was_not_cut_keeps_what_only_begins_like_a_value():
    text = f"{CANARY[:10]} or {CANARY[10:]}"
    assert NAME.redact(text) == text
    assert NAME.redact(CANARY[-3:] + " a " + CANARY[:3], begins_torn=True, ends_torn=True) == (
        CANARY[-3:] + " a " + CANARY[:3]
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("disguise", DISGUISES | ESCAPED)
def test_a_value_in_a_file_is_found_however_the_file_is_read(disguise: str, encoding: str):
    data = b"\x00\xff\x80" + f"before {(DISGUISES | ESCAPED)[disguise](CANARY.encode())} after".encode(encoding)
    for size in (1, 2, 3, 7, 16, 1 << 20):
        assert NAME.in_pieces(data[n : n + size] for n in range(0, len(data), size)) == ["NAME"], size
    assert NAME.contains(data) == ["NAME"]
    assert NAME.in_pieces([b"before", b"after"]) == []
    assert Secrets({}).in_pieces([data]) == []
