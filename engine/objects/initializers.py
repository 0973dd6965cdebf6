"""Initializers: the first values of weights, computed at once.

``initializer(shape, dtype=None)`` gives a tensor. With an integer `seed` it is the same one at each call; with
None it comes from the global generator, which `utils.set_random_seed` sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ..common.dtypes import DType, DTypeLike, as_dtype
from ..common.keywords import ChecksKeywords
from ..common.operator_table import define_operators
from ..graph import eagerly
from ..graph.value import Value
from ..ops.random.draws import Draw
from ..ops.random.samplers import SeedGenerator, draw_normal, global_generator
from .floats import floatx
from .fourier_windows import check_window, window_of
from .identifiers import InitializerLike
from .registry import deserialize_keras_object, get_instance, register_builtins, serialize_keras_object

Array = Any

# The standard deviation of a normal distribution cut off at 2 standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978


class Initializer(ChecksKeywords):
    """The base of initializers. Subclasses define ``__call__(shape, dtype=None)``."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = None) -> Any:
        """Compute the first value of a weight; return a tensor.

        Args:
            shape: its shape, ints.
            dtype: its dtype; by default `config.floatx()`.
        """
        return Value(np.asarray(self.compute(shape, dtype)))

    def compute(self, shape: Sequence[int], dtype: DTypeLike = None) -> Array:
        """Return the same as a NumPy array: what the built-in initializers define."""
        drawn = self.drawn(tuple(int(size) for size in shape), as_dtype(dtype or floatx()))
        if drawn is None:
            raise NotImplementedError(f"Initializer {type(self).__name__} does not define __call__(shape, dtype).")
        return drawn.compute()

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        """Return the same described, to be computed later and elsewhere; None where that can't be said.

        What comes from a generator is drawn from it now: its next key.
        """
        return None

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        return cls(**config)

    def clone(self) -> Initializer:
        """Return another initializer with the same arguments."""
        return type(self).from_config(self.get_config())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Initializer) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.get_config())))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


class Zeros(Initializer):
    """All zeros."""

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return Draw("fill", (), (0,), shape, dtype)


class Ones(Initializer):
    """All ones."""

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return Draw("fill", (), (1,), shape, dtype)


