"""Events as the runner hands them over: a payload of the shape that GitHub sends, and the variables beside it.

The payloads lie in `tests/unit/ci/payloads`, one file a situation; what stands before the first dot is the event.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from endstate_action.ci.event import Event, parse_event

PAYLOADS = Path(__file__).parents[1] / "unit" / "ci" / "payloads"
SITUATIONS = sorted(path.name.removesuffix(".json") for path in PAYLOADS.glob("*.json"))

HEAD = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
BASE = "c5b97d5ae6c19d5c5df71a34c7fbeeda2479ccbc"


def payload(situation: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PAYLOADS / f"{situation}.json").read_bytes())
    return found


def environment(situation: str, **changed: str) -> dict[str, str]:
    """The variables of a job; `GITHUB_EVENT_PATH` leads to the payload."""
    sender = payload(situation).get("sender")
    return {
        "GITHUB_ACTOR": sender["login"] if sender else "octocat",
        "GITHUB_EVENT_NAME": situation.partition(".")[0],
        "GITHUB_EVENT_PATH": str(PAYLOADS / f"{situation}.json"),
        "GITHUB_REPOSITORY": "octo-org/hello",
        "GITHUB_REPOSITORY_ID": "1296269",
        "GITHUB_RUN_ID": "4242",
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_WORKFLOW_REF": "octo-org/hello/.github/workflows/endstate.yml@refs/heads/main",
        "GITHUB_JOB": "agent",
        "GITHUB_ACTION": "__octo-org_endstate-action",
        "GITHUB_SHA": HEAD,
        "GITHUB_REF": "refs/heads/main",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_API_URL": "https://api.github.com",
    } | changed


def event(situation: str, *, body: str | None = None, **changed: str) -> Event:
    """The event of a situation, with another comment or other variables where they are given."""
    data = payload(situation)
    if body is not None:
        data["review" if "review" in data else "comment"]["body"] = body
    return parse_event(environment(situation, **changed), json.dumps(data).encode())
