"""Inputs that come as PNG or JPEG bytes give what arrays of the same pixels give, by each protocol."""

from __future__ import annotations

import base64
import io
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from shared.serving_clients import ask, call
from shared.waiting import PATIENCE, Waiting, until

import anabranch as ab
from anabranch.framework.serving import image_inputs

PIL = pytest.importorskip("PIL.Image")
PREDICT = "tensorflow.serving.PredictionService/Predict"
BILINEAR = {"x": {"resize": "bilinear"}}


def encoded(height: int, width: int, mode: str = "RGB", form: str = "png", seed: int = 0) -> bytes:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, *channels)).astype("uint8")
    stream = io.BytesIO()
    PIL.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def model(height: int | None = 6, width: int | None = 5, channels: int = 3, dtype: str = "float32") -> ab.Model:
    x = ab.Input((height, width, channels), dtype=dtype, name="x")
    return ab.Model(x, {"same": x, "mean": ab.ops.mean(ab.ops.cast(x, "float32"), axis=(1, 2))})


def as_dataset_does(content: bytes, channels: int = 3, **options: Any) -> Any:
    """The array that `image_dataset_from_directory` makes of an image."""
    mode = {1: "grayscale", 3: "rgb", 4: "rgba"}[channels]
    array = ab.utils.img_to_array(ab.utils.load_img(io.BytesIO(content), mode))
    return np.asarray(ab.ops.image.resize(array, (6, 5), **options))


class Served(NamedTuple):
    server: Any
    servable: Any


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("images")
    model().export(folder, verbose=False, images=BILINEAR)
    with ab.serving.Server({"m": folder}) as server:
        yield Served(server, ab.serving.load(folder))


IMAGES = [encoded(6, 5), encoded(9, 20, form="jpeg", seed=1), encoded(4, 3, "RGBA", seed=2), encoded(8, 8, "L")]


@pytest.fixture(scope="module")
def expected() -> Any:
    return np.stack([as_dataset_does(each) for each in IMAGES])


def test_in_process(served: Served, expected: Any) -> None:
    for given in (IMAGES, [base64.b64encode(each).decode() for each in IMAGES], np.array(IMAGES, object)):
        np.testing.assert_array_equal(served.servable(given)["same"], expected)
    np.testing.assert_array_equal(served.servable(x=expected)["same"], expected)


def test_served_images_have_channels_last_whatever_the_default_is(served: Served, expected: Any) -> None:
    ab.config.set_image_data_format("channels_first")

    np.testing.assert_array_equal(served.servable(IMAGES)["same"], expected)


def test_tensorflow_rest(served: Served, expected: Any) -> None:
    boxed = [{"b64": base64.b64encode(each).decode()} for each in IMAGES]
    for body in ({"instances": boxed}, {"instances": [{"x": each} for each in boxed]}):
        reply = ask(served.server.rest_url, "/v1/models/m:predict", body).json
        np.testing.assert_array_equal(np.array([row["same"] for row in reply["predictions"]], "float32"), expected)
    for inputs in (boxed, {"x": boxed}):
        reply = ask(served.server.rest_url, "/v1/models/m:predict", {"inputs": inputs}).json
        np.testing.assert_array_equal(np.float32(reply["outputs"]["same"]), expected)
    arrays = {"inputs": expected.tolist()}
    reply = ask(served.server.rest_url, "/v1/models/m:predict", arrays).json
    np.testing.assert_array_equal(np.float32(reply["outputs"]["same"]), expected)


def in_bytes(images: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in images)


def test_open_inference_rest(served: Served, expected: Any) -> None:
    text = {"name": "x", "datatype": "BYTES", "shape": [4, 1], "data": [base64.b64encode(i).decode() for i in IMAGES]}
    outputs = ask(served.server.rest_url, "/v2/models/m/infer", {"inputs": [text]}).json["outputs"]
    raw = in_bytes(IMAGES)
    head = b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [4], "parameters": {"binary_data_size": %d}}]}'
    head %= len(raw)
    sizes = {"Inference-Header-Content-Length": str(len(head))}
    binary = ask(served.server.rest_url, "/v2/models/m/infer", head + raw, headers=sizes).json["outputs"]
    for found in (outputs, binary):
        np.testing.assert_array_equal(np.float32(found[1]["data"]).reshape(found[1]["shape"]), expected)


def test_grpc(served: Served, expected: Any) -> None:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [4]}
    typed: dict[str, Any] = {"inputs": [{**tensor, "contents": {"bytes_contents": IMAGES}}]}
    raw: dict[str, Any] = {"inputs": [tensor], "raw_input_contents": [in_bytes(IMAGES)]}
    for fields in (typed, raw):
        reply = call(served.server.grpc_address, "ModelInfer", model_name="m", **fields)
        same = np.frombuffer(reply.raw_output_contents[1], "float32").reshape(expected.shape)
        np.testing.assert_array_equal(same, expected)
    shape = {"dim": [{"size": 4}]}
    given = {"x": {"dtype": 7, "tensor_shape": shape, "string_val": IMAGES}}
    reply = call(served.server.grpc_address, PREDICT, model_spec={"name": "m"}, inputs=given)
    same = np.frombuffer(reply.outputs["same"].tensor_content, "float32").reshape(expected.shape)
    np.testing.assert_array_equal(same, expected)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says to be larger than it is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


