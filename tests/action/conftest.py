"""A machine for each test, and one package index for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkouts import Index, Runner, index_of, put_stand_in, runner, wheel


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def index(package: Path) -> Iterator[Index]:
    with index_of(package) as served:
        yield served


@pytest.fixture
def machine(tmp_path: Path, index: Index, package: Path) -> Runner:
    made = runner(tmp_path / "machine", index)
    put_stand_in(made.action, package)
    return made
