"""Profiles of machines: their documents, what depends on them, and the command that measures one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch.__main__ import main
from anabranch.engine.codegen.llvm import object_files
from anabranch.engine.common import machine_profile
from anabranch.engine.common.machine_profile import VARIABLE, MachineProfile
from anabranch.engine.runtime.program import Program
from anabranch.engine.session import profile_machine

ops = ab.ops
DEFAULT = MachineProfile()
NUMBERS = [field.name for field in fields(MachineProfile) if field.name not in ("name", "is_measured")]
PROFILES = {
    "all pays": {name: 1e-9 if isinstance(getattr(DEFAULT, name), float) else 1 for name in NUMBERS},
    "default": {},
    "nothing pays": {name: getattr(DEFAULT, name) * 1000 for name in NUMBERS},
}


# --- documents ------------------------------------------------------------------------------------------------------


def test_there_are_at_most_sixty_figures_and_each_is_described():
    assert len(NUMBERS) <= 60
    text = inspect.getdoc(MachineProfile) or ""  # whose lines are not indented further, from Python 3.13 on as before
    assert [name for name in NUMBERS if f"\n    {name}: " not in text] == []


def test_a_profile_is_read_as_it_was_written():
    profile = replace(DEFAULT, name="mine", is_measured=True, flop_seconds=2e-11, ragged_rows=3)
    assert MachineProfile.from_json(profile.to_json()) == profile
    assert MachineProfile.from_json('{"ragged_rows": 3, "flop_seconds": 1}') == replace(
        DEFAULT, ragged_rows=3, flop_seconds=1
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "the profile is no JSON document"),
        ("[]", "has to be a JSON object of figures by name; got list"),
        ('{"flops": 1.0}', "has 'flops', which is no figure of a machine profile"),
        ('{"to_json": 1.0}', "has 'to_json', which is no figure of a machine profile"),
        ('{"ragged_rows": 1.5}', "ragged_rows has to be of type int; got 1.5"),
        ('{"ragged_rows": true}', "ragged_rows has to be of type int; got True"),
        ('{"name": 3}', "name has to be of type str; got 3"),
        ('{"is_measured": 1}', "is_measured has to be of type bool; got 1"),
        ('{"byte_seconds": 0.0}', "byte_seconds has to be above 0; got 0.0"),
        ('{"byte_seconds": NaN}', "byte_seconds has to be above 0; got nan"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, says: str):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        MachineProfile.from_json(text)


def test_the_environment_names_the_profile(tmp_path: Path):
    path = tmp_path / "profile.json"
    assert machine_profile._of_environment({}) == machine_profile._of_environment({VARIABLE: ""}) == DEFAULT
    with pytest.raises(ValueError, match=r"can't be read: No such file.*profile-machine --output"):
        machine_profile._of_environment({VARIABLE: str(path)})
    path.write_text('{"ragged_rows": 5}')
    assert machine_profile._of_environment({VARIABLE: str(path)}).ragged_rows == 5
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is no text in UTF-8"):
        machine_profile._of_environment({VARIABLE: str(path)})
    path.write_text("{}}")
    with pytest.raises(ValueError, match=f"{VARIABLE}=.*profile.json is no JSON document"):
        machine_profile._of_environment({VARIABLE: str(path)})


def test_object_code_of_another_profile_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    object_files.profile_digest.cache_clear()
    plain = object_files.ObjectFiles.name("host", "key")
    assume(monkeypatch, product_work=7)
    object_files.profile_digest.cache_clear()
    other = object_files.ObjectFiles.name("host", "key")
    monkeypatch.undo()
    object_files.profile_digest.cache_clear()
    assert plain == object_files.ObjectFiles.name("host", "key") != other


def test_object_code_of_other_defaults_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    object_files.profile_digest.cache_clear()
    before = object_files.profile_digest()
    assume(monkeypatch, name="another machine", is_measured=True)
    object_files.profile_digest.cache_clear()
    assert object_files.profile_digest() == before  # the figures are the same
    monkeypatch.undo()
    object_files.profile_digest.cache_clear()
    assert before


# --- programs -------------------------------------------------------------------------------------------------------


def _random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def _recurrent() -> tuple[Any, list[Any], dict[Any, Any]]:
    """A loop over masked sequences."""
    x, lengths = ab.placeholder((24, 20, 6), "float32", "x"), ab.placeholder((20,), "int32", "lengths")
    w, u = ab.Variable(_random(6, 8), name="w"), ab.Variable(_random(8, 8), name="u")

    def body(t: Any, h: Any) -> tuple[Any, Any]:
        new = ops.tanh(x[t] @ w + h @ u)
        return t + 1, ops.where(ops.expand_dims(t < lengths, -1), new, h)

    _, h = ab.while_loop(lambda t, h: t < 24, body, (0, ops.zeros((20, 8))))
    return ops.mean(h * h), [w, u], {x: _random(24, 20, 6), lengths: np.arange(20, dtype="int32") + 3}


def _convolution() -> tuple[Any, list[Any], dict[Any, Any]]:
    x, kernel = ab.placeholder((2, 9, 9, 4), "float32", "x"), ab.Variable(_random(3, 3, 4, 8), name="kernel")
    y = ops.max_pool(ops.relu(ops.conv(x, kernel, padding="same")), 2)
    return ops.mean(ops.log_softmax(ops.reshape(y, (2, -1)))), [kernel], {x: _random(2, 9, 9, 4)}


def _table() -> tuple[Any, list[Any], dict[Any, Any]]:
    """Rows of a table, a product, and a normalisation."""
    ids, table = ab.placeholder((40,), "int32", "ids"), ab.constant(_random(50, 16))
    w = ab.Variable(_random(16, 70), name="w")
    rows = ops.take(table, ids, axis=0)
    y = ops.gelu(rows @ w)
    return ops.sum(ops.layer_normalization(y) * y), [w], {ids: np.arange(40, dtype="int32") % 7}


@pytest.mark.kernels
@pytest.mark.parametrize("make", [_recurrent, _convolution, _table])
def test_programs_give_the_same_under_any_profile(
    make: Callable[[], tuple[Any, list[Any], dict[Any, Any]]], monkeypatch: pytest.MonkeyPatch
):
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for name, figures in PROFILES.items():
        assume(monkeypatch, **figures)
        with ab.Graph().as_default() as graph:
            loss, variables, fed = make()
            fetches = [loss, *ab.gradients(loss, variables)]
            exact, plain = (Program(graph, fetches, list(fed), exact=is_exact) for is_exact in (True, False))
            found[name] = ([np.asarray(x) for x in exact(*fed.values())], [np.asarray(x) for x in plain(*fed.values())])
        monkeypatch.undo()
    exact, plain = found["default"]
    for others in found.values():
        for mine, theirs in zip(exact, others[0], strict=True):
            assert mine.tobytes() == theirs.tobytes()
        for mine, theirs in zip(plain, others[1], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


# --- measuring ------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_machine, "_SECONDS", 1e-3)
    monkeypatch.setattr(profile_machine, "_PAUSES", 2)
    monkeypatch.setattr(profile_machine, "_ITERATIONS", 200)


@pytest.mark.usefixtures("hasty")
def test_the_command_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "profile.json"
    assert main(["profile-machine", "--output", str(path)]) == 0
    shown = capsys.readouterr().out
    profile = MachineProfile.from_json(path.read_text())
    assert profile.is_measured
    assert profile.name in shown
    assert f"{VARIABLE}={path}" in shown
    changed = {name for name in NUMBERS if getattr(profile, name) != getattr(DEFAULT, name)}
    assert {"call_seconds", "flop_seconds", "byte_seconds", "thread_seconds"} <= changed
    assert all(name in shown for name in changed)
    assert set(json.loads(path.read_text())) == {*NUMBERS, "name", "is_measured"}


@pytest.mark.usefixtures("hasty")
def test_a_profile_that_can_not_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["profile-machine", "--output", str(tmp_path)]) == 1
    assert "can't be written" in capsys.readouterr().err


def test_a_process_that_was_stopped_while_it_measures_counts_one_call(monkeypatch: pytest.MonkeyPatch):
    clock = count()  # on which a second is over at each look
    monkeypatch.setattr(profile_machine, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    assert profile_machine._seconds(lambda: None) == 1.0
