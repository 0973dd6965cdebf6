"""Keys of random numbers: pairs of int64 (seed, counter), from generators that are advanced in program order."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.forks import fork_safe_lock
from ...common.nest import is_integer
from ...common.quick_dataclass import dataclass
from ...graph.graph import get_default_graph
from ...graph.op import Effect
from ...graph.spec import shape_text
from ...graph.state.variable import Variable
from ..base import Op, Operation, Tensor, TensorSpec, apply, convert_to_tensor, make_constant


class SeedGenerator:
    """A source of keys: state that is advanced by each draw, in program order.

    Args:
        seed: any integer; by default one is drawn from the global generator (see `set_global_seed`).
        name: for messages.

    >>> import anabranch as ab
    >>> generator = ab.random.SeedGenerator(7)
    >>> generator.next(), generator.next()
    (array([7, 0]), array([7, 1]))
    """

    def __init__(self, seed: Any = None, name: str | None = None) -> None:
        if seed is not None and not is_integer(seed):
            raise TypeError(f"SeedGenerator takes an integer seed or None; got {seed!r}.")
        self.name = name or "seed_generator"
        self._lock = fork_safe_lock()
        self._seed = _fresh_seed() if seed is None else _as_int64(int(seed))
        self._counter = 0

    def next(self) -> Any:
        """Return a new key: an int64 array [seed, counter]. (In a graph, `take_key` does the same at each run.)"""
        with self._lock:
            key = np.array([self._seed, self._counter], dtype="int64")
            self._counter += 1
        return key

    @property
    def seed(self) -> int:
        """The seed that the generator was made with, or drew."""
        return self._seed

    @property
    def state(self) -> Any:
        """The key that comes next, as an int64 array [seed, counter]: what a checkpoint keeps."""
        with self._lock:
            return np.array([self._seed, self._counter], dtype="int64")

    @state.setter
    def state(self, value: Any) -> None:
        seed, counter = (int(part) for part in value)
        with self._lock:
            self._seed, self._counter = seed, counter

    def write_state(self, into: Any) -> None:
        """Put the state into an int64 array of 2: for the runtime."""
        with self._lock:
            into[0], into[1] = self._seed, self._counter

    @staticmethod
    def advance_all(drawn: Sequence[tuple[SeedGenerator, Any, Any]]) -> bool:
        """Advance generators whose keys were drawn ahead, all or none.

        Args:
            drawn: for each generator its state when the first key was drawn, and that behind the last one.

        Returns whether they were in these states still: no other thread has drawn meanwhile.
        """
        with contextlib.ExitStack() as locks:
            for generator in sorted({each for each, _, _ in drawn}, key=id):
                locks.enter_context(generator._lock)
            if any((each._seed, each._counter) != tuple(before) for each, before, _ in drawn):
                return False
            for generator, _, after in drawn:
                generator._seed, generator._counter = map(int, after)
        return True

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make a generator with the same seed."""
        return {"seed": self._seed, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SeedGenerator:
        return cls(**config)

    def __repr__(self) -> str:
        return f"<SeedGenerator {self.name} seed={self._seed} counter={self._counter}>"

    def __str__(self) -> str:
        """Name it, without its state: graphs print alike whatever was drawn."""
        return self.name


def _as_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


_global_generator: SeedGenerator | None = None
_global_lock = fork_safe_lock()


def global_generator() -> SeedGenerator:
    """Return the generator behind ``seed=None``: seeded from the system, unless `set_global_seed` was called.

    >>> import anabranch as ab
    >>> generator = ab.random.global_generator()
    >>> isinstance(generator, ab.random.SeedGenerator)
    True
    """
    global _global_generator
    with _global_lock:
        if _global_generator is None:
            _global_generator = SeedGenerator(secrets.randbits(63), "global_seed_generator")
        return _global_generator


def drawn_entropy() -> list[int]:
    """Draw a key of the global generator, as numbers that seed a generator of NumPy: those are not negative."""
    return [abs(int(part)) for part in global_generator().next()]


def set_global_seed(seed: int) -> None:
    """Start the global generator again from `seed`, and with it all generators made later without a seed."""
    generator = global_generator()
    generator.state = (_as_int64(int(seed)), 0)


def _fresh_seed() -> int:
    return int(np.random.Philox(key=key_words(global_generator().next())).random_raw()) >> 1


def key_words(key: Any) -> Any:
    """Return a key as two unsigned 64-bit words."""
    return np.asarray(key, dtype="int64").view("uint64")


@dataclass(frozen=True, eq=False)
class KeyOp(Op, abstract=True):
    """Give a key of a generator, as an int64 vector of 2."""

    generator: SeedGenerator

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((2,), dtypes.int64)


@dataclass(frozen=True, eq=False)
class TakeKey(KeyOp):
    """The next key of a generator, as an int64 vector of 2. Each run advances the generator."""

    no_samples: ClassVar[str] = "holds a generator: test_ops_random"

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.generator.next()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.generator, writes=True),)


