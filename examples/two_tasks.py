"""The character model trained by two processes: a ps task holds weights and optimizer, a worker runs the steps.

The client has no devices. It builds the graph, asks for places by a function, and addresses the worker; the tasks do
the rest. A second client, another process, finds the trained weights in the ps task; a task that is killed is named.

    python examples/two_tasks.py                    # all of it: what `make demo-cluster` runs
    python examples/two_tasks.py --read TARGET ...  # the second client
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from character_model import build_model, read_library, windows

import anabranch as ab
from anabranch import optim

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


# --- tasks ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def task(cluster: dict[str, list[str]], job: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A task in a process of its own, and the address at which it serves."""
    command = [sys.executable, "-m", "anabranch", "worker", "--cluster", json.dumps(cluster)]
    process = subprocess.Popen([*command, "--job-name", job, "--task-index", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        _, separator, address = process.stdout.readline().strip().partition(" serves at grpc://")
        if not separator:
            raise SystemExit(f"The {job} task did not start.")
        yield process, address
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


# --- the graph ------------------------------------------------------------------------------------------------------


def place(made: Any) -> str:
    """Variables on the ps task, and with them what touches them; everything else on the worker."""
    return PS if isinstance(made, ab.Variable) else WORKER


class Training:
    """The graph of the character model's training; each client builds it, and the names are the same in all.

    Attributes:
        step: trains on `x` and `y`, and gives the loss before.
        loss: of `x` and `y`, without training.
        reset: empties the model's memory.
        batch: how many rows of text are read at the same time.
        weights: those that are trained.
    """

    def __init__(self, units: int, batch: int, window: int, steps: int, learning_rate: float) -> None:
        self.graph = ab.Graph()
        with self.graph.as_default(), ab.device(place):
            self.batch = batch
            model = build_model(units, batch)
            self.x = ab.placeholder((batch, window), "int32", "x")
            self.y = ab.placeholder((batch, window), "int32", "y")
            measure = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.weights = model.trainable_variables
            warmup = min(100, steps // 10)
            rate = optim.schedules.CosineDecay(
                0.0, steps - warmup, alpha=0.02, warmup_target=learning_rate, warmup_steps=warmup
            )
            optimizer = optim.Adam(rate, beta_2=0.99, global_clipnorm=1.0)
            recurrence: Any = model.get_layer("recurrence")
            states = recurrence.states

            def loss(training: bool) -> tuple[Any, list[Any]]:
                """The loss, and what it writes: the memory of the text, for the next window."""
                before = len(self.graph.operations)
                found = measure(self.y, model(self.x, training=training))
                made = self.graph.operations[before:]
                return found, [each for each in made if each.writes]

            training_loss, remembered = loss(True)
            applied = optimizer.minimize(training_loss, self.weights)
            with ab.control_dependencies([applied, *remembered]):
                self.step = training_loss + 0.0
            self.loss, remembered = loss(False)
            with ab.control_dependencies(remembered):
                self.loss = self.loss + 0.0
            self.reset = [state.assign(np.zeros(state.shape, "float32")).operation for state in states]


def measured(session: ab.Session, training: Training, text: tuple[np.ndarray, np.ndarray], fetch: Any) -> float:
    """The mean loss over a text, window by window, from an empty memory on."""
    session.run(training.reset)
    run = session.make_callable(fetch, [training.x, training.y])
    batch = training.batch
    losses = [run(text[0][k : k + batch], text[1][k : k + batch]) for k in range(0, len(text[0]), batch)]
    return float(np.mean(losses))


# --- clients --------------------------------------------------------------------------------------------------------


def texts(options: argparse.Namespace) -> tuple[Any, Any, int]:
    """The windows of the texts to learn from and to be tested on, and how many steps training takes."""
    training, validation, _ = read_library(options.characters, options.validation_characters)
    found = windows(training, options.batch, options.window)
    return found, windows(validation, options.batch, options.window), options.epochs * len(found[0]) // options.batch


def read(options: argparse.Namespace) -> float:
    """The second client: what it finds in the ps task."""
    _, validation, steps = texts(options)
    ab.utils.set_random_seed(options.seed + 1)  # its own first values would be others
    training = Training(options.units, options.batch, options.window, steps, options.learning_rate)
    session = ab.Session(training.graph, target=options.read)
    loss = measured(session, training, validation, training.loss)
    session.close()
    print(f"{loss!r}")
    return loss


def train(options: argparse.Namespace, target: str, ps: subprocess.Popen[str]) -> dict[str, Any]:
    """The first client: it trains, has the second one look, and loses a task."""
    text, validation, steps = texts(options)
    ab.utils.set_random_seed(options.seed)
    training = Training(options.units, options.batch, options.window, steps, options.learning_rate)
    session = ab.Session(training.graph, target=target)
    first = last = measured(session, training, validation, training.loss)
    print(f"Before training: {first:.3f} nats a character.")
    for epoch in range(options.epochs):
        began = time.perf_counter()
        loss = measured(session, training, text, training.step)
        seconds = time.perf_counter() - began
        last = measured(session, training, validation, training.loss)
        print(
            f"Epoch {epoch + 1}: training loss {loss:.3f}, validation loss {last:.3f}; "
            f"{1e3 * seconds * options.epochs / steps:.1f} ms a step.",
            flush=True,
        )
    given = {name: getattr(options, name) for name in NUMBERS}
    arguments = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, __file__, "--read", target, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = float(done.stdout.splitlines()[-1])
    print(f"A second client, in another process, finds weights with a validation loss of {found:.3f}.")

    ps.kill()
    lost = ""
    try:
        session.run(training.weights)
    except ab.errors.TaskFailedError as error:
        lost = error.task
        print(f"Killed the ps task; the next step says: {error}")
    session.close()
    return {"first": first, "last": last, "found": found, "lost": lost}


NUMBERS = {
    "characters": 1_200_000,
    "validation_characters": 300_000,
    "units": 192,
    "batch": 32,
    "window": 64,
    "epochs": 3,
    "learning_rate": 1.8e-2,
    "seed": 1,
}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line; those of the model mean what they mean in character_model.py."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, value in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument(
        "--at-most", type=float, default=1.34, help="fail unless the loss is below this: n-grams reach 1.342"
    )
    parser.add_argument("--read", metavar="TARGET", help="only look at what a cluster holds")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the program; what it found."""
    options = parse_options(arguments)
    if options.read:
        return {"found": read(options)}
    began = time.perf_counter()
    os.environ.setdefault("ANABRANCH_TOKEN", secrets.token_hex())  # the tasks take it over
    with task({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps") as (ps, address):
        cluster = {"ps": [address], "worker": ["localhost:0"]}
        with task(cluster, "worker") as (_, worker):
            print(f"{PS} serves at {address}, {WORKER} at {worker}.", flush=True)
            found = train(options, f"grpc://{worker}", ps)
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if not (found["found"] == found["last"] < options.at_most and found["lost"] == PS):
        raise SystemExit(f"The goal was missed: {found}, of a loss below {options.at_most}.")
    return found


if __name__ == "__main__":
    main()
