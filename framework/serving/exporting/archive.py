"""`ExportArchive`: a servable of several functions, as in Keras; and `export_graph`, of a graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ....engine.graph import Graph, Symbol, Variable
from ....engine.passes.framework.prune import needed_operations
from ...models.model import Model
from ..image_inputs import image_forms
from ..signature import DEFAULT, Signature
from ..storage import write_servable
from .endpoint import (
    Endpoint,
    arguments_of,
    check_effects,
    check_names,
    check_row_wise,
    info_of,
    report,
    trace_endpoint,
    warmup_of,
)
from .model_export import check_version
from .padding import with_padding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ....engine.graph import Operation
    from ...structures import Arrays, InputSpecs
    from ..storage import WarmupRequest


class ExportArchive:
    """Collects functions, each an endpoint with a name, and writes them as one servable, as Keras's class does.

    What the endpoints share, weights above all, is written once. The endpoint called "serving_default" answers requests
    that name none; without one of that name, the first does.

    >>> import tempfile
    >>> import anabranch as ab
    >>> encoder = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1, kernel_initializer="ones")])
    >>> archive = ab.export.ExportArchive()
    >>> archive.track(encoder)
    >>> archive.add_endpoint("encode", encoder)
    >>> spec = ab.InputSpec(shape=(None, 2), dtype="float32", name="x")
    >>> archive.add_endpoint("twice", lambda x: {"y": 2 * encoder(x)}, [spec])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     version = archive.write_out(folder, verbose=False)
    ...     servable = ab.serving.load(folder)
    ...     servable([[1.0, 2.0]]).tolist(), servable([[1.0, 2.0]], signature="twice")["y"].tolist()
    ([[3.0]], [[6.0]])
    """

    def __init__(self) -> None:
        self._graph = Graph()
        self._endpoints: dict[str, Endpoint] = {}
        self._warmups: list[WarmupRequest] = []

    def track(self, resource: object) -> None:
        """Accept a layer or model whose weights the endpoints use.

        The graph shows which variables are used, so that nothing has to be tracked; the method is there for Keras's
        scripts.
        """
        if not hasattr(resource, "variables") and not isinstance(resource, Variable):
            raise TypeError(f"track(): expected a layer, a model or a variable, got {type(resource).__name__}.")

    def add_endpoint(
        self,
        name: str,
        fn: Callable[..., object],
        input_signature: InputSpecs | None = None,
        *,
        row_wise: bool | None = None,
        warmup: Arrays | None = None,
        pad: Mapping[str, object] | None = None,
        images: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """Add a function.

        Args:
            name: by which requests ask for it (``signature_name``).
            fn: a function of tensors, or a model, which is called for inference.
            input_signature: an `InputSpec` for each argument, with the batch on axis 0, or structures of them. By
                default the symbolic inputs, if `fn` is a model that has them.
            row_wise: True says that each row's outputs depend on that row alone, so that requests may be computed
                together, where the graph does not show it; False forbids it. None leaves it to the graph.
            warmup, pad, images: example inputs, and inputs that may be filled up or come as images, as of
                `Model.export`.

        Raises:
            ValueError: the name is taken or can't be one, there is no signature, or the function writes variables.
        """
        if not isinstance(name, str):
            raise TypeError(f"add_endpoint(): expected a name, got {type(name).__name__}.")
        check_names("endpoint", [name, *self._endpoints])
        if row_wise not in (None, True, False):
            raise ValueError(f"add_endpoint(row_wise={row_wise!r}): expected True, False or None.")
        function = partial(fn, training=False) if isinstance(fn, Model) else fn
        if isinstance(fn, Model):
            arguments = arguments_of(fn, input_signature)
        elif input_signature is None:
            raise ValueError(
                f"add_endpoint({name!r}): give input_signature, an ab.InputSpec for each argument of the function."
            )
        else:
            arguments = list(input_signature) if isinstance(input_signature, (list, tuple)) else [input_signature]
        endpoint = trace_endpoint(f"Endpoint {name!r}", function, arguments, self._graph, row_wise)
        if images is not None:
            signature = endpoint.signature
            inputs = image_forms("add_endpoint", signature.inputs, images)
            endpoint = endpoint._replace(signature=replace(signature, inputs=inputs))
        request = None if warmup is None else warmup_of(name, endpoint, warmup)
        if pad is not None:
            signature = with_padding("add_endpoint", self._graph, endpoint.signature, pad, request)
            endpoint = endpoint._replace(signature=signature)
        if request is not None:
            self._warmups.append(request)
        self._endpoints[name] = endpoint

    def track_and_add_endpoint(
        self, name: str, resource: Callable[..., object], input_signature: InputSpecs | None = None, **options: Any
    ) -> None:
        """Add a layer or model as an endpoint: `track` and `add_endpoint`, whose arguments these are."""
        self.track(resource)
        self.add_endpoint(name, resource, input_signature, **options)

    def write_out(
        self,
        filepath: str | os.PathLike[str],
        options: object = None,
        verbose: bool = True,
        *,
        version: int | None = None,
    ) -> int:
        """Write all endpoints as a version of a servable; as `Model.export`.

        Raises:
            ValueError: there is no endpoint, or `options`, which are TensorFlow's, are given.
        """
        if options is not None:
            raise ValueError("write_out(options=...): these are options of TensorFlow's SavedModel. Leave them out.")
        if not self._endpoints:
            raise ValueError("write_out(): there is no endpoint. Add one with add_endpoint().")
        check_version("write_out", version)
        signatures = {name: endpoint.signature for name, endpoint in self._endpoints.items()}
        signatures.setdefault(DEFAULT, next(iter(signatures.values())))
        written = write_servable(filepath, self._graph, signatures, version, self._warmups)
        if verbose:
            print(report(os.path.join(filepath, str(written)), signatures))
        return written


def export_graph(
    filepath: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    version: int | None = None,
    row_wise: bool | None = None,
) -> int:
    """Write a part of a graph, from inputs to outputs, as a version of a servable.

    Operations that the outputs do not need, such as those of training, are left out. Variables are written with the
    values that they have.

    Args:
        filepath: the folder of all versions.
        inputs: tensors of a graph, usually placeholders, by the names that requests give them.
        outputs: tensors of the same graph, by name.
        version: its number; by default one more than the highest.
        row_wise: see `ExportArchive.add_endpoint`.

    Returns:
        The version.

    Raises:
        TypeError, ValueError: something is not a tensor of one graph, an output needs another placeholder, or variables
            are written.
        SavedGraphError: an operation holds a Python function; the message names its line.

    >>> import tempfile
    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((None,), "float32", "x")
    ...     y = x * 2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     version = ab.serving.export_graph(folder, {"x": x}, {"y": y})
    ...     ab.serving.load(folder)([1.0, 2.0])
    {'y': array([2., 4.], dtype=float32)}
    """
    check_version("export_graph", version)
    for what, given in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(given, Mapping):
            raise TypeError(
                f"export_graph(): expected {what} as a dict of tensors by name, got {type(given).__name__}."
            )
    check_names("input", list(inputs))
    check_names("output", list(outputs))
    for name, tensor in (*inputs.items(), *outputs.items()):
        if not isinstance(tensor, Symbol):
            raise TypeError(f"export_graph(): {name!r} is {type(tensor).__name__}; expected a tensor of a graph.")
    graphs = {tensor.graph for tensor in (*inputs.values(), *outputs.values())}
    if len(graphs) != 1 or not outputs:
        raise ValueError("export_graph(): expected at least one output, and all tensors in one graph.")
    (graph,) = graphs
    needed = needed_operations(graph, list(outputs.values()), list(inputs.values()))
    fed = {tensor.operation for tensor in inputs.values()}
    _check_placeholders(needed, fed, inputs)
    check_effects("The graph", needed)
    given = tuple(info_of("The graph", name, tensor) for name, tensor in inputs.items())
    signature = Signature(
        given, tuple(info_of("The graph", name, tensor) for name, tensor in outputs.items()), "dict", row_wise
    )
    check_row_wise("The graph", signature)
    kept = {*needed, *needed_operations(graph, list(inputs.values()))}
    return write_servable(filepath, graph, {DEFAULT: signature}, version, operations=kept)


def _check_placeholders(needed: Iterable[Operation], fed: Collection[Operation], inputs: Mapping[str, object]) -> None:
    for operation in needed:
        if operation.type == "placeholder" and operation not in fed:
            raise ValueError(
                f"export_graph(): they need the placeholder {operation.name!r}, defined at {operation.location}. "
                f"It is none of the inputs {', '.join(map(repr, inputs)) or '(none)'}. Name it among them."
            )