class Constant(Initializer):
    """One value everywhere, or an array that broadcasts to the shape.

    Args:
        value: a number or an array.

    Raises:
        ValueError: at the call, the array does not broadcast to the shape.
    """

    def __init__(self, value: Any = 0.0) -> None:
        self.value = value

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return Draw("fill", (), (self.value,), shape, dtype) if type(self.value) in (int, float) else None

    def compute(self, shape: Sequence[int], dtype: DTypeLike = None) -> Array:
        value, size = np.asarray(self.value, as_dtype(dtype or floatx())), tuple(shape)
        try:
            return np.broadcast_to(value, size).copy()
        except ValueError:
            raise ValueError(
                f"Constant: a weight of shape {size} was to be made of an array of shape {value.shape}, which does not "
                "broadcast to it. Give an array of the weight's shape, or a number."
            ) from None

    def get_config(self) -> dict[str, Any]:
        return {"value": serialize_keras_object(self.value)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        return cls(deserialize_keras_object(config["value"]))


class Identity(Initializer):
    """The identity matrix, times `gain`.

    Args:
        gain: a factor.

    Raises:
        ValueError: at the call, the shape is not a matrix's.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def compute(self, shape: Sequence[int], dtype: DTypeLike = None) -> Array:
        if len(shape) != 2:
            raise ValueError(f"The identity initializer makes matrices only, got shape {tuple(shape)}.")
        return (self.gain * np.eye(shape[0], shape[1])).astype(as_dtype(dtype or floatx()))

    def get_config(self) -> dict[str, Any]:
        return {"gain": self.gain}


class RandomInitializer(Initializer):
    """The base of those that draw random numbers.

    Args:
        seed: an int for the same values at each call; None or a `SeedGenerator` for new ones.
    """

    def __init__(self, seed: int | SeedGenerator | None = None) -> None:
        self.seed = _checked_seed(seed)

    def _key(self) -> Any:
        if isinstance(self.seed, SeedGenerator):
            return self.seed.next()
        return global_generator().next() if self.seed is None else SeedGenerator(self.seed).next()

    def _draw(self, kind: str, shape: tuple[int, ...], dtype: DType, first: float, second: float) -> Draw:
        return Draw(kind, tuple(int(part) for part in self._key()), (first, second), shape, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"seed": serialize_keras_object(self.seed)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        return cls(**{name: deserialize_keras_object(value) for name, value in config.items()})


def _checked_seed(seed: Any) -> int | SeedGenerator | None:
    if isinstance(seed, dict):
        seed = deserialize_keras_object(seed)
    if seed is None or isinstance(seed, (int, SeedGenerator)):
        return seed
    if isinstance(seed, np.integer):
        return int(cast("Any", seed))
    raise ValueError(f"seed must be an int, None or a SeedGenerator, got {seed!r}.")


class RandomNormal(RandomInitializer):
    """Normally distributed values."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.mean = mean
        self.stddev = stddev

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return self._draw("normal", shape, dtype, self.mean, self.stddev)

    def get_config(self) -> dict[str, Any]:
        return {"mean": self.mean, "stddev": self.stddev, **super().get_config()}


class TruncatedNormal(RandomNormal):
    """Normally distributed values, drawn again where they are more than 2 standard deviations off."""

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return self._draw("truncated_normal", shape, dtype, self.mean, self.stddev)


class RandomUniform(RandomInitializer):
    """Values uniform in [minval, maxval)."""

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.minval = minval
        self.maxval = maxval

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        return self._draw("uniform", shape, dtype, self.minval, self.maxval)

    def get_config(self) -> dict[str, Any]:
        return {"minval": self.minval, "maxval": self.maxval, **super().get_config()}


class VarianceScaling(RandomInitializer):
    """Values whose variance is ``scale / n``, with n the number of a unit's inputs, outputs, or their mean.

    Args:
        scale: a positive factor.
        mode: ``"fan_in"``, ``"fan_out"`` or ``"fan_avg"``.
        distribution: ``"truncated_normal"``, ``"untruncated_normal"`` or ``"uniform"``.
        seed: an int for the same values at each call.
        input_axes, output_axes: the axes of a kernel that count as inputs and as outputs; by default the last but one
            and the last, each times the sizes of all axes before.

    Raises:
        ValueError: an argument is not one of these.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | SeedGenerator | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(seed)
        self.input_axes = None if input_axes is None else list(input_axes)
        self.output_axes = None if output_axes is None else list(output_axes)
        if scale <= 0:
            raise ValueError(f"VarianceScaling: scale must be positive, got {scale}.")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"VarianceScaling: mode must be 'fan_in', 'fan_out' or 'fan_avg', got {mode!r}.")
        if distribution == "normal":
            distribution = "truncated_normal"
        if distribution not in ("truncated_normal", "untruncated_normal", "uniform"):
            raise ValueError(
                "VarianceScaling: distribution must be 'truncated_normal', 'untruncated_normal' or 'uniform', "
                f"got {distribution!r}."
            )
        self.scale = scale
        self.mode = mode
        self.distribution = distribution

    def drawn(self, shape: tuple[int, ...], dtype: DType) -> Draw | None:
        fan_in, fan_out = compute_fans(shape, self.input_axes, self.output_axes)
        fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
        variance = self.scale / max(1.0, fans[self.mode])
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return self._draw("uniform", shape, dtype, -limit, limit)
        if self.distribution == "truncated_normal":
            return self._draw("truncated_normal", shape, dtype, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV)
        return self._draw("normal", shape, dtype, 0.0, math.sqrt(variance))

    def get_config(self) -> dict[str, Any]:
        scaling = {"scale": self.scale, "mode": self.mode, "distribution": self.distribution}
        return {**scaling, **super().get_config(), **self._axes_config()}

    def _axes_config(self) -> dict[str, Any]:
        given = {"input_axes": self.input_axes, "output_axes": self.output_axes}
        return given if any(axes is not None for axes in given.values()) else {}


class _NamedScaling(VarianceScaling):
    """A variance scaling known by its authors' names."""

    _settings: tuple[float, str, str] = (1.0, "fan_in", "truncated_normal")

    def __init__(
        self,
        seed: int | SeedGenerator | None = None,
        input_axes: Sequence[int] | None = None,
        output_axes: Sequence[int] | None = None,
    ) -> None:
        scale, mode, distribution = self._settings
        super().__init__(scale, mode, distribution, seed, input_axes, output_axes)

    def get_config(self) -> dict[str, Any]:
        return {"seed": serialize_keras_object(self.seed), **self._axes_config()}


class GlorotUniform(_NamedScaling):
    """Uniform within ``sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio, 2010)."""

    _settings = (1.0, "fan_avg", "uniform")


class GlorotNormal(_NamedScaling):
    """Truncated normal with variance ``2 / (fan_in + fan_out)`` (Glorot and Bengio, 2010)."""

    _settings = (1.0, "fan_avg", "truncated_normal")


class HeUniform(_NamedScaling):
    """Uniform within ``sqrt(6 / fan_in)`` (He et al., 2015)."""

    _settings = (2.0, "fan_in", "uniform")


class HeNormal(_NamedScaling):
    """Truncated normal with variance ``2 / fan_in`` (He et al., 2015)."""

    _settings = (2.0, "fan_in", "truncated_normal")


class LecunUniform(_NamedScaling):
    """Uniform within ``sqrt(3 / fan_in)`` (LeCun et al., "Efficient BackProp", 1998)."""

    _settings = (1.0, "fan_in", "uniform")


class LecunNormal(_NamedScaling):
    """Truncated normal with variance ``1 / fan_in`` (LeCun et al., "Efficient BackProp", 1998)."""

    _settings = (1.0, "fan_in", "truncated_normal")


class Orthogonal(RandomInitializer):
    """A matrix with orthonormal rows or columns, whichever are fewer (Saxe et al., 2013), times `gain`.

    Args:
        gain: a factor.
        seed: an int for the same values at each call.

    A shape of more than two dimensions is that of a matrix of ``shape[-1]`` columns.
    """

    def __init__(self, gain: float = 1.0, seed: int | SeedGenerator | None = None) -> None:
        super().__init__(seed)
        self.gain = gain

    def compute(self, shape: Sequence[int], dtype: DTypeLike = None) -> Array:
        if len(shape) < 2:
            raise ValueError(f"The orthogonal initializer needs at least two dimensions, got shape {tuple(shape)}.")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = draw_normal(self._key(), (max(rows, columns), min(rows, columns)), "float64")
        q, r = np.linalg.qr(normal)
        # The signs make the distribution uniform over all orthogonal matrices (Mezzadri, 2006).
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        matrix = q.T if rows < columns else q
        return (self.gain * matrix.reshape(tuple(shape))).astype(as_dtype(dtype or floatx()))

    def get_config(self) -> dict[str, Any]:
        return {"gain": self.gain, **super().get_config()}


class STFT(Initializer):
    """Kernels of a convolution that computes a short-time Fourier transform.

    Args:
        side: "real" or "imag", the part of the transform.
        window: the weights of a frame's samples: a name, such as "hann", an array, or None for none.
        scaling: "density" divides by the window's Euclidean norm, "spectrum" by its sum, None does not.
        periodic: whether a window by name is periodic.

    Called with a shape ``(frame_length, 1, fft_length // 2 + 1)``.

    Raises:
        ValueError: an argument is not one of these; the shape is another, or the array has another length than a frame.

    >>> STFT(window=None)((2, 1, 2)).round(6).tolist()
    [[[1.0, 1.0]], [[1.0, -1.0]]]
    """

    def __init__(
        self, side: str = "real", window: Any = "hann", scaling: str | None = "density", periodic: bool = False
    ) -> None:
        if side not in ("real", "imag"):
            raise ValueError(f"STFT: side must be 'real' or 'imag', got {side!r}.")
        if scaling not in (None, "density", "spectrum"):
            raise ValueError(f"STFT: scaling must be 'density', 'spectrum' or None, got {scaling!r}.")
        check_window(window)
        self.side = side
        self.window = window
        self.scaling = scaling
        self.periodic = periodic

    def compute(self, shape: Sequence[int], dtype: DTypeLike = None) -> Array:
        if len(shape) != 3 or shape[1] != 1:
            raise ValueError(f"STFT needs a shape (frame_length, 1, fft_length // 2 + 1), got {tuple(shape)}.")
        length, _, bins = shape
        wanted = as_dtype(dtype or floatx())
        turns = np.arange(length)[:, None, None] * np.arange(bins) / max(2 * (bins - 1), 1)
        kernel = np.cos(-2 * np.pi * turns) if self.side == "real" else np.sin(-2 * np.pi * turns)
        return (kernel * self._weights(length)).astype(wanted)

    def _weights(self, length: int) -> Array:
        if self.window is None:
            return 1.0
        by_name = isinstance(self.window, str)
        window = window_of(self.window, length, self.periodic) if by_name else np.asarray(self.window, "float64")
        if window.shape != (length,):
            raise ValueError(f"STFT: the window must have a weight for each of {length} samples, got {window.shape}.")
        scales = {None: 1.0, "density": np.sqrt(np.sum(window**2)), "spectrum": np.sum(np.abs(window))}
        return window[:, None, None] / scales[self.scaling]

    def get_config(self) -> dict[str, Any]:
        return {"side": self.side, "window": self.window, "periodic": self.periodic, "scaling": self.scaling}


def compute_fans(
    shape: Sequence[int], input_axes: Sequence[int] | None = None, output_axes: Sequence[int] | None = None
) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a unit whose weights have this shape.

    Args:
        shape: the shape; that of a kernel is (..., in, out).
        input_axes, output_axes: the axes of inputs and of outputs, where a kernel has another form.

    >>> compute_fans((3, 3, 8, 16))
    (72, 144)
    """
    if input_axes is not None and output_axes is not None:
        return math.prod(int(shape[axis]) for axis in input_axes), math.prod(int(shape[axis]) for axis in output_axes)
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return int(shape[0]), int(shape[0])
    field = math.prod(shape[:-2])
    return int(shape[-2] * field), int(shape[-1] * field)


_CLASSES: dict[str, type[Initializer]] = {
    "Zeros": Zeros,
    "Ones": Ones,
    "Constant": Constant,
    "Identity": Identity,
    "RandomNormal": RandomNormal,
    "RandomUniform": RandomUniform,
    "TruncatedNormal": TruncatedNormal,
    "VarianceScaling": VarianceScaling,
    "GlorotUniform": GlorotUniform,
    "GlorotNormal": GlorotNormal,
    "HeUniform": HeUniform,
    "HeNormal": HeNormal,
    "LecunUniform": LecunUniform,
    "LecunNormal": LecunNormal,
    "Orthogonal": Orthogonal,
    "STFT": STFT,
}
_NAMES: dict[str, type[Initializer]] = {
    **_CLASSES,
    **dict.fromkeys(["zero", "zeros"], Zeros),
    **dict.fromkeys(["one", "ones"], Ones),
    "constant": Constant,
    **dict.fromkeys(["IdentityInitializer", "identity"], Identity),
    **dict.fromkeys(["OrthogonalInitializer", "orthogonal"], Orthogonal),
    **dict.fromkeys(["STFTInitializer", "stft"], STFT),
    "normal": RandomNormal,
    "random_normal": RandomNormal,
    "uniform": RandomUniform,
    "random_uniform": RandomUniform,
    "truncated_normal": TruncatedNormal,
    "variance_scaling": VarianceScaling,
    "glorot_uniform": GlorotUniform,
    "glorot_normal": GlorotNormal,
    "he_uniform": HeUniform,
    "he_normal": HeNormal,
    "lecun_uniform": LecunUniform,
    "lecun_normal": LecunNormal,
}
register_builtins(
    "keras.initializers",
    {**_CLASSES, "IdentityInitializer": Identity, "OrthogonalInitializer": Orthogonal, "STFTInitializer": STFT},
)
register_builtins("keras.random", {"SeedGenerator": SeedGenerator})


zeros = Zeros
ones = Ones
constant = Constant
identity = IdentityInitializer = Identity
random_normal = RandomNormal
random_uniform = RandomUniform
truncated_normal = TruncatedNormal
variance_scaling = VarianceScaling
glorot_uniform = GlorotUniform
glorot_normal = GlorotNormal
he_uniform = HeUniform
he_normal = HeNormal
lecun_uniform = LecunUniform
lecun_normal = LecunNormal
orthogonal = OrthogonalInitializer = Orthogonal
stft = STFTInitializer = STFT
_ALIASES = [name for name in _NAMES if name not in (*_CLASSES, "normal", "one", "uniform", "zero")]


def get(identifier: InitializerLike, argument: str = "initializer") -> Callable[..., Any]:
    """Return the initializer that a name, a config, a class, a function of (shape, dtype) or an array stands for.

    Raises:
        ValueError: it stands for no initializer.

    >>> get("he_normal")
    HeNormal(seed=None)
    """
    if isinstance(identifier, (np.ndarray, np.generic, int, float, Value)):
        return Constant(identifier.numpy() if isinstance(identifier, Value) else identifier)
    return get_instance(argument, identifier, _NAMES)


def first_value(initializer: Any, shape: Sequence[int], dtype: DTypeLike = None) -> Any:
    """Return what an initializer gives: a `Draw`, computed when and where it is needed, or else the values.

    Args:
        initializer: a function of shape and dtype, or what `get` takes.
        shape, dtype: of the value.
    """
    given = initializer if callable(initializer) else get(initializer)
    size, wanted = tuple(int(each) for each in shape), as_dtype(dtype or floatx())
    if isinstance(given, Initializer):
        names = ("drawn", "compute", "__call__")
        owner = next(each for each in type(given).__mro__ if any(name in vars(each) for name in names))
        drawn = given.drawn(size, wanted) if "drawn" in vars(owner) else None
        if drawn is not None:
            return drawn
    with eagerly():
        return given(size, dtype=wanted)


# A variable's initializer may be given by name; the shards of one ask for the first value of the whole.
define_operators({"initializer": get, "first_value": first_value})


def serialize(initializer: Any) -> Any:
    """Return the config of an initializer."""
    return serialize_keras_object(initializer)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the initializer that a config describes."""
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "STFT",
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "IdentityInitializer",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "OrthogonalInitializer",
    "RandomNormal",
    "RandomUniform",
    "STFTInitializer",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "constant",
    "deserialize",
    "get",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "serialize",
    "stft",
    "truncated_normal",
    "variance_scaling",
    "zeros",
]
