"""The stateful GitHub, with what a watcher asks beyond it: runs by workflow, and by how they ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support import github_shapes as shapes
from tests.support.github_server import GitHubServer, _pattern
from tests.support.github_shapes import Json

MORE = (
    ("GET", r"/R/actions/runs", "run.list"),
    ("GET", r"/R/actions/workflows/(?P<id>ID)/runs", "run.beside"),
)


def moment(age_s: float = 0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age_s))


class WatchedServer(GitHubServer):
    """`tell` sets fields of a run as the API names them; else it is of the pull request, at its head, and new."""

    def __init__(self, git_dir: Path, **more: Any) -> None:
        super().__init__(git_dir, **more)
        self._routes += [(method, _pattern(path, self.name), operation) for method, path, operation in MORE]
        self.told: dict[int, Json] = {}
        self.titles: dict[str, str] = {}

    def tell(self, run_id: int, **fields: Any) -> None:
        self.told.setdefault(run_id, {}).update(fields)

    def note(self, job_id: int, message: str, title: str = "") -> None:
        """An annotation, with a title where it has one."""
        self.annotate(job_id, message)
        self.titles[message] = title

    def _shown(self, run_id: int) -> Json:
        ours = {
            "run_number": run_id,
            "head_sha": self.head_sha,
            "created_at": moment(3600),
            "updated_at": moment(60),
            "pull_requests": [{"id": 1, "number": self.number}],
            "display_title": "A change",
        }
        shown = shapes.run(self.url, self._repo, run_id, self.runs[run_id])
        return shown | ours | self.told.get(run_id, {})

    def _run_read(self, found: Json, query: Json, body: Json) -> Any:
        self._run_of(found)
        return self._shown(int(found["id"]))

    def _run_list(self, found: Json, query: Json, body: Json) -> Any:
        return self._runs(query, lambda run: query.get("status") in (None, run["status"], run["conclusion"]))

    def _run_beside(self, found: Json, query: Json, body: Json) -> Any:
        same = (int(found["id"]), query.get("branch"))
        return self._runs(query, lambda run: (run["workflow_id"], run["head_branch"]) == same)

    def _runs(self, query: Json, is_asked: Any) -> Any:
        shown = [run for run in map(self._shown, sorted(self.runs, reverse=True)) if is_asked(run)]
        _, page, headers = self._paged(shown, query, f"repos/{self.name}/actions/runs")
        return 200, {"total_count": len(shown), "workflow_runs": page}, headers

    def _annotation_list(self, found: Json, query: Json, body: Json) -> Any:
        messages = self.annotations.get(int(found["id"]), [])
        shown = [shapes.annotation(self._repo, m) | {"title": self.titles.get(m, "")} for m in messages]
        return self._paged(shown, query, f"repos/{self.name}/check-runs/{found['id']}/annotations")
