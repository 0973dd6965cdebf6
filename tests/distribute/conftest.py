from __future__ import annotations

from collections.abc import Generator

import pytest
from shared.tasks import TOKEN, Running, tasks

import anabranch as ab


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all tasks and clients of these tests one token; the user's own file is left alone."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)


# What `fit` does over processes does not depend on kernels, and compiling them takes most of the time.
_ON_NUMPY = ("test_replicas.py", "test_lost_replicas.py", "test_optimizer_shards.py")


@pytest.fixture(scope="module", autouse=True)
def _processes_on_numpy(request: pytest.FixtureRequest) -> Generator[None]:
    """Processes of some files run without kernels; in `make test-all` with them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name in _ON_NUMPY and request.config.option.markexpr == "not slow":
            patch.setenv("ANABRANCH_KERNELS", "0")
        yield


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
