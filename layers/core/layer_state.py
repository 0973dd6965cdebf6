"""State of layers: weights, the layers inside it, losses."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine.common.claims import claim
from ...engine.common.keywords import given_in_a_row
from ...engine.common.partitioners import GridPartitioner, current_partitioner, shards_along_rows
from ...engine.graph import (
    DType,
    ShardedVariable,
    Tensor,
    TensorSpec,
    Variable,
    as_dtype,
    colocate_with,
    device,
    eagerly,
    flatten,
)
from ...engine.graph.graph import get_default_graph
from ...engine.graph.state.aligned import own_copy
from ...engine.graph.state.initial_values import Later
from ...engine.graph.state.sharded import (
    Rows,
    block_of,
    expanded,
    grouped,
    layout_of_grid,
    part_of,
    regions_of_grid,
    rows_of_shards,
)
from ...engine.objects import constraints, initializers, policies, regularizers
from ...engine.objects.identifiers import ConstraintLike, InitializerLike, PolicyLike, RegularizerLike
from ...engine.objects.names import name_for, to_snake_case
from ...engine.objects.tracking import Dated, held_by_attributes, in_order_of_creation, note_held
from ...engine.queues.writing import writing_together
from ..recurrent.step_sums import collects, sum_over_steps
from .added_losses import LostLoss, as_term, losses_exist, losses_within, note_losses_exist
from .calling import calling_layer, enclosing_path, is_within_call_of
from .node import Node
from .weight import Weight, WeightSpec

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike

    from ...engine.common.dtypes import DTypeLike
    from ...engine.ops.base import TensorLike
    from ..quantizers.base_config import QuantizationConfig
    from .options import ShapeLike, WeightSettings
    from .quantized_form import RoundedWeight
    from .shape_programs import ArrayFunction


_replacements = 0


def replacements() -> int:
    """Return how often layers of this process have had weights replaced by others: quantised, or given adapters."""
    return _replacements


class LayerState(Dated):
    """The holding half of `Layer`; see there."""

    autocast: bool = True
    # Attributes with kernels of convolutions, which can be rounded to int8, and the axes, negative, of their outputs.
    rounded_kernels: Mapping[str, tuple[int, ...]] = {}
    _rounded_weights: Mapping[str, RoundedWeight] = {}  # those that were, by attribute
    quantization_modes: ClassVar[tuple[str, ...]] = ()  # in which the class can be quantised
    # Attributes that hold layers or variables which do not belong to this one.
    untracked: ClassVar[frozenset[str]] = frozenset(
        {"inbound_nodes", "_functions", "_added_losses", "_constructor_call", "_weights", "_noted", "_build_shapes"}
        | {"_made_in", "_partitioner", "_first_held"}
    )

    def __init__(self, name: str | None, trainable: bool, dtype: PolicyLike) -> None:
        if isinstance(name, LayerState) or isinstance(trainable, LayerState):
            raise given_in_a_row(type(self).__name__)
        if name is not None and (not isinstance(name, str) or "/" in name):
            raise ValueError(f"A layer's name must be a string without '/', got name={name!r}.")
        self.name = name or name_for(self)
        if not isinstance(trainable, (bool, np.bool_)):
            raise ValueError(f"Layer {self.name!r}: trainable must be True or False, got trainable={trainable!r}.")
        self.built = False
        self._is_building = False
        self.inbound_nodes: list[Node] = []
        self._dtype_policy = policies.get(dtype)
        self._trainable = bool(trainable)
        self._path: str | None = None
        self._made_in = calling_layer()  # where a layer is made in a call, whose it is
        self._weights: list[Weight] = []
        self._noted: list[tuple[int, Variable]] = []  # variables of attributes that are older than others of _weights
        self._weights_version = 0  # is counted up where weights are replaced
        self._functions: dict[Hashable, ArrayFunction] = {}
        self._partitioner = current_partitioner()  # cuts its weights into shards
        self._added_losses: list[TensorLike | LostLoss] = []

    def add_weight(
        self,
        shape: ShapeLike = None,
        initializer: InitializerLike = None,
        dtype: DTypeLike = None,
        trainable: bool = True,
        autocast: bool = True,
        regularizer: RegularizerLike = None,
        constraint: ConstraintLike = None,
        aggregation: str | None = None,
        name: str | None = None,
    ) -> Weight:
        """Make a weight of this layer.

        Where the layer was made under a strategy with a ``variable_partitioner`` it may be a `ShardedVariable` instead.

        Args:
            shape: its shape, all dimensions known; a scalar by default.
            initializer: gives the first value from shape and dtype; by default Glorot's uniform for floats, else 0.
            dtype: its dtype; by default the layer's.
            trainable: whether optimizers update it.
            autocast: whether the layer's `call` sees it in `compute_dtype`, where that differs.
            regularizer: a penalty added to the loss.
            constraint: a projection applied after each update.
            aggregation: how replicas agree on it.
            name: its name within the layer.

        Raises:
            ValueError: a dimension of the shape is not known.
            ValueError: it is made in the layer's `call`.
            RuntimeError: the layer was made in the call of another one, to which it does not belong.
            MemoryError: there is no room for it.
        """
        self._check_kept()
        if isinstance(shape, str):
            raise ValueError(f"Layer {self.name!r}: add_weight() takes a shape first. Write name={shape!r}.")
        given = (shape,) if isinstance(shape, int) else tuple(shape or ())
        label = name or "variable"
        if not all(isinstance(size, (int, np.integer)) and size >= 0 for size in given):
            raise ValueError(
                f"Layer {self.name!r} can't make its weight {label!r} with shape {given}: every dimension must be "
                "known. Give the input a known size there (for a Dense or recurrent layer: its last axis)."
            )
        sizes = tuple([int(size) for size in given if size is not None])
        wanted = as_dtype(dtype or self.variable_dtype)
        initializer = initializers.get(initializer or ("glorot_uniform" if wanted.kind not in "iub" else "zeros"))
        claim(sizes, wanted.itemsize, f"Layer {self.name!r}: weight {label!r}")
        settings = (trainable, regularizers.get(regularizer), constraints.get(constraint), aggregation, autocast)
        if self._partitioner is not None and sizes and _holds_by_rows(*settings[1:3]):
            made = self._cut_weight(sizes, initializer, wanted, settings, label)
            if made is not None:
                return made
        try:
            with eagerly():
                first = initializer(sizes, dtype=wanted)
        except MemoryError as error:
            size = math.prod(sizes) * wanted.itemsize
            raise MemoryError(
                f"Layer {self.name!r}: there is no memory for its weight {label!r} of shape {sizes} and dtype "
                f"{wanted.name}, {size / 1e9:,.1f} GB. Make the layer or its input smaller. ({error})"
            ) from error
        weight = Weight(first, label, f"{self.path}/{label}", wanted, *settings)
        if tuple(weight.shape or ()) != sizes:
            raise ValueError(
                f"Layer {self.name!r}: the initializer of weight {label!r} gave shape {weight.shape}, expected {sizes}."
            )
        note_held(self._noted, self._weights, self._held_variables())
        self._weights.append(weight)
        return weight

    def _cut_weight(
        self, shape: tuple[int, ...], initializer: InitializerLike, dtype: DType, settings: WeightSettings, name: str
    ) -> Any:
        """Make a weight in shards, as the partitioner says; return None where it is to be whole. See `add_weight`."""
        if not isinstance(self._partitioner, GridPartitioner):
            count = shards_along_rows(self._partitioner, shape, dtype)
            if count < 2:
                return None
            return self.add_sharded_weight(
                rows_of_shards(shape[0], count), "div", shape, initializer, dtype, settings, name
            )
        counts = self._partitioner.counts(f"{self.path}/{name}", shape, dtype)
        if counts is None:
            return None
        layout = layout_of_grid(counts)
        rows = rows_of_shards(shape[0], counts[0]) if layout == "div" else regions_of_grid(shape, counts)
        return self.add_sharded_weight(rows, layout, shape, initializer, dtype, settings, name)

    def add_sharded_weight(
        self,
        rows: Sequence[Rows | tuple[slice, ...]],
        layout: str,
        shape: tuple[int, ...],
        initializer: InitializerLike,
        dtype: DTypeLike = None,
        settings: WeightSettings = (True, None, None, None, True),
        name: str = "variable",
        places: Sequence[str | Variable] | None = None,
    ) -> ShardedVariable:
        """Make a weight in shards, each on its place; the first value of each is made where and when it is needed.

        Args:
            rows, layout: how it is cut: the `Rows` of each shard, or its region in a grid.
            shape, initializer, dtype: of the whole; the dtype is by default the layer's.
            settings: as `Weight` takes them: whether it is trainable, regularizer, constraint, aggregation, autocast.
            name: its name.
            places: for each shard a device, or a variable that it is to be with; None for no request.

        Raises:
            ValueError: the initializer gives another shape.
        """
        self._check_kept()
        dtype = as_dtype(dtype or self.variable_dtype)
        first = initializers.first_value(initializer, shape, dtype)
        if tuple(first.shape) != shape:
            raise ValueError(
                f"Layer {self.name!r}: the initializer of weight {name!r} gave shape {tuple(first.shape)}, expected "
                f"{shape}."
            )
        first = first if isinstance(first, Later) else np.asarray(first)
        shards: list[Weight] = []
        for number, held in enumerate(rows):
            with nullcontext() if places is None else _place(places[number]):
                part = f"{name}/part_{number}"
                own = part_of(first, held) if isinstance(held, Rows) else block_of(first, held)
                shards.append(Weight(own, part, f"{self.path}/{part}", dtype, *settings))
        note_held(self._noted, self._weights, self._held_variables())
        self._weights.extend(shards)
        return ShardedVariable.of(shards, layout, name, f"{self.path}/{name}")

    def _check_kept(self) -> None:
        """Check that a weight stays: that it is not made in a call of the layer, or in one that made the layer."""
        if is_within_call_of(self) and self.built and not self._is_building:
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) makes a weight in call(): it would be a new one at each "
                "call. Make it in __init__() or build(), as in self.w = self.add_weight(...), and use self.w in call()."
            )
        maker = self._made_in
        if maker is None or not is_within_call_of(maker) or any(layer is self for layer in maker._flatten_layers()):
            return
        kind, attribute = type(self).__name__, to_snake_case(type(self).__name__)
        raise RuntimeError(
            f"Layer {self.name!r} ({kind}) was made inside call() of layer {maker.name!r} ({type(maker).__name__}) and "
            "does not belong to it: its weights would be new at each call, and would not be trained or saved. Make it "
            f"in __init__() or build(), as in self.{attribute} = {kind}(...), and use self.{attribute} in call()."
        )

    def weight_specs(self, input_shape: Any) -> Sequence[WeightSpec]:
        """Return the weights that the layer has for inputs of that shape, in their order.

        A class that defines it needs no `build`. One that has to do more in `build` calls `build_weights` there.
        """
        return ()

    def build_weights(self, specs: Iterable[WeightSpec]) -> None:
        """Make weights, each as an attribute."""
        for spec in specs:
            setattr(self, spec.attribute or spec.name, self._make_weight(spec) if spec.present else None)

    def _make_weight(self, spec: WeightSpec) -> Weight:
        return self.add_weight(**spec.settings(self))

    # --- weights --------------------------------------------------------------------------------------------

    def _sublayers(self, by_age: bool = False) -> list[Any]:
        """Return the layers of attributes, lists, tuples and dicts: attribute by attribute, or as this one got them."""
        sought = LayerState, type(self).untracked
        found = self._held_by_age(*sought) if by_age else held_by_attributes(self, *sought)
        return [layer for layer in found if layer is not self]

    def _layers_by_age(self) -> Sequence[LayerState]:  # the order of their weights
        return self._sublayers(by_age=True)

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> list[Any]:
        """Return this layer and all inside it, each once, outer before inner."""
        found: dict[int, LayerState] = {id(self): self}
        pending = self._sublayers(by_age=True)
        while pending:
            layer = pending.pop(0)
            if id(layer) not in found:
                found[id(layer)] = layer
                pending = [*(layer._sublayers(by_age=True) if recursive else []), *pending]
        return list(found.values())[0 if include_self else 1 :]

    def _held_variables(self) -> list[Variable]:
        return expanded(held_by_attributes(self, (Variable, ShardedVariable), type(self).untracked))

    def _own_variables(self) -> list[Variable]:
        """Return the variables of this layer itself, without those of layers inside it: those made trainable first.

        Freezing some changes no order, by which files and `set_weights` assign.
        """
        own = in_order_of_creation(self._noted, self._weights, self._held_variables()).values()
        return [v for v in own if v.was_made_trainable] + [v for v in own if not v.was_made_trainable]

    @property
    def weights(self) -> list[Variable]:
        """All variables: of each layer those made trainable, then the others, then those of the layers inside it."""
        found = {id(v): v for v in self._own_variables()}
        for layer in self._layers_by_age():
            for variable in layer.weights:
                found.setdefault(id(variable), variable)
        return list(found.values())

    @property
    def variables(self) -> list[Variable]:
        return self.weights

    @property
    def trainable_weights(self) -> list[Variable]:
        """The variables that optimizers update; none if the layer is frozen."""
        if not self.trainable:
            return []
        found = {id(v): v for v in self._own_variables() if v.trainable}
        for layer in self._layers_by_age():
            for variable in layer.trainable_weights:
                found.setdefault(id(variable), variable)
        return list(found.values())

    @property
    def trainable_variables(self) -> list[Variable]:
        return self.trainable_weights

    @property
    def non_trainable_weights(self) -> list[Variable]:
        trainable = {id(variable) for variable in self.trainable_weights}
        return [variable for variable in self.weights if id(variable) not in trainable]

    @property
    def non_trainable_variables(self) -> list[Variable]:
        return self.non_trainable_weights

    @property
    def trainable(self) -> bool:
        """Test whether optimizers update the weights. Setting it sets it on all layers inside, too."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for layer in self._flatten_layers():
            layer._trainable = bool(value)

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of `weights`, as arrays; those of a weight in shards are joined."""
        return [variable.numpy() for variable in grouped(self.weights)]

    def set_weights(self, weights: Sequence[ArrayLike]) -> None:
        """Set the values of `weights`, all or none.

        Raises:
            ValueError: their number or shapes differ from the layer's.
        """
        variables = grouped(self.weights)
        if len(weights) == len(self.weights) != len(variables):
            variables = self.weights  # each shard by itself
        if len(weights) != len(variables):
            raise ValueError(
                f"Layer {self.name!r} has {len(variables)} weights, but set_weights was given {len(weights)}."
                + ("" if self.built else " The layer is not built yet: call it once, or build(input_shape), first.")
            )
        assign_values(self.name, variables, weights)

    def count_params(self) -> int:
        """Return the number of elements of all weights.

        Raises:
            ValueError: the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"Layer {self.name!r} is not built, so that its weights can't be counted. Call it once, or build()."
            )
        return sum(math.prod(size or 0 for size in variable.shape or ()) for variable in self.weights)

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Write the variables of this layer itself (not of layers inside) into a mapping: ``"0"``, ``"1"``, ..."""
        for position, value in enumerate(self._stored_values()):
            store[str(position)] = value

    def _stored_variables(self) -> list[Variable]:
        """Return the variables that files hold of this layer itself, in their order."""
        return self._own_variables()

    def _stored_values(self) -> list[np.ndarray]:
        """Return the arrays that files hold of them; shards of one variable are one array."""
        return [variable.numpy() for variable in grouped(self._stored_variables())]

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Read what `save_own_variables` wrote.

        Raises:
            ValueError: the number or shapes of the arrays differ from the layer's.
        """
        own = grouped(self._stored_variables())
        names = sorted(store.keys(), key=int)
        if len(names) == len(self._stored_variables()) != len(own):
            own = self._stored_variables()  # a file that has each shard by itself
        if len(names) != len(own):
            raise ValueError(
                f"Layer {self.name!r} ({type(self).__name__}) has {len(own)} variables of its own, but the file holds "
                f"{len(names)} for it."
                + ("" if self.built else " The layer is not built: call it once, or build(input_shape), first.")
            )
        assign_values(self.name, own, [np.asarray(store[name]) for name in names])
        self._after_loading()

    def _after_loading(self) -> None:
        """Do what is to be done when variables have been read from a file. Here, nothing."""

    def save_assets(self, dir_path: str | PathLike[str]) -> None:
        """Write what the layer keeps in files, such as a vocabulary, into a folder. By default it is nothing."""

    def load_assets(self, dir_path: str | PathLike[str]) -> None:
        """Read what `save_assets` wrote. By default it is nothing."""

    # --- losses ---------------------------------------------------------------------------------------------

    def add_loss(self, loss: TensorLike) -> None:
        """Add a scalar (or several) to the model's loss, from inside `call`.

        Each time that the call runs counts. What a cell adds in the steps of an `RNN`, or a layer in the body of a
        loop, is added up; in a branch it counts if that is taken. See `losses`.
        """
        for item in flatten(loss):
            term = as_term(item)
            if isinstance(term, Tensor) and collects([term]):
                sum_over_steps([term], self.add_loss)
            else:
                self._keep_losses([*self._added_losses, term])

    @property
    def losses(self) -> list[Any]:
        """The losses that the latest call added, and the penalties of all trainable weights with a regularizer.

        In a loop or a branch these are the losses there, of this iteration. Outside, they are what they come to: the
        sum over the iterations, and 0 for a branch that was not taken.

        Raises:
            ValueError: a loss was added inside a function that runs by `vectorized_map` or `dynamic_schedule`, or that
                calls itself, out of which it can't come.
        """
        added = losses_within(get_default_graph(), self._flatten_layers())
        for loss in added:
            if isinstance(loss, LostLoss):
                raise loss.error()
        regularized = [w for w in self.trainable_weights if isinstance(w, Weight) and w.regularizer is not None]
        return [*added, *[w.regularizer(w) for w in regularized if w.regularizer is not None]]

    def _keep_losses(self, losses: list[TensorLike | LostLoss]) -> None:
        self._added_losses = losses
        if losses:
            note_losses_exist()

    def _clear_losses(self) -> None:
        if not losses_exist():
            return
        for layer in self._flatten_layers():
            layer._added_losses = []

    @contextmanager
    def _losses_kept(self) -> Generator[None]:
        """Keep losses as they were, while the layer is called inside of the block for other things than its result."""
        before = {id(layer): layer._added_losses for layer in self._flatten_layers()}
        try:
            yield
        finally:
            for layer in self._flatten_layers():
                layer._added_losses = before.get(id(layer), [])

    # --- facts ----------------------------------------------------------------------------------------------

    @property
    def quantization_mode(self) -> str | None:
        """The mode in which the weights are quantised, such as "int8"; None if they are not."""
        return "int8" if self._rounded_weights else self._own_policy.quantization_mode

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: QuantizationConfig | str | None = None
    ) -> None:
        """Replace the weights by quantised ones, in layers that have a quantised form.

        Raises:
            NotImplementedError: this layer has none.
        """
        raise NotImplementedError(
            f"Layer {self.name!r} of class {type(self).__name__} has no quantised form. Layers that have one are "
            "Dense, EinsumDense, Embedding and ReversibleEmbedding."
        )

    def _check_quantized_weights(self) -> None:
        """Refuse weights of a layer whose dtype policy is one of quantisation which the layer does not have.

        Raises:
            NotImplementedError: the weights would be floats.
        """
        policy = self._own_policy
        mode = policy.quantization_mode
        if mode is None or mode in self.quantization_modes or not self._own_variables():
            return
        has = f"has the modes {self.quantization_modes}" if self.quantization_modes else "has no quantised form"
        source = policy.name.partition("_from_")[2]
        raise NotImplementedError(
            f"Layer {self.name!r} has dtype={policy.name!r}, but {type(self).__name__} {has}: its weights would be "
            f"floats. Pass dtype={source!r}. quantize('int8', include='all') rounds the weights of other layers, where "
            "they multiply matrices."
        )

    def _weights_changed(self) -> None:
        """Note that weights are others than before, so that nothing compiled with the old ones is used again."""
        global _replacements
        self._weights_version += 1
        _replacements += 1
        self._functions.clear()

    @property
    def dtype_policy(self) -> policies.DTypePolicy:
        """The dtypes of computation and weights, or a map of them by path. Set it before the layer is built."""
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: PolicyLike) -> None:
        if not policies.set_in_map(self._dtype_policy, self._path_here(), value):
            self._set_policy(policies.get(value))

    def _set_policy(self, policy: policies.DTypePolicy) -> None:
        self._dtype_policy = policy

    @property
    def _own_policy(self) -> policies.DTypePolicy:
        """The dtype policy, of a map the one for the layer's path."""
        policy = self._dtype_policy
        return policy[self._path_here()] if isinstance(policy, policies.DTypePolicyMap) else policy

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return self._own_policy.variable_dtype

    variable_dtype = dtype

    @property
    def compute_dtype(self) -> str:
        """The dtype in which the layer computes, and to which it casts floating inputs and weights."""
        return self._own_policy.compute_dtype

    @property
    def input_dtype(self) -> str:
        """The dtype in which a model that starts with this layer takes its floating inputs."""
        return self.compute_dtype if self.autocast else self.variable_dtype

    @property
    def path(self) -> str:
        """The names of the layers around this one and its own, joined by slashes, as at its first call."""
        if self._path is None:
            self._path = self._path_here()
        return self._path

    def _path_here(self) -> str:
        """Return the path, or, while that is not fixed, what it would be if the layer were called here."""
        if self._path is not None:
            return self._path
        around = enclosing_path()
        return around.rstrip("/") if around.endswith(f"{self.name}/") else around + self.name


