"""`anabranch.applications`: structures, numbers and files of weights as Keras's; refusals."""

import inspect
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import applications
from anabranch.engine.objects import initializers
from anabranch.framework.applications import building, imagenet_utils, mobilenet_v2
from anabranch.framework.data.get_file import file_digest
from anabranch.framework.models.layer_scale import CustomScaleLayer, LayerScale
from golden import applications as golden

FOLDER = Path(__file__).parent.parent / "golden"
FACTS: dict[str, Any] = json.loads((FOLDER / "applications.json").read_text())
# One model of each kind, small; all others are slow. Examples in docstrings count the weights of some more.
QUICK = {
    "ConvNeXtTiny/grey",
    "EfficientNetB0/grey",
    "EfficientNetV2B0/grey",
    "InceptionV3/features",
    "MobileNet/narrow",
    "MobileNetV2/features",
    "MobileNetV3Small/minimalistic",
    "ResNet50V2/features",
    "VGG16/features",
    "Xception/features",
}
QUICK_OUTPUTS = {"MobileNet", "MobileNetV2", "MobileNetV3Small/minimalistic"}
QUICK_FILES = {"MobileNet/160", "MobileNetV2/96", "MobileNetV3Small/narrow"}
IMAGE = (32, 32, 3)


def cases(part: str, quick: set[str]) -> list[Any]:
    """The recorded cases of a kind, those that are not quick marked."""
    names = [case["name"] for case in FACTS[part]]
    assert quick <= set(names)
    marks = {name: [] if name in quick else [pytest.mark.slow] for name in names}
    return [pytest.param(case, id=case["name"], marks=marks[case["name"]]) for case in FACTS[part]]


def build(name: str, arguments: dict[str, Any], **more: Any) -> Any:
    ab.utils.clear_session()
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    return getattr(applications, name)(**{"weights": None, **arguments, **more})


@pytest.fixture
def no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights start with zeros, which takes no time and little memory."""
    monkeypatch.setattr(
        initializers.VarianceScaling, "compute", lambda self, shape, dtype=None: np.zeros(shape, "float32")
    )


# --- structure and numbers ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_draws")
@pytest.mark.parametrize("case", cases("structures", QUICK))
def test_layers_and_weights_are_those_of_keras(case: dict[str, Any]) -> None:
    assert {"name": case["name"], **golden.structure(build(*golden.STRUCTURES[case["name"]]))} == case


@pytest.mark.usefixtures("no_draws")
@pytest.mark.parametrize("case", cases("outputs", QUICK_OUTPUTS))
def test_outputs_are_those_of_keras(case: dict[str, Any]) -> None:
    name, arguments, gain = golden.OUTPUTS[case["name"]]
    model = build(name, arguments)
    golden.draw_weights(model, gain)
    expected = np.array(case["outputs"])
    found = model.predict(golden.images(arguments["input_shape"]), verbose=0)[:, :10]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()


def test_signatures_are_alike() -> None:
    common = ["include_top", "weights", "input_tensor", "input_shape", "pooling", "classes", "classifier_activation"]
    for name in golden.MODELS:
        parameters = inspect.signature(getattr(applications, name)).parameters
        assert set(parameters) >= {*common, "name"}
        assert parameters["weights"].default == "imagenet"
        assert parameters["classes"].default == 1000
    assert list(inspect.signature(applications.MobileNetV2).parameters)[:2] == ["input_shape", "alpha"]
    assert list(inspect.signature(applications.ConvNeXtTiny).parameters)[1] == "include_preprocessing"


def test_namespaces_are_those_of_keras() -> None:
    assert ab.applications.resnet50.ResNet50 is ab.applications.resnet.ResNet50 is ab.applications.ResNet50
    for name in ("resnet", "resnet50", "resnet_v2", "mobilenet_v2", "mobilenet_v3", "efficientnet_v2", "convnext"):
        module = getattr(ab.applications, name)
        assert callable(module.preprocess_input)
        assert module.decode_predictions is imagenet_utils.decode_predictions
    from anabranch.applications.vgg16 import VGG16, preprocess_input  # pyright: ignore[reportMissingImports]

    assert VGG16 is ab.applications.VGG16
    assert preprocess_input is ab.applications.vgg16.preprocess_input


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_draws")
@pytest.mark.parametrize("case", cases("files", QUICK_FILES))
def test_files_are_those_of_keras(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedError(Exception):
        """A file was asked for."""

    def ask(fname: str, origin: str, cache_subdir: str, file_hash: str | None) -> Any:
        assert cache_subdir == "models"
        raise AskedError(fname, origin, file_hash)

    monkeypatch.setattr(building, "get_file", ask)
    with pytest.raises(AskedError) as asked:
        build(*golden.FILES[case["name"]], weights="imagenet")
    assert list(asked.value.args) == case["file"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a file of weights as Keras writes them, and an empty cache."""
    (tmp_path / "store" / "mobilenet_v2").mkdir(parents=True)
    with zipfile.ZipFile(FOLDER / "files" / "applications.zip") as archive:
        content = archive.read("mobilenet_v2.h5")
    file = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.01_224_no_top.h5"
    (tmp_path / "store" / "mobilenet_v2" / file).write_bytes(content)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "STORE", f"{(tmp_path / 'store').as_uri()}/")
    monkeypatch.setattr(mobilenet_v2, "_WIDTHS", (0.01,))
    return tmp_path / "store" / "mobilenet_v2" / file