GOOD = IMAGES[0]
BAD = {
    "nothing": b"",
    "text": b"hello",
    "other formats": b"GIF89a" + b"\0" * 40,
    "half a file": GOOD[: len(GOOD) // 2],
    "a head alone": GOOD[:33],
    "a changed byte": GOOD[:60] + b"\0\0\0\0" + GOOD[64:],
    "many pixels": png_of_size(6000, 6000),
    "far too many": png_of_size(200_000, 200_000),
    "no pixels": png_of_size(0, 4),
    "pixels that are not there": png_of_size(5000, 5000),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_bytes_name_the_input_and_the_row(served: Served, kind: str) -> None:
    boxed = [{"b64": base64.b64encode(each).decode()} for each in (GOOD, BAD[kind])]
    reply = ask(served.server.rest_url, "/v1/models/m:predict", {"instances": boxed})
    assert (reply.status, reply.json["error"][:17]) == (400, "Input 'x', row 1:")
    assert " object at " not in reply.json["error"]


def test_bad_forms_name_the_input(served: Served) -> None:
    def status(inputs: Any) -> tuple[int, str]:
        reply = ask(served.server.rest_url, "/v1/models/m:predict", {"inputs": inputs})
        return reply.status, reply.json["error"][:9]

    for wrong in (["&&&"], [{"b64": "A"}], [{"b64": "AAAA"}, 3], {"b64": "AAAA"}, [["AAAA", "AAAA"]]):
        assert status(wrong) == (400, "Input 'x'")
    for shape, contents in (([2], [GOOD]), ([1, 2], [GOOD, GOOD]), ([], [GOOD])):
        tensor = {"name": "x", "datatype": "BYTES", "shape": shape, "contents": {"bytes_contents": contents}}
        with pytest.raises(grpc.RpcError, match="Input 'x'"):
            call(served.server.grpc_address, "ModelInfer", model_name="m", inputs=[tensor])


def test_many_images_are_bounded_as_arrays(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_inputs, "MAX_BYTES", 3 * 6 * 5 * 3 * 4)
    for count, status in ((3, 200), (4, 413)):
        boxed = [{"b64": base64.b64encode(GOOD).decode()}] * count
        assert ask(served.server.rest_url, "/v1/models/m:predict", {"instances": boxed}).status == status


def test_images_that_are_read_while_their_version_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model().export(tmp_path, verbose=False, images=BILINEAR)
    begun, go_on = threading.Event(), threading.Event()
    decode = image_inputs._one  # pyright: ignore[reportPrivateUsage]

    def wait_and_decode(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return decode(*given)

    body = {"instances": [{"b64": base64.b64encode(GOOD).decode()}]}
    with ab.serving.Server({"m": tmp_path}, poll_seconds=0) as server:
        monkeypatch.setattr(image_inputs, "_one", wait_and_decode)
        asked = Waiting(
            lambda: ask(server.rest_url, "/v1/models/m:predict", body, headers={"X-Request-Timeout-Ms": "10000"})
        )
        assert begun.wait(PATIENCE)
        model().export(tmp_path, verbose=False, images=BILINEAR)
        server.refresh()
        until(lambda: ask(server.rest_url, "/v1/models/m/versions/1").status == 404)  # others are answered meanwhile
        go_on.set()
        assert asked.result().status == 200


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (4, "float32"), (3, "int16"), (3, "bfloat16")])
def test_channels_and_dtypes(tmp_path: Path, channels: int, dtype: str) -> None:
    options = {"resize": "bicubic", "crop_to_aspect_ratio": True}
    model(channels=channels, dtype=dtype).export(tmp_path, verbose=False, images={"x": options})
    content = encoded(9, 11, "RGBA")
    wanted = as_dataset_does(content, channels, interpolation="bicubic", crop_to_aspect_ratio=True)
    found = ab.serving.load(tmp_path)([content])["same"]
    if dtype in ("uint8", "int16"):
        wanted = np.clip(np.round(wanted), 0 if dtype == "uint8" else None, 255 if dtype == "uint8" else None)
    np.testing.assert_array_equal(found[0], wanted.astype(found.dtype))


def test_sizes_that_are_open_are_those_of_the_image(tmp_path: Path) -> None:
    model(None, None).export(tmp_path, verbose=False, images={"x": {}})
    servable = ab.serving.load(tmp_path)
    assert servable([encoded(7, 9)])["same"].shape == (1, 7, 9, 3)
    with pytest.raises(ValueError, match=r"Input 'x', row 1: the size is \(9, 7, 3\); row 0 has \(7, 9, 3\)"):
        servable([encoded(7, 9), encoded(9, 7)])
    model().export(tmp_path, verbose=False, images={"x": {"resize": None}})
    with pytest.raises(ValueError, match="row 0: expected an image of 6 x 5 pixels, got 7 x 9"):
        ab.serving.load(tmp_path)([encoded(7, 9)])


@pytest.mark.parametrize(
    ("made", "images", "message"),
    [
        (model, {"y": {"resize": "bilinear"}}, "no input is called 'y'"),
        (model, {"x": {"resize": "sharp"}}, "interpolation='sharp' must be one of"),
        (model, {"x": {"size": 3}}, "'size': 3 is no option of images"),
        (model, {"x": {"crop_to_aspect_ratio": True}}, "belong to resize"),
        (lambda: model(None, None), BILINEAR, "no size to which images could be resized"),
        (lambda: model(channels=2), BILINEAR, "with 1, 3 or 4 channels"),
        (lambda: model(None, 5), BILINEAR, "both sizes or none"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, made: Any, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made().export(tmp_path, verbose=False, images=images)


def test_images_as_examples_and_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model().export(tmp_path / "m", verbose=True, images=BILINEAR, warmup=IMAGES)
    assert "input x: float32 (None, 6, 5, 3), or PNG or JPEG bytes" in capsys.readouterr().out
    ab.serving.load(tmp_path / "m").warm_up(4)
