"""Blocks in which NumPy does not warn."""

from __future__ import annotations

import contextvars
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.common.quiet import Quiet, begin_quiet, end_quiet, makes_quiet, quiet, quiet_calls, quiet_context

ONE, ZERO, LARGE = np.float32(1), np.float32(0), np.float32(3e38)


def check_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(ONE / ZERO)
        assert np.isnan(ZERO / ZERO)
        assert np.isinf(LARGE * LARGE)
        assert (ONE / LARGE) / LARGE == 0
    assert set(np.geterr().values()) == {"ignore"}


def test_numpy_does_not_warn_inside():
    with np.errstate(all="raise"):
        with quiet():
            check_quiet()
        with pytest.raises(FloatingPointError):
            np.divide(ONE, ZERO)


def test_blocks_may_lie_in_each_other_and_in_those_of_numpy():
    before = np.geterr()
    with quiet():
        with np.errstate(divide="raise"):
            with pytest.raises(FloatingPointError):
                np.divide(ONE, ZERO)
            with quiet():
                check_quiet()
            assert np.geterr()["divide"] == "raise"
        check_quiet()
    assert np.geterr() == before


def test_an_error_leaves_the_block_as_others_do():
    with np.errstate(all="raise"):
        with pytest.raises(KeyError), quiet():
            raise KeyError("inside")
        assert set(np.geterr().values()) == {"raise"}


def test_the_block_holds_for_its_own_thread_only():
    found: list[Any] = []
    with quiet():
        thread = threading.Thread(target=lambda: found.append(dict(np.geterr())))
        thread.start()
        thread.join()
    assert found[0] == np.geterr()


def test_numpys_own_blocks_are_used_where_it_keeps_its_settings_otherwise():
    assert isinstance(quiet(), Quiet)
    assert isinstance(makes_quiet(quiet_context())(), Quiet)
    other = makes_quiet(contextvars.Context())
    assert isinstance(other(), np.errstate)
    with np.errstate(all="raise"), other():
        check_quiet()


def test_calls_begin_and_end_a_block():
    other = quiet_calls(contextvars.Context())  # as where NumPy keeps its settings otherwise
    with np.errstate(all="raise"):
        for begin, end in ((begin_quiet, end_quiet), other):
            began = begin()
            check_quiet()
            end(began)
            assert set(np.geterr().values()) == {"raise"}


def test_steps_are_quiet_and_leave_the_callers_settings():
    x = ab.placeholder((2,), "float32", "x")
    settings: list[Any] = []

    def look(value: np.ndarray) -> np.ndarray:
        settings.append(dict(np.geterr()))
        return value

    looked = ab.ops.numpy_function(look, [1 / x], "float32")
    with np.errstate(all="raise"), ab.Session() as session:
        assert np.isinf(session.run(looked, {x: [0, 0]})).all()
        assert set(settings[0].values()) == {"ignore"}
        assert set(np.geterr().values()) == {"raise"}