@pytest.mark.usefixtures("no_draws")
def test_weights_that_keras_wrote(store: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"alpha": 0.01, "include_top": False}
    expected = np.load(FOLDER / "files" / "applications.npz")["outputs"]
    x = golden.images(list(IMAGE))
    model = applications.MobileNetV2(**options)  # fetched
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-4)
    store.unlink()
    with pytest.warns(UserWarning, match=r"weights for images of 96x96 or .*, not for input_shape=\(32, 32, 3\)"):
        again = applications.MobileNetV2(IMAGE, **options)  # out of the cache
    assert all(np.array_equal(a, b) for a, b in zip(again.get_weights(), model.get_weights(), strict=True))
    cached = tmp_path / "cache" / "models" / store.name
    other = applications.MobileNetV2(IMAGE, weights=cached, **options)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    assert other.name == "mobilenetv2_0.01_32"


@pytest.mark.usefixtures("no_draws")
def test_a_damaged_file_is_not_taken(store: Path) -> None:
    file = store.parent.parent / "mobilenet_v3" / "weights_mobilenet_v3_small_minimalistic_224_1.0_float.h5"
    file.parent.mkdir()
    file.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"has the hash .*, expected 99cd97fb2fcdad2bf028eb838de69e37"):
        applications.MobileNetV3Small(minimalistic=True)


@pytest.mark.usefixtures("no_draws")
def test_weights_of_another_model(store: Path) -> None:
    with pytest.raises(ValueError, match="layers with weights"):
        applications.MobileNetV2(IMAGE, 0.01, weights=store)


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_draws")
def test_a_model_on_a_tensor_that_is_made_of_others() -> None:
    inputs = ab.Input((40, 40, 3), name="pixels")
    x = ab.layers.Rescaling(1 / 255, name="scaled")(inputs) - 0.5
    model = build("MobileNetV3Small", {"minimalistic": True, "include_top": False, "pooling": "avg"}, input_tensor=x)
    assert model.input is inputs
    assert model.layers[1].name == "scaled"
    assert model.output_shape == (None, 576)
    with pytest.raises(ValueError, match=r"input_shape=\(64, 64, 3\) is not that of input_tensor"):
        build("MobileNetV2", {"input_shape": [64, 64, 3]}, input_tensor=x)
    with pytest.raises(ValueError, match=r"input_tensor must be a symbolic tensor, .* got ndarray"):
        build("VGG16", {}, input_tensor=np.zeros((1, 224, 224, 3)))


