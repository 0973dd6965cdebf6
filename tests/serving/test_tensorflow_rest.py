"""TensorFlow Serving's REST interface, asked over real sockets."""

import base64
import math
from typing import Any

import numpy as np
import pytest
from shared.served_models import some_text
from shared.serving_clients import Reply, ask

from anabranch.distribute.inference import RequestError
from anabranch.framework.serving.signature import TensorInfo
from anabranch.framework.serving.values import as_input


def predict(served: Any, model: str, body: Any) -> Reply:
    return ask(served.server.rest_url, f"/v1/models/{model}:predict", body)


def nested(depth: int) -> Any:
    """Return a text in so many lists."""
    return "a" if not depth else [nested(depth - 1)]


def test_rows_of_one_input_and_output(served: Any) -> None:
    x = some_text(3, 5)
    reply = predict(served, "letters", {"instances": x.tolist()})
    assert reply.headers["content-type"] == "application/json"
    found = np.array(reply.json["predictions"], "float32")
    np.testing.assert_allclose(found, served.letters.predict(x, verbose=0), rtol=1e-5, atol=1e-7)
    assert predict(served, "letters", {"instances": [{"x": row} for row in x.tolist()]}).json == reply.json


def test_columns_of_one_input_and_output(served: Any) -> None:
    x = some_text(2, 4).tolist()
    by_rows = predict(served, "letters", {"instances": x}).json["predictions"]
    assert predict(served, "letters", {"inputs": x}).json == {"outputs": by_rows}
    assert predict(served, "letters", {"inputs": {"x": x}, "signature_name": "serving_default"}).json == {
        "outputs": by_rows
    }


def test_rows_and_columns_of_several_inputs_and_outputs(served: Any) -> None:
    a, b = [[1, 2], [3, 4]], [[0, 0, 1], [0, 0.5, 0]]
    rows = predict(served, "pairs", {"instances": [{"a": x, "b": y} for x, y in zip(a, b, strict=True)]})
    columns = predict(served, "pairs", {"inputs": {"a": a, "b": b}})
    assert rows.json == {"predictions": [{"scaled": [2, 4], "sum": 4}, {"scaled": [6, 8], "sum": 7.5}]}
    assert columns.json == {"outputs": {"scaled": [[2, 4], [6, 8]], "sum": [4, 7.5]}}


def test_numbers_that_json_lacks_go_both_ways(served: Any) -> None:
    reply = predict(served, "n", b'{"instances": [NaN, Infinity, -Infinity, -4, 4]}')
    halves, roots = ([row[name] for row in reply.json["predictions"]] for name in ("half", "root"))
    assert math.isnan(halves[0])
    assert halves[1:] == [math.inf, -math.inf, -2, 2]
    assert roots[1] == math.inf
    assert all(math.isnan(roots[place]) for place in (0, 2, 3))


def test_bytes_go_both_ways(served: Any) -> None:
    coded = {"b64": base64.b64encode("Flüsse".encode()).decode()}
    found = predict(served, "words", {"instances": [coded, "b64"]}).json["predictions"]
    assert found[0] == {"text": "Flüsse", "text_bytes": coded}
    assert found[1]["text"] == "b64"


