"""`Layer`: state (weights) and a computation (`call`), usable on tensors and on arrays."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from ...engine import ops
from ...engine.common.keywords import keywords_of, unexpected_keywords
from ...engine.common.outputs import HasCall, Result
from ...engine.graph import Graph, Tensor, Value, eagerly, flatten, in_stateless_scope, pack_as
from ...engine.graph.context import in_explicit_graph
from ...engine.graph.graph import get_default_graph, graph_for
from ...engine.graph.provenance import building_part, user_stacklevel
from ...engine.graph.tracebacks import shorten
from ...engine.objects import regularizers
from ...engine.objects.identifiers import RegularizerLike
from ...engine.ops.math.elementwise import identity as pass_on  # ops.identity is the matrix
from ...engine.session import placeholder
from ...engine.summaries.scopes import recording
from .added_losses import LostLoss, losses_exist, losses_within, note_lost_losses
from .calling import (
    CallSignature,
    active_call,
    by_keyword,
    calls_around,
    defines_forward,
    enclosing_path,
    enclosing_training,
    is_array,
    is_outermost,
    is_symbolic,
    map_leaves,
    masks_of,
    numbers_to_arrays,
    positional,
    shapes_of,
    signature_of,
    symbols_in,
    tensors_in,
    to_tensors,
)
from .input_spec import check_inputs, refuse_sparse_inputs
from .layer_config import SHAPE_ARGUMENTS
from .node import Node, graph_for_shapes, is_construction_graph
from .placed import place_of_call
from .remat_scope import current_remat_scope
from .shape_programs import ArrayFunction
from .stated_outputs import call_or_stated
from .stateless import StatelessCalls

if TYPE_CHECKING:
    from ...engine.objects.identifiers import PolicyLike
    from .node import Arguments


class Layer(StatelessCalls):
    """The base of all layers: make weights in `build`, compute in `call`.

    Args:
        activity_regularizer: a regularizer (or its name) of the layer's outputs; divided by the number of rows, it is
            added to the loss.
        trainable: whether optimizers update its weights.
        dtype: the dtype of weights and computation, or a `DTypePolicy` or its name, such as ``"mixed_float16"``:
            weights in float32, computation in float16. By default `config.dtype_policy()`, float32.
        autocast: cast floating inputs and weights to the dtype of the computation.
        name: a name; by default from the class: ``dense``, ``dense_1``.
        **kwargs: ``input_shape`` (without the batch), ``batch_shape`` or ``input_dim``: the input's shape, where the
            layer is the first of a `Sequential`.

    A layer called on tensors adds to their graph; called on arrays it runs, compiled, and returns arrays. It builds
    its weights at the first call, from the shape that it sees. Layers and variables that are attributes, also inside
    lists and dicts, belong to it. `training` and `mask` are handed on to each `call` that has a parameter so named.

    >>> import anabranch as ab
    >>> class Scale(ab.layers.Layer):
    ...     def build(self, input_shape):
    ...         self.factor = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="factor")
    ...     def call(self, inputs):
    ...         return inputs * self.factor
    >>> Scale()([[1.0, 2.0]])
    Tensor([[1., 2.]], dtype=float32)
    """

    supports_jit: bool = True  # as in Keras, for code that asks; calls are compiled however it is set
    has_loops: bool = False  # whether calls on values run compiled: op by op, each step of a loop costs more

    def __init_subclass__(cls, **kwargs: Mapping[str, str] | None) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in cls.__dict__:
            setattr(cls, "build", _recorded_build(cls.__dict__["build"]))  # noqa: B010 - a method can't be assigned
        elif "weight_specs" in cls.__dict__ and cls.build is Layer.build:
            setattr(cls, "build", _recorded_build(_build_by_specs))  # noqa: B010

    def __init__(
        self,
        *,
        activity_regularizer: RegularizerLike = None,
        trainable: bool = True,
        dtype: PolicyLike = None,
        autocast: bool = True,
        name: str | None = None,
        **kwargs: object,
    ) -> None:
        unknown = sorted(set(kwargs) - set(SHAPE_ARGUMENTS))
        if unknown:
            raise unexpected_keywords(type(self).__name__, unknown, keywords_of(type(self)))
        super().__init__(name, trainable, dtype)
        self.activity_regularizer = regularizers.get(activity_regularizer, "activity_regularizer")
        self.autocast = autocast
        self.supports_masking = False
        self.input_spec: Any = None  # one, or a list of them
        self.batch_input_shape = _batch_input_shape(kwargs)
        self._latest_output_shapes: object = None  # for summaries: what the latest call gave, in its structure
        self._build_shapes: dict[str, object] | None = None
        self._remat = current_remat_scope()

    # --- what subclasses define -----------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """Make the weights. Unless a class overrides it, its parts are built by a call on symbols of that shape.

        Args:
            input_shape: the input's shape, a tuple with None for unknown dimensions; a list of them where the first
                argument of `call` is a list. A class may instead name ``<argument>_shape`` for arguments of `call`.
        """
        if self._is_building:
            return
        has_call = type(self).call is not Layer.call
        if has_call and any(not layer.built for layer in self._sublayers()):
            self._trace(input_shape)
        if not self.built:
            self._build_shapes, self.built = {"input_shape": input_shape}, True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from the inputs, by ops and other layers. Subclasses define this method."""
        rename = " Rename its forward." if defines_forward(self) else ""
        raise NotImplementedError(f"Layer {self.name!r}: class {type(self).__name__} does not define call().{rename}")

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the output, from the inputs and their mask; the latter unless a class overrides this."""
        return previous_mask

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output's shape (or a structure of shapes), found by a call on symbols of the input shape."""
        return shapes_of(self._trace(*args, **kwargs))

    # --- calling --------------------------------------------------------------------------------------------

    def __call__(self: HasCall[Result], *args: Any, **kwargs: Any) -> Result:
        """Call the layer: on values and arrays it computes, on symbols and where a graph is being built it builds.

        Returns:
            What `call` returns: a tensor for most layers, and for type checkers what its annotation says.

        Raises:
            ValueError: an input does not fit the layer (named, with what was expected and what was got).
        """
        layer: Any = self  # the annotation of `self` is there for type checkers, and names `call` only
        try:
            layer._check_initialized()
            if not is_symbolic(args, kwargs):
                args = (*map(numbers_to_arrays, args[:1]), *args[1:])
                if layer.has_loops and not in_stateless_scope():
                    return layer._call_compiled(args, kwargs)
                return layer._called(None, args, kwargs)
            return layer._call_on_tensors(args, kwargs)
        except Exception as error:
            shorten(error)
            raise

    def _call_on_tensors(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        symbols = symbols_in((args, kwargs))
        if not symbols and not in_explicit_graph():
            return self._called(None, args, kwargs)
        with _graph_of(symbols) as graph, calls_around(graph):
            return self._called(graph, args, kwargs)

    def _called(self, graph: Graph | None, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call the layer: return the outputs, built into `graph`, or computed at once if there is none."""
        outermost = is_outermost()
        if outermost:
            self._clear_losses()
        arguments, training = self._bind(args, kwargs)
        given = tensors_in(list(arguments.values()))
        first = next(iter(arguments.values()), None)
        masks = masks_of(first)
        converted = to_tensors(arguments, self.compute_dtype if self.autocast else None)
        outputs = self._run_call(graph, arguments, converted, training)
        records = outermost and graph is not None and is_construction_graph(graph)
        explicit_mask = arguments.get("mask")
        masked = self._output_masks(first, outputs, masks if explicit_mask is None else explicit_mask)
        if records or masked or (graph is not None and graph.in_control_block):
            outputs = _apart_from(outputs, given)  # what is passed on waits for control dependencies, too
        _set_masks(outputs, masked)
        if records:
            Node(self, (args, kwargs), outputs)
        if outermost and graph is None and losses_exist():
            note_lost_losses(self._flatten_layers())
        self._latest_output_shapes = shapes_of(outputs)
        return outputs

    def _run_call(
        self, graph: Graph | None, arguments: dict[str, object], converted: dict[str, object], training: bool | None
    ) -> object:
        """Build, check, and run `call` inside the layer's scopes."""
        try:
            with (
                active_call(self.name, training, self) as active,
                nullcontext() if graph is None else graph.name_scope(self.name),
                building_part("layer", active.path),
            ):
                self._ensure_built(converted)
                self._check_input_spec(converted)
                self._fill_masks(arguments, converted)
                active.autocast = self._weights_dtype()
                with place_of_call(self):
                    outputs = self._call_itself(graph, converted)
                    active.autocast = None
                    self._regularize_activity(outputs)
        except Exception as error:
            shapes = {name: shapes_of(value) for name, value in converted.items() if tensors_in(value)}
            error.add_note(f"In the call of layer {self.name!r} ({type(self).__name__}) on shapes {shapes}.")
            raise
        return outputs

    def _call_itself(self, graph: Graph | None, converted: dict[str, object]) -> object:
        call = partial(self.call, *positional(converted), **by_keyword(converted))
        if self._remat is not None and graph is not None:
            given = tensors_in(list(converted.values()))
            call = partial(self._remat.call, self.name, hasattr(self, "activation"), call, given)
        return call_or_stated(self, graph, converted, call)

    def _weights_dtype(self) -> str | None:
        """Return the dtype in which `call` reads weights; None for their own."""
        mixes = self.autocast and self.compute_dtype != self.variable_dtype
        return self.compute_dtype if mixes else None

    @property
    def _call_signature(self) -> CallSignature:
        return signature_of(type(self).call)

    @property
    def call_signature_parameters(self) -> list[str]:
        """The names of the arguments of `call`."""
        return list(self._call_signature.names)

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[dict[str, object], bool | None]:
        """Return the arguments by parameter name, and the value of `training`: given, from around, or by default."""
        signature = self._call_signature
        takes_training = signature.takes("training")
        given = kwargs
        if "training" in kwargs and not takes_training and not signature.takes_anything:
            given = {name: value for name, value in kwargs.items() if name != "training"}
        try:
            arguments = signature.bind(args, given)
        except TypeError as error:
            raise TypeError(
                f"Layer {self.name!r}: {type(self).__name__}.call({signature.described}) can't take what it was "
                f"given: {error}."
            ) from None
        training = arguments.get("training", kwargs.get("training"))
        if training is None:
            training = enclosing_training()
        if training is None and takes_training:
            training = signature.default("training")
        if takes_training:
            arguments["training"] = training
        return arguments, training

    def _fill_masks(self, arguments: dict[str, object], converted: dict[str, object]) -> None:
        """Hand the masks that the inputs carry to the parameters ``mask`` and ``<input>_mask`` of `call`."""
        signature = self._call_signature
        for position, (name, value) in enumerate(list(arguments.items())):
            parameter = "mask" if position == 0 and signature.takes("mask") else f"{name}_mask"
            if signature.takes(parameter) and arguments.get(parameter) is None:
                mask = masks_of(value)
                if mask is not None:
                    converted[parameter] = mask

    def _output_masks(self, inputs: object, outputs: object, previous: object) -> list[Tensor | None]:
        """Return a mask (or None) for each output tensor; an empty list where the layer has nothing to say."""
        if not (self.supports_masking or type(self).compute_mask is not Layer.compute_mask):
            if previous is not None and type(self).call is not Layer.call:
                self._warn_of_lost_mask(previous)
            return []
        mask = self.compute_mask(inputs, previous)
        if mask is None:
            return []
        leaves = flatten(outputs)
        own = type(self).compute_mask is not Layer.compute_mask
        masks = [*_mask_leaves(mask), *[None] * len(leaves)][: len(leaves)]  # a single mask is that of the first output
        # The mask that a layer inside gave to an output is better than that of the input, which is passed on.
        return [mask if own else _mask_of(leaf, mask) for leaf, mask in zip(leaves, masks, strict=True)]

    def _warn_of_lost_mask(self, previous: object) -> None:
        if self._call_signature.takes("mask") or not flatten(previous):
            return  # the layer saw the mask, and has used it up
        warnings.warn(
            f"Layer {self.name!r} ({type(self).__name__}) was given an input with a mask, which it does not support: "
            "layers behind it will not see the mask. Set self.supports_masking = True if it keeps positions apart, "
            "or define compute_mask().",
            stacklevel=user_stacklevel(),
        )

    def _regularize_activity(self, outputs: object) -> None:
        if self.activity_regularizer is None:
            return
        for output in tensors_in(outputs):
            penalty = ops.convert_to_tensor(self.activity_regularizer(output))
            if output.shape != ():  # as strong in large batches as in small ones
                penalty = ops.divide_no_nan(penalty, ops.cast(ops.shape(output)[0], penalty.dtype))
            self.add_loss(penalty)

    def _check_input_spec(self, converted: dict[str, object]) -> None:
        if self.input_spec is not None:
            check_inputs(self.input_spec, next(iter(converted.values()), None), self.name)

    def _check_initialized(self) -> None:
        if "_weights" not in self.__dict__:
            raise RuntimeError(
                f"{type(self).__name__}.__init__() did not call super().__init__(). Make that its first statement."
            )

    def _call_compiled(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run compiled: one function for each combination of settings, traced for each kind of values."""
        leaves = flatten((args, kwargs))
        data = len(flatten(args[0])) if args else 0  # numbers among the inputs are data, elsewhere settings
        positions = [i for i, leaf in enumerate(leaves) if _is_data(leaf) or (i < data and _is_number(leaf))]
        settings = [None if i in positions else leaf for i, leaf in enumerate(leaves)]
        masks = [_mask_of(leaves[i], None) for i in positions]
        key = (_form((args, kwargs)), tuple(positions), tuple(_hashable(setting) for setting in settings), recording())
        layers = tuple([(id(layer), layer.trainable, layer._weights_version) for layer in self._flatten_layers()])
        key = (*key, layers, _form(masks))
        if key not in self._functions:
            self._functions[key] = self._compiled_call((args, kwargs), settings, positions)
        function: ArrayFunction = self._functions[key]
        keeps = losses_exist() and not is_outermost()  # what calls of the layer before have added within the same call
        with self._losses_kept() if keeps else nullcontext():
            found = function(*[leaves[position] for position in positions], *flatten(masks))
        if found is None:  # it can't be differentiated as a whole
            return self._call_on_tensors(args, kwargs)
        outputs, losses, masked = found
        _set_masks(outputs, _mask_leaves(masked))
        if not keeps:
            self._clear_losses()
        self._keep_losses([*self._added_losses, *losses, *function.notes])
        return outputs

    def _compiled_call(self, arguments: Arguments, settings: Sequence[object], positions: list[int]) -> ArrayFunction:
        masked = [_mask_of(leaf, None) is not None for leaf in flatten(arguments)]

        def run(*tensors: Tensor) -> object:
            filled: list[object] = list(settings)
            masks = iter(tensors[len(positions) :])
            for position, tensor in zip(positions, tensors, strict=False):
                filled[position] = tensor
                if masked[position]:
                    tensor.annotations["mask"] = next(masks)
            outputs = self._call_on_tensors(*pack_as(arguments, filled))
            losses = losses_within(get_default_graph(), self._flatten_layers())
            function.notes = [loss for loss in losses if isinstance(loss, LostLoss)]
            masks_out = [_mask_of(leaf, None) for leaf in flatten(outputs)]
            return outputs, [loss for loss in losses if not isinstance(loss, LostLoss)], masks_out

        function = ArrayFunction(run)
        return function

    # --- building -------------------------------------------------------------------------------------------

    def _build_at_init(self) -> None:
        """Note that a layer without weights needs no `build`, unless a subclass defines one."""
        self.built = type(self).build is Layer.build

    def _ensure_built(self, arguments: dict[str, object]) -> None:
        if self.built:
            return
        if self.input_spec is not None:
            refuse_sparse_inputs(next(iter(arguments.values()), None), self.name)
        shapes = self._shapes_for("build", arguments)
        if type(self).build is Layer.build:
            self._build_shapes, self.built = shapes, True  # the call that follows builds the parts
        else:
            with eagerly():  # what is computed here happens once, not in each step of the graph around
                self.build(**shapes)

    def _shapes_for(self, method: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return the shapes that `build` or `compute_output_shape` asks for, by its parameters."""
        parameters = signature_of(getattr(type(self), method))
        first = shapes_of(next(iter(arguments.values()), None))
        if len(parameters.names) == 1:
            return {parameters.names[0]: first}
        shapes = {f"{name}_shape": shapes_of(value) for name, value in arguments.items() if tensors_in(value)}
        missing = [name for name in parameters.required if name not in shapes]
        if missing:
            raise ValueError(
                f"Layer {self.name!r}: {method}() of {type(self).__name__} asks for {', '.join(missing)}, but the call "
                f"gives {', '.join(shapes) or 'no tensors'}. Name its parameters after those of call(): x_shape for x."
            )
        return {name: shape for name, shape in shapes.items() if parameters.takes(name) or parameters.takes_anything}

    def _trace(self, *shapes: object, **named_shapes: object) -> object:
        """Return the outputs of a call on symbols of the given shapes, in a graph made for it."""
        with graph_for_shapes(), self._losses_kept():
            args = [_symbols(shape, self.compute_dtype) for shape in shapes]
            kwargs = {
                name.removesuffix("_shape"): _symbols(shape, self.compute_dtype) for name, shape in named_shapes.items()
            }
            if len(kwargs) == 1 and "input" in kwargs:
                args, kwargs = [kwargs["input"]], {}
            return self._call_on_tensors(tuple(args), kwargs)

    def trace_again(self) -> object:
        """Return the outputs of a call on symbols of the shapes that the layer was built for.

        Raises:
            ValueError: these are not known.
        """
        shapes = self._build_shapes
        if not shapes:
            raise ValueError(
                f"Layer {self.name!r} has no known input shapes. Call it on data, or build(input_shape), first."
            )
        return self._trace(shapes["input_shape"]) if list(shapes) == ["input_shape"] else self._trace(**shapes)

    @property
    def input(self) -> Any:
        """The symbolic input of the layer's only (or first) call in a functional model."""
        args, _ = self._first_node().arguments
        tensors = symbols_in(args)
        return tensors[0] if len(tensors) == 1 else (args[0] if len(args) == 1 else list(args))

    @property
    def output(self) -> Any:
        """The symbolic output of the layer's only (or first) call in a functional model."""
        return self._first_node().outputs

    def _first_node(self) -> Node:
        if not self.inbound_nodes:
            raise AttributeError(
                f"Layer {self.name!r} has no symbolic input or output: it was never called on a tensor from ab.Input."
            )
        return self.inbound_nodes[0]


# --- building -------------------------------------------------------------------------------------------------------


def _build_by_specs(self: Layer, input_shape: object) -> None:
    """Make the weights that `weight_specs` lists."""
    self.build_weights(self.weight_specs(input_shape))


def _recorded_build(build: Callable[..., None]) -> Callable[..., None]:
    """Return a class's own `build`, which from now on also notes that the layer is built, and for which shapes."""

    @functools.wraps(build)
    def recorded(self: Layer, *args: object, **kwargs: object) -> None:
        self._check_initialized()
        if self._is_building:  # super().build() inside build()
            build(self, *args, **kwargs)
            return
        if self.built and self._weights:
            return
        bound = inspect.signature(build).bind(self, *args, **kwargs)
        self._is_building = True
        try:
            with _scope_of(self):
                build(self, *args, **kwargs)
            self._check_quantized_weights()
        finally:
            self._is_building = False
        named = list(bound.arguments.items())[1:]
        variadic = {p.name for p in inspect.signature(build).parameters.values() if p.kind in (2, 4)}
        shapes = {name: shape for name, shape in named if name not in variadic}
        self._build_shapes = shapes if shapes or not named else None
        self.built = True

    return recorded


@contextmanager
def _scope_of(layer: Layer) -> Generator[None]:
    """Open the layer's place in paths; do nothing if its call has already opened it."""
    if enclosing_path().endswith(f"{layer.name}/"):
        yield
        return
    with active_call(layer.name):
        yield


def _symbols(shape: Any, dtype: str) -> object:
    """Return placeholders of a shape, or of a structure of shapes."""
    if shape is None:
        return None
    if isinstance(shape, dict):
        return {name: _symbols(item, dtype) for name, item in shape.items()}
    if any(isinstance(item, (tuple, list)) or (item is not None and not isinstance(item, int)) for item in shape):
        return [_symbols(item, dtype) for item in shape]
    return placeholder(tuple(shape), dtype)


def _batch_input_shape(kwargs: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    for batch_shape in (kwargs.get("batch_shape"), kwargs.get("batch_input_shape")):
        if batch_shape is not None:
            return tuple(batch_shape)
    shape, features = kwargs.get("input_shape"), kwargs.get("input_dim")
    if shape is None and features is not None:
        shape = (features,)
    return None if shape is None else (kwargs.get("batch_size"), *shape)


# --- calling --------------------------------------------------------------------------------------------------------


@contextmanager
def _graph_of(tensors: Sequence[Tensor]) -> Generator[Graph]:
    """Make the graph in which `tensors` can be used the current one."""
    current = get_default_graph()
    graph = graph_for(tensors) if tensors else current
    if graph is current and in_explicit_graph():
        yield graph
        return
    with graph.entered():
        yield graph


def _apart_from(outputs: object, inputs: list[Tensor]) -> object:
    """Return the outputs, none of which is one of the inputs: notes about an output must not change an input."""
    known = {id(tensor) for tensor in inputs}

    def separate(leaf: object) -> object:
        if isinstance(leaf, Tensor) and (id(leaf) in known or "history" in leaf.annotations):
            return pass_on(leaf)
        return leaf

    return map_leaves(separate, outputs)


def _mask_leaves(masks: object) -> list[Any]:
    """Return the masks of a structure in flat order, with None for those that there are not."""
    if isinstance(masks, dict):
        return [leaf for key in sorted(masks) for leaf in _mask_leaves(masks[key])]
    if isinstance(masks, (list, tuple)):
        return [leaf for item in masks for leaf in _mask_leaves(item)]
    return [masks]


def _mask_of(leaf: object, otherwise: Tensor | None) -> Tensor | None:
    mask = leaf.annotations.get("mask") if isinstance(leaf, Tensor) else None
    return otherwise if mask is None else mask


def _set_masks(outputs: object, masks: Sequence[Tensor | None]) -> None:
    if not masks:
        return
    for output, mask in zip(flatten(outputs), masks, strict=True):
        if isinstance(output, Tensor) and mask is not None:
            output.annotations["mask"] = mask


def _is_data(leaf: object) -> bool:
    return is_array(leaf) or isinstance(leaf, Value)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)


def _form(structure: object) -> Hashable:
    """Return the nesting of a structure, hashable, without its leaves."""
    if isinstance(structure, dict):
        return ("dict", tuple((key, _form(value)) for key, value in structure.items()))
    if isinstance(structure, (list, tuple)):
        return (type(structure).__name__, tuple(_form(item) for item in structure))
    return structure is None


def _hashable(setting: object) -> Hashable:
    try:
        hash(setting)
    except TypeError:
        return id(setting)
    return type(setting), setting