def _place(place: str | Variable) -> AbstractContextManager[None]:
    return colocate_with(place) if isinstance(place, Variable) else device(place)


def _holds_by_rows(regularizer: RegularizerLike, constraint: ConstraintLike) -> bool:
    """Test whether a penalty is the sum of those of a weight's rows, and a projection that of each row by itself."""
    return type(regularizer) in _SUMS and type(constraint) in (type(None), constraints.NonNeg)


_SUMS = (type(None), regularizers.L1, regularizers.L2, regularizers.L1L2)


def assign_values(layer_name: str, variables: Sequence[Variable], values: Sequence[ArrayLike]) -> None:
    """Set the variables at once, also while a graph is being built; all of them or none.

    Raises:
        ValueError: a value's shape differs from its variable's.
    """
    arrays = [np.asarray(value) for value in values]
    for variable, array in zip(variables, arrays, strict=True):
        expected = TensorSpec(variable.shape, variable.dtype)
        if not expected.accepts(TensorSpec(array.shape, variable.dtype)):
            weight = f"weight {variable.name!r} has shape {variable.shape}"
            raise ValueError(f"Layer {layer_name!r}: {weight}, got a value of shape {array.shape}.")
    stored = [own_copy(array, variable.dtype) for variable, array in zip(variables, arrays, strict=True)]
    with writing_together(expanded(variables)):
        for variable, value in zip(variables, stored, strict=True):
            variable.write_value(value)
