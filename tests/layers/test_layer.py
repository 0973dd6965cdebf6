"""The `Layer` contract: building, calling on tensors and arrays, tracking, masks, training, losses, errors."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.graph.graph import get_default_graph
from anabranch.engine.objects.names import reset_names


class Scale(layers.Layer):
    def build(self, input_shape: Any) -> None:
        self.factor = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="factor")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor


class Flags(layers.Layer):
    """Gives 1 in training, else 0."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return inputs * (1.0 if training else 0.0)


class Block(layers.Layer):
    """Layers and variables in all the places where attributes can hold them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = layers.Dense(2, name="first")
        self.several = [layers.Dense(3, name="in_list"), (layers.Dense(4, name="in_tuple"),)]
        self.named = {"deep": {"er": layers.Dense(5, name="in_dict")}}
        self.raw = ab.Variable(np.ones(2, "float32"), name="raw")
        self.fixed = ab.Variable(1.0, trainable=False, name="fixed")

    def call(self, inputs: Any) -> Any:
        outputs = self.first(inputs) * self.raw
        for layer in (self.several[0], self.several[1][0], self.named["deep"]["er"]):
            outputs = layer(outputs)
        return outputs * self.fixed


# --- calling --------------------------------------------------------------------------------------------------------


def test_arrays_give_values() -> None:
    layer = Scale()
    for value in (np.ones((2, 3), "float32"), np.ones((2, 3)), np.ones((2, 3), "int32"), [[1.0, 1.0, 1.0]] * 2):
        result = layer(value)
        assert isinstance(result, ab.Tensor)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, np.ones((2, 3)))


def test_tensors_give_tensors() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3), "float32")
        y = Scale()(x)
        assert isinstance(y, ab.Tensor)
        assert y.shape == (None, 3)
        np.testing.assert_array_equal(y.eval({x: np.ones((2, 3))}), np.ones((2, 3)))


def test_arrays_inside_an_explicit_graph_give_tensors() -> None:
    with ab.Graph().as_default():
        assert isinstance(Scale()(np.ones((2, 3), "float32")), ab.Tensor)


def test_a_tensor_of_another_graph_than_the_current_one() -> None:
    graph = ab.Graph()
    with graph.as_default():
        x = ab.placeholder((None, 3), "float32")
    assert Scale()(x).graph is graph


def test_weights_are_read_at_each_call() -> None:
    layer = Scale()
    layer(np.ones((1, 2), "float32"))
    layer.set_weights([np.array([2.0, 3.0])])
    np.testing.assert_array_equal(layer(np.ones((1, 2), "float32")), [[2, 3]])


def test_call_runs_once_for_each_call() -> None:
    calls = []

    class Counted(layers.Layer):
        def call(self, inputs: Any) -> Any:
            calls.append(inputs.shape)
            return inputs + 1

    layer = Counted()
    for _ in range(3):
        layer(np.ones((2, 3), "float32"))
    layer(np.ones((4, 3), "float32"))
    assert calls == [(2, 3), (2, 3), (2, 3), (4, 3)]


def test_structures_of_arrays() -> None:
    class Sums(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return {"sum": inputs["a"] + inputs["b"], "both": (inputs["a"], inputs["b"])}

    result = Sums()({"a": np.ones(2, "float32"), "b": np.ones(2, "float32")})
    np.testing.assert_array_equal(result["sum"], [2, 2])
    assert isinstance(result["both"], tuple)


def test_settings_are_no_data() -> None:
    class Repeat(layers.Layer):
        def call(self, inputs: Any, times: int = 1, names: Any = ()) -> Any:
            return ops_repeat(inputs, times) if names else inputs

    def ops_repeat(x: Any, times: int) -> Any:
        return ab.ops.concatenate([x] * times, axis=0)

    layer = Repeat()
    x = np.ones((1, 2), "float32")
    assert layer(x, times=3, names=("a",)).shape == (3, 2)
    assert layer(x, times=2, names=("a",)).shape == (2, 2)
    assert layer(x).shape == (1, 2)


def test_several_arguments_build_by_name() -> None:
    shapes = {}

    class Attend(layers.Layer):
        def build(self, query_shape: Any, value_shape: Any) -> None:
            shapes.update(query=query_shape, value=value_shape)
            self.kernel = self.add_weight(shape=(query_shape[-1], value_shape[-1]), name="kernel")

        def call(self, query: Any, value: Any) -> Any:
            return ab.ops.matmul(query, self.kernel) * value

    layer = Attend()
    assert layer(np.ones((2, 3), "float32"), np.ones((2, 4), "float32")).shape == (2, 4)
    assert shapes == {"query": (2, 3), "value": (2, 4)}
    again = Attend()
    again.build_from_config(layer.get_build_config() or {})
    assert again.built
    assert again.kernel.shape == (3, 4)


def test_a_build_that_asks_for_what_the_call_lacks() -> None:
    class Wrong(layers.Layer):
        def build(self, query_shape: Any, key_shape: Any) -> None:
            raise AssertionError

        def call(self, query: Any, value: Any) -> Any:
            return query

    with pytest.raises(ValueError, match="asks for key_shape, but the call gives query_shape, value_shape"):
        Wrong()(np.ones((1, 2)), np.ones((1, 2)))


def test_forgotten_super_init() -> None:
    class Forgetful(layers.Layer):
        def __init__(self) -> None:
            self.units = 3

    with pytest.raises(RuntimeError, match="did not call super"):
        Forgetful()(np.ones((1, 2)))


def test_call_errors_name_the_layer() -> None:
    with pytest.raises(TypeError, match=r"Layer 'odd'.*missing a required argument: 'inputs'"):
        Scale(name="odd")()
    with pytest.raises(TypeError, match=r"Attention.call\(query, value, key=None, .*missing .*: 'value'") as signature:
        layers.MultiHeadAttention(2, 4)(np.ones((2, 3, 4)))
    assert "Tensor" not in str(signature.value)
    with pytest.raises(ValueError, match="shape") as caught:
        layers.Add(name="sum")([np.ones((2, 3)), np.ones((2, 4))])
    assert any("layer 'sum' (Add)" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        Scale(color="red")


def test_call_is_needed() -> None:
    with pytest.raises(NotImplementedError, match="does not define call"):
        layers.Layer()(np.ones(2))


# --- input checks ---------------------------------------------------------------------------------------------------


def test_dense_needs_the_size_of_the_last_axis() -> None:
    with ab.Graph().as_default(), pytest.raises(ValueError, match=r"'head' \(Dense\) needs a known size"):
        layers.Dense(2, name="head")(ab.placeholder((4, None), "float32"))
    with ab.Graph().as_default(), pytest.raises(ValueError, match="needs a known size"):
        layers.Dense(2)(ab.placeholder(None, "float32"))


def test_input_of_another_size_after_building() -> None:
    layer = layers.Dense(2, name="head")
    layer(np.ones((1, 3), "float32"))
    with pytest.raises(ValueError, match=r"layer 'head' .* axis -1 .* size 3, got size 4"):
        layer(np.ones((1, 4), "float32"))
    with pytest.raises(ValueError, match="expected min_ndim=2, got ndim=1"):
        layer(np.ones(3, "float32"))


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (layers.InputSpec(ndim=3), (2, 3), "expected ndim=3, got ndim=2"),
        (layers.InputSpec(max_ndim=2), (2, 3, 4), "expected max_ndim=2, got ndim=3"),
        (layers.InputSpec(min_ndim=2), (2,), "expected min_ndim=2, got ndim=1"),
        (layers.InputSpec(shape=(None, 3)), (2, 4), r"expected shape=\(None, 3\), got shape=\(2, 4\)"),
        (layers.InputSpec(dtype="int32"), (2,), "expected dtype=int32, got dtype=float32"),
        ([layers.InputSpec(ndim=1)] * 2, (2,), "expects 2 inputs, but got 1"),
    ],
)
def test_input_specs(spec: Any, shape: tuple[int, ...], message: str) -> None:
    layer = layers.Identity()
    layer.input_spec = spec
    with pytest.raises(ValueError, match=message):
        layer(np.ones(shape, "float32"))


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_dense_takes_whole_numbers(dtype: str) -> None:
    result = layers.Dense(2, kernel_initializer="ones")(np.ones((1, 3), dtype))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [[3, 3]])


def test_dtype_of_a_layer() -> None:
    layer = layers.Dense(2, dtype="float64")
    assert layer(np.ones((1, 3), "float32")).dtype == np.float64
    assert layer.kernel.dtype == np.float64
    assert layer.compute_dtype == layer.variable_dtype == layer.dtype == "float64"
    with pytest.raises(ValueError, match="DTypePolicy takes a dtype"):
        ab.DTypePolicy("int8_from_float32")
    with pytest.raises(ValueError, match="Unknown dtype 'flot32'"):
        layers.Dense(2, dtype="flot32")


# --- weights --------------------------------------------------------------------------------------------------------


def test_tracking_of_nested_attributes() -> None:
    block = Block()
    block(np.ones((1, 2), "float32"))
    names = [weight.name for weight in block.weights]
    assert names == ["raw", "fixed", *["kernel", "bias"] * 4]
    assert len(block.trainable_weights) == 9
    assert [weight.name for weight in block.non_trainable_weights] == ["fixed"]
    assert [layer.name for layer in block._sublayers()] == ["first", "in_list", "in_tuple", "in_dict"]
    assert block.count_params() == 2 + 1 + (2 + 1) * 2 + (2 + 1) * 3 + (3 + 1) * 4 + (4 + 1) * 5


def test_layers_appended_later_belong_to_it() -> None:
    class Growing(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[Any] = []
            for _ in range(2):
                self.parts.append(layers.Dense(2))

        def call(self, inputs: Any) -> Any:
            for part in self.parts:
                inputs = part(inputs)
            return inputs

    layer = Growing()
    layer(np.ones((1, 2), "float32"))
    assert len(layer.weights) == 4


def test_a_shared_layer_counts_once() -> None:
    shared = layers.Dense(2)

    class Twice(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one = shared
            self.two = [shared]

        def call(self, inputs: Any) -> Any:
            return self.two[0](self.one(inputs))

    layer = Twice()
    layer(np.ones((1, 2), "float32"))
    assert len(layer.weights) == 2


def test_freezing() -> None:
    block = Block()
    block(np.ones((1, 2), "float32"))
    order = [id(weight) for weight in block.weights]
    block.trainable = False
    assert not block.first.trainable
    assert block.trainable_weights == []
    assert [id(weight) for weight in block.non_trainable_weights] == order
    block.trainable = True
    block.first.trainable = False
    assert len(block.trainable_weights) == 7
    assert [id(weight) for weight in block.weights] == order


def test_freezing_batch_normalization_takes_effect_on_arrays() -> None:
    layer = layers.BatchNormalization()
    x = np.array([[1.0], [3.0]], "float32")
    layer(x, training=True)
    layer.trainable = False
    before = layer.get_weights()
    np.testing.assert_allclose(layer(x, training=True), (x - 0.02) / np.sqrt(1.0 + 0.001), rtol=1e-4)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_set_weights_is_all_or_none() -> None:
    layer = layers.Dense(2, name="head")
    layer(np.ones((1, 3), "float32"))
    before = layer.get_weights()
    with pytest.raises(ValueError, match=r"'head': weight 'bias' has shape \(2,\), got a value of shape \(3,\)"):
        layer.set_weights([np.zeros((3, 2)), np.zeros(3)])
    with pytest.raises(ValueError, match="has 2 weights, but set_weights was given 1"):
        layer.set_weights([np.zeros((3, 2))])
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(ValueError, match="not built yet"):
        layers.Dense(2).set_weights(before)


def test_add_weight() -> None:
    layer = layers.Layer(name="outer")
    scalar = layer.add_weight(name="scalar")
    counter = layer.add_weight(shape=(2,), dtype="int32", trainable=False, name="counter")
    assert (scalar.shape, scalar.path) == ((), "outer/scalar")
    np.testing.assert_array_equal(counter.numpy(), [0, 0])
    with pytest.raises(ValueError, match=r"'outer' can't make its weight 'kernel' with shape \(None, 3\)"):
        layer.add_weight(shape=(None, 3), name="kernel")
    with pytest.raises(ValueError, match=r"gave shape \(3,\), expected \(2,\)"):
        layer.add_weight(shape=(2,), initializer=lambda shape, dtype=None: np.zeros(3), name="odd")


def test_paths_follow_the_calls() -> None:
    block = Block(name="block")
    block(np.ones((1, 2), "float32"))
    assert block.first.kernel.path == "block/first/kernel"
    assert block.named["deep"]["er"].path == "block/in_dict"


def test_own_variables_round_trip() -> None:
    layer = layers.BatchNormalization()
    layer(np.ones((2, 3), "float32"))
    layer.set_weights([np.full(3, value) for value in (1, 2, 3, 4)])
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    assert sorted(store) == ["0", "1", "2", "3"]
    again = layers.BatchNormalization(name="norm")
    with pytest.raises(ValueError, match=r"'norm' .* has 0 variables of its own, but the file holds 4.*not built"):
        again.load_own_variables(store)
    again.build((None, 3))
    again.load_own_variables(store)
    np.testing.assert_array_equal(again.moving_variance.numpy(), [4, 4, 4])


def test_names() -> None:
    reset_names()
    assert [layers.Dense(1).name, layers.Dense(1).name, layers.GlobalAveragePooling1D().name] == [
        "dense",
        "dense_1",
        "global_average_pooling1d",
    ]
    reset_names()
    assert layers.Dense(1).name == "dense"
    with pytest.raises(ValueError, match="without '/'"):
        layers.Dense(1, name="a/b")


def test_building_in_advance() -> None:
    block = Block()
    block.build((None, 2))
    assert block.first.built
    assert len(block.weights) == 10
    dense = layers.Dense(3)
    dense.build((None, 2))
    kernel = dense.kernel
    dense.build((None, 2))
    assert dense.kernel is kernel


def test_output_shapes() -> None:
    assert layers.Dense(3).compute_output_shape((None, 5, 2)) == (None, 5, 3)
    assert layers.Concatenate().compute_output_shape([(None, 2), (None, 3)]) == (None, 5)
    assert Block().compute_output_shape((7, 2)) == (7, 5)
    shapes = layers.LSTM(4, return_state=True).compute_output_shape((None, 5, 2))
    assert shapes == ((None, 4), (None, 4), (None, 4))


# --- training -------------------------------------------------------------------------------------------------------


def test_training_reaches_inner_layers() -> None:
    class Outer(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.flags = Flags()

        def call(self, inputs: Any) -> Any:
            return self.flags(inputs)

    layer = Outer()
    x = np.ones((1, 1), "float32")
    assert layer(x, training=True) == 1
    assert layer(x) == 0
    assert layer(x, training=False) == 0
    assert layers.TimeDistributed(Flags())(np.ones((1, 1, 1), "float32"), training=True) == 1


def test_explicit_training_wins() -> None:
    class Outer(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.flags = Flags()

        def call(self, inputs: Any, training: Any = None) -> Any:
            return self.flags(inputs, training=False)

    assert Outer()(np.ones((1, 1), "float32"), training=True) == 0


def test_training_by_default() -> None:
    class Eager(Flags):
        def call(self, inputs: Any, training: Any = True) -> Any:
            return super().call(inputs, training)

    assert Eager()(np.ones((1, 1), "float32")) == 1


def test_training_and_mask_without_defaults() -> None:
    class Strict(layers.Layer):
        def call(self, inputs: Any, training: Any, mask: Any) -> Any:
            assert mask is None
            return inputs * (1.0 if training else 0.0)

    assert Strict()(np.ones((1, 1), "float32")) == 0
    assert Strict()(np.ones((1, 1), "float32"), training=True) == 1


# --- masks ----------------------------------------------------------------------------------------------------------


def test_masks_travel_and_are_used() -> None:
    with ab.Graph().as_default():
        ids = ab.constant(np.array([[1, 2, 0]]))
        embedding = layers.Embedding(3, 2, mask_zero=True)
        x = layers.Dropout(0.5)(layers.Activation("linear")(embedding(ids)))
        pooled = layers.GlobalAveragePooling1D()(x)
        mask, mean = ab.Session(get_default_graph()).run([x.annotations["mask"], pooled])
        assert "mask" not in pooled.annotations
    np.testing.assert_array_equal(mask, [[True, True, False]])
    np.testing.assert_allclose(mean, embedding.embeddings.numpy()[1:].mean(0, keepdims=True), rtol=1e-6)


def test_masks_of_several_arguments() -> None:
    seen = {}

    class Attend(layers.Layer):
        def call(self, query: Any, value: Any, mask: Any = None, value_mask: Any = None) -> Any:
            seen.update(mask=mask, value_mask=value_mask)
            return query

    with ab.Graph().as_default():
        value = layers.Masking()(ab.placeholder((None, 3, 2), "float32"))
        Attend()(ab.placeholder((None, 2), "float32"), value)
    assert seen["mask"] is None
    assert seen["value_mask"] is value.annotations["mask"]


def test_a_lost_mask_warns() -> None:
    class Plain(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2

    with ab.Graph().as_default():
        x = layers.Masking()(ab.placeholder((None, 3, 2), "float32"))
        with pytest.warns(UserWarning, match=r"'plain\w*' \(Plain\) was given an input with a mask"):
            assert "mask" not in Plain()(x).annotations


def test_a_mask_set_by_a_layer_does_not_change_its_input() -> None:
    class Marks(layers.Layer):
        def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
            return ab.ops.not_equal(inputs, 0.0)

        def call(self, inputs: Any) -> Any:
            return inputs

    with ab.Graph().as_default():
        x = ab.placeholder((None,), "float32")
        y = Marks()(x)
        assert y is not x
        assert "mask" not in x.annotations
        assert "mask" in y.annotations


def test_merged_masks() -> None:
    with ab.Graph().as_default():
        first = layers.Masking()(ab.constant(np.array([[[1.0], [0.0], [0.0]]], "float32")))
        second = layers.Masking()(ab.constant(np.array([[[1.0], [1.0], [0.0]]], "float32")))
        plain = ab.constant(np.ones((1, 3, 1), "float32"))
        added = layers.Add()([first, second]).annotations["mask"]
        joined = layers.Concatenate(axis=1)([first, plain]).annotations["mask"]
        assert "mask" not in layers.Add()([first, plain]).annotations
        added, joined = ab.Session(get_default_graph()).run([added, joined])
    np.testing.assert_array_equal(added, [[True, True, False]])
    np.testing.assert_array_equal(joined, [[True, False, False, True, True, True]])


# --- losses ---------------------------------------------------------------------------------------------------------


def test_losses_of_a_call() -> None:
    class Charged(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2", activity_regularizer="l1")

        def call(self, inputs: Any) -> Any:
            self.add_loss(ab.ops.sum(inputs))
            return self.inner(inputs)

    layer = Charged()
    for _ in range(2):  # the losses of one call do not add to those of the next
        layer(np.ones((2, 3), "float32"))
        own, activity, penalty = layer.losses
        assert float(own) == 6
        assert float(activity) == pytest.approx(0.03)  # for a row
        assert float(penalty.eval()) == pytest.approx(0.03)


def test_losses_in_a_graph() -> None:
    layer = layers.Dense(1, kernel_initializer="ones", activity_regularizer="l2")
    layer(np.ones((2, 3), "float32"))
    with ab.Graph().as_default():
        layer(ab.constant(np.ones((1, 3), "float32")))
        layer(ab.constant(np.ones((1, 3), "float32")))
        (loss,) = layer.losses
        assert float(loss.eval()) == pytest.approx(0.09)
    with ab.Graph().as_default():
        assert layer.losses == []


class LossyCell(layers.Layer):
    state_size = 2

    def __init__(self, in_branch: bool) -> None:
        super().__init__()
        self.in_branch = in_branch

    def call(self, x: Any, states: Any) -> Any:
        if self.in_branch:
            ab.cond(ab.ops.sum(x) > 0, lambda: self.lose(x), lambda: x)
        else:
            self.lose(x)
        return x, [x]

    def lose(self, x: Any) -> Any:
        self.add_loss(ab.ops.sum(x))
        return x


def test_losses_of_a_cell_are_summed_over_the_steps() -> None:
    layer = layers.RNN(LossyCell(in_branch=False))
    layer(np.arange(6, dtype="float32").reshape(1, 3, 2))
    assert [float(loss) for loss in layer.losses] == [15.0]


@pytest.mark.parametrize(("make", "loss"), [(lambda cell: cell, 2.0), (layers.RNN, 6.0)])
def test_losses_of_a_branch(make: Any, loss: float) -> None:
    layer = make(LossyCell(in_branch=True))
    for sign, expected in ((1, loss), (-1, 0.0)):
        inputs = sign * np.ones((1, 3, 2) if isinstance(layer, layers.RNN) else (1, 2), "float32")
        layer(inputs, [np.ones((1, 2), "float32")])
        assert sum(float(value) for value in layer.losses) == expected


# --- configs --------------------------------------------------------------------------------------------------------


class WithArguments(layers.Layer):
    def __init__(self, units: int, activation: Any = None, *, inner: Any = None) -> None:
        super().__init__()
        self.units = units
        self.activation = activation
        self.inner = inner

    def call(self, inputs: Any) -> Any:
        return inputs


def test_config_from_the_constructor() -> None:
    layer = WithArguments(3, "relu", inner=layers.Dense(2, name="within"))
    layer.name = "mine"
    config = layer.get_config()
    assert config["units"] == 3
    again = WithArguments.from_config(config)
    assert (again.name, again.units, again.activation) == ("mine", 3, "relu")
    assert isinstance(again.inner, layers.Dense)
    assert again.inner.name == "within"


def test_config_that_cannot_be_made() -> None:
    layer = WithArguments(object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotImplementedError, match=r"can't be saved.*Override get_config\(\) of WithArguments"):
        layer.get_config()


def test_a_layer_class_that_is_not_registered() -> None:
    config = {"module": "elsewhere", "class_name": "Unheard", "config": {}, "registered_name": "x>Unheard"}
    with pytest.raises(TypeError, match=r"'x>Unheard' \(of module 'elsewhere'\).*custom_objects"):
        layers.deserialize(config)
    found = layers.deserialize({**config, "config": {"units": 2}}, custom_objects={"Unheard": WithArguments})
    assert found.units == 2


def test_lambda_is_refused_in_safe_mode() -> None:
    layer = layers.Lambda(lambda x: x * 2)
    np.testing.assert_array_equal(layer(np.ones(2, "float32")), [2, 2])
    with pytest.warns(UserWarning, match="saved as Python bytecode"):
        config = layers.serialize(layer)
    with pytest.raises(ValueError, match="safe_mode=False"):
        layers.deserialize(config)
    again = layers.deserialize(config, safe_mode=False)
    np.testing.assert_array_equal(again(np.ones(2, "float32")), [2, 2])


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_nodes_are_recorded_in_functional_construction_only() -> None:
    dense, scale = layers.Dense(2), Scale()
    x = ab.Input((3,))
    hidden = dense(x + 1.0)
    y = scale(hidden)
    assert y.annotations["history"] == (scale, 0, 0)
    assert scale.inbound_nodes[0].parents == [dense.inbound_nodes[0]]
    assert scale.input is hidden
    assert scale.output is y
    with ab.Graph().as_default():
        dense(ab.placeholder((None, 3), "float32"))
    dense(np.ones((1, 3), "float32"))
    assert len(dense.inbound_nodes) == 1
    block = Block()
    block(ab.Input((2,)))
    assert len(block.inbound_nodes) == 1
    assert block.first.inbound_nodes == []


def test_a_layer_that_passes_its_input_on_has_an_output_of_its_own() -> None:
    x = ab.Input((3,))
    before = x.annotations["history"]
    layer = layers.Dropout(0.5)
    y = layer(x)
    assert x.annotations["history"] == before
    assert y.annotations["history"] == (layer, 0, 0)


def test_no_input_before_a_call() -> None:
    with pytest.raises(AttributeError, match=r"never called on a tensor from ab\.Input"):
        _ = layers.Dense(2).input


class AlwaysDrops(layers.Layer):
    """Gives 1 except where `training` is false, as layers for Monte Carlo dropout do."""

    def call(self, inputs: Any, training: Any = True) -> Any:
        return inputs * (1.0 if training else 0.0)


def in_functional(layer: layers.Layer) -> Any:
    inputs = ab.Input((2,))
    return ab.Model(inputs, layer(inputs))


@pytest.mark.parametrize("made", [lambda layer: ab.Sequential([layer]), in_functional])
def test_inside_of_models_too_training_is_what_a_call_has_by_default(made: Any) -> None:
    model = made(AlwaysDrops())
    x = np.ones((3, 2), "float32")
    np.testing.assert_array_equal(model(x), x)
    np.testing.assert_array_equal(model(x, training=False), 0 * x)
    np.testing.assert_array_equal(model.predict(x, verbose=0), 0 * x)
    np.testing.assert_array_equal(made(Flags())(x), 0 * x)


def test_a_sequential_of_augmentations_called_alone_augments() -> None:
    images = np.random.default_rng(0).random((4, 8, 8, 3), "float32")
    for made in (ab.Sequential([layers.RandomBrightness(0.5, seed=1)]), layers.RandomBrightness(0.5, seed=1)):
        assert np.abs(made(images) - images).max() > 0.01
        np.testing.assert_allclose(made(images, training=False), images, rtol=1e-6)
