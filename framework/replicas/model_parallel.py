"""`PartSteps`: steps of a model under `ModelParallel`: weights in parts, and rows in parts where the mesh has an axis.

Layers ask for the cut of a weight while a step is built (`layers/cut_weights`). What they can't do is refused here.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ...distribute.strategies.model_parallel import ModelParallel
from ...engine.graph import ShardedVariable, Tensor, Variable
from ...engine.graph.device import DeviceName
from ...engine.graph.scopes import device
from ...engine.graph.state.sharded import grouped
from ...layers.attention.positions import ReversibleEmbedding
from ...layers.core.cut_weights import Cut, bias_axes, cut_weights
from ...layers.core.dense import Dense
from ...layers.core.einsum_dense import EinsumDense
from ...layers.core.embedding import Embedding
from ...layers.core.placed import placed_layers, placed_variables
from ...layers.mixture_of_experts import MixtureOfExperts
from ...layers.quantizers.kernels import QuantizableKernel
from ..data.adapters import Layout
from .local import LocalSteps

if TYPE_CHECKING:
    from ...layers.core.layer import Layer
    from ..training.base_model import BaseModel


_SHOWN = 8  # paths that a message lists
_PRODUCTS = (Dense.call, EinsumDense.call)


class PartSteps(LocalSteps):
    """Builds the steps of one model that was compiled under `ModelParallel`."""

    part = "replica's part of a batch"
    strategy: Any  # a `ModelParallel`

    @contextmanager
    def placed(self) -> Generator[None]:
        """Build the weights' parts on their devices, all else on the first: a search for places would cost seconds."""
        home, places = str(DeviceName.parse(self._first_device(0))), self._places()
        if self.strategy.tasks is not None:
            self.strategy.tasks.settle(places)
        with (
            placed_variables(places),
            placed_layers(self._places_of_experts(0)),
            device(home),
            cut_weights(partial(self._cut, 0)),
        ):
            yield

    def _places(self) -> list[tuple[Variable, str]]:
        """Return the device of each variable."""
        model = self.model
        slots = [] if model.optimizer is None else model.optimizer.variables
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        shards, home = self._places_of_shards(), str(DeviceName.parse(self._first_device(0)))
        layers = {id(each): each for each in model._flatten_layers()}
        for key, place in self._places_of_experts(0).items():
            for variable in layers[key].variables:
                shards.setdefault(id(variable), place)
        found: list[tuple[Variable, str]] = []
        held: Counter[str] = Counter()
        for variable in (*model.variables, *slots, *metrics):
            near = [variable, *variable.colocations]  # what optimizers keep for a shard is where that is
            place = next((shards[id(each)] for each in near if id(each) in shards), home)
            found.append((variable, place))
            held[place] += variable.nbytes
        self.strategy.held = dict(sorted(held.items()))
        return found

    def _places_of_experts(self, replica: int) -> dict[int, str]:
        """Return the devices of the experts of all mixtures, by the `id` of the layer."""
        found: dict[int, str] = {}
        for layer in self.model._flatten_layers():
            if isinstance(layer, MixtureOfExperts):
                places = self.strategy.places_of_experts(layer.num_experts, replica)
                for expert, place in zip(layer.experts, places or (), strict=places is not None):
                    found[id(expert)] = str(DeviceName.parse(place))
        return found

    def _places_of_shards(self) -> dict[int, str]:
        """Return the device of each shard of the weights that are in parts, those of the first replica."""
        found: dict[int, str] = {}
        for weight in grouped(self.model.variables):
            cut = self._cut(0, weight) if isinstance(weight, ShardedVariable) else None
            if cut is not None:
                shards = cut.shards(weight).items()
                found |= {id(shard): str(DeviceName.parse(str(cut.devices[index]))) for index, shard in shards}
        return found

    def replicas(self) -> Sequence[Callable[[], AbstractContextManager[object]]]:
        return [partial(self._replica, number) for number in range(self.strategy.replicas)]

    def build(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        if self.strategy.replicas > 1:
            results = super().build(mode, layout, tensors)
        else:
            results = self.build_whole(mode, layout, tensors)
        check_layouts(self.model, self.strategy)  # layers may have got their weights just now
        _warn_of_idle_layouts(self.model, self.strategy)
        return results

    def check(self) -> None:
        if self.strategy.replicas > 1:
            super().check()
        check_layouts(self.model, self.strategy)

    def _first_device(self, replica: int) -> str:
        return str(self.strategy.devices_of(replica).reshape(-1)[0])

    def _replica(self, number: int) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(device(self._first_device(number)))
        stack.enter_context(cut_weights(partial(self._cut, number)))
        stack.enter_context(placed_layers(self._places_of_experts(number)))
        return stack

    def _cut(self, replica: int, weight: Variable | ShardedVariable) -> Cut | None:
        found = self.strategy.parts_of(weight, replica)
        return None if found is None else Cut(*found)


def check_layouts(model: BaseModel, strategy: ModelParallel) -> None:
    """Check that all weights of a model that layouts cut can be; note which they are in the strategy.

    Raises:
        ValueError: one can't be; the message says why.
    """
    cut: dict[str, list[str]] = {}
    owners: dict[int, Layer] = {}
    followers: dict[int, tuple[Variable | ShardedVariable, list[str | None]]] = {}
    for layer in model._flatten_layers():
        for variable in grouped(layer._weights):
            owners.setdefault(id(variable), layer)
        for weight, names in _parts_of_layer(layer, strategy):
            followers[id(weight)] = weight, names
    for variable in grouped(model.variables):
        owner = owners.get(id(variable))
        if getattr(owner, "quantization_mode", None) and any(strategy.get_variable_layout(variable).axes):
            _refuse(variable, owner, strategy)
        found = strategy.parts_of(variable)
        if found is None:
            continue
        if id(variable) not in followers:
            _refuse(variable, owner, strategy)
        expected = followers[id(variable)][1]
        axes = strategy.get_variable_layout(variable).axes
        if expected and any(axis is not None and axis != other for axis, other in zip(axes, expected, strict=True)):
            raise ValueError(
                f"ModelParallel: bias {variable.path!r} has layout {axes}, but the outputs that it is added to are cut "
                f"as {tuple(expected)}, as the layout of the kernel has it. Give it that layout, or none: it is cut "
                "as its kernel is."
            )
        cut[variable.path] = [str(name) for name in found[1].reshape(-1)]
    strategy.parts = cut


def _warn_of_idle_layouts(model: BaseModel, strategy: ModelParallel) -> None:
    """Warn of layouts that cut nothing: no weight has such a path, or the axis of the mesh is that of the rows."""
    layouts = {key: strategy.layout_map[key] for key in strategy.layout_map if key not in strategy.seen_keys}
    strategy.seen_keys.update(layouts)
    paths = [variable.path for variable in grouped(model.variables)]
    tensors = [f"{layer.path}/output" for layer in model._flatten_layers()]
    idle = [key for key in layouts if not any(re.search(key, path) for path in [*paths, *tensors])]
    if idle:
        warnings.warn(
            f"ModelParallel: no weight of model {model.name!r} has a path that these keys of the layout map match: "
            f"{idle}. They cut nothing. Its paths are {paths[:_SHOWN]}{' and more' if len(paths) > _SHOWN else ''}.",
            stacklevel=2,
        )
    rows = strategy.batch_dim_name
    if strategy.replicas > 1:
        along = [key for key, layout in layouts.items() if key not in idle and layout and rows in layout.axes]
        along = [key for key in along if any(re.search(key, path) for path in paths)]
        if along:
            warnings.warn(
                f"ModelParallel: rows of batches are spread over axis {rows!r} of the mesh, and weights are not cut "
                f"along it: the layouts of {along} are as if they had None there. Name another axis of the mesh, or "
                "give the axis of the rows as batch_dim_name.",
                stacklevel=2,
            )


def _parts_of_layer(layer: Layer, strategy: ModelParallel) -> list[tuple[Variable | ShardedVariable, list[str | None]]]:
    """Return the weights of a layer that may be cut; for a bias also the axes of the mesh that its own follow."""
    if not layer.built or getattr(layer, "quantization_mode", None) is not None:
        return []
    if isinstance(layer, QuantizableKernel) and type(layer).call in _PRODUCTS:
        kernel, bias = layer._kernel, getattr(layer, "bias", None)
        strategy.parts_of(kernel)  # its layout fits
        if bias is None:
            return [(kernel, [])]
        outputs = [output for _, output in layer._kernel_axes(layer.input_spec.ndim or 0)]
        names: list[str | None] = [None] * len(bias.shape)
        layout = strategy.get_variable_layout(kernel).axes
        for name, axis in zip(layout, bias_axes(bias.shape, outputs), strict=True):
            if axis is not None:
                names[axis] = name
        return [(kernel, []), (bias, names)]
    if isinstance(layer, Embedding) and type(layer).call is Embedding.call:
        return [(layer._embeddings, [])]
    if isinstance(layer, ReversibleEmbedding) and type(layer).call is ReversibleEmbedding.call:
        back = [] if layer.tie_weights else [layer.reverse_embeddings]
        return [(weight, []) for weight in (layer._embeddings, *back)]
    return []


def _refuse(variable: Variable | ShardedVariable, layer: Layer | None, strategy: ModelParallel) -> None:
    what = "no layer" if layer is None else f"layer {layer.name!r} ({type(layer).__name__})"
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        why = f"it is quantised ({mode})"
    else:
        why = "only those of Dense, of EinsumDense, which attention is made of, and of embeddings can"
    raise ValueError(
        f"ModelParallel: weight {variable.path!r} of {what} has layout {strategy.get_variable_layout(variable).axes}, "
        f"but it can't be cut: {why}. Write the keys of the layout map so that none matches it, or give it None for "
        "each axis."
    )


__all__ = ["PartSteps", "check_layouts"]
