from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from shared.tasks import TOKEN, Running, tasks

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all tasks and clients of these tests one token; the user's own file is left alone."""
    monkeypatch.setenv("ANABRANCH_TOKEN", TOKEN)


# Values, state and failures of tasks do not depend on kernels, and compiling them takes half the time of a task that is
# started. Random programs over tasks compile them.
_WITH_KERNELS = ("test_random_over_tasks.py", "test_lowered_alike.py")


@pytest.fixture(scope="module", autouse=True)
def _processes_on_numpy(request: pytest.FixtureRequest) -> Generator[None]:
    """Processes of most files run without kernels; in `make test-all` with them."""
    _ = library.usable  # this process has decided before it has the setting of those that it starts
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in _WITH_KERNELS and request.config.option.markexpr == "not slow":
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


@pytest.fixture
def uncollected() -> Generator[None]:
    """Keep what only the collector of reference cycles would release."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
