"""Habits of other frameworks: calls that would do nothing, or something else, in silence, name what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers

any_ab: Any = ab  # for calls that type checkers refuse
X = np.ones((2, 3), "float32")

# Shapes behind another argument, as behind the key in JAX and behind the numbers in NumPy.
OTHER_ORDERS: list[Callable[[], Any]] = [
    lambda: any_ab.random.normal(0, (2, 3)),
    lambda: any_ab.random.normal(2, [2, 3]),  # would be two numbers with the means 2 and 3
    lambda: any_ab.random.normal(0.0, 1.0, (2, 3)),
    lambda: any_ab.random.truncated_normal(0, (2, 3)),
    lambda: any_ab.random.uniform(ab.random.SeedGenerator(1), (2, 3)),
    lambda: any_ab.random.randint(0, (2, 3), 0, 10),
]


@pytest.mark.parametrize("draw", OTHER_ORDERS)
def test_a_shape_behind_another_argument_is_refused(draw: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"takes the shape first.*\(\(2, 3\), \.\.\.\), with seed="):
        draw()


def test_shapes_that_are_one_number_take_numbers_for_each_element() -> None:
    drawn = ab.random.normal(3, [-50.0, 0.0, 50.0], 0.1)
    assert np.array_equal(np.sign(np.round(drawn.numpy())), [-1, 0, 1])
    assert ab.random.uniform((2,), (2, 3), (3, 4)).shape == (2,)


@pytest.mark.parametrize(
    "tensor",
    [ab.ops.ones((2, 3)), ab.Input((3,), batch_size=2), ab.Variable(X), layers.Dense(3, name="d").add_weight((2, 3))],
)
def test_size_is_no_method(tensor: Any) -> None:
    with pytest.raises(TypeError, match=r"size is the number of elements here, 6.*Use x\.shape, or x\.shape\[axis\]"):
        tensor.size(0)
    assert tensor.size == 6
    assert json.dumps(tensor.size) == repr(tensor.size) == "6"
    assert ab.ops.convert_to_tensor(tensor.size).dtype == "int32"
    assert (ab.ops.ones(3) / tensor.size).dtype == "float32"
    assert ab.Input((3,)).size is None


class Forward(layers.Layer):
    def forward(self, x: Any) -> Any:
        return x


class ForwardModel(ab.Model):
    def forward(self, x: Any) -> Any:
        return x


def test_a_forward_is_to_be_renamed() -> None:
    with pytest.raises(NotImplementedError, match=r"class Forward does not define call\(\)\. Rename its forward\."):
        Forward()(X)
    with pytest.raises(NotImplementedError, match=r"defines no call\(self, inputs\)\. Rename forward to call\."):
        ForwardModel()(X)


def test_settings_that_nothing_reads_are_refused() -> None:
    layer: Any = layers.Dense(2)
    layer.build((None, 3))
    for owner in (layer, layer.kernel, ab.Variable(1.0)):
        with pytest.raises(AttributeError, match=r"does not have requires_grad, .*trainable"):
            owner.requires_grad = False
    with pytest.raises(AttributeError, match=r"does not have data, .*assign\(value\)"):
        layer.kernel.data = X


class OwnOptimizer(ab.optim.SGD):
    def __init__(self) -> None:
        super().__init__(0.5)
        self.lr = "own"


def test_a_rate_by_the_name_of_keras_2_is_refused() -> None:
    optimizer: Any = ab.optim.Adam(0.5)
    with pytest.raises(AttributeError, match=r"does not have lr, .*Use learning_rate\."):
        optimizer.lr = 0.1
    assert OwnOptimizer().lr == "own"
    assert float(optimizer.learning_rate) == 0.5


def test_keywords_of_other_frameworks_are_explained() -> None:
    with pytest.raises(TypeError, match=r"'requires_grad'\. Did you mean 'trainable'\?"):
        any_ab.Variable(1.0, requires_grad=False)
    model: Any = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match=r"Leave out 'workers': ab\.utils\.PyDataset\(workers="):
        model.fit(X, X[:, :1], workers=4)


def test_sizes_of_inputs_are_no_activations() -> None:
    with pytest.raises(ValueError, match=r"4 of type int is no activation: .*given no size of their input"):
        any_ab.layers.Dense(3, 4)
    with pytest.raises(TypeError, match="Leave out 'betas': give beta_1 and beta_2"):
        any_ab.optim.Adam(betas=(0.9, 0.999))


def test_gradients_that_are_to_be_values_are_refused() -> None:
    variable = ab.Variable(1.0)
    variable.overwrite_with_gradient = False
    assert not variable.overwrite_with_gradient
    with pytest.raises(NotImplementedError, match=r"assign this one by variable\.assign\(gradient\)"):
        variable.overwrite_with_gradient = True


# Calls as JAX has them, by what they are to say.
OTHER_CALLS: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: ab.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2.0), (0, 1.0)),
        "while_loop: cond is called with 2 arguments, and takes (s). Functions take one argument for each loop",
    ),
    (
        lambda: ab.while_loop(lambda i, x: i < 5, lambda s: (s[0] + 1, s[1] * 2.0), (0, 1.0)),
        "while_loop: body is called with 2 arguments, and takes (s).",
    ),
    (
        lambda: ab.vectorized_map(lambda x, y: x * y, (X, X)),
        "vectorized_map: function is called with 1 argument, and takes (x, y). It gets one element, which is a tuple",
    ),
    (lambda: ab.map_fn(lambda x, y: x * y, (X, X)), "map_fn: f is called with 1 argument, and takes (x, y)."),
    (lambda: ab.hessian(ab.ops.sum, X), "hessian takes a tensor and what it was computed from; got a function"),
    (lambda: ab.jacobian(ab.ops.sum, X), "inside of `with ab.GradientTape() as tape:` for tape.jacobian(y, x)."),
    (lambda: any_ab.vectorized_map(ab.ops.sum, X, in_axes=1), "Leave out 'in_axes': the first axis is mapped"),
    (lambda: any_ab.function(ab.ops.sum, static_argnums=1), "Leave out 'static_argnums': strings, bools and other"),
    (lambda: any_ab.function(input_signature=None), "Leave out 'input_signature': there is a trace for each kind"),
]


@pytest.mark.parametrize(("call", "message"), OTHER_CALLS)
def test_calls_of_other_frameworks_name_what_to_write(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


def test_a_loop_takes_functions_of_any_kind() -> None:
    class Counts:
        def __call__(self, i: Any, *rest: Any, step: int = 1) -> Any:
            return (i + step, *rest)

    (state,) = ab.while_loop(lambda s: s[0] < 5, lambda s: ((s[0] + 1, s[1] * 2.0),), ((0, 1.0),))
    assert [float(each) for each in state] == [5.0, 32.0]
    assert [float(each) for each in ab.while_loop(lambda i, x: i < 3, Counts(), (0, 1.0))] == [3.0, 1.0]
    assert float(ab.while_loop(partial(lambda limit, i: i < limit, 4), lambda i: i + 1, 0)) == 4.0
    assert ab.map_fn(ab.function(ab.ops.sum), X).numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("random", "key", "module 'anabranch.random' does not have key, as other frameworks do. Pass seed="),
        ("random", "norml", "module 'anabranch.random' has no attribute 'norml'"),
        (
            "tree",
            "map",
            "module 'anabranch.tree' does not have map, as other frameworks do. Use ab.tree.map_",
        ),
        ("ops", "normal", "module 'anabranch.ops' does not have normal, as other frameworks do. Use ab.random.normal."),
        ("ops", "randn", "Use ab.random.normal."),
        ("ops", "random_uniform", "Use ab.random.uniform."),
        ("ops", "expit", "module 'anabranch.ops' does not have expit, as other frameworks do. Use ab.ops.sigmoid."),
        ("optim", "chain", "module 'anabranch.optim' does not have chain"),
    ],
)
def test_errors_name_modules_as_users_do(module: str, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(getattr(ab, module), name)


@pytest.mark.parametrize("name", ["normal", "uniform", "randint", "shuffle", "gamma"])
def test_draws_are_not_among_the_ops(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"Use ab\.random\.{name}\."):
        getattr(ab.ops.random, name)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (ab.tf.data.Dataset.range(3), "element_spec", "look at one, next(iter(dataset))"),
        (ab.tf.data.Dataset.range(3), "with_options", "Leave it out: no option of TensorFlow's has a meaning here."),
        (ab.tf.data.Dataset.range(3).batch(2), "group_by_window", "Use padded_batch, or bucket_by_sequence_length."),
        (ab.tf.data, "Options", "does not have Options, as other frameworks do. Leave it out, and with_options, too"),
        (ab.tf.data, "TFRecordDataset", "Use Dataset.from_generator(lambda: ab.io.tf_record_iterator(path), ...)."),
        (ab.ops.ones(3), "scatter_", "variables have scatter_update, too."),
    ],
)
def test_attributes_of_other_frameworks_name_what_to_use(owner: Any, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(owner, name)


class Passes(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2.0


@pytest.mark.parametrize("inputs", [ab.Input((3,), dtype="int32"), np.ones((2, 3), "int32")])
def test_the_warning_of_a_lost_mask_names_the_line_of_the_user(inputs: Any) -> None:
    embedded = layers.Embedding(5, 2, mask_zero=True)(inputs)
    with pytest.warns(UserWarning, match="was given an input with a mask") as found:
        Passes()(embedded)
    assert found[0].filename == __file__


def test_regularizers_take_lists() -> None:
    assert float(ab.regularizers.L2(0.5)([2.0])) == 2.0
    assert float(ab.regularizers.OrthogonalRegularizer(1.0)([[1.0, 0.0], [1.0, 0.0]])) == 1.0


def test_the_warning_of_a_frozen_model_names_the_line_of_the_user() -> None:
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    model.trainable = False
    with pytest.warns(UserWarning, match="has no trainable variables") as found:
        model.fit(X, X[:, :1], verbose=0)
    assert found[0].filename == __file__


@pytest.mark.parametrize("callbacks", ["EarlyStopping", ["EarlyStopping"]])
def test_callbacks_by_name_are_refused(callbacks: Any) -> None:
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match=r"callbacks must be .* objects, got 'EarlyStopping' of type str"):
        model.fit(X, X[:, :1], callbacks=callbacks, verbose=0)
