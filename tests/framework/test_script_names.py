"""Names that scripts for Keras use: remat, Function, wrappers, visualization, bounding boxes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.framework import bounding_boxes

RNG = np.random.default_rng(1)
W = RNG.normal(size=(4, 4)).astype("float32") / 2


# --- remat ----------------------------------------------------------------------------------------------------------


def block(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = ops.sort(ops.tanh(x @ w) * 1.5, axis=0)
    return x


def value_and_slopes(wrap: Any, body: Any, **runs: Any) -> list[Any]:
    """A sum over blocks, its derivatives by the argument and a variable, and a derivative of that."""
    with ab.Graph().as_default():
        x, w = ab.placeholder((50, 4), "float32", "x"), ab.Variable(W)
        y = x
        wrapped = wrap(lambda value: body(value, w))
        for _ in range(4):
            y = wrapped(y)
        loss = ops.sum(y * y)
        slopes = ab.gradients(loss, [x, w])
        second = ab.gradients(ops.sum(slopes[0] ** 2), [w])
        fed = {x: RNG.normal(size=(50, 4)).astype("float32") * 0 + np.linspace(-1, 1, 200).reshape(50, 4)}
        fetches = [loss, *slopes, *second]
        peak = ab.profile(slopes, fed, runs=1).peak_bytes
        return [peak, *ab.Session().run(fetches, fed)]


def test_remat_has_the_same_value_and_derivatives_in_less_memory():
    plain, again = value_and_slopes(lambda f: f, block), value_and_slopes(ab.remat, block)

    for expected, found in zip(plain[1:], again[1:], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert again[0] < 0.6 * plain[0]


def test_random_numbers_and_loops_inside_are_those_of_the_first_run():
    def body(x: Any, w: Any) -> Any:
        dropped = ab.random.dropout(x, 0.5, seed=ab.random.SeedGenerator(3)) * ops.exp(x)
        _, total = ab.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, ops.tanh(h @ w)), (0, dropped))
        return total * ops.sum(w)

    with ab.Graph().as_default():
        x, w = ab.placeholder((5, 4), "float64", "x"), ab.Variable(W.astype("float64"))
        fed = {x: np.linspace(-1, 1, 20).reshape(5, 4)}
        y = ab.remat(lambda value: body(value, w))(x)
        slope = ab.gradients(ops.sum(y), [x])[0]
        found, zeros = ab.Session().run([slope, y], fed)
    assert np.isfinite(zeros).all()
    dropped = (found == 0).mean()
    assert 0.1 < dropped < 0.9  # where dropout gave zero nothing flows, in the same places


@pytest.mark.parametrize("x", [np.ones((0, 4), "float32"), np.ones((2, 4), "float32")])
def test_remat_of_values_runs_at_once(x: Any):
    v = ab.Variable(W)
    with ab.GradientTape() as tape:
        y = ops.sum(ab.remat(lambda a: block(a, v))(ops.convert_to_tensor(x)))
    assert tape.gradient(y, v).shape == (4, 4)


def test_remat_of_structures_and_of_what_needs_no_gradient():
    with ab.Graph().as_default():
        x = ab.placeholder((2,), "float32", "x")
        made = ab.remat(lambda pair: {"sum": pair[0] + pair[1], "count": ops.cast(pair[1], "int32"), "two": 2})((x, x))
        assert made["two"] == 2
        slope = ab.gradients(ops.sum(made["sum"]), [x])[0]
        assert ab.Session().run(slope, {x: [1.0, 2.0]}).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "scope",
    [
        {"mode": "full"},
        {"mode": "activations"},
        {"mode": "larger_than", "output_size_threshold": 5},
        {"mode": "larger_than", "output_size_threshold": 500},
        {"mode": "list_of_layers", "layer_names": ["wide"]},
        {"mode": None},
    ],
)
def test_layers_in_a_scope_learn_the_same(scope: dict[str, Any]):
    histories: list[list[float]] = []
    for arguments in (dict[str, Any](mode=None), scope):
        ab.utils.set_random_seed(1)
        with ab.RematScope(**arguments):
            model = ab.Sequential(
                [ab.Input((3,)), layers.Dense(8, "gelu", name="wide"), layers.Dropout(0.3), layers.Dense(1)]
            )
        model.compile("sgd", "mse")
        x = np.linspace(-1, 1, 60).reshape(20, 3)
        histories.append(model.fit(x, x[:, :1], epochs=3, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-5)


def test_a_scope_refuses_other_modes():
    with pytest.raises(ValueError, match=r"mode must be one of 'full', .* got 'all'"):
        ab.RematScope("all")


# --- Function -------------------------------------------------------------------------------------------------------


def test_a_function_is_what_lies_between_tensors():
    first, second = ab.Input((2,), name="first"), ab.Input((3,), name="second")
    dense = layers.Dense(3)
    made = ab.Function([first, second], {"sum": dense(first) + second})
    values = [np.ones((4, 2), "float32"), np.ones((4, 3), "float32")]

    np.testing.assert_allclose(made(values)["sum"], np.asarray(dense(values[0])) + 1, rtol=1e-6)
    assert made.compute_output_shape([(None, 2), (None, 3)])["sum"] == (None, 3)
    assert len(made.operations) == 4
    assert not isinstance(made, ab.Model)
    with pytest.raises(ValueError, match=r"second"):
        ab.Function(first, dense(first) + second)


# --- scikit-learn ---------------------------------------------------------------------------------------------------


def made(X: Any, y: Any, loss: str, activation: str | None = None) -> Any:
    outputs = y.shape[1] if y.ndim > 1 else 1
    model = ab.Sequential([ab.Input(X.shape[1:]), layers.Dense(8, "relu"), layers.Dense(outputs, activation)])
    model.compile(ab.optim.Adam(0.01), loss)
    return model


def estimators() -> list[Any]:
    pytest.importorskip("sklearn", reason="the wrappers are scikit-learn's estimators")
    from anabranch.framework import wrappers

    cross = {"loss": "categorical_crossentropy", "activation": "softmax"}
    return [
        wrappers.SKLearnClassifier(made, model_kwargs=cross),
        wrappers.SKLearnRegressor(made, model_kwargs={"loss": "mse"}),
        wrappers.SKLearnTransformer(made, model_kwargs={"loss": "mse"}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_checks_of_scikit_learn_pass(number: int):
    estimator = estimators()[number]
    from sklearn.utils.estimator_checks import check_estimator

    weights = "training by batches takes them in another order where rows are repeated"
    expected = {"check_sample_weight_equivalence_on_dense_data": weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are left out
        results = check_estimator(estimator, expected_failed_checks=expected, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}

    assert failed == {}
    assert sum(result["status"] == "passed" for result in results) > 40


def test_estimators_in_short():
    classifier, regressor, transformer = estimators()
    from sklearn.base import clone

    x, y = np.linspace(-1, 1, 40)[:, None], np.array(["low", "high"])[(np.linspace(-1, 1, 40) > 0).astype(int)]
    classifier.set_params(fit_kwargs={"epochs": 40}, random_state=1)
    found: Any = clone(classifier)
    found.fit(x, y)
    assert found.score(x, y) > 0.9
    assert found.fit_kwargs == {"epochs": 40}
    assert found.predict_proba(x).shape == (40, 2)
    np.testing.assert_array_equal(found.decision_function(x) > 0, found.predict(x) == found.classes_[1])
    again: Any = clone(classifier)
    again.fit(x, y)
    np.testing.assert_array_equal(again.predict_proba(x), found.predict_proba(x))
    assert regressor.fit(x, x[:, 0]).predict(x).shape == (40,)
    assert transformer.fit(x, np.hstack([x, x])).transform(x).shape == (40, 2)
    with pytest.raises(ValueError, match="only one class"):
        classifier.fit(x, ["one"] * 40)


def test_a_model_is_trained_anew_unless_it_starts_warm():
    pytest.importorskip("sklearn", reason="the wrappers are scikit-learn's estimators")
    from anabranch.framework.wrappers import SKLearnRegressor

    model = ab.Sequential([ab.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.linspace(-1, 1, 32)[:, None]
    cold, warm = SKLearnRegressor(model), SKLearnRegressor(model, warm_start=True)
    trained = [cold.fit(x, x[:, 0]).model_, cold.fit(x, x[:, 0]).model_]
    assert trained[0] is not trained[1]
    first = warm.fit(x, x[:, 0]).model_
    assert first is model
    assert warm.fit(x, x[:, 0]).model_ is model
    assert int(first.optimizer.iterations) == 2
    with pytest.raises(RuntimeError, match="must be compiled"):
        SKLearnRegressor(ab.Sequential([ab.Input((1,)), layers.Dense(1)])).fit(x, x[:, 0])


def test_functions_that_make_models_take_the_data():
    pytest.importorskip("sklearn", reason="the wrappers are scikit-learn's estimators")
    from anabranch.framework.wrappers import SKLearnRegressor

    def build() -> Any:
        return ab.Sequential([layers.Dense(1)])

    x = np.linspace(-1, 1, 4)[:, None]
    with pytest.raises(TypeError, match=r"calls build\(X=\.\.\., y=\.\.\., loss=\.\.\.\).*Write def build\(X, y, "):
        SKLearnRegressor(build, model_kwargs={"loss": "mse"}).fit(x, x[:, 0])
    made: Any = "mlp"
    with pytest.raises(TypeError, match="model must be a compiled model, or a function that makes one; got 'mlp'"):
        SKLearnRegressor(made).fit(x, x[:, 0])


# --- images ---------------------------------------------------------------------------------------------------------

BOXES = np.array([[[4.0, 6.0, 14.0, 18.0], [0.0, 0.0, 8.0, 4.0]]])
FORMATS = ["xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw"]


@pytest.mark.parametrize("name", [*FORMATS, *[f"rel_{name}" for name in FORMATS]])
def test_formats_of_boxes_go_there_and_back(name: str):
    there = bounding_boxes.convert_format(BOXES, "xyxy", name, 20, 40)
    np.testing.assert_allclose(bounding_boxes.convert_format(there, name.upper(), "xyxy", 20, 40), BOXES, rtol=1e-6)


def test_boxes_by_hand():
    convert = bounding_boxes.convert_format
    assert convert([[10, 20, 30, 40]], "xyxy", "rel_xywh", 200, 100).tolist() == [
        pytest.approx([0.1, 0.1, 0.2, 0.1], rel=1e-6)
    ]
    assert convert([[10, 20, 30, 44]], "xyxy", "center_yxhw").tolist() == [[32, 20, 24, 20]]
    shared = bounding_boxes.compute_iou(BOXES, BOXES[0], "xyxy")
    np.testing.assert_allclose(np.diagonal(shared, axis1=1, axis2=2), 1)
    masked = bounding_boxes.compute_iou(-np.ones((1, 4)), BOXES[0], "xyxy", use_masking=True)
    assert masked.tolist() == [[-1, -1]]
    clipped = bounding_boxes.clip_to_image_size({"boxes": BOXES, "labels": np.array([[1, 2]])}, 20, 4)
    assert clipped["boxes"][0].tolist() == [[4, 6, 4, 18], [0, 0, 4, 4]]
    assert clipped["labels"].tolist() == [[-1, 2]]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: bounding_boxes.convert_format(BOXES, "corners", "xyxy"), "source must be one of xyxy"),
        (lambda: bounding_boxes.convert_format(BOXES, "xyxy", "rel_xyxy"), "height and width"),
        (lambda: bounding_boxes.convert_format([1.0, 2.0], "xyxy", "xywh"), "size 4"),
        (lambda: bounding_boxes.compute_iou([1.0], BOXES, "xyxy"), "boxes1 must be"),
    ],
)
def test_boxes_that_make_no_sense(call: Any, match: str):
    with pytest.raises(ValueError, match=match):
        call()


def test_boxes_and_masks_are_drawn():
    pytest.importorskip("PIL", reason="Pillow draws")
    images = np.zeros((1, 20, 40, 3), "uint8")
    boxes = {"boxes": BOXES, "labels": np.array([[1, -1]]), "confidences": np.array([[0.5, 0.5]])}
    drawn = ab.visualization.draw_bounding_boxes(images, boxes, "xyxy", color=(255, 0, 7), line_thickness=1)
    ys, xs = np.nonzero(drawn[0, ..., 2] == 7)
    assert (xs.min(), xs.max(), ys.min(), ys.max()) == (4, 14, 6, 18)
    assert drawn[0, 10, 8].tolist() == [0, 0, 0]
    named = ab.visualization.draw_bounding_boxes(images, boxes, "xyxy", {1: "cat"}, color=(255, 0, 7))
    assert (named != 0).sum() > (drawn != 0).sum()

    masks = np.zeros((1, 20, 40, 1), "int32")
    masks[0, :10] = 2
    coloured = ab.visualization.draw_segmentation_masks(images, masks, color_mapping={2: (100, 50, 0)}, ignore_index=0)
    assert coloured[0, 0, 0].tolist() == [80, 40, 0]
    assert coloured[0, 15].max() == 0
    with pytest.raises(TypeError, match="must be integers"):
        ab.visualization.draw_segmentation_masks(images, masks / 2)
    with pytest.raises(ValueError, match="no 'labels'"):
        ab.visualization.draw_bounding_boxes(images, {"boxes": BOXES}, "xyxy")


def test_galleries(tmp_path: Path):
    image = pytest.importorskip("PIL.Image", reason="Pillow draws")
    images = np.stack([np.full((8, 8, 3), value, "float32") for value in (0.0, 0.5, 1.0)])
    path = tmp_path / "gallery.png"
    made = ab.visualization.plot_image_gallery(
        images, y_true=[0, 1, 2], label_map={0: "a", 1: "b"}, value_range=(0, 1), rows=1, cols=3, path=path, dpi=20
    )
    with image.open(path) as written:
        assert written.size == made.size == (3 * 44 + 4, 40 + 16 + 8)
    pixels = np.asarray(made)
    assert [int(pixels[40, 24 + 44 * number, 0]) for number in range(3)] == [0, 128, 255]
    boxes = {"boxes": np.ones((3, 1, 4)), "labels": np.zeros((3, 1), int)}
    ab.visualization.plot_bounding_box_gallery(images * 255, "xyxy", boxes, boxes, legend=True, path=path)
    rows = ab.visualization.plot_segmentation_mask_gallery(
        images * 255, 2, y_true=np.ones((3, 8, 8), int), path=tmp_path / "masks.jpg"
    )
    assert rows.size[1] > rows.size[0]
    with pytest.raises(ValueError, match="need label_map"):
        ab.visualization.plot_image_gallery(images, y_true=[0, 1, 2])
    with pytest.raises(ValueError, match="must be"):
        ab.visualization.plot_image_gallery(images[0])


# --- data sets ------------------------------------------------------------------------------------------------------


def test_sequence_is_the_earlier_name_of_a_dataset_of_batches():
    class Batches(ab.utils.Sequence):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return np.full((3, 1), index, "float32"), np.ones((3, 1), "float32")

    model = ab.Sequential([ab.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    assert len(model.fit(Batches(), epochs=2, verbose=0).history["loss"]) == 2
    assert ab.utils.Sequence is ab.utils.PyDataset
