"""``python -m anabranch inspect`` and ``predict``: what they print and write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.served_decoders import circle
from shared.served_models import two_in_two_out

import anabranch as ab
from anabranch.__main__ import main

ROWS = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one input of three features."""
    folder = tmp_path_factory.mktemp("features")
    model = ab.Sequential([ab.Input((3,), name="x"), ab.layers.Dense(2, kernel_initializer="ones", name="y")])
    model.export(folder, verbose=False)
    return folder


@pytest.fixture(scope="module")
def scalars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a number and a word."""
    folder = tmp_path_factory.mktemp("scalars")
    number, word = ab.Input((), dtype="int32", name="number"), ab.Input((), dtype="string", name="word")
    ab.Model([number, word], {"twice": number * 2, "same": ab.ops.equal(word, "a")}).export(folder, verbose=False)
    return folder


def written(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return archive["output_0"]
    if path.suffix == ".jsonl":
        return np.array([json.loads(line) for line in path.read_text().splitlines()])
    header, *lines = path.read_text().splitlines()
    assert header == "output_0_0,output_0_1"
    return np.array([[float(cell) for cell in line.split(",")] for line in lines])


@pytest.mark.parametrize("given", [".npz", ".jsonl", ".csv"])
@pytest.mark.parametrize("wanted", [".npz", ".jsonl", ".csv"])
def test_rows_of_each_form_become_rows_of_each_form(features: Path, tmp_path: Path, given: str, wanted: str) -> None:
    source, target = tmp_path / f"rows{given}", tmp_path / f"found{wanted}"
    if given == ".npz":
        np.savez(source, x=ROWS)
    elif given == ".jsonl":
        source.write_text("\n".join(map(str, ROWS.tolist())) + "\n\n")
    else:
        source.write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in ROWS) + "\n")
    assert main(["predict", str(features), "--input", str(source), "--output", str(target), "--batch-size", "3"]) == 0
    np.testing.assert_allclose(written(target), np.repeat(ROWS.sum(1, keepdims=True), 2, axis=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, target.name])


def test_several_inputs_have_columns_by_name(scalars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("word,number\na,1\nb,2\n")
    (tmp_path / "rows.jsonl").write_text('{"number": 1, "word": "a"}\n{"word": "b", "number": 2}\n')
    for name in ("rows.csv", "rows.jsonl"):
        target = tmp_path / "found.jsonl"
        assert main(["predict", str(scalars), "--input", str(tmp_path / name), "--output", str(target)]) == 0
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        assert rows == [{"same": True, "twice": 2}, {"same": False, "twice": 4}]
    assert f"2 rows in {target}" in capsys.readouterr().out


def test_rows_of_several_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = ab.Input((None,), name="x")
    ab.Model(x, {"double": 2 * x, "sum": ab.ops.sum(x, axis=-1)}).export(tmp_path / "m", verbose=False)
    rows, source = [[1.0, 2.0], [3.0], [], [4.0, 5.0], [6.0]], tmp_path / "rows.jsonl"
    source.write_text("\n".join(map(str, rows)))
    command = ["predict", str(tmp_path / "m"), "--input", str(source), "--batch-size", "1", "--output"]
    assert main([*command, str(tmp_path / "found.jsonl")]) == 0
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert found == [{"double": [2 * each for each in row], "sum": sum(row)} for row in rows]
    capsys.readouterr()
    for name in ("found.csv", "found.npz"):
        assert main([*command, str(tmp_path / name)]) == 2
        assert "Output 'double' has rows of several shapes; write .jsonl." in capsys.readouterr().err
        assert not (tmp_path / name).exists()
    source.write_text("[1.0]\n[[2.0]]\n")
    assert main([*command, str(tmp_path / "found.npz")]) == 2
    assert "expected the shape (any, any), got (1, 1, 1)" in capsys.readouterr().err
    mixing = ab.Model(x, x - ab.ops.mean(x, axis=0, keepdims=True))
    mixing.export(tmp_path / "m", verbose=False)
    source.write_text("[1.0]\n[2.0, 3.0]\n")
    assert main([*command, str(tmp_path / "found.jsonl")]) == 2
    assert "got unequal lists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "word\na\n", "missing: 'number'"),
        ("rows.csv", "word,size\na,1\n", "there is no input 'size'. There are number, word"),
        ("rows.csv", "word,number\na,1\n\na,many\n", "line 4: Input 'number': 'many' is no value of int32"),
        ("rows.csv", "word,number\na,1\na\n", "line 3: expected 2 values, got 1"),
        ("rows.csv", "", "is empty; expected a header"),
        ("rows.jsonl", '{"number": 1}\n', "line 1: expected an object of the inputs number, word"),
        ("rows.jsonl", '{"number": 1, "word": "a"}\n{', "line 2: "),
        (
            "rows.jsonl",
            '{"number": 1, "word": "a"}\n{"number": 1.5, "word": "a"}\n',
            "Row 2: Input 'number': expected values of int32",
        ),
        ("rows.txt", "", "must end in .npz, .jsonl, .csv"),
        ("none.csv", None, "No such file"),
    ],
)
def test_wrong_files_are_refused_and_nothing_is_written(
    scalars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.iterdir())
    target = tmp_path / "found.jsonl"
    assert main(["predict", str(scalars), "--input", str(tmp_path / name), "--output", str(target)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("anabranch predict: ")
    assert message in error
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_without_rows_is_refused(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n")
    assert main(["predict", str(features), "--input", str(rows), "--output", str(tmp_path / "found.jsonl")]) == 2
    assert capsys.readouterr().err == "anabranch predict: There are no rows to compute.\n"


def test_outputs_that_have_no_form_in_csv_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = ab.Input((3,), name="x")
    ab.Model(x, ab.layers.Reshape((1, 3))(x)).export(tmp_path / "model", verbose=False)
    np.savez(tmp_path / "rows.npz", x=ROWS)
    given = ["--input", str(tmp_path / "rows.npz"), "--output", str(tmp_path / "found.csv")]
    assert main(["predict", str(tmp_path / "model"), *given]) == 2
    assert "Output 'output_0' of shape (4, 1, 3) has no form in .csv" in capsys.readouterr().err
    assert not (tmp_path / "found.csv").exists()


def test_a_servable_is_described(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(features)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("version 1 of 1")
    assert lines[1].endswith("weights and constants: float32 32 bytes")
    assert lines[2:] == [
        "signature serving_default",
        "  input  x: float32 (any, 3)",
        "  output output_0: float32 (any, 2)",
        "  requests that wait are computed together",
    ]
    x = ab.Input((2,), name="x")
    ab.Model(x, x - ab.ops.mean(x, axis=0)).export(tmp_path, verbose=False)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"] == [1]
    assert "(mean) is not known" in found["signatures"]["serving_default"]["computed_alone_because"]
    two_in_two_out().export(tmp_path, verbose=False)
    assert main(["inspect", str(tmp_path), "--version", "3"]) == 2
    assert "has no version 3. It holds 1, 2." in capsys.readouterr().err


# --- decoders -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    circle(max_length=50, slots=3).export(path)
    return path


def test_inspect_of_a_decoder(decoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(decoder)]) == 0
    text = capsys.readouterr().out
    assert "3 slots, sequences of up to 50 tokens out of 8, ended by 0" in text
    assert "input  stride: int32 (1)" in text
    assert main(["inspect", str(decoder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["decoder"]
    assert (found["row_bytes"], found["takes_texts"], found["takes_prompts_by_chunks"]) == (4, True, False)


def test_predict_with_a_decoder(decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tokens": [2], "stride": 1}, {"text_input": "ab", "stride": 2}]
    given, wanted = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("\n".join(map(json.dumps, rows)))
    command = ["predict", str(decoder), "--input", str(given), "--output", str(wanted), "--max-tokens", "3"]
    assert main(command) == 0
    found = [json.loads(line) for line in wanted.read_text().splitlines()]
    assert found == [{"tokens": [3, 4, 5], "text_output": "bcd"}, {"tokens": [5, 7, 3], "text_output": "dfb"}]
    wanted.unlink()
    for text, message in (
        ('{"tokens": [2]}', "line 1: expected an object of 'tokens' or 'text_input', 'stride'"),
        ("[1]", "line 1: expected an object"),
        ("{", "line 1:"),
        ('{"tokens": [99], "stride": 1}', "the token 99"),
    ):
        given.write_text(text)
        assert main(command) == 2
        assert message in capsys.readouterr().err
        assert not wanted.exists()
