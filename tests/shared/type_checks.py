"""Run pyright and mypy over scripts that use the package as it is installed: what users see in their editors."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anabranch as ab

ROOT = Path(__file__).parents[2]
IMPORTS = """\
import numpy as np
import anabranch as ab
from anabranch import layers, ops

inputs = ab.Input((3,))
model = ab.Sequential([ab.Input((3,)), layers.Dense(1)])
"""

# Mistakes, with the rule of pyright and the code of mypy that report them.
MISTAKES: dict[str, tuple[str, str]] = {
    'layers.Dense("three")': ("reportArgumentType", "arg-type"),
    "layers.Dense()": ("reportCallIssue", "call-arg"),
    "layers.Dense(3, trainabel=False)": ("reportCallIssue", "call-arg"),
    'layers.Conv2D(3, "3")': ("reportArgumentType", "arg-type"),
    "layers.GRU(4, unrol=True)": ("reportCallIssue", "call-arg"),
    'layers.RNN("lstm")': ("reportArgumentType", "arg-type"),
    'layers.LSTM(4, return_sequences="yes")': ("reportArgumentType", "arg-type"),
    "layers.Densee(3)": ("reportAttributeAccessIssue", "attr-defined"),
    'ab.optimizers.Adam(learning_rate="fast")': ("reportArgumentType", "arg-type"),
    "ab.optimizers.Adamm()": ("reportAttributeAccessIssue", "attr-defined"),
    "ab.losses.MeanSquaredErorr()": ("reportAttributeAccessIssue", "attr-defined"),
    "ab.losses.msee": ("reportAttributeAccessIssue", "attr-defined"),
    "ab.callbacks.EarlyStopping(patiense=3)": ("reportCallIssue", "call-arg"),
    'ab.callbacks.EarlyStopping(patience="3")': ("reportArgumentType", "arg-type"),
    "ops.sinn(inputs)": ("reportAttributeAccessIssue", "attr-defined"),
    "ops.nn.reluu(inputs)": ("reportAttributeAccessIssue", "attr-defined"),
    "ops.relu(inputs, 3, 4)": ("reportCallIssue", "call-arg"),
    'ops.relu({"a": 1.0})': ("reportArgumentType", "arg-type"),
    "ops.zeros((2, 3), dtype=3)": ("reportArgumentType", "arg-type"),
    "ops.zeros(2.5)": ("reportArgumentType", "arg-type"),
    'ops.sum(inputs, axis="rows")': ("reportArgumentType", "arg-type"),
    "layers.AdditiveAttention(trainabel=False)": ("reportCallIssue", "call-arg"),
    "layers.IntegerLookup(trainabel=False)": ("reportCallIssue", "call-arg"),
    "layers.Dropout(0.5, trainabel=False)": ("reportCallIssue", "call-arg"),
    'layers.Dropout(0.5, trainable="no")': ("reportArgumentType", "arg-type"),
    "ab.nosuch": ("reportAttributeAccessIssue", "attr-defined"),
    "ab.Model(input=inputs, output=inputs)": ("reportCallIssue", "call-overload"),
    'model.compile(optimiser="adam")': ("reportCallIssue", "call-arg"),
    "model.compile(loss=3)": ("reportArgumentType", "arg-type"),
    'ab.losses.mean_squared_error(np.zeros(3), y_pred={"a": 1.0})': ("reportArgumentType", "arg-type"),
    'ab.losses.MeanSquaredError()(np.zeros(3), np.zeros(3), sample_weight={"a": 1.0})': (
        "reportArgumentType",
        "arg-type",
    ),
    "ab.metrics.Mean().update_state(value=3)": ("reportCallIssue", "call-arg"),
    "model.fit(np.zeros((3, 3)), epoch=3)": ("reportCallIssue", "call-arg"),
    'model.fit(np.zeros((3, 3)), epochs="3")': ("reportArgumentType", "arg-type"),
    "model.fitt(np.zeros((3, 3)))": ("reportAttributeAccessIssue", "attr-defined"),
    "model.predict(np.zeros((3, 3)), batchsize=3)": ("reportCallIssue", "call-arg"),
}

# Expressions with the type that both say they have.
TYPES: dict[str, str] = {
    "layers.Dense(3)": "anabranch.layers.core.dense.Dense",
    "layers.Bidirectional(layers.LSTM(3))": "anabranch.layers.recurrent.bidirectional.Bidirectional",
    "model": "anabranch.framework.models.sequential.Sequential",
    "ab.Model(inputs, inputs)(np.zeros((2, 3)), training=True)": "anabranch.engine.graph.tensor.Tensor",
    "ab.Model(inputs, [inputs, inputs])(inputs)[0]": "anabranch.engine.graph.tensor.Tensor",
    'ab.Model(inputs, {"a": inputs})(inputs)["a"]': "anabranch.engine.graph.tensor.Tensor",
    "ab.Model(inputs, inputs).fit(np.zeros(3))": "anabranch.framework.models.fit_callbacks.History",
    "ab.losses.mean_squared_error(np.zeros(3), y_pred=np.zeros(3))": "anabranch.engine.graph.tensor.Tensor",
    "ab.losses.MeanSquaredError()(np.zeros(3), np.zeros(3))": "anabranch.engine.graph.tensor.Tensor",
    "ab.metrics.AUC().result()": "anabranch.engine.graph.tensor.Tensor",
    "ab.utils.to_categorical(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "ab.callbacks.EarlyStopping().model": "anabranch.framework.models.fit_callbacks.ModelOfSomeClass",
    "ops.relu(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "ops.nn.relu(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "ops.where(inputs > 0, inputs, 0)": "anabranch.engine.graph.tensor.Tensor",
    "ops.where(inputs > 0)[0]": "anabranch.engine.graph.tensor.Tensor",
    "ops.linspace(0, 1)": "anabranch.engine.graph.tensor.Tensor",
    "ops.svd(inputs)[0]": "anabranch.engine.graph.tensor.Tensor",
    "layers.Dense(3)(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.Dense(3)(inputs, training=True)": "anabranch.engine.graph.tensor.Tensor",
    "layers.LSTM(3)(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.LSTM(3, return_state=True)(inputs)[1]": "anabranch.engine.graph.tensor.Tensor",
    "layers.MultiHeadAttention(2, 3)(inputs, inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.Bidirectional(layers.GRU(3))(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.TimeDistributed(layers.Dense(3))(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.Normalization()(np.zeros((2, 3)))": "anabranch.engine.graph.tensor.Tensor",
    "layers.RandomFlip()(np.zeros((2, 3, 3, 3)))": "anabranch.engine.graph.tensor.Tensor",
    "layers.LSTMCell(3)(inputs, [inputs, inputs])[0]": "anabranch.engine.graph.tensor.Tensor",
    "model(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "model(np.zeros((2, 3)), training=True)": "anabranch.engine.graph.tensor.Tensor",
    "ab.function(ops.relu)(np.zeros(3))": "anabranch.engine.graph.tensor.Tensor",
    "ab.function(jit_compile=True)(ops.relu)(np.zeros(3))": "anabranch.engine.graph.tensor.Tensor",
    "ab.metrics.Mean()(inputs)": "anabranch.engine.graph.tensor.Tensor",
    "layers.Dense(3).kernel": "anabranch.layers.core.weight.Weight",
    "model.layers[0].kernel": "Any",
    'model.get_layer("dense").units': "Any",
    "model.weights[0].shape": "Any",
    "model.weights[0].path": "builtins.str",
}

# Imports from modules that exist at run time only, with a call that has one type, and a name that is not there.
FROM_MODULES: dict[str, tuple[str, str]] = {
    "activations": ("relu(np.zeros(3))", ""),
    "callbacks": ("EarlyStopping()", "EarlyStopping"),
    "constraints": ("MaxNorm()", "MaxNorm"),
    "datasets.mnist": ("load_data()", ""),
    "initializers": ("GlorotUniform()", "GlorotUniform"),
    "losses": ("MeanSquaredError()", "MeanSquaredError"),
    "metrics": ("AUC()", "AUC"),
    "models": ("Sequential()", "Sequential"),
    "nn": ("embedding_lookup(np.zeros((3, 3)), [1])", "Tensor"),
    "ops": ("relu(np.zeros(3))", "Tensor"),
    "ops.image": ("resize(np.zeros((3, 3, 3)), (6, 6))", "Tensor"),
    "ops.nn": ("softmax(np.zeros(3))", "Tensor"),
    "ops.numpy": ("sin(np.zeros(3))", "Tensor"),
    "optimizers": ("Adam()", "Adam"),
    "optimizers.schedules": ("CosineDecay(0.1, 100)", "CosineDecay"),
    "preprocessing.image": ("load_img('x.png')", ""),
    "preprocessing.sequence": ("pad_sequences([[1], [2, 3]])", ""),
    "random": ("normal((3,))", "Tensor"),
    "regularizers": ("L2(0.1)", "L2"),
    "saving": ("load_model('m.keras')", ""),
    "tf": ("constant(1)", "Tensor"),
    "tf.io": ("read_file('x.png')", "Tensor"),
    "tf.random": ("normal((3,))", "Tensor"),
    "utils": ("to_categorical([1, 2])", ""),
}


def imports_script() -> str:
    """A script that imports from each of these modules, and shows the types of what they give."""
    lines = ["import numpy as np"]
    for module, (call, _) in FROM_MODULES.items():
        name = call.partition("(")[0]
        own = f"{name}_{module.replace('.', '_')}"
        lines += [f"from anabranch.{module} import {name} as {own}", f"reveal_type({own}{call.removeprefix(name)})"]
    lines += [f"from anabranch.{module} import no_such_name" for module in FROM_MODULES]
    return "\n".join(lines) + "\n"


def revealed_imports() -> list[str]:
    """The names of the types that `imports_script` shows; empty for such that the two checkers write differently."""
    return [name for _, name in FROM_MODULES.values()]


def mistakes_script() -> str:
    """A script with one mistake a line, from line 1 + the lines of `IMPORTS` on."""
    return IMPORTS + "".join(f"{line}\n" for line in MISTAKES)


def types_script() -> str:
    return IMPORTS + "".join(f"reveal_type({expression})\n" for expression in TYPES)


def names_script() -> str:
    """A script that looks at every public name there is at run time."""
    lines = ["import anabranch as ab", *[f"ab.{name}" for name in ab.__all__]]
    for path in ["layers", "optim", *sorted(ab._MODULES)]:  # pyright: ignore[reportPrivateUsage]
        module = importlib.import_module(f"anabranch.{path}")
        listed = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
        ]
        lines += [f"ab.{path}.{name}" for name in listed if not name.startswith("_")]
    return "\n".join(lines) + "\n"


def site_packages(environment: Path) -> Path:
    """The folder of an environment where type checkers look for packages."""
    folder = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pyright(folder: Path, environment: Path, scripts: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """Return pyright's reports with its default rules: script, line from 1, rule ("" for a revealed type), message."""
    write(folder, scripts)
    configuration = {"include": sorted(scripts), "venvPath": str(environment.parent), "venv": environment.name}
    (folder / "pyrightconfig.json").write_text(json.dumps(configuration))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(folder)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(result.stdout)["generalDiagnostics"]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", ""), each["message"])
        for each in found
    ]


def mypy(folder: Path, environment: Path, scripts: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """Return what mypy reports with its default rules, in the same form."""
    write(folder, scripts)
    python = ["--python-executable", str(environment / "bin" / "python")]
    options = ["--config-file=", "--no-error-summary", "--hide-error-context", "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "-m", "mypy", *python, *options, *sorted(scripts)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.stderr == ""
    found: list[tuple[str, int, str, str]] = []
    for line in result.stdout.splitlines():
        parts = re.fullmatch(r"([\w.]+):(\d+): (?:error|note): (.*?)(?:  \[([\w-]+)\])?", line)
        assert parts, result.stdout
        if parts[4] or "Revealed type" in parts[3]:  # the other notes explain the error before them
            found.append((parts[1], int(parts[2]), parts[4] or "", parts[3]))
    return found


def write(folder: Path, scripts: Mapping[str, str]) -> None:
    for name, text in scripts.items():
        (folder / name).write_text(text)