SHAPE = {"include_top": False}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ResNet50", {"weights": "nowhere.h5"}, "there is no file 'nowhere.h5'"),
        ("VGG19", {"weights": "imagenet", "classes": 10}, "there are 1000 classes, got classes=10"),
        ("VGG16", {"pooling": "mean"}, "pooling must be None, 'avg' or 'max', got 'mean'"),
        ("ResNet50", {"input_shape": (31, 32, 3), **SHAPE}, r"at least 32x32, got input_shape=\(31, 32, 3\)"),
        ("ResNet50", {"input_shape": (None, 64, 3)}, r"must be known in full, got \(None, 64, 3\)"),
        ("DenseNet121", {"input_shape": (64, 64), **SHAPE}, r"must be three integers, .* got \(64, 64\)"),
        ("ResNet101V2", {"weights": "imagenet", "input_shape": (64, 64, 3)}, r"must be \(224, 224, 3\), got \(64, 64"),
        ("VGG16", {"weights": "imagenet", "input_shape": (64, 64, 1), **SHAPE}, "must have 3 channels"),
        ("MobileNetV2", {"weights": "imagenet", "alpha": 0.6}, "weights for alpha in .* got 0.6"),
        ("MobileNetV3Large", {"weights": "imagenet", "alpha": 0.75, "minimalistic": True}, r"alpha in \(1.0,\), got"),
        ("MobileNetV3Large", {"input_shape": (16, 64, 3)}, "at least 32x32"),
        ("MobileNet", {"weights": "imagenet", "alpha": 0.35}, "weights for alpha in .* got 0.35"),
        ("MobileNet", {"weights": "imagenet", "depth_multiplier": 2}, "weights for depth_multiplier=1, got 2"),
        ("Xception", {"input_shape": (70, 90, 3), **SHAPE}, r"at least 71x71, got input_shape=\(70, 90, 3\)"),
        ("NASNetLarge", {"input_shape": (None, 64, 3), **SHAPE}, r"must be known, got .*\(None, 64\).*\(331, 331, 3\)"),
    ],
)
def test_refused_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, arguments)


@pytest.mark.usefixtures("no_draws")
def test_activations_that_weights_were_not_trained_for(store: Path) -> None:
    with pytest.raises(ValueError, match="must be None or 'softmax', got 'sigmoid'"):
        build("MobileNetV3Small", {"minimalistic": True}, weights=store, classifier_activation="sigmoid")


@pytest.mark.usefixtures("no_draws")
def test_unusual_channels() -> None:
    with pytest.warns(UserWarning, match=r"input_shape=\(32, 32, 5\) has 5"):
        model = build("MobileNetV2", {"alpha": 0.01, "include_top": False, "input_shape": [32, 32, 5]})
    assert model.input_shape == (None, 32, 32, 5)


