"""`Input`: the symbolic start of a functional model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ...engine.common.dtypes import name_of
from ...engine.graph import Symbol, Tensor, as_dtype, as_shape
from ...engine.graph.provenance import user_stacklevel
from ...engine.graph.tracebacks import short_tracebacks
from ...engine.objects.arguments import check_optional_numbers
from ...engine.objects.floats import floatx
from ...engine.session import placeholder
from .calling import symbols_apart
from .layer import Layer
from .node import Node, history_of

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike


class InputLayer(Layer):
    """The layer that `Input` makes: a layer without weights whose only output is a placeholder of the current graph.

    Args:
        shape: the shape without the batch.
        batch_size: the number of rows, if it is fixed.
        dtype: the dtype; `config.floatx()` by default.
        sparse, ragged: accepted for the sake of Keras's files; only False is supported.
        optional: whether None may be given for it; the layers that take it get None then.
        batch_shape: the shape with the batch, instead of `shape` and `batch_size`.
        input_tensor: a symbolic tensor of `KerasTensor`, which becomes the output; it has a shape and a dtype already.
        name: the name of the input.

    Raises:
        ValueError: there is no shape, or two of them; the tensor is none, or another one than the other arguments say.
    """

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        dtype: DTypeLike = None,
        sparse: bool | None = None,
        ragged: bool | None = None,
        batch_shape: Sequence[int | None] | None = None,
        input_tensor: Tensor | None = None,
        optional: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name)
        if kwargs.get("batch_input_shape") is not None:
            batch_shape = kwargs["batch_input_shape"]
        if kwargs.get("input_shape") is not None:
            warnings.warn(
                "InputLayer(input_shape=...) is Keras 2's name. Write shape= instead.", stacklevel=user_stacklevel()
            )
            shape = kwargs["input_shape"]
        if input_tensor is not None:
            _check_tensor(input_tensor, shape, batch_size, batch_shape, dtype)
            shape, batch_size, batch_shape, dtype = None, None, input_tensor.shape, input_tensor.dtype
        if batch_size is not None and batch_shape is not None:
            raise ValueError(f"Input: batch_shape={batch_shape} has the batch size; leave batch_size={batch_size} out.")
        if (shape is None) == (batch_shape is None):
            raise ValueError(
                "Input needs either shape, without the batch, or batch_shape, with it; got "
                + ("neither." if shape is None else f"shape={shape} and batch_shape={batch_shape}.")
                + " For rows of 784 numbers write Input(shape=(784,))."
            )
        for option, value in (("sparse", sparse), ("ragged", ragged)):
            if value:
                raise ValueError(f"Input: {option}=True is not supported; inputs are dense arrays.")
        check_optional_numbers("Input", batch_size=batch_size)
        without_batch = None if shape is None else as_shape(shape) or ()
        self.batch_shape: tuple[int | None, ...] = (
            tuple(batch_shape or ()) if without_batch is None else (batch_size, *without_batch)
        )
        self.optional = optional
        self.sparse = self.ragged = False
        self.dtype_policy = name_of(as_dtype(floatx() if dtype is None else dtype))
        self._build_at_init()
        tensor = input_tensor
        if tensor is None:
            with symbols_apart():
                tensor = placeholder(self.batch_shape, self.dtype, self.name)
        tensor.annotations["name"] = self.name
        Node(self, ((), {}), tensor)

    def call(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"Input {self.name!r} is the start of a model and can't be called; call the model on data.")

    @property
    def output(self) -> Tensor:
        """The symbolic tensor."""
        return self.inbound_nodes[0].outputs

    def get_config(self) -> dict[str, Any]:
        return {
            "batch_shape": self.batch_shape,
            "dtype": self.dtype,
            "sparse": False,
            "ragged": False,
            "name": self.name,
            "optional": self.optional,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> InputLayer:
        dtype = config.get("dtype")
        if isinstance(dtype, dict):  # a policy, as some versions of Keras wrote it
            dtype = dtype.get("config", {}).get("name")
        arguments: dict[str, Any] = {**config, "dtype": dtype}
        return cls(**arguments)


def _check_tensor(
    tensor: object,
    shape: Sequence[int | None] | None,
    batch_size: int | None,
    batch_shape: Sequence[int | None] | None,
    dtype: DTypeLike,
) -> None:
    """Refuse a tensor that can't be the output of an `InputLayer` with these arguments."""
    if not isinstance(tensor, Symbol) or tensor.shape is None:
        raise ValueError(f"Input: input_tensor must be symbolic, as KerasTensor makes it; got {type(tensor).__name__}.")
    if history_of(tensor) is not None:
        raise ValueError(
            f"Input: {tensor.name!r} is the output of a layer or an Input. Give it to Model as an input as it is."
        )
    given = {"shape": shape, "batch_shape": batch_shape, "batch_size": batch_size, "dtype": dtype}
    own = {"shape": tensor.shape[1:], "batch_shape": tensor.shape, "batch_size": (*tensor.shape[:1], None)[0]}
    for name, value in given.items():
        asked = name_of(as_dtype(dtype)) if name == "dtype" and dtype is not None else value
        asked = tuple(asked) if isinstance(asked, list) else asked
        found = name_of(tensor.dtype) if name == "dtype" else own[name]
        if asked is not None and asked != found:
            raise ValueError(f"Input: {name}={value!r} is not that of the tensor, {found!r}. Leave it out.")


@short_tracebacks
def Input(  # noqa: N802 - Keras's name
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: DTypeLike = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: Tensor | None = None,
    optional: bool = False,
) -> Tensor:
    """Return a symbolic tensor from which a functional model is built.

    Args:
        shape: its shape without the batch; None for sizes that vary.
        batch_size: the number of rows, if it is fixed.
        dtype: its dtype; float32 by default.
        sparse, ragged: accepted as in Keras; only False is supported.
        tensor: a symbolic tensor of `KerasTensor`, which becomes the input. An output of a layer is given to `Model` as
            it is.
        optional: whether None may be given for it; the layers that take it get None then.
        batch_shape: the shape with the batch, instead of `shape` and `batch_size`.
        name: the name of the input, by which dicts of data refer to it.

    >>> import anabranch as ab
    >>> x = ab.Input((3,))
    >>> model = ab.Model(x, ab.layers.Dense(2)(x))
    >>> model.output_shape
    (None, 2)
    """
    layer = InputLayer(shape, batch_size, dtype, sparse, ragged, batch_shape, tensor, optional, name)
    return layer.output
