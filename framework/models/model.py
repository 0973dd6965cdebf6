"""`Model`: a layer that can be trained, summarised and saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, cast, overload

from ...engine.common.dtypes import DTypeLike
from ...engine.common.operator_table import operator_functions
from ...engine.common.outputs import Outputs
from ...engine.common.properties import replaceable_property, reserved_property
from ...engine.graph import flatten
from ...engine.objects.registry import custom_object_scope, register_builtins
from ...layers.core.calling import defines_forward, shapes_of
from ...layers.core.layer import Layer
from ..saving import own_classes  # noqa: F401 - it announces classes
from ..saving.checkpointing import stateful_parts
from ..saving.nested_state import NestedState
from ..training.limits import show
from .constructors import has_own_constructor, note_constructor
from .functional_call import inputs_and_outputs, is_functional_call
from .layer_graph import layer_graph_between
from .seen_inputs import call_takes_more_than, note_dtypes, note_inputs
from .trainer import Trainer

if TYPE_CHECKING:
    from ...engine.graph import ShardedVariable, Tensor, Variable
    from ...engine.objects.identifiers import RegularizerLike
    from ...engine.ops.random.keys import SeedGenerator
    from ...layers.quantizers.base_config import QuantizationConfig
    from ...layers.quantizers.whole_models import Filters
    from ..model_types import ModelData
    from ..structures import (
        Arrays,
        InputSpecs,
        LayerOfSomeClass,
        LoadOptions,
        Masks,
        PathLike,
        Rows,
        SaveOptions,
        Tensors,
    )
    from ..training.step_report import ModelExplanation, ModelProfile


class Model(Trainer, NestedState, Generic[Outputs]):
    """Layers with a way to train them: subclass it, or give inputs and outputs.

    Args:
        inputs: with `outputs`, makes a functional model: a tensor from `Input`, or a list or dict of them.
        outputs: what layers made out of `inputs`: a tensor, or a list or dict of them.
        name, trainable, dtype, autocast: as for layers.

    A subclass makes its layers in ``__init__`` and uses them in ``call``:

    >>> import anabranch as ab
    >>> class Classifier(ab.Model):
    ...     def __init__(self, classes):
    ...         super().__init__()
    ...         self.hidden = ab.layers.Dense(8, activation="relu")
    ...         self.head = ab.layers.Dense(classes, activation="softmax")
    ...     def call(self, inputs):
    ...         return self.head(self.hidden(inputs))
    >>> model = Classifier(3)
    >>> model([[0.5, -1.0]]).shape
    (1, 3)

    A functional model is made of symbolic tensors:

    >>> x = ab.Input((2,))
    >>> model = ab.Model(inputs=x, outputs=ab.layers.Dense(3)(x))
    >>> [layer.name.rstrip("_0123456789") for layer in model.layers]
    ['input_layer', 'dense']
    """

    _parts_have_own_paths = True
    untracked = (
        Layer.untracked
        | {"_known_graph", "_steps", "_trained_variables", "_latest", "_found_metrics", "_read_logs_program"}
        | {"optimizer", "_trained_states", "_seen_dtypes", "_kept_steps", "_held_first"}
    )
    _held_first: Sequence[Layer] = ()  # the layers that were attributes before inputs and outputs were given

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if cls is Model and is_functional_call(args, kwargs):
            return cast("Self", Layer.__new__(Functional, *args, **kwargs))
        return super().__new__(cls, *args, **kwargs)

    @overload
    def __init__(
        self,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DTypeLike = None,
        autocast: bool = True,
        activity_regularizer: RegularizerLike = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        inputs: Tensors,
        outputs: Outputs,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DTypeLike = None,
        autocast: bool = True,
        activity_regularizer: RegularizerLike = None,
    ) -> None: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        functional = is_functional_call(args, kwargs)
        inputs, outputs = inputs_and_outputs(args, kwargs) if functional else ((), ())
        if args and not functional:
            has_layers = any(isinstance(each, Layer) for each in flatten(args))
            in_a_row = " For layers one after the other pass a list to ab.Sequential: ab.Sequential([...])."
            raise TypeError(
                f"{type(self).__name__}: Model.__init__() takes inputs and outputs (both), which are tensors made from "
                f"ab.Input, or keyword arguments only; got {len(args)} positional argument(s).{in_a_row * has_layers}"
            )
        Layer.__init__(self, **{name: value for name, value in kwargs.items() if name not in ("inputs", "outputs")})
        self._init_steps()
        if functional:
            self._held_first = self._held_by_age(Layer, type(self).untracked)
            self._known_graph = layer_graph_between(inputs, outputs, self.name)
            self.autocast = False  # each layer casts its own inputs and weights
            self.built = True

    def _call(self, inputs: object, training: bool | Tensor | None = None, mask: Masks | Tensor = None) -> Any:
        """Compute the outputs. Subclasses define this method; functional models have it."""
        graph = self._layer_graph
        if graph is None:
            remedy = "Rename forward to call." if defines_forward(self) else "Define it, or use Model(inputs, outputs)."
            who = f"Model {self.name!r}: {type(self).__name__}"
            raise NotImplementedError(f"{who} defines no call(self, inputs). {remedy}")
        masks: Masks = [mask] if mask is not None and not isinstance(mask, (list, tuple)) else mask
        return graph.run(inputs, masks, training)

    # For type checkers any arguments, and what a functional model was given as outputs: a subclass has its own.
    call: Callable[..., Outputs] = _call

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Make the weights, by calling the model on symbols.

        Args:
            input_shape: the shape, with the batch, of the first argument of `call`, or a list or dict of shapes.
            **shapes: ``<argument>_shape`` of each argument, if there are several.
        """
        says_too_little = self._is_building and not shapes and call_takes_more_than(self, 1)  # super().build()
        if self._layer_graph is not None or (input_shape is None and not shapes) or says_too_little:
            return
        self.built = True  # the call makes the weights, and must not build the model again
        try:
            self._trace(*([] if input_shape is None else [input_shape]), **shapes)
        except BaseException:
            self.built = False
            raise

    def _ensure_built(self, arguments: dict[str, object]) -> None:
        if self.built or type(self).build is not Model.build:
            if not self.built:
                note_dtypes(self, arguments)
            super()._ensure_built(arguments)
            return
        note_inputs(self, arguments)  # the call that follows makes the weights; this lets `load_model` do the same
        self.built = True

    def trace_again(self) -> Any:
        if self._layer_graph is None:
            return super().trace_again()
        return self.symbolic_call(self._layer_graph.inputs_structure)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return None, so that masks that the layers inside gave to the outputs stay; the model itself adds none."""
        return None

    # --- layers ---------------------------------------------------------------------------------------------

    @reserved_property
    def layers(self) -> list[LayerOfSomeClass]:
        """The layers directly inside, in the order in which they compute (functional) or were made attributes."""
        return self._sublayers(by_age=True)

    def _sublayers(self, by_age: bool = False) -> list[Any]:
        graph = self._layer_graph
        own = [] if graph is None else graph.layers
        return [*own, *[layer for layer in super()._sublayers(by_age) if layer not in own]]

    def _layers_by_age(self) -> Sequence[Layer]:
        found = self._sublayers(by_age=True)
        places = {id(layer): place for place, layer in enumerate(self._held_first)}
        return sorted(found, key=lambda layer: places.get(id(layer), len(places))) if places else found

    def get_layer(self, name: str | None = None, index: int | None = None) -> LayerOfSomeClass:
        """Return the layer called `name`, or number `index` of `layers`.

        Raises:
            ValueError: there is none, or both or neither were given.
        """
        if (name is None) == (index is None):
            raise ValueError("get_layer() needs a name or an index, one of them.")
        layers = self.layers
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise ValueError(f"get_layer(index={index}): model {self.name!r} has {len(layers)} layers.")
            return layers[index]
        if found := [layer for layer in layers if layer.name == name]:
            return found[0]
        names = ", ".join(layer.name for layer in layers)
        raise ValueError(f"Model {self.name!r} has no layer called {name!r}. Its layers are: {names}.")

    @replaceable_property
    def inputs(self) -> Any:
        """The symbolic inputs of a functional model, flat; None for others."""
        return None if self._layer_graph is None else self._layer_graph.inputs

    @replaceable_property
    def outputs(self) -> Any:
        """The symbolic outputs of a functional model, flat; None for others."""
        return None if self._layer_graph is None else self._layer_graph.outputs

    @property
    def input(self) -> Any:
        """The symbolic input of a functional model, in the structure in which it was given."""
        return super().input if self._layer_graph is None else self._layer_graph.inputs_structure

    @property
    def output(self) -> Any:
        """The symbolic output of a functional model, in the structure in which it was given."""
        return super().output if self._layer_graph is None else self._layer_graph.outputs_structure

    @replaceable_property
    def input_shape(self) -> Any:
        """The shape of the symbolic input, or a structure of shapes."""
        return shapes_of(self.input)

    @replaceable_property
    def output_shape(self) -> Any:
        """The shape of the symbolic output, or a structure of shapes."""
        return shapes_of(self.output)

    @replaceable_property
    def input_names(self) -> list[str] | None:
        return None if self._layer_graph is None else self._layer_graph.input_names

    @replaceable_property
    def output_names(self) -> list[str] | None:
        return None if self._layer_graph is None else self._layer_graph.output_names

    # --- summary and files ----------------------------------------------------------------------------------

    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Callable[[str], object] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: tuple[str, str] | None = None,
    ) -> None:
        """Print a table of the layers: names, output shapes, parameters.

        Args:
            line_length, positions: the width of the table, by default as needed; columns are as wide as their contents.
            print_fn: called with the whole text instead of printing it.
            expand_nested: show the layers of models inside, too.
            show_trainable: add a column that says which layers are trained.
            layer_range: the names of the first and the last layer to show.
        """
        text_of = operator_functions["summary_text"]
        (print_fn or show)(text_of(self, line_length, expand_nested, show_trainable, layer_range))

    def profile(
        self,
        x: ModelData,
        y: Rows | None = None,
        sample_weight: Rows | None = None,
        kind: str | None = None,
        batch_size: int | None = None,
        runs: int | None = None,
    ) -> ModelProfile:
        """Measure the time of a step by layer, forward and backward, without changing the model.

        Args:
            x, y, sample_weight, batch_size: data as for `fit`, of which the first batch is taken.
            kind: "train", "test" or "predict"; by default "train", and "predict" of a model that is not compiled or
                of arrays without targets.
            runs: how often the step is run, without clocks and with them; times are medians of the quickest quarter.
                By default as often as two seconds allow, from 5 to 200 times. Weights, optimizer, metrics and random
                state are put back behind it.

        Returns:
            A `ModelProfile`: as text a table; `to_html` and `to_speedscope` write it as a page and as a flame graph.

        Raises:
            ValueError: the model is not compiled, `kind` is unknown, or `runs` is less than 1.

        >>> import anabranch as ab
        >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3, name="hidden"), ab.layers.Dense(1, name="head")])
        >>> model.compile("adam", "mse")
        >>> found = model.profile([[0.5, -1.0]], [[1.0]], runs=1)
        >>> [line.name for line in found.layers]
        ['hidden', 'head', 'loss', 'optimizer', 'metrics']
        """
        from ..training.step_report import profile_step

        return profile_step(self, (x, y, sample_weight), kind, batch_size, runs)

    def explain(
        self,
        x: ModelData | None = None,
        y: Rows | None = None,
        sample_weight: Rows | None = None,
        kind: str = "train",
        batch_size: int | None = None,
        passes: bool = False,
    ) -> ModelExplanation:
        """Explain a step: loops, kernels, products in short, then the program with the layer behind each line.

        Args:
            x, y, sample_weight, batch_size: data as for `fit`, for whose first batch the step is compiled; by default
                the step that was compiled last.
            kind: "train", "test" or "predict".
            passes: instead of the program, what each pass of the compiler did.

        Returns:
            A `ModelExplanation`: `str` of it is the text; `source` is the program, `llvm` its kernels, and `to_html`
            writes both beside your lines as a page.

        Raises:
            ValueError: the model is not compiled, `kind` is unknown, or there is no step yet and no data.

        >>> import anabranch as ab
        >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1, name="head")])
        >>> explained = model.explain([[0.5, -1.0]], kind="predict")
        >>> next(line.text.strip() for line in explained.lines if "@" in line.text)
        'matmul = x @ read'
        """
        from ..training.step_report import explain_step

        return explain_step(self, (x, y, sample_weight), kind, batch_size, passes)

    def quantize(  # pyrefly: ignore[bad-override] - as in Keras
        self,
        mode: str | None = None,
        config: str | QuantizationConfig | None = None,
        filters: Filters = None,
        verbose: bool = False,
        *,
        include: str = "keras",
        calibration: Mapping[str, tuple[float, int]] | None = None,
        type_check: bool = True,
    ) -> dict[str, str]:
        """Replace weights by integers of few bits, for inference that is quicker and takes less memory.

        Args:
            mode: ``"int8"``: weights as int8, and activations row by row; ``"int4"``: weights as int4; ``"gptq"`` and
                ``"awq"``: weights by what the model computes of data. By default that of `config`.
            config: a `quantizers.QuantizationConfig`; by default that of `mode`.
            filters: which layers: a pattern of their names, a list of patterns, or a function of the layer.
            verbose: whether to print what is returned; Keras prints by default.
            include: "keras" for the layers that Keras quantises, so that it can load the file; "all" for others, in
                mode "int8": kernels of convolutions, and matrices that any layer multiplies rows by (``x @ self.w``).
            calibration: fixed scales of activations by the paths of layers; see `quantizers.calibrate`.
            type_check: leave out layers of classes that derive from those of anabranch.

        Returns:
            By the path of each layer with weights of its own its mode, or why it stays as it is.

        Raises:
            ValueError: the model is not built, or has quantised layers already, or mode and config do not fit.
            NotImplementedError: the mode is float8.

        Weights are frozen from then on, and the optimizer of a compiled model starts again.

        >>> import anabranch as ab
        >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")], name="small")
        >>> model.quantize("int8")
        {'head': 'int8'}
        """
        from ...layers.quantizers.whole_models import quantize_layers

        try:
            return quantize_layers(self, mode, config, filters, verbose, include, calibration, type_check)
        finally:
            self._forget_programs()
            self._renew_optimizer()  # whose slots are those of weights that are gone

    def check_saveable(self, custom_objects: Mapping[str, object] | None = None, safe_mode: bool = True) -> None:
        """Check, before it is trained, that the model could be saved and loaded again.

        Args:
            custom_objects: classes and functions of yours that `load_model` will be given.
            safe_mode: whether lambdas in layers count as what can't be loaded.

        Raises:
            ValueError: some layers could not be; the message names each, and what mends it.
        """
        operator_functions["check_saveable"](self, custom_objects, safe_mode)

    def save(
        self, filepath: PathLike, overwrite: bool = True, zipped: bool | None = None, **options: Unpack[SaveOptions]
    ) -> None:
        """Save the model, its weights and the state of its optimizer to a ``.keras`` file; see `saving.save_model`."""
        operator_functions["save_model"](self, filepath, overwrite=overwrite, zipped=zipped, **options)

    def checkpoint_items(self) -> dict[str, Variable | ShardedVariable | SeedGenerator]:
        """Return all state by name, as `CheckpointManager` saves it: of weights, optimizers, metrics and generators."""
        if self.built and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return dict(stateful_parts(self))

    def save_weights(
        self, filepath: PathLike, overwrite: bool = True, max_shard_size: str | float | None = None
    ) -> None:
        """Save the weights to a ``.weights.h5`` or ``.safetensors`` file; see `saving.save_weights`."""
        operator_functions["save_weights"](self, filepath, overwrite=overwrite, max_shard_size=max_shard_size)

    def load_weights(self, filepath: PathLike, skip_mismatch: bool = False, **options: Unpack[LoadOptions]) -> None:
        """Load weights that `save_weights` or `save` wrote; the model must be built. See `saving.load_weights`."""
        operator_functions["load_weights"](self, filepath, skip_mismatch, **options)

    @overload
    def export(
        self,
        filepath: PathLike,
        format: Literal["onnx"],
        verbose: int | None = None,
        input_signature: InputSpecs | None = None,
        *,
        opset_version: int | None = None,
    ) -> None: ...

    @overload
    def export(
        self,
        filepath: PathLike,
        format: str = "anabranch",
        verbose: int | None = None,
        input_signature: InputSpecs | None = None,
        *,
        version: int | None = None,
        warmup: Arrays | None = None,
        pad: Mapping[str, object] | None = None,
        images: Mapping[str, Mapping[str, object]] | None = None,
        opset_version: int | None = None,
    ) -> int: ...

    def export(
        self,
        filepath: PathLike,
        format: str = "anabranch",
        verbose: int | None = None,
        input_signature: InputSpecs | None = None,
        *,
        version: int | None = None,
        warmup: Arrays | None = None,
        pad: Mapping[str, object] | None = None,
        images: Mapping[str, Mapping[str, object]] | None = None,
        opset_version: int | None = None,
    ) -> int | None:
        """Export the graph of the model's inference and its weights, without its Python code.

        Args:
            filepath: for "anabranch" a folder, of all versions of the model; this one becomes ``filepath/<version>/``.
                For "onnx" a file.
            format: "anabranch", for `anabranch.serving`, or "onnx", for onnxruntime and others.
            verbose: whether to print what was exported; by default it is.
            input_signature: an `InputSpec` for each argument of `call`, with the batch on axis 0, or structures of
                them; by default the symbolic inputs, else what the model was first called on (numbers with the dtype
                of its weights, if it comes from a file). Names of inputs are the keys of a dict, else those that were
                given to `InputSpec` or `Input`, else of several arguments theirs, else "input_0", "input_1", ...
            version: a number; by default one more than the highest that is there. Only for "anabranch".
            warmup: example inputs, as `predict` takes them: a server computes them before it is asked anything, so that
                programs for their shapes are compiled by then. They are written into the folder. Only for "anabranch".
            pad: by the names of inputs, what axis 1 may be filled up with, since the model masks it: ``{"tokens": 0}``.
                A server then computes sequences of several lengths together. That answers stay the same within 1e-5 is
                checked on `warmup`. Only for "anabranch".
            images: by the names of inputs of the shape (None, height, width, channels), how PNG or JPEG bytes become
                arrays: ``{"x": {"resize": "bilinear"}}``, with the options "crop_to_aspect_ratio" and
                "pad_to_aspect_ratio" as of `image_dataset_from_directory`. Only for "anabranch".
            opset_version: the version of ONNX's operators, 18 to 25, by default 21. Only for "onnx".

        Returns:
            The version; None for "onnx".

        Raises:
            ValueError: the format is unknown, there is no signature, the inference writes variables, `warmup` does
                not fit the inputs, or answers change with `pad`.
            SavedGraphError: an operation holds a Python function; the message names its line.
            OnnxError: an operation has no counterpart in ONNX; the message names its line.
            FileExistsError: there is this version already.
        """
        if format == "onnx":
            from ..onnx.export.models import export_model as export_onnx

            given = {"version": version, "warmup": warmup, "pad": pad, "images": images}
            return export_onnx(self, filepath, verbose, input_signature, opset_version, given)
        if opset_version is not None:
            raise ValueError(f"export(opset_version={opset_version!r}) is for format='onnx'; the format is {format!r}.")
        from ..serving.exporting.model_export import export_model

        return export_model(self, filepath, format, verbose, input_signature, version, warmup, pad, images)

    def to_json(self, **kwargs: Any) -> str:
        """Return the architecture, without weights, as JSON."""
        import json

        from ...engine.objects.registry import serialize_keras_object

        return json.dumps(serialize_keras_object(self), **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make the model again (without weights)."""
        graph = self._layer_graph
        if graph is None or has_own_constructor(type(self)):
            inherited = super().get_config()
            return (
                inherited
                if type(self).get_config is not Model.get_config
                else {**inherited, **self._constructor_config()}
            )
        from ..saving.functional_config import graph_config

        return {"name": self.name, "trainable": self.trainable, **graph_config(graph)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, object] | None = None) -> Any:
        """Make a model from what `get_config` gave; `custom_objects` are classes and functions by name."""
        if custom_objects:
            with custom_object_scope(custom_objects):
                return cls.from_config(config)
        if {"layers", "input_layers", "output_layers"} <= config.keys():
            from ..saving.functional_config import model_from_config

            return model_from_config(cls, config)
        return super().from_config(config)

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[object, ...]]:
        """Pickle and copy the model as `save` writes it, with the user's classes and functions by reference."""
        return operator_functions["reduce_model"](self)

    def __copy__(self) -> Self:
        """Return a model that shares everything with this one."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def _repr_html_(self) -> str:
        return operator_functions["summary_html"](self)

    def get_build_config(self) -> dict[str, Any] | None:
        return None if self._layer_graph is not None else super().get_build_config()


class Functional(Model):
    """The model that ``Model(inputs, outputs)`` makes: the layers between symbolic tensors.

    Args:
        inputs: a tensor from `Input`, or a list or dict of them.
        outputs: what layers and ops made out of them: a tensor, or a list or dict.
        name: a name.

    Inputs are cast to the dtypes of the symbolic inputs; rows of single numbers get an axis of size 1 where these have
    one. A functional model is a layer: it can be called in another model, and layers can be shared among models.

    >>> import anabranch as ab
    >>> left, right = ab.Input((2,), name="left"), ab.Input((2,), name="right")
    >>> shared = ab.layers.Dense(4)
    >>> model = ab.Model([left, right], shared(left) + shared(right))
    >>> model.output_shape, len(model.weights)
    ((None, 4), 2)
    """

    def __init__(self, inputs: Tensors, outputs: Tensors, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)


note_constructor(Model)
note_constructor(Functional)
register_builtins("keras", {"Model": Model})
# Keras 3 writes the first of these modules, and Keras up to 2.15 the second.
register_builtins("keras.src.models.functional", {"Functional": Functional})
register_builtins("keras.src.engine.functional", {"Functional": Functional})
