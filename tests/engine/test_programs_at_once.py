"""Programs that many threads run at the same time, whose kernels are without the interpreter's lock: bits as alone."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

_STEPS = examples(4, 12)
_THREADS = 6


@pytest.fixture(autouse=True)
def _often() -> Generator[None]:  # pyright: ignore[reportUnusedFunction] - pytest calls it
    """Let kernels give the lock away as soon as they have parts, and threads take turns often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with threads.patience(0):
        yield
    sys.setswitchinterval(interval)


class _Training:
    """A random chain of ops with weights, and a step that updates these by its gradients, with a momentum."""

    def __init__(self, seed: int) -> None:
        self._draw, self._seed = random.Random(seed), seed
        self._generator = np.random.default_rng(seed)
        rows, columns = self._draw.randrange(200, 900), self._draw.choice([96, 128, 200])
        self._variables: list[ab.Variable] = []
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((rows, columns), "float32")
            y: Any = x
            for _ in range(self._draw.randrange(2, 5)):
                y = self._draw.choice([self._product, self._convolved, self._normalised, self._softmax])(y)
            loss = ab.ops.mean((y - 0.25) ** 2)
            updates = self._updates(loss)
        self._values = [variable.numpy() for variable in self._variables]
        self._call = ab.Session(graph).make_callable([loss, y, *updates], [x])
        self._fed = self._generator.normal(size=(_STEPS, rows, columns)).astype("float32")

    def run(self) -> list[bytes]:
        """Return what some steps give and leave, from the first values on."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value.copy())
        found = [result.tobytes() for x in self._fed for result in self._call(x)[:2]]
        return found + [variable.numpy().tobytes() for variable in self._variables]

    def _weight(self, *shape: int) -> ab.Variable:
        scale = 1 / np.sqrt(np.prod(shape[:-1]))
        variable = ab.Variable((self._generator.normal(size=shape) * scale).astype("float32"))
        self._variables.append(variable)
        return variable

    def _product(self, y: Any) -> Any:
        columns = y.shape[-1]
        return ab.ops.tanh(y @ self._weight(columns, columns) + self._weight(1, columns))

    def _convolved(self, y: Any) -> Any:
        rows, columns = y.shape
        images = ab.ops.reshape(y, (1, rows, columns // 8, 8))
        taps = self._draw.choice([3, 5])
        return ab.ops.reshape(ab.ops.conv(images, self._weight(taps, taps, 8, 8), padding="same"), (rows, columns))

    def _normalised(self, y: Any) -> Any:
        apart = y - ab.ops.mean(y, axis=-1, keepdims=True)
        spread = ab.ops.rsqrt(ab.ops.mean(apart * apart, axis=-1, keepdims=True) + 1e-3)
        return apart * spread * self._weight(1, y.shape[-1])

    def _softmax(self, y: Any) -> Any:
        return ab.ops.softmax(ab.ops.relu(y) + ab.ops.tanh(y), axis=-1) * self._weight(1, y.shape[-1])

    def _updates(self, loss: Any) -> list[Any]:
        weights = list(self._variables)
        found: list[Any] = []
        for weight, gradient in zip(weights, ab.gradients(loss, [w.value for w in weights]), strict=True):
            momentum = ab.Variable(np.zeros(weight.shape, "float32"))
            self._variables.append(momentum)
            new = momentum * 0.9 + gradient
            found += [momentum.assign(new), weight.assign(weight - 0.1 * new)]
        return [update.operation for update in found]


def _run_all(work: list[Callable[[], None]]) -> None:
    """Run functions, each in a thread; raise the first error of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(function: Callable[[], None]) -> None:
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(function,)) for function in work]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("seed", range(examples(3, 20)))
def test_programs_that_train_at_the_same_time(seed: int) -> None:
    programs = [_Training(10 * seed + k) for k in range(_THREADS)]
    expected = [program.run() for program in programs]
    before = threads.times_released()

    def check(number: int) -> None:
        for _ in range(2):
            assert programs[number].run() == expected[number]

    _run_all([lambda number=number: check(number) for number in range(_THREADS)])
    assert threads.times_released() > before


@pytest.mark.parametrize("shape", [(130, 96), (40, 400)])
def test_one_program_is_run_by_several_threads(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(3)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(shape, "float32")
        weight = ab.Variable(generator.normal(size=(shape[1], shape[1])).astype("float32"))
        y = ab.ops.softmax(ab.ops.tanh(x @ weight), axis=-1)
        z = ab.ops.conv(
            ab.ops.reshape(y, (1, shape[0], shape[1] // 8, 8)), ab.constant(np.ones((3, 3, 8, 8), "float32"))
        )
    call = ab.Session(graph).make_callable([y, z], [x])
    fed = [generator.normal(size=shape).astype("float32") for _ in range(_THREADS)]
    expected = [[result.tobytes() for result in call(value)] for value in fed]

    def check(number: int) -> None:
        for _ in range(40):
            assert [result.tobytes() for result in call(fed[number])] == expected[number]

    _run_all([lambda number=number: check(number) for number in range(_THREADS)])


def test_no_update_of_a_variable_is_lost() -> None:
    """Steps of two programs add to the same variable in its memory, by kernels of several parts."""
    size, times = 300_000, 15
    with ab.Graph().as_default() as graph:
        total = ab.Variable(np.zeros(size, "float32"))
        x = ab.placeholder((size,), "float32")
        once, twice = total.assign(total + x * 2.0 - x), total.assign(total + x * 3.0 - x)
    session = ab.Session(graph)
    calls = [session.make_callable([update.operation], [x]) for update in (once, twice)]
    value = np.arange(size, dtype="float32") % 7

    def add(number: int) -> None:
        for _ in range(times):
            calls[number % 2](value)

    _run_all([lambda number=number: add(number) for number in range(_THREADS)])
    added = value * (times * (_THREADS // 2 + 2 * (_THREADS // 2)))
    np.testing.assert_array_equal(total.numpy(), added)
