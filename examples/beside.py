"""Shared by the examples that are compared with another program: options, what training reached, and the figure."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from drawing import line_chart

import anabranch as ab


def make_parser(doc: str | None, sample: str, epochs: int, about_epochs: str) -> argparse.ArgumentParser:
    """The options that these examples share.

    Args:
        doc: the docstring of the example.
        sample: the help of ``--sample``.
        epochs: how many there are by default.
        about_epochs: the help of ``--epochs``.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help=sample)
    parser.add_argument("--epochs", type=int, default=epochs, help=about_epochs)
    parser.add_argument("--first", type=int, help="learn from the first so many only")
    parser.add_argument("--arrays", help="write the numbers to learn from for another program, as .npz, and stop")
    parser.add_argument("--beside", help="what another program reached with them, as .json")
    parser.add_argument("--figure", help="where to draw the losses, as SVG")
    return parser


def fit(model: ab.Model, *data: Any, steps: int, callbacks: Any = (), **options: Any) -> dict[str, Any]:
    """Train a model.

    Args:
        model: the model.
        data: the first arguments of its `fit`.
        steps: the number of steps in an epoch.
        callbacks: callbacks.
        options: further arguments of its `fit`.

    Returns:
        "steps" and "losses", those of the epoch so far after each twentieth of it, and the "seconds" of processor time.
    """
    every = ab.callbacks.Every(max(1, steps // 20))
    began = time.process_time()
    history = model.fit(*data, verbose=2, callbacks=[*callbacks, every], **options)
    seconds = time.process_time() - began
    print(f"Training took {seconds:.0f} s of processor time.")
    rows = history.by_step
    return {"steps": [row["step"] for row in rows], "losses": [row["loss"] for row in rows], "seconds": seconds}


def read_other(path: str | None) -> dict[str, Any] | None:
    """Read what another program reached: its "name", and the rest as of `fit`."""
    return json.loads(Path(path).read_text("utf-8")) if path else None


def draw_losses(path: str | None, title: str, found: dict[str, Any], other: dict[str, Any] | None) -> None:
    """Draw the losses, and those of another program, into the file that is asked for."""
    if path is None:
        return
    lines = {"anabranch": (found["steps"], found["losses"])}
    if other is not None:
        lines[other["name"]] = (other["steps"], other["losses"])
    drawn = line_chart(title, "steps", "mean training loss of the epoch so far", lines)
    Path(path).write_text(drawn, encoding="utf-8")