@pytest.mark.parametrize("version", ["", "/versions/3"])
def test_status_and_metadata(served: Any, version: str) -> None:
    status = ask(served.server.rest_url, f"/v1/models/words{version}").json
    ok = {"error_code": "OK", "error_message": ""}
    assert status["model_version_status"] == [{"version": "3", "state": "AVAILABLE", "status": ok}]
    assert len(status) == 1 or not version  # without a version OpenAI's description follows

    found = ask(served.server.rest_url, f"/v1/models/words{version}/metadata").json
    assert found["model_spec"] == {"name": "words", "signature_name": "", "version": "3"}
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["words"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["words"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    assert set(signature["outputs"]) == {"text", "text_bytes"}


@pytest.mark.parametrize(
    ("model", "body", "status", "message"),
    [
        ("half", {"instances": [1]}, 404, "Servable not found for request: Latest(half)"),
        ("letters/versions/7", {"instances": [[1]]}, 404, "Specific(letters, 7)"),
        ("letters/labels/stable", {"instances": [[1]]}, 404, "Specific(letters, stable)"),
        ("letters", b"{", 400, "no JSON"),
        ("letters", b"[" * 500_000, 400, "no JSON"),
        ("letters", b'{"instances": [NaN' + b"[" * 100_000, 400, "no JSON"),
        ("letters", b"[1]", 400, "Expected a JSON object, got list"),
        ("letters", {}, 400, "'instances' (rows) or 'inputs' (columns), one of them; got neither"),
        ("letters", {"instances": [[1]], "inputs": [[1]]}, 400, "got both"),
        ("letters", {"instances": []}, 400, "at least one row"),
        ("letters", {"instances": 3}, 400, "at least one row"),
        ("letters", {"instances": [[1]], "signature_name": "x"}, 404, "no signature 'x'"),
        ("letters", {"instances": [[1]], "signature_name": 3}, 400, "'signature_name' is no text"),
        ("letters", {"instances": [1, 2]}, 400, "Input 'x': expected the shape (any, any), got (2,)"),
        ("letters", {"instances": [[1, 2], [3]]}, 400, "Input 'x': expected an array of int64, got unequal lists"),
        ("letters", {"instances": [[0.5]]}, 400, "Input 'x': expected values of int64, got float64"),
        ("letters", {"instances": [["a"]]}, 400, "Input 'x': expected values of int64, got text"),
        ("letters", {"instances": [[None]]}, 400, "Input 'x': expected values of int64, got null or mixed values"),
        ("letters", {"instances": [[2**70]]}, 400, "Input 'x': expected values of int64"),
        ("letters", {"inputs": {"y": [[1]]}}, 400, "Expected the inputs 'x', got 'y' (missing: 'x'; unknown: 'y')"),
        ("pairs", {"inputs": [[1]]}, 400, "an object of the inputs ['a', 'b']"),
        (
            "pairs",
            {"instances": [{"a": [1, 2]}]},
            400,
            "Row 0: expected an object of the inputs 'a', 'b', got 'a' (missing",
        ),
        (
            "pairs",
            {"inputs": {"a": [[1, 2]], "bee": 1, "b1": 2}},
            400,
            "Expected the inputs 'a', 'b', got 'a', 'bee', 'b1' (missing: 'b'; unknown: 'bee', 'b1'). "
            "Did you mean 'b' for 'b1'?",
        ),
        ("pairs", {"instances": [{"a": [1, 2], "b": [1, 2, 3]}, 4]}, 400, "Row 1: .*got int"),
        ("pairs", {"inputs": {"a": [[1, 2]], "b": [[1, 2, 3]] * 2}}, 400, "same number of rows"),
        ("words", {"instances": [{"b64": "?"}]}, 400, "Input 'words': a value {'b64': ...} is no base64"),
        ("words", {"instances": [{"b64": "//8="}]}, 400, "Input 'words': expected bytes that are UTF-8"),
        (
            "words",
            {"instances": nested(900)},
            400,
            "Input 'words': expected an array of text, got lists in more than 64",
        ),
        ("words", {"instances": nested(64)}, 400, "Input 'words': expected the shape (any), got (1, 1, "),
        ("words", {"instances": [1]}, 400, "Input 'words': expected text, got int"),
    ],
)
def test_errors(served: Any, model: str, body: Any, status: int, message: str) -> None:
    reply = predict(served, model, body)
    assert reply.status == status
    assert set(reply.json) == {"error"}
    first, _, last = message.partition(".*")
    assert first in reply.json["error"]
    assert last in reply.json["error"]


def test_large_unsigned_integers_stand_beside_small_ones() -> None:
    info = TensorInfo("i", "uint64", (None,), "i:0")
    assert as_input(info, [2**64 - 1, 1]).tolist() == [2**64 - 1, 1]
    for values, got in (([2**63, -1], "-1, which is out of its range"), ([2**63, 0.5], "float64"), ([1, None], "null")):
        with pytest.raises(RequestError, match=f"expected values of uint64, got {got}"):
            as_input(info, values)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 1e300, math.inf),
        ("float32", 2**64 - 1, 2.0**64),
        ("float32", 10**39, math.inf),
        ("float16", 70_000, math.inf),
        ("bfloat16", 2**60, 2.0**60),
    ],
)
def test_large_numbers_become_floats(dtype: str, value: Any, expected: float) -> None:
    """Beyond a float's range they are infinite, as in NumPy."""
    assert as_input(TensorInfo("f", dtype, (None,), "f:0"), [value]).tolist() == [expected]


def test_integers_that_are_no_floats_are_refused() -> None:
    info = TensorInfo("f", "float32", (None,), "f:0")
    with pytest.raises(RequestError, match="Input 'f': expected values of float32, got an integer that is too large"):
        as_input(info, [10**400])


def test_errors_stay_short_whatever_the_names(served: Any) -> None:
    inputs = {f"{number:09}" * 5000: [[1]] for number in range(20)}
    reply = predict(served, "letters", {"inputs": inputs})
    assert (reply.status, len(reply.body) < 3000) == (400, True)
    assert "...', 4 more (missing: 'x'; unknown: '0" in reply.json["error"]
