"""`import anabranch` stays light, and the modules that Keras users import by name are there."""

import subprocess
import sys

import pytest

HEAVY = ["llvmlite", "h5py", "grpc", "google.protobuf", "tqdm", "cupy", "ml_dtypes", "ray", "sklearn"]
MODULES = {
    "layers": "Dense",
    "optim": "Adam",
    "optimizers": "Adam",
    "losses": "MeanSquaredError",
    "metrics": "SparseCategoricalAccuracy",
    "callbacks": "EarlyStopping",
    "initializers": "GlorotUniform",
    "models": "Sequential",
    "saving": "register_keras_serializable",
    "utils": "set_random_seed",
    "ops": "tanh",
}


def run(code: str) -> str:
    """Output of code in a fresh process, with warnings as errors."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_brings_in_nothing_heavy():
    assert run(f"import sys, anabranch; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


def test_import_brings_in_no_more_than_numpy_needs():
    # Start-up is measured by a benchmark; this names the third-party package that would slow it down.
    code = """
import sys, numpy
before = set(sys.modules)
import anabranch
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(added - sys.stdlib_module_names - {"anabranch", "numpy"}))
"""
    assert run(code) == "[]"


def test_import_leaves_the_process_as_it_was():
    code = """
import logging, os, random, signal, sys, threading, warnings
import numpy as np
def state():
    return (
        dict(os.environ), list(warnings.filters), logging.getLogger().handlers, threading.active_count(),
        random.getstate(), np.geterr(), np.get_printoptions(), np.random.get_state()[1].tolist(),
        signal.getsignal(signal.SIGINT), sys.getrecursionlimit(), sys.path[:],
    )
before = state()
import anabranch
print(before == state())
"""
    assert run(code) == "True"


@pytest.mark.parametrize(("module", "name"), MODULES.items())
def test_from_import_works_first_thing(module: str, name: str):
    code = f"""
from anabranch.{module} import {name}
import anabranch, anabranch.{module} as imported
print(anabranch.{module} is imported, imported.{name} is {name}, {name!r} in dir(imported))
"""
    assert run(code) == "True True True"


@pytest.mark.parametrize("module", ["config", "distribute"])
def test_attribute_is_a_module(module: str):
    assert run(f"import anabranch as ab; print(isinstance(ab.{module}, type(ab)))") == "True"


def test_every_public_name_resolves():
    code = "import anabranch as ab; print([name for name in dir(ab) if not hasattr(ab, name)], len(ab.__all__) > 20)"
    assert run(code) == "[] True"


def test_unknown_names_are_plain_errors():
    code = """
import anabranch
try:
    anabranch.Sequentail
except AttributeError as error:
    print("Sequentail" in str(error))
try:
    import anabranch.no_such_module
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(code).splitlines() == ["True", "anabranch.no_such_module"]
