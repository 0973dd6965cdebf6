"""Python functions that tests register in their own process and in that of a task (``--import``)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import anabranch as ab


@ab.distribute.register_function("ranks of a test")
def ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values))


@ab.distribute.register_function("process of a test")
def process() -> Any:
    return np.int64(os.getpid())


def slope(inputs: Any, outputs: Any, cotangents: Any) -> Any:
    return [cotangents[0] * 2.0 * inputs[0]]


@ab.distribute.register_function("squares of a test")
def squares(values: Any) -> Any:
    return values * values


class TextlessError(Exception):
    """An error whose text can't be read."""

    def __str__(self) -> str:
        raise ValueError("no text")


@ab.distribute.register_function("ends of a test")
def ends(how: Any) -> Any:
    raise [SystemExit(3), KeyboardInterrupt(), BaseException("base"), TextlessError()][int(how)]
