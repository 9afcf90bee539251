from __future__ import annotations

import os
import signal
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.agent.policy import SEARCH_LIMIT, Policy
from endstate_action.config import DEFAULT_CONFIG, TOOLS, Rule, parse_config

USUAL = Policy.from_config(DEFAULT_CONFIG)


def ruled(*rules: Rule, default="deny", protected=()) -> Policy:
    return Policy(default, rules, protected)


# Rules


@pytest.mark.parametrize("tool", TOOLS)
def test_without_a_file_the_usual_tools_are_allowed(tool):
    assert USUAL.decide(tool, {"command": "make", "path": "src/a.py"}).allowed


@pytest.mark.parametrize("tool", ["deploy", "", "*", "Bash", "bash\n"])
def test_without_a_rule_a_tool_is_denied(tool):
    assert not USUAL.decide(tool, {}).allowed


def test_the_first_rule_that_matches_decides():
    policy = ruled(
        Rule("bash", "deny", r"\bcurl\b", "no network tools"),
        Rule("bash", "allow"),
        Rule("*", "deny", reason="ask a person"),
        Rule("read", "allow"),
    )
    assert policy.decide("bash", {"command": "ls"}).allowed
    denied = policy.decide("bash", {"command": "ls; curl x"})
    assert (denied.allowed, denied.reason) == (False, "Policy rule 1 denies this call of bash: no network tools")
    denied = policy.decide("read", {})
    assert (denied.allowed, denied.reason) == (False, "Policy rule 3 denies this call of read: ask a person")


def test_the_default_decides_where_no_rule_matches():
    denied = ruled(Rule("read", "allow")).decide("bash", {"command": "ls"})
    assert not denied.allowed
    assert "No policy rule allows" in denied.reason
    assert ruled(Rule("read", "deny"), default="allow").decide("bash", {}).allowed


def test_a_policy_of_an_empty_mapping_denies_everything():
    policy = Policy.from_config(parse_config("policy: {}", "f"))
    assert not any(policy.decide(tool, {}).allowed for tool in TOOLS)


def test_an_embedder_can_allow_everything():
    assert Policy.allowing_all().decide("deploy", {"path": ".github/workflows/ci.yml"}).allowed


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "rm -rf x"},
        {"note": "", "command": "rm"},
        {"list": ["a", ["b", {"deep": "rm"}]]},
        {"n": 5, "t": True, "none": None, "o": {"a": {"b": ["rm"]}}},
    ],
)
def test_a_pattern_is_searched_in_every_text_of_the_call(arguments):
    assert not ruled(Rule("*", "deny", r"\brm\b"), default="allow").decide("bash", arguments).allowed


@pytest.mark.parametrize("arguments", [{}, {"rm": "x"}, {"n": 5}, {"command": "farm"}])
def test_a_pattern_that_is_found_nowhere_does_not_match(arguments):
    assert ruled(Rule("*", "deny", r"\brm\b"), default="allow").decide("bash", arguments).allowed


def test_arguments_nested_without_end_are_searched_all_the_same():
    nested: object = "rm"
    for _ in range(100_000):
        nested = [nested]
    assert not ruled(Rule("*", "deny", "rm"), default="allow").decide("bash", {"x": nested}).allowed


def test_a_text_too_long_to_search_is_decided_against_the_call():
    long = {"content": "a" * (SEARCH_LIMIT + 1)}
    assert not ruled(Rule("write", "deny", "zzz"), default="allow").decide("write", long).allowed
    assert not ruled(Rule("write", "allow", r"\Aa+\Z")).decide("write", long).allowed
    assert not ruled(Rule("write", "allow", r"\Aa+"), Rule("*", "deny")).decide("write", long).allowed
    assert ruled(Rule("write", "allow")).decide("write", long).allowed


def test_a_text_of_just_the_limit_is_searched():
    full = {"content": "a" * SEARCH_LIMIT}
    assert ruled(Rule("write", "deny", "zzz"), default="allow").decide("write", full).allowed
    assert ruled(Rule("write", "allow", r"\Aa+\Z")).decide("write", full).allowed


STUCK = """
import signal, sys
from endstate_action.agent.policy import Policy
from endstate_action.config import Rule
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
Policy("deny", (Rule("*", "allow", "(a+)+$"),), ()).decide("bash", {"command": "a" * 200 + "!"})
"""


def test_a_pattern_that_never_ends_still_gives_way_to_a_signal():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as stuck:
        try:
            assert stuck.stdout is not None
            assert stuck.stdout.readline() == b"ready\n"
            stuck.send_signal(signal.SIGTERM)
            assert stuck.wait(60) == 75
        finally:
            stuck.kill()


# Protected paths

