"""The first hour: misspelt arguments, parts given one by one, narrow terminals, explain, help, the README's model."""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.__main__ import _COMMANDS, main
from anabranch.engine.common.keywords import keywords_of
from anabranch.framework.serving.decoding.decoder import load_any
from anabranch.framework.serving.inspect_command import describe
from anabranch.framework.serving.servable import Servable

ROOT = Path(__file__).parents[2]

X = np.zeros((8, 4), "float32")
Y = np.zeros((8, 3), "float32")


def compiled(metrics: Any = None) -> Any:
    model = ab.Sequential([layers.Dense(3)])
    model.compile("sgd", "mse", metrics=metrics)
    return model


class Scaled(layers.Layer):
    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor


class Strict(layers.Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


any_ab: Any = ab  # for calls that type checkers refuse
any_layers: Any = layers

# Calls with a wrong keyword argument, by what they are to say.
MISSPELT: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: any_ab.optim.Adam(lr=0.1),
        "Adam() got an unexpected keyword argument 'lr'. Did you mean 'learning_rate'?",
    ),
    (lambda: any_ab.optim.Adam(beta1=0.1), "argument 'beta1'. Did you mean 'beta_1'?"),
    (
        lambda: any_ab.optim.Adam(clipnrm=1.0),
        "argument 'clipnrm'. Did you mean 'clipnorm'?",
    ),
    (lambda: any_layers.Dense(3, activaton="relu"), "argument 'activaton'. Did you mean 'activation'?"),
    (lambda: any_layers.Dense(3, nam="a"), "Dense() got an unexpected keyword argument 'nam'. Did you mean 'name'?"),
    (lambda: any_layers.LSTM(3, return_sequence=True), "'return_sequence'. Did you mean 'return_sequences'?"),
    (lambda: any_layers.LSTM(3, recurent_dropout=0.1), "'recurent_dropout'. Did you mean 'recurrent_dropout'?"),
    (lambda: any_layers.Dense(3, bias=False), "argument 'bias'. Did you mean 'use_bias'?"),
    (lambda: any_layers.Conv2D(3, 3, stride=2), "argument 'stride'. Did you mean 'strides'?"),
    (lambda: Scaled(2.0, nme="a"), "Scaled() got an unexpected keyword argument 'nme'. Did you mean 'name'?"),
    (
        lambda: cast(Any, Strict)(facto=2.0),
        "argument 'facto'. Did you mean 'factor'?",
    ),
    (lambda: any_layers.Dropout(p=0.5), "Dropout() got an unexpected keyword argument 'p'. Did you mean 'rate'?"),
    (
        lambda: any_layers.Dense(in_features=3, out_features=4),
        "Dense() got unexpected keyword arguments 'in_features', 'out_features'. Leave out 'in_features': the size "
        "comes from the input of the first call. Did you mean 'units' for 'out_features'?",
    ),
    (
        lambda: any_layers.Conv2D(in_channels=3, out_channels=4, kernel_size=3),
        "'in_channels', 'out_channels'. Leave out 'in_channels': the size comes from the input of the first call. Did "
        "you mean 'filters' for 'out_channels'?",
    ),
    (lambda: any_layers.LSTM(input_size=3, hidden_size=4), "Did you mean 'units' for 'hidden_size'?"),
    (
        lambda: any_layers.Embedding(num_embeddings=3, embedding_dim=4),
        "'output_dim' for 'embedding_dim', 'input_dim' for",
    ),
    (lambda: any_layers.BatchNormalization(num_features=3), "Leave out 'num_features': the size comes from the input"),
    (
        lambda: any_layers.LSTM(3, batch_first=True),
        "LSTM() got an unexpected keyword argument 'batch_first'. Leave out 'batch_first': inputs are (batch, steps, "
        "features), and with time_major=True (steps, batch, features).",
    ),
    (
        lambda: any_ab.optim.SGD(params=[]),
        "Leave out 'params': apply(gradients, variables) and minimize(loss, variables) take the variables.",
    ),
    (lambda: any_layers.ReLU(inplace=True), "Leave out 'inplace': tensors never change"),
    (
        lambda: any_layers.LSTM(3, num_layers=2),
        "Leave out 'num_layers': put several layers in a row, or give layers.RNN",
    ),
    (lambda: any_layers.Dropout(0.5, random_state=1), "argument 'random_state'. Did you mean 'seed'?"),
    (lambda: any_ab.ops.ones(2).sum(dim=0), "sum() got an unexpected keyword argument 'dim'. Did you mean 'axis'?"),
    (
        lambda: any_ab.ops.ones(2).argmax(dim=0),
        "argmax() got an unexpected keyword argument 'dim'. Did you mean 'axis'?",
    ),
    (lambda: any_ab.ops.ones(2).var(dim=0), "var() got an unexpected keyword argument 'dim'. Did you mean 'axis'?"),
    (lambda: any_layers.Dense(name="a"), "Dense.__init__() missing 1 required positional argument: 'units'"),
    (lambda: any_ab.Sequential([], nme="a"), "Sequential() got an unexpected keyword argument 'nme'."),
    (lambda: any_ab.Model(input=1, output=2), "Did you mean 'inputs' for 'input', 'outputs' for 'output'?"),
    (lambda: compiled().fit(X, Y, epoch=3), "fit() got an unexpected keyword argument 'epoch'. Did you mean 'epochs'?"),
    (lambda: compiled().fit(X, Y, nb_epoch=3), "argument 'nb_epoch'. Did you mean 'epochs'?"),
    (lambda: compiled().evaluate(X, Y, batchsize=3), "argument 'batchsize'. Did you mean 'batch_size'?"),
    (lambda: compiled().predict(X, batchsize=3), "argument 'batchsize'. Did you mean 'batch_size'?"),
    (lambda: any_ab.Sequential().compile(metric=["mae"]), "argument 'metric'. Did you mean 'metrics'?"),
    (lambda: any_ab.losses.BinaryCrossentropy(from_logit=True), "argument 'from_logit'. Did you mean 'from_logits'?"),
    (lambda: any_ab.metrics.Mean(nme="a"), "argument 'nme'. Did you mean 'name'?"),
    (lambda: any_ab.callbacks.EarlyStopping(patence=3), "argument 'patence'. Did you mean 'patience'?"),
    (
        lambda: any_ab.initializers.HeNormal(sed=1),
        "argument 'sed'. Did you mean 'seed'?",
    ),
    (lambda: any_ab.regularizers.L2(l=0.1), "L2() got an unexpected keyword argument 'l'. Did you mean 'l2'?"),
    (lambda: any_ab.constraints.MaxNorm(max_valu=1), "argument 'max_valu'. Did you mean 'max_value'?"),
    (
        lambda: any_ab.optim.schedules.ExponentialDecay(0.1, 10, decay=0.5),
        "'decay'. Did you mean 'decay_rate'?",
    ),
    (lambda: any_ab.Input(shap=(3,)), "Input() got an unexpected keyword argument 'shap'. Did you mean 'shape'?"),
    (lambda: any_ab.ops.sum(X, axes=1), "sum() got an unexpected keyword argument 'axes'. Did you mean 'axis'?"),
    (lambda: any_ab.ops.sum(X, dim=1), "sum() got an unexpected keyword argument 'dim'. Did you mean 'axis'?"),
]


