"""Types of what models take and give: nested structures of tensors and arrays. Only annotations use them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

from ..engine.common.dtypes import DType
from ..engine.common.nest import Nest
from ..engine.graph import Tensor, TensorSpec
from ..engine.ops.base import TensorLike

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine.objects.identifiers import Config
    from ..layers.core.input_spec import InputSpec
    from ..layers.core.layer import Layer
    from ..optim import Optimizer

    class LayerOfSomeClass(Layer):
        """A layer of a class that type checkers can't find: it may have any attribute beside those of every layer."""

        def __getattr__(self, name: str) -> Any: ...


Array: TypeAlias = "NDArray[Any]"
"""An array of any dtype."""

ShapeLike: TypeAlias = "int | Sequence[int | None] | None"
"""Sizes of axes, None where one is not fixed; a single size; or None, if even the number of axes is not fixed."""

Tensors: TypeAlias = "Nest[Tensor]"
"""The inputs, outputs or targets of a model, while a graph is built."""

Arrays: TypeAlias = "Nest[TensorLike]"
"""The same as values: what tensors can be made of."""


class SparseMatrix(Protocol):
    """A sparse matrix of SciPy, which need not be installed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    def tocsr(self) -> Any: ...


InputSpecs: TypeAlias = "Nest[InputSpec | TensorSpec | Tensor]"
"""A signature that `export` takes: an `InputSpec`, `tf.TensorSpec`, symbolic input or example of each argument."""

Masks: TypeAlias = "list[Tensor | None] | tuple[Tensor | None, ...] | None"
"""A mask for each tensor, None for one without."""

OptimizerLike: TypeAlias = "str | Optimizer | type[Optimizer] | Config | None"
"""A name such as "adam", an `Optimizer` or its class, or a config."""


class Batches(Protocol):
    """Batches by number, of a class that is not a `PyDataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Rows: TypeAlias = "Nest[TensorLike | SparseMatrix]"
"""Inputs, targets or weights as arrays, whose first axis is that of the rows."""

PathLike: TypeAlias = str | os.PathLike[str]
"""The path of a file or folder."""


class LoadOptions(TypedDict, total=False):
    """Arguments of `load_weights` that models hand on to it."""

    objects_to_skip: Collection[object] | None
    by_name: bool


class SaveOptions(TypedDict, total=False):
    """Arguments of `save_model` that are given by name."""

    for_keras: bool
    save_format: str | None
    include_optimizer: bool