SPELLINGS = [
    ".github/workflows/ci.yml",
    "./.github/workflows/ci.yml",
    ".github//workflows///ci.yml",
    ".github/./workflows/ci.yml",
    "a/../.github/workflows/ci.yml",
    ".github/workflows/a/../ci.yml",
    ".github/actions/../workflows/ci.yml",
    ".GITHUB/Workflows/ci.yml",
    "/home/runner/project/.github/workflows/ci.yml",
    "../project/.github/workflows/ci.yml",
    "a/../../project/.github/workflows/ci.yml",
    ".github/workflows/deep/er/x",
    ".github/workflows",
    ".github/workflows/",
    ".git\u200chub/workflows/ci.yml",
    ".github/workﬂows/ci.yml",
]


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("tool", ["write", "edit", "deploy"])
def test_a_protected_path_is_not_written_however_it_is_spelt(tool, path):
    denied = Policy.from_config(parse_config("policy: {default: allow}", "f")).decide(tool, {"path": path})
    assert not denied.allowed
    assert ".github/workflows/**" in denied.reason


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_protected_path_is_not_committed_and_may_be_read(path):
    assert not USUAL.decide("git_commit", {"message": "x", "paths": ["src/a.py", path]}).allowed
    assert all(USUAL.decide(tool, {"path": path}).allowed for tool in ("read", "glob", "grep"))


@pytest.mark.parametrize("path", [".github", ".", "", "./", "a/..", ".GitHub/", "/home/runner/project", ".."])
def test_a_directory_that_holds_protected_paths_is_not_committed_as_a_whole(path):
    denied = USUAL.decide("git_commit", {"message": "x", "paths": [path]})
    assert not denied.allowed
    assert "one by one" in denied.reason


@pytest.mark.parametrize(
    "path",
    ["src/a.py", ".github/workflows.md", ".github/dependabot.yml", "x/.github/workflows/ci.yml", "workflows/ci.yml"],
)
def test_other_paths_are_written_and_committed(path):
    assert USUAL.decide("write", {"path": path, "content": ".github/workflows/ci.yml"}).allowed
    assert USUAL.decide("git_commit", {"message": ".github/workflows/ci.yml", "paths": [path]}).allowed


def test_protection_comes_before_every_rule():
    policy = ruled(Rule("*", "allow"), protected=("secrets",))
    assert not policy.decide("write", {"path": "secrets/a"}).allowed
    assert policy.decide("bash", {"command": "echo > secrets/a"}).allowed


@pytest.mark.parametrize("path", [["ok", ".github/workflows/x"], {"a": ".github/workflows/x"}])
def test_a_path_of_an_unexpected_type_is_looked_into(path):
    assert not USUAL.decide("write", {"path": path}).allowed


PATTERNS = [
    ("*.lock", "uv.lock", True),
    ("*.lock", "a/uv.lock", False),
    ("**/*.lock", "a/b/uv.lock", True),
    ("**/*.lock", "uv.lock", True),
    ("**/*.lock", "uv.lock/x", True),
    ("a/**/z", "a/z", True),
    ("a/**/z", "a/b/c/z", True),
    ("a/**/z", "a/b/c/y", False),
    ("a/*/z", "a/b/z", True),
    ("a/*/z", "a/b/c/z", False),
    ("a?/[bc]", "ax/c", True),
    ("a?/[bc]", "ax/d", False),
    ("src/", "src/deep/x", True),
    ("./src", "src", True),
    ("src", "srcs", False),
    ("**", "anything", True),
    ("A/B", "a/b", True),
    ("caf\u00e9", "cafe\u0301", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), PATTERNS)
def test_patterns_match_as_documented(pattern, path, expected):
    assert ruled(default="allow", protected=(pattern,)).decide("write", {"path": path}).allowed is not expected


def test_a_long_path_under_a_pattern_of_many_stars_is_decided():
    policy = ruled(default="allow", protected=("/".join(["**", "a"] * 12) + "/z",))
    assert policy.decide("write", {"path": "a/" * 5000 + "b"}).allowed


names = st.sampled_from(["a", "b.c", "..x", ".github", "workflows", "Ü"])


@st.composite
def spelt(draw: st.DrawFn) -> str:
    """Some spelling of a path in `.github/workflows`, as a careless or a clever writer might choose it."""
    parts = []
    for name in (".github", "workflows", draw(names)):
        parts += draw(st.lists(st.sampled_from(["", ".", "detour"]), max_size=3))
        if name != ".github" or draw(st.booleans()):
            parts.append("".join(c.upper() if draw(st.booleans()) else c for c in name))
        else:
            parts.append(name)
    path = "/".join(f"{draw(names)}/.." if part == "detour" else part for part in parts)
    where = draw(st.sampled_from(["", "./", "/home/me/x/", "../x/", "a/../../x/"]))
    return unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD"])), where + path)


@given(spelt())
def test_no_spelling_of_a_protected_path_gets_through(path):
    assert not USUAL.decide("write", {"path": path}).allowed
    assert not USUAL.decide("git_commit", {"paths": [path]}).allowed


@given(st.lists(st.sampled_from([".github", "workflows", "..", ".", "", "a", ".GitHub"]), max_size=8).map("/".join))
def test_what_the_system_calls_protected_is_protected(path):
    """Compared with the standard library's own reading of the path."""
    plain = os.path.normpath(f"/ws/{path}").lower() + "/"
    if plain.startswith("/ws/.github/workflows/"):
        assert not USUAL.decide("edit", {"path": path}).allowed
    elif ".." not in path and not path.startswith("/"):
        assert USUAL.decide("edit", {"path": path}).allowed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.text(), st.dictionaries(st.text() | st.sampled_from(["path", "paths"]), json_values))
def test_any_call_is_decided(tool, arguments):
    assert USUAL.decide(tool, arguments).reason
