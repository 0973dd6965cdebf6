"""`TreeLSTM`: an LSTM along the edges of trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.control_flow import TensorArray, TensorStore, cond, while_loop
from ...engine.control_flow.scheduling import dynamic_schedule
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..core.dense import known_features, positive_int
from ..core.input_spec import known_shape
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from ..core.weight import Weight, WeightSpec
from .cell import forget_gate_of_ones
from .tree_levels import Trees, levels_of, trees_of

if TYPE_CHECKING:
    from ..core.options import LayerOptions


IMPLEMENTATIONS = ("levels", "nodes")


@config_from_signature()
class TreeLSTM(Layer):
    """An LSTM over trees: a node's state is made of its features and of its children's states.

    Args:
        units: the length of a node's state h and memory c, positive.
        arity: None for the child-sum form, for any number of children in no order: the sum of their h goes into the
            gates, and each has a forget gate. A number N for the N-ary form, whose children have places with weights
            of their own; a child may be missing.
        activation: of candidate and output; a name or function.
        recurrent_activation: of the gates.
        use_bias: whether there is a bias.
        unit_forget_bias: the bias of the forget gates starts at 1.
        return_nodes: give the outputs of all nodes, in place of the root's.
        implementation: "levels" computes all nodes of one depth in all trees together, which is fastest on one device.
            "nodes" takes one node after the other, by a `TensorStore`, so that on several devices each runs on
            whichever is free as soon as its children have.
        kernel_initializer, recurrent_initializer, bias_initializer: first values.
        kernel_regularizer, recurrent_regularizer, bias_regularizer: penalties.
        kernel_constraint, recurrent_constraint, bias_constraint: projections after each update.
        Others: see `Layer`.

    Call arguments: ``inputs (batch, nodes, features)``; ``children (batch, nodes, width)``, integers, for each node the
    places of its children in the same row, -1 for none (``width`` is `arity`, if that is given, otherwise any number,
    0 too); ``mask (batch, nodes)``, False for padding, by default the one that `inputs` carry. Nodes may come in any
    order. The root of a row is its first node that is nobody's child.

    Shapes: ``(batch, units)``, or with `return_nodes` ``(batch, nodes, units)``. Padding, and rows without a tree, get
    zeros.

    Weights: ``kernel (features, 4 * units)``, ``recurrent_kernel (units, 4 * units)`` or, for the N-ary form,
    ``(N * units, (3 + N) * units)``, ``bias (4 * units,)``; in the order i, f (of each child), candidate, o.

    Raises:
        ValueError: an argument is out of range, or the shape of an input does not fit.
        InvalidArgumentError: at run time; children that are out of range, or do not make trees.

    Tai, Socher and Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks",
    2015, arXiv:1503.00075.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> children = [[[1, 2], [-1, -1], [-1, -1]], [[-1, -1], [0, -1], [-1, -1]]]
    >>> mask = np.array([[True, True, True], [True, True, False]])
    >>> ab.layers.TreeLSTM(4)(np.ones((2, 3, 5), "float32"), children, mask=mask).shape
    (2, 4)
    """

    has_loops = True
    kernel: Weight
    recurrent_kernel: Weight
    bias: Weight | None

    def __init__(
        self,
        units: int,
        arity: int | None = None,
        activation: ActivationLike = "tanh",
        recurrent_activation: ActivationLike = "sigmoid",
        use_bias: bool = True,
        unit_forget_bias: bool = True,
        return_nodes: bool = False,
        implementation: str = "levels",
        kernel_initializer: InitializerLike = "glorot_uniform",
        recurrent_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        recurrent_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        recurrent_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"TreeLSTM: implementation must be one of {IMPLEMENTATIONS}, got {implementation!r}.")
        self.units = positive_int("TreeLSTM", "units", units)
        self.arity = None if arity is None else positive_int("TreeLSTM", "arity", arity)
        self.activation = activations.get(activation)
        self.recurrent_activation = activations.get(recurrent_activation, "recurrent_activation")
        self.use_bias = use_bias
        self.unit_forget_bias = unit_forget_bias
        self.return_nodes = return_nodes
        self.implementation = implementation
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.recurrent_initializer = initializers.get(recurrent_initializer, "recurrent_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.recurrent_regularizer = regularizers.get(recurrent_regularizer, "recurrent_regularizer")
        self.bias_regularizer = regularizers.get(bias_regularizer, "bias_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")
        self.recurrent_constraint = constraints.get(recurrent_constraint, "recurrent_constraint")
        self.bias_constraint = constraints.get(bias_constraint, "bias_constraint")
        self.supports_masking = True

    # --- weights --------------------------------------------------------------------------------------------

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        units, arity = self.units, self.arity or 1
        first = forget_gate_of_ones(self.bias_initializer, units) if self.unit_forget_bias else None
        return (
            WeightSpec("kernel", (known_features(self, input_shape), 4 * units)),
            WeightSpec("recurrent_kernel", (arity * units, (3 + arity) * units), options="recurrent"),
            WeightSpec("bias", (4 * units,), first, present=self.use_bias),
        )

    def build(self, inputs_shape: Sequence[int | None], children_shape: Sequence[int | None] | None = None) -> None:
        self.build_weights(self.weight_specs(inputs_shape))

    def _check_shapes(self, inputs_shape: Sequence[int | None], children_shape: Sequence[int | None]) -> None:
        given = f"got inputs of shape {inputs_shape} and children of shape {children_shape}."
        what = f"Layer {self.name!r} (TreeLSTM)"
        if len(inputs_shape) != 3 or len(children_shape) != 3:
            raise ValueError(
                f"{what} takes inputs of shape (batch, nodes, features) and children of shape (batch, nodes, width), "
                f"{given}"
            )
        nodes, others, width = inputs_shape[1], children_shape[1], children_shape[2]
        if None not in (nodes, others) and nodes != others:
            raise ValueError(f"{what}: inputs and children are of the same nodes, {given}")
        if width is None or (self.arity is not None and width != self.arity):
            wanted = "a known number" if self.arity is None else f"arity={self.arity}"
            raise ValueError(f"{what}: the last axis of children must be {wanted}, {given}")

    # --- the pass from the leaves up ------------------------------------------------------------------------

    def call(self, inputs: Tensor, children: TensorLike, mask: TensorLike | None = None) -> Tensor:
        children = ops.convert_to_tensor(children)
        children_shape = known_shape(children.shape)
        self._check_shapes(known_shape(inputs.shape), children_shape)
        if children_shape[2] == 0:  # leaves alone: what follows needs a place for a child, if there is none in it
            children = ops.pad(children, ((0, 0), (0, 0), (0, 1)), constant_values=-1)
        trees = trees_of(children, mask, f"Layer {self.name!r} (TreeLSTM)")
        rows = ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))
        by_levels = self.implementation == "levels"
        numbers, hidden = self._by_levels(rows, trees) if by_levels else self._by_nodes(rows, trees)
        if self.return_nodes:
            nodes = ops.scatter(numbers[:, None], hidden, (trees.total, self.units))
            return ops.reshape(nodes, (*ops.shape(inputs)[:2], self.units))
        # Where each node is in `hidden`; the last place, of what is no node, is a row of zeros.
        count = ops.shape(numbers)[0]
        nowhere = ops.full((trees.total + 1,), count, "int32")
        places = ops.scatter_update(nowhere, numbers[:, None], ops.arange(count))
        return ops.take(_with_zeros(hidden, self.units), ops.take(places, trees.roots), axis=0)

    def _by_levels(self, rows: Tensor, trees: Trees) -> tuple[Tensor, Tensor]:
        """Return numbers of nodes, and their h: a loop over depths, from the deepest up.

        All children of the nodes of one depth have the next depth. So the loop carries one level's states, and leaves,
        which wait for nothing, are computed before it, together.
        """
        levels = levels_of(trees)
        leaf_states = self._leaf_states(self._from_inputs(ops.take(rows, levels.leaves, axis=0)))
        from_inputs = self._from_inputs(ops.take(rows, levels.inner, axis=0))
        count, dtype = ops.shape(levels.inner_counts)[0], rows.dtype

        def pieces(value: Tensor, lengths: Tensor, columns: int, dtype: DTypeLike = dtype) -> TensorArray:
            return TensorArray(dtype, size=0, element_shape=(None, columns)).split(value, lengths)

        leaves = pieces(leaf_states, levels.leaf_counts, 2 * self.units)
        gates = pieces(from_inputs, levels.inner_counts, 4 * self.units)
        places = pieces(levels.places, levels.inner_counts, trees.width, "int32")
        outputs = TensorArray(dtype, size=count, element_shape=(None, 2 * self.units))

        def body(depth: Tensor, below: Tensor, outputs: TensorArray) -> tuple[Tensor, Tensor, TensorArray]:
            given = ops.take(below, places.read(depth), axis=0)
            states = self._inner_states(gates.read(depth), given, trees.width)
            level = ops.concatenate([states, leaves.read(depth)])
            return depth - 1, _with_zeros(level, 2 * self.units), outputs.write(depth, states)

        start = (count - 1, _with_zeros(leaves.read(count), 2 * self.units), outputs)
        inner_states = while_loop(lambda depth, *_: depth >= 0, body, start)[2].concat()
        hidden = ops.concatenate([inner_states[:, : self.units], leaf_states[:, : self.units]])
        return ops.concatenate([levels.inner, levels.leaves]), hidden

    def _by_nodes(self, rows: Tensor, trees: Trees) -> tuple[Tensor, Tensor]:
        """Return numbers of nodes, and their h: a loop over nodes, children first, stores their states by number."""
        depths = ops.where(trees.is_live, trees.depths, -1)
        order = ops.argsort(-depths)[: ops.sum(ops.cast(trees.is_live, "int32"))]
        from_inputs = self._from_inputs(rows)
        length = 2 * self.units

        def cell(gates: Tensor, below: Tensor) -> Tensor:
            return self._inner_states(gates, below, trees.width)

        def state_of(child: Tensor, store: TensorStore) -> Tensor:
            return cond(child < trees.total, lambda: store.read(child), lambda: ops.zeros((length,), rows.dtype))

        def body(i: Tensor, store: TensorStore) -> tuple[Tensor, TensorStore]:
            node = order[i]
            below = ops.stack([state_of(trees.children[node, place], store) for place in range(trees.width)])
            given = [from_inputs[node][None], below[None]]
            return i + 1, store.write(node, dynamic_schedule(cell, given, split=False)[0])

        store = TensorStore(rows.dtype, (length,), key_dtype="int32", name="states")
        count = ops.shape(order)[0]
        store = while_loop(lambda i, _: i < count, body, (0, store))[1]
        return order, store.gather(order)[:, : self.units]

    # --- cells ----------------------------------------------------------------------------------------------

    def _from_inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs' part of the gates, ``(rows, 4 * units)``."""
        gates = ops.matmul(rows, self.kernel)
        return gates if self.bias is None else gates + self.bias

    def _leaf_states(self, gates: Tensor) -> Tensor:
        """Return states h and c of nodes without children, side by side."""
        i, _, candidate, o = ops.split(gates, 4, axis=1)
        return self._opened(self.recurrent_activation(i) * self.activation(candidate), o)

    def _inner_states(self, gates: Tensor, below: Tensor, width: int) -> Tensor:
        """Return states of nodes from the inputs' part of their gates and the states of their children.

        Args:
            gates: ``(rows, 4 * units)``.
            below: ``(rows, width, 2 * units)``, zeros for a child that is missing.
        """
        units = self.units
        i, f, candidate, o = ops.split(gates, 4, axis=1)
        hidden, memory = below[:, :, :units], below[:, :, units:]
        from_i, from_f, from_candidate, from_o = self._from_children(hidden, width)
        forgets = self.recurrent_activation(f[:, None, :] + from_f)
        added = self.recurrent_activation(i + from_i) * self.activation(candidate + from_candidate)
        return self._opened(added + ops.sum(forgets * memory, axis=1), o + from_o)

    def _from_children(self, hidden: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the children's part of i, of each child's f ``(rows, width, units)``, of candidate and o."""
        units = self.units
        if self.arity is not None:
            product = ops.matmul(ops.reshape(hidden, (-1, width * units)), self.recurrent_kernel)
            forgets = ops.reshape(product[:, units : (1 + width) * units], (-1, width, units))
            rest = product[:, (1 + width) * units :]
            return product[:, :units], forgets, rest[:, :units], rest[:, units:]
        kernel = self.recurrent_kernel
        flat = ops.matmul(ops.reshape(hidden, (-1, units)), kernel[:, units : 2 * units])
        others = ops.concatenate([kernel[:, :units], kernel[:, 2 * units :]], axis=1)
        i, candidate, o = ops.split(ops.matmul(ops.sum(hidden, axis=1), others), 3, axis=1)
        return i, ops.reshape(flat, (-1, width, units)), candidate, o

    def _opened(self, memory: Tensor, o: Tensor) -> Tensor:
        hidden = self.recurrent_activation(o) * self.activation(memory)
        return ops.concatenate([hidden, memory], axis=1)

    # --- what it says of itself -----------------------------------------------------------------------------

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> TensorLike | None:
        """Return the nodes' mask if all nodes are returned."""
        return mask if self.return_nodes else None


def _with_zeros(rows: Tensor, columns: int) -> Tensor:
    """Return the rows, and one of zeros behind them."""
    return ops.concatenate([rows, ops.zeros((1, columns), rows.dtype)])