# --- images and classes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in FACTS["preprocessed"]])
def test_preprocessed_images_are_those_of_keras(case: dict[str, Any]) -> None:
    x, expected, mode = golden.images([2, 1, 3]), np.array(case["outputs"], "float32"), case["name"]
    given = x.copy()

    def prepared(x: Any, data_format: str | None = None) -> Any:
        return imagenet_utils.preprocess_input(x, data_format, mode)

    np.testing.assert_array_equal(prepared(x), expected)
    np.testing.assert_array_equal(x, given)
    first = prepared(x.transpose(0, 3, 1, 2), "channels_first")
    np.testing.assert_array_equal(first, expected.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(prepared(x[0]), expected[0])
    np.testing.assert_allclose(prepared(ab.constant(x)), expected, atol=2e-6)
    for shape, data_format in (((2, 1, 3), "channels_last"), ((3, 2, 1), "channels_first")):
        images = ab.Input(shape)
        model = ab.Model(images, prepared(images, data_format))
        axes = (0, 1, 2, 3) if data_format == "channels_last" else (0, 3, 1, 2)
        np.testing.assert_allclose(model(x.transpose(axes)), expected.transpose(axes), atol=2e-6)
    whole = prepared(x.astype("uint8"))
    assert whole.dtype == "float32"
    np.testing.assert_allclose(prepared(ab.constant(x.astype("uint8"))), whole, atol=2e-6)
    assert prepared(x.astype("float64")).dtype == "float64"


def test_modes_of_the_models() -> None:
    x = golden.images([1, 1, 3])
    modes = {"resnet": "caffe", "vgg19": "caffe", "resnet_v2": "tf", "mobilenet_v2": "tf", "densenet": "torch"}
    for name, mode in modes.items():
        np.testing.assert_array_equal(
            getattr(applications, name).preprocess_input(x), imagenet_utils.preprocess_input(x, mode=mode)
        )
    for name in ("mobilenet_v3", "efficientnet_v2", "convnext"):
        assert getattr(applications, name).preprocess_input(x) is x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "jax"}, "mode must be 'caffe', 'tf' or 'torch', got 'jax'"),
        (
            {"data_format": "first"},
            "preprocess_input: data_format must be 'channels_last' or 'channels_first', got 'first'",
        ),
        ({"data_format": "channels_first"}, r"three channels are expected in axis -3 .* got the shape \(4, 5, 3\)"),
    ],
)
def test_images_that_are_not_prepared(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imagenet_utils.preprocess_input(np.zeros((4, 5, 3)), **arguments)


def test_names_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "imagenet_class_index.json"
    file.write_text(json.dumps({str(i): [f"n{i:08}", f"class_{i}"] for i in range(1000)}))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(imagenet_utils, "_CLASSES", file.as_uri())
    monkeypatch.setattr(imagenet_utils, "_CLASSES_HASH", file_digest(file))
    scores = np.zeros((2, 1000), "float32")
    scores[0, [7, 3, 999]], scores[1, 0] = (0.2, 0.5, 0.3), 1
    first, second = applications.resnet50.decode_predictions(ab.constant(scores), top=3)
    assert [row[:2] for row in first] == [
        ("n00000003", "class_3"),
        ("n00000999", "class_999"),
        ("n00000007", "class_7"),
    ]
    np.testing.assert_allclose([row[2] for row in first], [0.5, 0.3, 0.2])
    assert (len(second), second[0][1]) == (3, "class_0")
    with pytest.raises(ValueError, match=r"\(batch, 1000\); got \(2, 10\)"):
        applications.vgg16.decode_predictions(scores[:, :10])


# --- models as others -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_draws")
def test_a_model_is_saved_and_trained_as_any_other(tmp_path: Path) -> None:
    features = build("MobileNetV3Small", {"minimalistic": True, "include_top": False, "pooling": "avg"})
    golden.draw_weights(features)
    features.trainable = False
    images = ab.Input(IMAGE)
    model = ab.Model(images, ab.layers.Dense(2, activation="softmax")(features(images, training=False)))
    assert len(model.trainable_weights) == 2
    model.compile("adam", "sparse_categorical_crossentropy")
    x = golden.images(list(IMAGE))
    before = features.get_weights()
    model.fit(x, np.array([0, 1]), epochs=1, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, features.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_what_weights_of_efficientnet_were_trained_with_is_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of ImageNet alone come with one more scaling, as in Keras: 1 over the roots of the deviations."""
    monkeypatch.setattr(ab.Model, "load_weights", lambda self, path: None)
    monkeypatch.setattr(building, "get_file", lambda *arguments, **named: tmp_path)
    model = build("EfficientNetB0", {"weights": "imagenet", "include_top": False})
    scales: list[Any] = [layer.scale for layer in model.layers if isinstance(layer, ab.layers.Rescaling)]
    assert scales[0] == 1 / 255
    np.testing.assert_allclose(scales[1], [2.0896918976428642, 2.1128856368212916, 2.1081851067789197])


def test_a_scaled_sum_is_saved_as_by_keras(tmp_path: Path) -> None:
    x, y = ab.Input((3,)), ab.Input((3,))
    model = ab.Model([x, y], CustomScaleLayer(0.5, name="scale")([x, y]))
    model.save(tmp_path / "model.keras", for_keras=True)
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = json.loads(archive.read("config.json"))["config"]["layers"][2]
    assert (config["module"], config["class_name"]) == (
        "keras.src.applications.inception_resnet_v2",
        "CustomScaleLayer",
    )
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again([np.ones((2, 3)), np.full((2, 3), 4)]), np.full((2, 3), 3))


def test_a_layer_of_convnext_is_saved_as_by_keras(tmp_path: Path) -> None:
    x = ab.Input((3,))
    model = ab.Model(x, LayerScale(0.5, 3, name="scale")(x))
    model.save(tmp_path / "model.keras", for_keras=True)
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = json.loads(archive.read("config.json"))["config"]["layers"][1]
    assert (config["module"], config["class_name"]) == ("keras.src.applications.convnext", "LayerScale")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(np.ones((2, 3))), np.full((2, 3), 0.5))