@dataclass(frozen=True, eq=False)
class ReadKey(KeyOp):
    """The key that a generator would give next, as an int64 vector of 2."""

    no_samples: ClassVar[str] = "holds a generator: test_random_rows"

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.generator.state

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.generator, writes=False),)


@dataclass(frozen=True, eq=False)
class SetKey(KeyOp):
    """The input, a key, which becomes the one that a generator gives next."""

    no_samples: ClassVar[str] = "holds a generator: test_random_rows"

    def run(self, xp: Any, *inputs: Any) -> Any:
        self.generator.state = inputs[0]
        return inputs[0]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.generator, writes=True),)


class _Noting(threading.local):
    def __init__(self) -> None:
        self.taken: list[tuple[SeedGenerator, Any]] | None = None
        self.stand_ins: Mapping[SeedGenerator, SeedGenerator] = {}


_noting = _Noting()


@contextlib.contextmanager
def noting_keys() -> Generator[list[tuple[SeedGenerator, Any]]]:
    """Make a block that builds a step; yield the generators whose keys it takes, each time with the graph of the op."""
    before, _noting.taken = _noting.taken, []
    try:
        yield _noting.taken
    finally:
        _noting.taken = before


@contextlib.contextmanager
def standing_in(generators: Mapping[SeedGenerator, SeedGenerator]) -> Generator[None]:
    """Make a block that builds a step in which other generators give the keys, by those in whose place they do."""
    before, _noting.stand_ins = _noting.stand_ins, generators
    try:
        yield
    finally:
        _noting.stand_ins = before


def like(generators: Sequence[SeedGenerator]) -> dict[SeedGenerator, SeedGenerator]:
    """Make generators that in each run of the current graph begin where others are then; for `standing_in`."""
    found = {generator: SeedGenerator(0, generator.name) for generator in generators}
    for generator, other in found.items():
        apply(SetKey(other), apply(ReadKey(generator)))
    return found


def take_key(seed: Any = None) -> Tensor:
    """Return the key of a random op, as an int64 vector of 2.

    Args:
        seed: a `SeedGenerator` (a new key at each run), None (the global generator), an int (the same key at each
            run), or a key itself: an array or tensor of 2 integers.

    Raises:
        TypeError: `seed` is something else.

    >>> import anabranch as ab
    >>> ab.random.take_key(7)
    Tensor([7, 0], dtype=int64)
    """
    if seed is None:
        seed = global_generator()
    if isinstance(seed, SeedGenerator):
        if _noting.taken is not None:
            _noting.taken.append((seed, get_default_graph()))
        seed = _noting.stand_ins.get(seed, seed)
        return apply(TakeKey(seed), name=f"{seed.name}/key")
    if is_integer(seed):
        return make_constant(np.array([_as_int64(int(seed)), 0], dtype="int64"), "key")
    if not isinstance(seed, (Tensor, Variable, np.ndarray, list, tuple)):
        raise TypeError(f"seed must be None, an int, a SeedGenerator or a key of 2 integers; got {seed!r}.")
    key = _key_of(seed)
    if key.shape is not None and key.shape not in ((2,), (None,)):
        raise TypeError(f"A key has shape [2]; got {shape_text(key.shape)}.")
    return key


def _key_of(numbers: Any) -> Tensor:
    return convert_to_tensor(numbers, dtypes.int64)


__all__ = [
    "SeedGenerator",
    "drawn_entropy",
    "global_generator",
    "like",
    "noting_keys",
    "set_global_seed",
    "standing_in",
    "take_key",
]
