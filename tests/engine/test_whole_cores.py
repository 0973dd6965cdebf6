"""While a step runs, no threads but the engine's use processors: NumPy's BLAS leaves them its cores.

Whatever is imported first: NumPy, as in most scripts, or the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.common import blas
from anabranch.engine.common.blas import BlasThreads

_SCRIPT = """
import os, threading
IMPORTS
import numpy as np
import anabranch as ab
from anabranch import ops

def used():
    "Nanoseconds of processor time, by thread."
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            found[int(thread)] = int(file.read().split()[0])
    return found

with ab.Graph().as_default() as graph:
    images = ab.placeholder((4, 64, 64, 16), "float32")
    kernels = ab.Variable(np.full((3, 3, 16, 16), 0.01, "float32"))
    last = ab.Variable(np.full((1, 1, 16, 1), 0.1, "float32"))
    matrix = ab.placeholder((300, 300), "float32")
    hidden = ops.relu(ops.conv(images, kernels, padding="same"))
    loss = ops.mean(ops.square(ops.conv(hidden, last)))
    slopes = ab.gradients(loss, [kernels, last])
    narrow = matrix @ ops.reshape(matrix[:, 0], (300, 1))
    vector = ops.reshape(matrix[0], (1, 300)) @ matrix
    solved = ops.linalg.cholesky(matrix @ ops.transpose(matrix) + 300.0 * ops.eye(300))
session = ab.Session(graph)
rng = np.random.default_rng(0)
values = {tensor: rng.normal(size=tensor.shape).astype("float32") for tensor in (images, matrix)}

def step():
    session.run([loss, *slopes, narrow, vector, solved], values)

step()
known = {thread.native_id for thread in threading.enumerate()}
big = rng.normal(size=(600, 600)).astype("float32")
before_user = used()
for _ in range(4):
    big @ big
after_user = used()
import time
step()
until = time.monotonic() + 0.5
while time.monotonic() < until:  # what spins for 2**28 cycles after the user's own product ends meanwhile
    step()
first = used()
for _ in range(20):
    step()
last = used()
ours = sum(last[t] - first[t] for t in last if t in known)
others = sum(last[t] - first.get(t, 0) for t in last if t not in known)
users = sum(after_user[t] - before_user.get(t, 0) for t in after_user if t not in known)
print(ours, others, users)
"""


@pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell threads' times")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one processor")
@pytest.mark.parametrize("first", ["numpy", "anabranch"])
def test_no_threads_but_the_engines_use_processors(first: str, tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_THREAD_TIMEOUT", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.replace("IMPORTS", f"import {first}")],
        env={**environment, "OMP_NUM_THREADS": "2", "ANABRANCH_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, others, users = map(int, done.stdout.split())
    # A thread that spins after each product takes more than the steps themselves, one that computes a part of what is
    # left to OpenBLAS takes less. Start and stop take next to nothing.
    assert others < 0.02 * ours, f"others took {others / 1e6:.1f} ms beside our {ours / 1e6:.1f}"
    assert users > 0, "the user's own products had one thread"


class Blas:
    """An OpenBLAS that notes how many threads it is given."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.threads = BlasThreads(lambda: self.count, self.set)

    def set(self, count: int) -> None:
        self.count = count


def test_the_users_number_is_put_back_when_the_last_step_ends():
    blas = Blas(4)
    blas.threads.begin()
    blas.threads.begin()
    assert blas.count == 1
    blas.threads.end()
    assert blas.count == 1
    blas.threads.end()
    assert blas.count == 4


def test_a_child_has_the_users_number_and_no_steps():
    blas = Blas(4)
    blas.threads.begin()
    blas.threads.before_fork()
    blas.threads.restart()  # as in the child, where the lock is still held
    assert blas.count == 4
    blas.threads.end()  # of the step in which the process was forked
    blas.threads.begin()
    assert blas.count == 1
    blas.threads.end()
    assert blas.count == 4


def test_functions_of_the_user_have_the_users_number():
    blas = Blas(4)
    assert not blas.threads.pause()
    blas.threads.begin()
    assert blas.threads.pause()
    assert blas.count == 4
    blas.count = 3  # the function changes it
    blas.threads.go_on()
    assert blas.count == 1
    blas.threads.end()
    assert blas.count == 3


@pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
def test_only_steps_that_leave_products_to_blas_set_its_threads(monkeypatch: pytest.MonkeyPatch):
    steps: list[bool] = []
    counted = BlasThreads(lambda: 4, lambda count: steps.append(count == 1))
    monkeypatch.setattr(blas, "limited", counted)
    x = np.ones((128, 128), "float32")
    with ab.Graph().as_default() as graph:
        given = ab.placeholder(x.shape, "float32")
        product = given @ ab.Variable(x)
        inverse = ab.ops.linalg.inv(given + 200.0 * ab.ops.eye(128))
    session = ab.Session(graph)
    session.run(product, {given: x})
    assert steps == []
    session.run(product, {given: x[:, ::-1]})  # whose kernel leaves it to NumPy
    assert steps == [True, False]
    session.run(inverse, {given: x})
    assert steps == [True, False] * 2
