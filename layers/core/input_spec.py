"""`InputSpec`: what a layer demands of its input's rank, shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...engine.graph import Shape, Tensor, as_dtype, flatten
from ...engine.objects.arguments import check_optional_numbers, listed, refused
from ...engine.ops.sparse_tensor import refuse_sparse

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike


class InputSpec:
    """Demands on one input. A violated one is an error that names the layer, what was expected and what was got.

    Args:
        dtype: the dtype expected.
        shape: the shape expected, with None for any size.
        ndim: the rank expected.
        max_ndim: the largest rank allowed.
        min_ndim: the smallest rank allowed.
        axes: axis to the size expected there.
        allow_last_axis_squeeze: accept inputs that lack a last axis of size 1, or have one more.
        name: the key of this input where inputs are a dict.
        optional: None is accepted, too.
    """

    def __init__(
        self,
        dtype: DTypeLike = None,
        shape: tuple[int | None, ...] | None = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
        allow_last_axis_squeeze: bool = False,
        name: str | None = None,
        optional: bool = False,
    ) -> None:
        self.dtype = None if dtype is None else as_dtype(dtype)
        self.shape = None if shape is None else tuple(listed("InputSpec", "shape", shape, "a tuple of sizes"))
        self.ndim = ndim if self.shape is None else len(self.shape)
        check_optional_numbers("InputSpec", ndim=ndim, max_ndim=max_ndim, min_ndim=min_ndim)
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        if not isinstance(axes or {}, dict):
            raise refused("InputSpec", "axes", axes, "a dict of sizes by axis")
        self.axes = {int(axis): size for axis, size in (axes or {}).items()}
        self.allow_last_axis_squeeze = allow_last_axis_squeeze
        self.name = name
        self.optional = optional

    def get_config(self) -> dict[str, Any]:
        return {
            "dtype": None if self.dtype is None else self.dtype.name,
            "shape": self.shape,
            "ndim": self.ndim,
            "max_ndim": self.max_ndim,
            "min_ndim": self.min_ndim,
            "axes": self.axes,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> InputSpec:
        return cls(**config)

    def violation(self, tensor: Tensor) -> str | None:
        """Describe what is wrong with `tensor`, as "expected ..., got ..."; None if nothing is."""
        shape = tensor.shape
        if self.dtype is not None and tensor.dtype != self.dtype:
            return f"expected dtype={self.dtype}, got dtype={tensor.dtype}"
        if shape is None:
            return None
        return self._rank_violation(len(shape)) or self._axes_violation(shape)

    def _rank_violation(self, rank: int) -> str | None:
        if self.ndim is not None and rank != self.ndim and not self._may_squeeze(rank):
            return f"expected ndim={self.ndim}, got ndim={rank}"
        if self.max_ndim is not None and rank > self.max_ndim:
            return f"expected max_ndim={self.max_ndim}, got ndim={rank}"
        if self.min_ndim is not None and rank < self.min_ndim:
            return f"expected min_ndim={self.min_ndim}, got ndim={rank}"
        return None

    def _may_squeeze(self, rank: int) -> bool:
        return self.allow_last_axis_squeeze and self.ndim is not None and abs(rank - self.ndim) == 1

    def _axes_violation(self, shape: tuple[int | None, ...]) -> str | None:
        for axis, size in self.axes.items():
            found = shape[axis] if -len(shape) <= axis < len(shape) else None
            if size is not None and found is not None and found != size:
                return f"expected axis {axis} of the input to have size {size}, got size {found}"
        if self.shape is None or len(self.shape) != len(shape):
            return None
        for expected, found in zip(self.shape, shape, strict=True):
            if expected is not None and found is not None and expected != found:
                return f"expected shape={self.shape}, got shape={shape}"
        return None

    def __repr__(self) -> str:
        given = {key: value for key, value in self.get_config().items() if value}
        return f"InputSpec({', '.join(f'{key}={value}' for key, value in given.items())})"


def known_shape(shape: Shape) -> tuple[int | None, ...]:
    """Return the shape of an input whose number of axes a layer needs.

    Raises:
        ValueError: it is not known.
    """
    if shape is None:
        raise ValueError(
            "The number of axes of the input is not known, but the layer needs it. Give the placeholder that the input "
            "comes from a shape, with None for unknown sizes, as in ab.placeholder((None, 3))."
        )
    return shape


def refuse_sparse_inputs(inputs: object, layer_name: str) -> None:
    """Refuse sparse inputs of a layer that has a spec of its inputs: these are dense.

    Raises:
        TypeError: an input is a `SparseTensor`, or a matrix of SciPy's.
    """
    if isinstance(inputs, Tensor):
        return
    for given in (inputs, *inputs) if isinstance(inputs, (list, tuple)) else (inputs,):
        refuse_sparse(given, f"Layer {layer_name!r} expects dense tensors, got a {type(given).__name__}.")


def check_inputs(specs: InputSpec | Sequence[InputSpec | None] | None, inputs: object, layer_name: str) -> None:
    """Check the inputs of a layer against its specs.

    Args:
        specs: an `InputSpec` (for every input, if there are several), or a list of them, one for each input.
        inputs: a tensor or a structure of them.
        layer_name: for the message.

    Raises:
        ValueError: an input violates its spec, or their number differs. TypeError: an input is sparse.
    """
    refuse_sparse_inputs(inputs, layer_name)
    tensors = [leaf for leaf in flatten(inputs) if isinstance(leaf, Tensor)]
    wanted = [specs] * len(tensors) if specs is None or isinstance(specs, InputSpec) else specs
    if len(wanted) != len(tensors):
        raise ValueError(f"Layer {layer_name!r} expects {len(wanted)} inputs, but got {len(tensors)}.")
    for position, (spec, tensor) in enumerate(zip(wanted, tensors, strict=True)):
        problem = None if spec is None else spec.violation(tensor)
        if problem is not None:
            raise ValueError(
                f"Input {position} of layer {layer_name!r} does not fit the layer: {problem}. "
                f"Full shape received: {tensor.shape}"
            )
