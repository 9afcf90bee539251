"""One warmed-up driver a test process, and a bench that keeps what an undisturbed run ends in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.crash import Bench, Driver


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, an_empty_home: None) -> Iterator[Bench]:
    driver = Driver()
    try:
        yield Bench(driver, tmp_path_factory.mktemp("bench"))
    finally:
        driver.close()
