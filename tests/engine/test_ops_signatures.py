"""The functions of `ops` and `random` against Keras's: each name, its parameters in order, and their defaults.

The table `keras_op_signatures.txt` is that of Keras 3.16, written by `make_keras_signatures.py`.
"""

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.engine import ops
from anabranch.engine.graph import Graph
from anabranch.engine.ops.random import samplers as random
from anabranch.engine.session import Session

TABLE = dict(
    line.removesuffix(")").split("(", 1)
    for line in (Path(__file__).parent / "keras_op_signatures.txt").read_text("utf-8").splitlines()
)
# Functions that are not Keras's in every parameter, and why.
DIFFERENT = {
    "layer_normalization": "what Keras takes as **kwargs is deprecated",
}

Parameters = list[tuple[str, Any, Any]]


def keras_parameters(text: str) -> Parameters:
    """(name, kind, default) of the parameters of a line of the table."""
    arguments = ast.parse(f"def function({text}): pass").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    given = arguments.args
    defaults = [inspect.Parameter.empty] * (len(given.args) - len(given.defaults))
    defaults += [ast.literal_eval(default) for default in given.defaults]
    found: Parameters = [
        (argument.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(given.args, defaults, strict=True)
    ]
    if given.vararg:
        found.append((given.vararg.arg, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.empty))
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        found.append((argument.arg, inspect.Parameter.KEYWORD_ONLY, value))
    if given.kwarg:
        found.append((given.kwarg.arg, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty))
    return found


def our_function(name: str) -> Any:
    """The function of a name such as ``ops.numpy.abs``.

    Raises:
        AttributeError: there is none.
    """
    first, *rest = name.split(".")
    found: Any = {"ops": ops, "random": random}[first]
    for part in rest:
        found = getattr(found, part)
    return found


def differs(name: str) -> bool:
    """Test whether our function takes other parameters; further ones, which have defaults, may follow Keras's."""
    wanted = keras_parameters(TABLE[name])
    ours = list(inspect.signature(our_function(name)).parameters.values())
    same = [(parameter.name, parameter.kind, parameter.default) for parameter in ours[: len(wanted)]] == wanted
    return not same or any(
        parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in ours[len(wanted) :]
    )


def short(name: str) -> str:
    return name.rpartition(".")[2]


def test_the_table_is_read():
    assert len(TABLE) > 600
    assert keras_parameters(TABLE["ops.clip"]) == [
        (name, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty) for name in ("x", "x_min", "x_max")
    ]
    assert keras_parameters(TABLE["ops.meshgrid"])[1] == ("indexing", inspect.Parameter.KEYWORD_ONLY, "xy")
    assert keras_parameters(TABLE["random.uniform"])[2][2] == 1.0


@pytest.mark.parametrize("name", [name for name in TABLE if short(name) not in DIFFERENT])
def test_parameters(name: str):
    assert not differs(name), f"{name}({TABLE[name]}) here is {name}{inspect.signature(our_function(name))}"


def test_exceptions_are_needed():
    assert {short(name) for name in TABLE} >= DIFFERENT.keys()
    for name in TABLE:
        assert short(name) not in DIFFERENT or differs(name), f"{name} takes Keras's parameters now"


# --- namespaces -----------------------------------------------------------------------------------------------------


def test_namespaces_hold_the_names_of_ops():
    assert ops.numpy.sum is ops.sum
    assert ops.nn.relu is ops.relu
    assert ops.linalg.norm is ops.norm
    for namespace in ("numpy", "nn", "linalg"):
        names = {short(name) for name in TABLE if name.startswith(f"ops.{namespace}.")}
        assert names == set(dir(getattr(ops, namespace)))


def test_namespaces_compute():
    with Graph().as_default():
        assert Session().run(ops.numpy.sum(np.ones(3, "float32"))) == 3


@pytest.mark.parametrize(("namespace", "name"), [("numpy", "relu"), ("nn", "cumsum_of"), ("linalg", "relu_of")])
def test_names_that_a_namespace_lacks(namespace: str, name: str):
    with pytest.raises(AttributeError, match=name):
        getattr(getattr(ops, namespace), name)
