"""`Input`: the symbolic start of a functional model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ...engine.common.dtypes import name_of
from ...engine.graph import Tensor, as_dtype, as_shape
from ...engine.graph.tracebacks import short_tracebacks
from ...engine.objects.arguments import check_optional_numbers
from ...engine.objects.floats import floatx
from ...engine.session import placeholder
from .calling import symbols_apart
from .layer import Layer
from .node import Node

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
        input_tensor: accepted as None.
        name: the name of the input.

    Raises:
        ValueError: there is no shape, or two of them.
    """

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        dtype: DTypeLike = None,
        sparse: bool | None = None,
        ragged: bool | None = None,
        batch_shape: Sequence[int | None] | None = None,
        input_tensor: None = None,
        optional: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name)
        if input_tensor is not None:
            raise ValueError("Input: input_tensor is not supported; call the layers on the tensor itself.")
        if kwargs.get("batch_input_shape") is not None:
            batch_shape = kwargs["batch_input_shape"]
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
        self.dtype_policy = name_of(as_dtype(floatx() if dtype is None else dtype))
        self._build_at_init()
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


@short_tracebacks
def Input(  # noqa: N802 - Keras's name
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: DTypeLike = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: None = None,
    optional: bool = False,
) -> Tensor:
    """Return a symbolic tensor from which a functional model is built.

    Args:
        shape: its shape without the batch; None for sizes that vary.
        batch_size: the number of rows, if it is fixed.
        dtype: its dtype; float32 by default.
        sparse, ragged, tensor: accepted as in Keras; only the defaults are supported.
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
