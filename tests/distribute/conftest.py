from __future__ import annotations

from collections.abc import Generator

import pytest
from shared.tasks import TOKEN, Running, tasks

import anabranch as ab


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks and clients of these tests know one token; the user's own file is left alone."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def running() -> Generator[Running]:
    """The tasks of a cluster, by name: processes that end with the module."""
    with tasks() as made:
        yield made


@pytest.fixture
def graph() -> Generator[ab.Graph]:
    """A new graph, which is the default one."""
    with ab.Graph().as_default() as made:
        yield made
