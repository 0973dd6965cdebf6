"""Memory that is kept for the next step: reuse by size, limits, threads, and what fetched values may share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.host.memory import KeptMemory, _Allocator, kept_bytes, release_memory
from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ROWS, COLUMNS = 64, 512
SIZE = ROWS * COLUMNS * 4


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    release_memory()
    yield
    release_memory()


def new() -> np.ndarray:
    return np.empty((ROWS, COLUMNS), "float32")


def test_memory_is_used_again_once_nothing_refers_to_it():
    with KeptMemory():
        first = new()
        address = first.ctypes.data
        assert address % 64 == 0
        view = first[3:]
        del first
        assert new().ctypes.data != address  # a view is alive
        del view
        assert new().ctypes.data == address


def test_memory_is_kept_once_kernels_are_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asks for it first while its kernels are off has it later."""
    allocator = _Allocator()
    with monkeypatch.context() as off:
        off.setattr(library, "_usable", False)
        assert allocator.capsule() is None
        assert allocator.kept_bytes() == 0
    assert allocator.capsule() is not None


def test_zeros_are_zeros_in_memory_that_was_used():
    with KeptMemory():
        new().fill(7)
        assert not np.zeros((ROWS, COLUMNS), "float32").any()


def test_arrays_outlive_the_context_and_leave_memory_to_it():
    with KeptMemory():
        array = new()
    array.fill(3)
    assert kept_bytes() == 0
    del array
    assert kept_bytes() == SIZE
    release_memory()
    assert kept_bytes() == 0


def test_small_arrays_and_other_contexts_are_left_alone():
    new()
    with KeptMemory():
        np.empty(100)
    assert kept_bytes() == 0


def test_resized_arrays_keep_what_they_hold():
    with KeptMemory():
        array = np.arange(20_000, dtype="float32")
        array.resize(30_001, refcheck=False)
        assert array[:20_000].tolist() == list(range(20_000))
        array[:] = 1
        del array
        again = np.empty(30_001, "float32")  # as large as the block that was left, and no larger
        again[:] = 2
        assert again.sum() == 60_002


def run_alone(code: str) -> None:
    """Run code in a process of its own: limits count what a process uses in all, other tests' arrays included."""
    head = "import numpy as np\nfrom anabranch.engine.codegen.host.memory import KeptMemory, kept_bytes\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_as_much_is_kept_as_was_used():
    """So a large step finds all of its memory again, and needs no more than it used."""
    run_alone("""
        with KeptMemory():
            for _ in range(2):
                blocks = [np.empty(1 << 27, "uint8") for _ in range(6)]
                del blocks
                assert kept_bytes() == 6 << 27, kept_bytes()
    """)


def test_what_is_kept_is_limited():
    run_alone("""
        with KeptMemory():
            blocks = [np.empty(1 << 27, "uint8") for _ in range(20)]  # never touched: the system gives no page
            del blocks
            assert 1 << 30 < kept_bytes() <= 1 << 31, kept_bytes()
            for size in range(12_000_000, 13_000_000, 10_000):  # nobody asks for the others any more
                np.empty(size, "uint8")
                assert kept_bytes() <= 1 << 31, kept_bytes()
            addresses = {np.empty(12_990_000, "uint8").ctypes.data for _ in range(3)}
            assert len(addresses) == 1, addresses
    """)


def test_many_sizes():
    with KeptMemory():
        for pages in range(10, 2000):
            np.empty(pages * 4096, "uint8")
        addresses = {np.empty(1999 * 4096, "uint8").ctypes.data for _ in range(3)}
        assert len(addresses) == 1


def test_threads_share_it():
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with KeptMemory():
            alive: list[np.ndarray] = []
            for number in range(3000):
                array = np.full(int(rng.integers(8, 30)) * 1024, number, "int32")
                alive.append(array)
                if len(alive) > 20:
                    dropped = alive.pop(int(rng.integers(20)))
                    wrong.append(dropped.min() != dropped.max())

    wrong: list[bool] = []
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(wrong) == 4 * 2980
    assert not any(wrong)


def test_a_step_finds_the_memory_of_the_step_before():
    with ab.Graph().as_default():
        x = ab.placeholder((ROWS, COLUMNS), "float32", "x")
        y = ab.ops.sum(ab.ops.cumsum(x * 2.0, axis=0))
        session = ab.Session()
        fed = np.ones((ROWS, COLUMNS), "float32")
        first = session.run(y, {x: fed})
        kept = kept_bytes()
        assert kept >= SIZE
        assert session.run(y, {x: fed}) == first == 2 * COLUMNS * ROWS * (ROWS + 1) / 2
        assert kept_bytes() == kept


def test_fetched_values_are_not_written_over():
    with ab.Graph().as_default():
        x = ab.placeholder((ROWS, COLUMNS), "float32", "x")
        y = ab.ops.cumsum(x, axis=0)
        session = ab.Session()
        values = [session.run(y, {x: np.full((ROWS, COLUMNS), k, "float32")}) for k in range(4)]
    assert [value[-1, 0] for value in values] == [0, 64, 128, 192]


def test_it_can_be_turned_off():
    x = np.ones((ROWS, COLUMNS), "float32")
    ab.config.set_passes(memory=False)
    try:
        with ab.Graph().as_default():
            fed = ab.placeholder(x.shape, "float32", "x")
            assert ab.Session().run(ab.ops.cumsum(fed, axis=0), {fed: x})[-1, 0] == ROWS
    finally:
        ab.config.set_passes(memory=True)
    assert kept_bytes() == 0
