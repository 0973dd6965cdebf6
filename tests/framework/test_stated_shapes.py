"""Layers that state what their outputs look like, in functional models: `call` may need what only a run gives."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

X = np.linspace(-1, 1, 24, dtype="float32").reshape(2, 3, 4)
Shape = Sequence[int | None]


class Short(layers.Layer):
    """Projects features, and doubles what has more than three positions: an `if` on a size."""

    def __init__(self, units: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.dense = layers.Dense(units, kernel_initializer="ones")

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    def call(self, x: Any) -> Any:
        return self.dense(x) * (2.0 if x.shape[1] > 3 else 1.0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def model_of(layer: Any, shape: Shape = (None, 4), **options: Any) -> Any:
    x = ab.Input(shape)
    return ab.Model(x, layers.Dense(2, kernel_initializer="ones")(layer(x)), **options)


def test_call_chooses_by_sizes_that_only_a_run_knows():
    model = model_of(Short())
    assert model.output_shape == (None, None, 2)
    assert len(model.weights) == 4
    expected = X.sum(-1, keepdims=True) * 5
    np.testing.assert_allclose(model.predict(X, verbose=0), np.repeat(expected, 2, -1), rtol=1e-5)
    np.testing.assert_allclose(model(X[:, :2]), np.repeat(expected, 2, -1)[:, :2], rtol=1e-5)
    longer = np.concatenate([X, X], 1)
    for length in (4, 5, 6):  # more lengths than have programs of their own
        found = model.predict(longer[:, :length], verbose=0)
        np.testing.assert_allclose(found[:, :3], np.repeat(expected, 2, -1) * 2, rtol=1e-5)


def test_a_bool_of_a_symbol_is_not_needed_either():
    class Short2(Short):
        def call(self, x: Any) -> Any:
            return self.dense(x) * (2.0 if ops.shape(x)[1] > 3 else 1.0)

    np.testing.assert_array_equal(model_of(Short2())(X), model_of(Short())(X))


def test_training_calls_it_with_the_sizes_of_the_batch():
    model = model_of(Short())
    model.compile("sgd", "mse")
    before = model.get_weights()[0]
    model.fit(X, np.ones((2, 3, 2), "float32"), epochs=2, verbose=0)
    model.train_on_batch(X[:, :2], np.ones((2, 2, 2), "float32"))
    assert np.abs(model.get_weights()[0] - before).min() > 0


def test_models_with_it_are_saved_and_nested(tmp_path: Path):
    model = model_of(Short())
    model.save(tmp_path / "model.keras")
    loaded = ab.saving.load_model(tmp_path / "model.keras", custom_objects={"Short": Short})
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    copied = ab.models.clone_model(model)
    assert copied.count_params() == model.count_params()
    x = ab.Input((None, 4))
    outer = ab.Model(x, model(x * 1.0) + 1.0)
    assert outer.output_shape == (None, None, 2)
    np.testing.assert_allclose(outer(X), model(X) + 1.0)
    inside = ab.Sequential([ab.Input((None, 4)), model, layers.GlobalAveragePooling1D()])
    assert inside.output_shape == (None, 2)
    assert model.compute_output_shape((7, None, 4)) == (7, None, 2)


def test_a_layer_of_it_in_a_layer_without_a_statement():
    class Outer(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.short = Short()
            self.head = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.head(self.short(x))

    outer = Outer()
    model = model_of(outer)
    assert outer.output.shape == (None, None, 3)
    assert [weight.shape for weight in outer.weights] == [(4, 5), (5,), (5, 3), (3,)]
    assert model(X).shape == (2, 3, 2)


def test_summary_shows_the_stated_shape(capsys: pytest.CaptureFixture[str]):
    model_of(Short(name="short"), name="m").summary()
    assert re.search(r"short \(Short\) +│ \(None, None, 5\) │ +25 ", capsys.readouterr().out)


def test_outputs_in_structures_and_several_inputs():
    class Two(layers.Layer):
        def compute_output_shape(self, a_shape: Shape, b_shape: Shape) -> dict[str, Any]:
            return {"sum": a_shape, "parts": [list(a_shape), (b_shape[0], 1)]}

        def call(self, a: Any, b: Any, scale: float = 1.0) -> dict[str, Any]:
            if a.shape[1] < 1:
                raise AssertionError
            return {"sum": a + b * scale, "parts": [a * scale, ops.sum(b, 1, keepdims=True)]}

    a, b = ab.Input((None,), name="a"), ab.Input((None,), name="b")
    found = Two()(a, b, scale=2.0)
    assert found["parts"][1].shape == (None, 1)
    model = ab.Model([a, b], found)
    result = model([X[0, :2], X[1, :2]])
    np.testing.assert_allclose(result["sum"], X[0, :2] + 2 * X[1, :2])
    np.testing.assert_allclose(result["parts"][1], X[1, :2].sum(1, keepdims=True))


def test_stated_outputs_have_the_dtype_of_the_computation():
    assert Short(dtype="mixed_float16")(ab.Input((None, 4))).dtype == "float16"
    assert Short()(ab.Input((None, 4))).dtype == "float32"


def test_compute_output_spec_states_dtypes_too():
    class Positions(layers.Layer):
        def compute_output_spec(self, x: Any) -> Any:
            return ab.KerasTensor((x.shape[1], 1), dtype="int32")

        def call(self, x: Any, training: bool | None = None) -> Any:
            return ops.reshape(ops.arange(int(ops.shape(x)[1])), (-1, 1))

    x = ab.Input((None, 4))
    found = Positions()(x)
    assert (found.shape, found.dtype) == ((None, 1), "int32")
    np.testing.assert_array_equal(ab.Model(x, found)(X), [[0], [1], [2]])


def test_masks_pass_through():
    class Kept(Short):
        def __init__(self) -> None:
            super().__init__()
            self.supports_masking = True

    x = ab.Input((None,), dtype="int32")
    embedded = layers.Embedding(9, 4, mask_zero=True, embeddings_initializer="ones")(x)
    made = Kept()(embedded)
    model = ab.Model(x, layers.GlobalAveragePooling1D()(made))
    np.testing.assert_allclose(model(np.array([[1, 2, 0, 0]])), np.full((1, 5), 8.0))


def test_another_shape_than_stated_is_an_error():
    class Wrong(Short):
        def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
            return (*input_shape[:-1], 6)

    x = ab.Input((None, 4))
    model = ab.Model(x, Wrong(name="wrong")(x))
    text = r"Layer 'wrong': compute_output_shape\(\) of Wrong stated outputs of shape \[\?,\?,6\] when the model was"
    with pytest.raises(ValueError, match=rf"{text} built, but call\(\) gives \[2,3,5\]\. Correct the one or the other"):
        model(X)


class Copies(layers.Layer):
    """Gives its input as often as it has positions; three times where these are not known."""

    def call(self, x: Any) -> Any:
        return [x] * (3 if x.shape[1] is None else x.shape[1])


class StatedCopies(layers.Layer):
    """Gives its input as often as it has positions; states that it does so twice."""

    def compute_output_shape(self, input_shape: Shape) -> Any:
        return [tuple(input_shape)] * 2

    def call(self, x: Any) -> Any:
        return [x] * (x.shape[1] + 0)


@pytest.mark.parametrize(
    ("made", "count", "said"), [(Copies, 3, "call() of Copies gave"), (StatedCopies, 2, "stated outputs of shape")]
)
def test_a_call_may_give_more_outputs_than_at_building_but_not_fewer(made: Any, count: int, said: str):
    x = ab.Input((None, 1))
    outputs = made(name="copies")(x)
    assert len(outputs) == count
    model = ab.Model(x, outputs[0] + outputs[1])
    four = np.ones((1, 4, 1), "float32")
    np.testing.assert_array_equal(model(four), four * 2)
    with pytest.raises(ValueError, match=rf"Layer 'copies': .*{re.escape(said)}.* but call\(\) gives \[1,1,1\]\."):
        model(four[:, :1])


def test_the_batch_may_have_another_size_than_stated():
    x = ab.Input(batch_shape=(1, None, 4))
    assert ab.Model(x, Short()(x))(X).shape == (2, 3, 5)


def test_an_error_of_call_comes_when_the_model_is_computed():
    class Broken(Short):
        def call(self, x: Any) -> Any:
            raise RuntimeError("broken")

    model = model_of(Broken())
    with pytest.raises(RuntimeError, match="broken"):
        model(X)


def test_without_a_statement_the_error_comes_at_once():
    class Silent(layers.Layer):
        def call(self, x: Any) -> Any:
            return x if x.shape[1] > 3 else -x

    class Failing(Silent):
        def compute_output_shape(self, input_shape: Shape) -> Any:
            raise NotImplementedError("not yet")

    class Asking(Silent):
        def compute_output_shape(self, input_shape: Shape) -> Any:
            return super().compute_output_shape(input_shape)

    for made in (Silent(), Asking()):
        with pytest.raises(TypeError, match="NoneType"):
            made(ab.Input((None,)))
    with pytest.raises(TypeError, match="NoneType") as raised:
        Failing()(ab.Input((None,)))
    notes = raised.value.__notes__
    assert "compute_output_shape() of Failing fails, too: NotImplementedError: not yet" in notes


def test_a_statement_that_is_no_shape():
    class Odd(Short):
        def compute_output_shape(self, input_shape: Shape) -> Any:
            return 3

    with pytest.raises(TypeError) as raised:
        Odd()(ab.Input((None, 4)))
    assert any("must return a shape, or a structure of shapes, got 3" in note for note in raised.value.__notes__)


def test_losses_of_a_call_that_failed_do_not_count():
    class Adding(Short):
        def call(self, x: Any) -> Any:
            self.add_loss(ops.sum(x))
            return super().call(x)

    layer = Adding()
    model = model_of(layer)
    assert layer.losses == []
    model(X)
    assert len(model.losses) == 1


def test_layers_inside_that_call_did_not_reach_are_named():
    class Late(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(5, name="inner")

        def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
            return (*input_shape[:-1], 5)

        def call(self, x: Any) -> Any:
            return self.dense(x[:, : min(x.shape[1], 3)])

    with pytest.warns(UserWarning, match=r"so the layers inner inside it have no weights until the model is computed"):
        model = model_of(Late())
    assert len(model.weights) == 2
    model.compile("sgd", "mse")
    model.fit(X, np.ones((2, 3, 2), "float32"), verbose=0)
    assert len(model.trainable_weights) == 4
    before = model.get_weights()[0]
    model.fit(X, np.ones((2, 3, 2), "float32"), verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 0


def test_what_is_stated_completes_what_a_call_leaves_open():
    class Halved(layers.Layer):
        def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
            return (input_shape[0], 2, 6)

        def call(self, x: Any) -> Any:
            return ops.reshape(x, (ops.shape(x)[0], ops.cast(ops.sum(ops.ones((2,))), "int32"), -1))

    x = ab.Input((3, 4))
    halved = Halved()(x)
    assert halved.shape == (None, 2, 6)
    model = ab.Model(x, layers.Dense(2)(layers.Flatten()(halved)))
    assert model(X).shape == (2, 2)


def test_a_call_that_symbols_can_run_says_dtype_and_shape():
    class Counted(layers.Layer):
        def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
            return (7, 7, 7)  # wrong, and of no effect

        def call(self, x: Any) -> Any:
            return ops.argmax(x, -1)

    found = Counted()(ab.Input((None, 4)))
    assert (found.shape, found.dtype) == ((None, None), "int32")


def test_models_of_a_subclass_are_built_by_shapes():
    class Net(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.short = Short()
            self.head = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.head(self.short(x))

    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.build((None, None, 4))
    assert net.count_params() == 25 + 12
    assert net.symbolic_call(ab.KerasTensor((None, None, 4))).shape == (None, None, 2)


def test_tensorboard_draws_models_with_it(tmp_path: Path):
    model = model_of(Short())
    model.compile("sgd", "mse")
    callback = ab.callbacks.TensorBoard(str(tmp_path), write_graph=True)
    model.fit(X, np.ones((2, 3, 2), "float32"), callbacks=[callback], verbose=0)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*tfevents*"))
    assert b"output_stated_by_compute_output_shape" in written


def test_remat_and_stated_outputs():
    with ab.RematScope(mode="full"):
        layer = Short()
    model = model_of(layer)
    model.compile("sgd", "mse")
    model.fit(X, np.ones((2, 3, 2), "float32"), verbose=0)
    assert model(X).shape == (2, 3, 2)


def test_build_of_a_model_may_call_that_of_its_base():
    class Pair(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)
            self.late = layers.Dense(3)

        def build(self, input_shape: Any = None) -> None:
            self.dense.build((None, 4))
            super().build(input_shape)

        def call(self, x: Any, scale: Any) -> Any:
            return self.late(self.dense(x) * scale)

    pair = Pair()
    assert pair(X, X[0, 0, 0]).shape == (2, 3, 3)
    assert len(pair.weights) == 4