@pytest.mark.parametrize(("call", "message"), MISSPELT)
def test_a_misspelt_keyword_argument_is_answered_with_the_one_that_was_meant(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


def test_a_keyword_argument_that_is_like_none_is_answered_with_all_that_there_are() -> None:
    with pytest.raises(TypeError, match=r"'colour'\. Expected one of: units, activation, .*name\."):
        any_layers.Dense(3, colour="red")
    with pytest.raises(TypeError, match=r"Adam\(\) got .* 'qqq'\. Expected one of: learning_rate, beta_1"):
        any_ab.optim.Adam(qqq=1)


def test_errors_from_inside_of_a_call_keep_their_text() -> None:
    def inner(*, value: int) -> int:
        return value

    class Refusing(layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__()
            inner(**kwargs)

    with pytest.raises(TypeError, match=r"inner\(\) got an unexpected keyword argument 'valu'") as caught:
        Refusing(valu=1)
    assert "Did you mean 'name'" not in str(caught.value)


def test_the_keyword_arguments_of_a_class_are_those_of_its_whole_constructor() -> None:
    assert {"factor", "name", "trainable", "dtype"} <= set(keywords_of(Scaled))
    assert keywords_of(Strict) == ["factor"]
    assert {"inputs", "outputs", "name"} <= set(keywords_of(ab.Model))


ONE_BY_ONE: list[tuple[Callable[[], Any], str]] = [
    (lambda: any_ab.Sequential(any_layers.Dense(3), any_layers.Dense(2)), "Pass a list: Sequential([a, b])"),
    (lambda: any_ab.Sequential(*[any_layers.Dense(3) for _ in range(5)]), "Pass a list: Sequential([a, b])"),
    (lambda: any_ab.Model(any_layers.Dense(3), any_layers.Dense(2)), "pass a list to ab.Sequential"),
    (lambda: any_ab.Model([any_layers.Dense(3), any_layers.Dense(2)]), "pass a list to ab.Sequential"),
    (
        lambda: any_layers.StackedRNNCells(any_layers.LSTMCell(2), any_layers.LSTMCell(2)),
        "Pass a list: StackedRNNCells([a, b])",
    ),
    (lambda: any_layers.RNN(any_layers.LSTMCell(2), any_layers.LSTMCell(2)), "Pass a list: RNN([a, b])"),
    (
        lambda: any_layers.Pipeline(any_layers.Rescaling(2.0), any_layers.Rescaling(2.0)),
        "Pass a list: Pipeline([a, b])",
    ),
    (lambda: any_layers.Concatenate()(any_ab.Input((3,)), any_ab.Input((3,))), "Pass a list: concatenate"),
    (lambda: any_layers.Add(name="sum")(X, X), "Pass a list: sum([a, b])"),
    (lambda: any_ab.ops.concatenate(X, X), "Pass a list: ops.concatenate([a, b])"),
    (lambda: any_ab.ops.stack(any_ab.ops.ones((2, 3)), any_ab.ops.ones((2, 3))), "Pass a list: ops.stack([a, b])"),
]


@pytest.mark.parametrize(("call", "message"), ONE_BY_ONE)
def test_parts_that_are_given_one_by_one_belong_in_a_list(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


def test_layers_of_ones_own_may_take_several_layers() -> None:
    class Residual(layers.Layer):
        def __init__(self, inner: Any, outer: Any) -> None:
            super().__init__()
            self.inner, self.outer = inner, outer

    assert len(Residual(layers.Dense(3), layers.Dense(4)).weights) == 0


def test_a_function_that_is_explained_before_it_has_a_graph_names_the_way_to_one() -> None:
    @ab.function
    def doubled(a: Any) -> Any:
        return ab.ops.tanh(a) * 2

    def plain(a: Any) -> Any:
        return a + 1

    with pytest.raises(TypeError, match=r"'plain' is a plain Python function.*ab\.explain\(plain\(x\)\)"):
        ab.explain(plain)
    with pytest.raises(TypeError, match=r"'doubled' was not called yet.* doubled\(x\); ab\.explain\(doubled\)"):
        ab.explain(doubled)
    with pytest.raises(TypeError, match="is a Dense, which has no graph by itself"):
        ab.explain(layers.Dense(3))
    doubled(X)
    assert "tanh" in ab.explain(doubled)
    for feeds in ([X], X):
        with pytest.raises(TypeError, match="takes no feeds"):
            ab.explain(doubled, feeds)
    assert "multiply" in ab.explain(plain(ab.placeholder((3,), "float32", "x")) * 3)


def test_explaining_a_function_runs_none_of_its_effects() -> None:
    count = ab.Variable(0.0)

    @ab.function
    def counted(a: Any) -> Any:
        count.assign_add(1.0)
        return a + count

    counted(X)
    assert "assign" in ab.explain(counted)
    assert float(count.numpy()) == 1.0


def test_a_profile_names_what_loops_keep_where_there_is_a_loop() -> None:
    x = ab.placeholder((2,), "float32", "x")
    assert "kept" not in str(ab.profile(x * 2, {x: [1.0, 2.0]}, runs=1))
    n = ab.placeholder((), "int32", "n")
    total = ab.ops.sum(ab.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, ab.ops.tanh(h * x)), (0, x))[1])
    told = str(ab.profile(ab.gradients(total, [x]), {x: [1.0, 2.0], n: 3}, runs=1))
    assert re.search(r"[1-9]\d* \w+ kept by loops for the backward pass", told)


@pytest.mark.parametrize("command", ["", *_COMMANDS])
def test_the_help_of_commands_is_plain_text(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "82")  # of which argparse uses 80
    with pytest.raises(SystemExit, match="0"):
        main([*([command] if command else []), "--help"])
    told = capsys.readouterr().out
    assert "`" not in told
    assert "*" not in told
    assert "python -m anabranch" not in told  # the line of usage names the command
    assert max(map(len, told.splitlines())) <= 80


def test_a_reader_of_a_command_may_end_before_it() -> None:
    """Python's own way is a traceback of BrokenPipeError."""
    command = [sys.executable, "-m", "anabranch", "status", *["grpc://localhost:1"] * 3, "--timeout", "0.1"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (141, "")


def test_the_model_of_the_readme_is_served_for_sentences_of_any_length(tmp_path: Path) -> None:
    examples = doctest.DocTestParser().get_examples((ROOT / "README.md").read_text())
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        for example in examples:
            exec(example.source, names)
            if "model.save" in example.source:
                break
        names["model"].export("served", verbose=False)
    (signature,) = describe(cast(Servable, load_any(str(tmp_path / "served"), None)), [1])["signatures"].values()
    assert [each["shape"] for each in signature["inputs"]] == [[None, None]]


def fit_in_a_terminal(columns: int, metrics: list[Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `fit` prints to a terminal of a width."""
    termios, fcntl = pytest.importorskip("termios"), pytest.importorskip("fcntl")
    read, write = os.openpty()
    fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    found: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(read, found))  # a full terminal would stop the writer
    reader.start()
    with os.fdopen(write, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        compiled(metrics).fit(X, Y, epochs=2, verbose=1, validation_data=(X, Y))
    reader.join()
    os.close(read)
    return b"".join(found).decode()


def read_all(descriptor: int, found: list[bytes]) -> None:
    """Read until the other end of a pseudo-terminal is closed, which Linux reports as an error."""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 1 << 16):
            found.append(data)


def lines_seen(printed: str) -> list[str]:
    """Return what stays on the screen: of each line what was drawn last."""
    rows = [line.rstrip("\r").rpartition("\r")[2] for line in printed.split("\n")]
    return [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", row).rstrip() for row in rows if row.strip()]


@pytest.mark.parametrize(
    ("metrics", "columns"),
    [(["mae"], 80), (["mae", "mape", "cosine_similarity"], 80), (["mae", "mape"], 20), (["mae"], 0)],
)
def test_metrics_are_seen_whole_in_a_narrow_terminal(
    metrics: list[str], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_seen(fit_in_a_terminal(columns, metrics, monkeypatch))
    assert [line for line in lines if line.startswith("Epoch")] == [lines[0], lines[len(lines) // 2]]
    for name in ["loss", *metrics]:
        for shown in (name, f"val_{name}"):
            values = re.findall(rf"\b{shown}: -?\d+\.\d{{4}}(?=[ \]]|$)", "\n".join(lines), re.MULTILINE)
            assert len(values) == 2, (shown, lines)  # one for each epoch
    if columns == 80:
        assert max(map(len, lines)) <= columns
