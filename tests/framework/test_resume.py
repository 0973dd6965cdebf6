"""Runs that were interrupted and taken up again: they end with the bits of a run that was not."""

from __future__ import annotations

import csv
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.checkpoint.files import is_checkpoint
from anabranch.engine.checkpoint.folders import Folder, folder_of
from anabranch.engine.common.atomic import Disk, Temporary
from anabranch.engine.ops.random.keys import global_generator
from anabranch.framework.callbacks.api import (
    BackupAndRestore,
    Callback,
    CSVLogger,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
)
from anabranch.framework.saving import run_files
from anabranch.framework.saving.api import SavedFileError
from anabranch.framework.saving.checkpointing import random_state, set_random_state, stateful_parts
from anabranch.framework.saving.run_files import (
    is_unfinished,
    read_backup,
    read_state,
    remove_backup,
    write_backup,
    write_state,
)

RNG = np.random.default_rng(3)
X = RNG.normal(size=(22, 4)).astype("float32")
Y = RNG.normal(size=(22, 1)).astype("float32")
VALIDATION = X[:6], Y[:6]
EPOCHS, STEPS = 3, 6  # of 4 rows, the last of 2


class InterruptionError(Exception):
    """The error with which a test ends a run."""


def functional(optimizer: Any = None) -> ab.Model:
    inputs = ab.Input((4,))
    hidden = layers.Dropout(0.3)(layers.Dense(5, activation="tanh")(inputs))
    model = ab.Model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizer or ab.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
    return model


class Subclassed(ab.Model):
    """Built by its first batch; its logs come from a step of its own, and one of its optimizers is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(5)
        self.drop = layers.Dropout(0.5)
        self.head = layers.Dense(1)
        self.head_optimizer = ab.optimizers.SGD(0.05, momentum=0.9)
        self.seen = ab.metrics.Sum(name="seen")

    def call(self, x: Any, training: Any = None) -> Any:
        return self.head(self.drop(self.hidden(x), training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        loss = ab.ops.mean((y - self(x, training=True)) ** 2)
        for optimizer, layer in ((self.optimizer, self.hidden), (self.head_optimizer, self.head)):
            optimizer.apply(ab.gradients(loss, layer.trainable_weights), layer.trainable_weights)
        self.seen.update_state(loss)
        return {"loss": loss, "seen": self.seen.result()}


def subclassed() -> ab.Model:
    model = Subclassed()
    model.compile("rmsprop")
    return model


def averaging() -> ab.Model:
    schedule = ab.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    model = ab.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)])  # built by its first batch
    model.compile(ab.optimizers.SGD(schedule, momentum=0.9, use_ema=True, ema_momentum=0.5), "mse")
    return model


def scaled() -> ab.Model:
    """Its first steps are left out, as the loss is scaled beyond all bounds."""
    inner = ab.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    return functional(ab.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127, dynamic_growth_steps=3))


def stateful() -> ab.Model:
    model = ab.Sequential([ab.Input((3, 2), batch_size=2), layers.GRU(3, stateful=True), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Shuffled(ab.utils.PyDataset):
    """Shuffles itself with a generator of its own, and draws noise from NumPy's."""

    def __init__(self) -> None:
        super().__init__(workers=0)
        self.order = np.arange(22)
        self.generator = np.random.default_rng(5)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[index * 4 : index * 4 + 4]
        return X[rows] + np.random.normal(size=(len(rows), 4)).astype("float32"), Y[rows]  # noqa: NPY002

    def on_epoch_end(self) -> None:
        self.generator.shuffle(self.order)


def endless() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(1)
    while True:
        rows = generator.integers(0, 22, size=4)
        yield X[rows], Y[rows] * random.random()


ARRAYS: dict[str, Any] = {"x": X, "y": Y, "batch_size": 4}
SEQUENCES = X[:12, None, :2].repeat(3, 1), Y[:12]
DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: ARRAYS,
    "batches": lambda: ARRAYS | {"shuffle": "batch"},
    "dataset": lambda: {"x": Shuffled()},
    "endless": lambda: {"x": endless(), "steps_per_epoch": STEPS},
    "steps": lambda: ARRAYS | {"steps_per_epoch": 3},
    "cut": lambda: ARRAYS | {"steps_per_epoch": 4},  # each second epoch ends with the data, after 2 of 4 steps
    "sequences": lambda: {"x": SEQUENCES[0], "y": SEQUENCES[1], "batch_size": 2},
}
MODELS: dict[str, Callable[[], ab.Model]] = {
    "functional": functional,
    "subclassed": subclassed,
    "averaging": averaging,
    "scaled": scaled,
    "stateful": stateful,
}


class StopAt(Callback):
    """Ends the run after so many calls at batches and epochs."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def _count(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            raise InterruptionError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count()


def fit(model: ab.Model, data: dict[str, Any], callbacks: list[Callback], **options: Any) -> Any:
    return model.fit(**data, epochs=EPOCHS, callbacks=callbacks, verbose=0, **options)


def state_of(model: ab.Model) -> dict[str, Any]:
    """Everything that a model holds, and the random numbers that come next."""
    parts = stateful_parts(model)
    values = {
        path: part.state if isinstance(part, ab.random.SeedGenerator) else part.stored_value()
        for path, part in parts.items()
    }
    return values | {"engine": random_state()["engine"], "numpy": np.random.random(), "python": random.random()}  # noqa: NPY002


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def uninterrupted(model: str, data: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    ab.utils.set_random_seed(11)
    built = MODELS[model]()
    history = fit(built, DATA[data](), [], **options)
    return history.history, state_of(built)


@pytest.mark.parametrize(
    ("model", "data", "save_freq"),
    [
        ("functional", "arrays", 1),
        ("functional", "arrays", "epoch"),
        ("functional", "batches", 4),
        ("functional", "endless", 3),
        ("functional", "steps", 3),
        ("functional", "steps", "epoch"),
        ("functional", "cut", 1),
        ("subclassed", "arrays", 2),
        ("subclassed", "arrays", "epoch"),
        ("subclassed", "dataset", 5),
        ("averaging", "dataset", "epoch"),
        ("averaging", "arrays", 3),
        ("scaled", "arrays", "epoch"),
        ("scaled", "arrays", 5),
        ("stateful", "sequences", 4),
    ],
)
@pytest.mark.filterwarnings("ignore:The data ended after 2 of 4 steps")
def test_a_run_that_is_taken_up_ends_with_the_same_bits(
    tmp_path: Path, model: str, data: str, save_freq: str | int
) -> None:
    options = {"validation_data": VALIDATION} if (model, data) == ("functional", "batches") else {}
    history, expected = uninterrupted(model, data, **options)
    folder = tmp_path / "backup"
    ab.utils.set_random_seed(11)
    calls = random.Random(f"{model} {data} {save_freq}").randrange(8, 15)
    with pytest.raises(InterruptionError):
        fit(MODELS[model](), DATA[data](), [StopAt(calls), BackupAndRestore(folder, save_freq)], **options)
    ab.utils.set_random_seed(99)
    again = MODELS[model]()
    found = fit(again, DATA[data](), [BackupAndRestore(folder, save_freq)], **options)
    assert found.history == history
    assert found.epoch == list(range(EPOCHS))
    assert_same(state_of(again), expected)
    assert not folder.exists()


def test_it_may_be_interrupted_again_and_again(tmp_path: Path) -> None:
    history, expected = uninterrupted("functional", "arrays")
    ab.utils.set_random_seed(11)
    for attempt in range(30):
        model = functional()
        try:
            found = fit(model, ARRAYS, [StopAt(5), BackupAndRestore(tmp_path / "backup", 1)])
        except InterruptionError:
            ab.utils.set_random_seed(attempt)
            continue
        assert found.history == history
        assert_same(state_of(model), expected)
        return
    pytest.fail("the run never ends")


def callbacks_with_state(folder: Path) -> list[Callback]:
    return [
        LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        EarlyStopping("loss", patience=2, min_delta=0.4, restore_best_weights=True),
        ModelCheckpoint(folder / "{epoch}.weights.h5", "loss", save_weights_only=True, save_freq=4, keep_last=2),
        CSVLogger(folder / "log.csv"),
    ]


def test_callbacks_go_on_where_they_were(tmp_path: Path) -> None:
    def run(folder: Path, extra: list[Callback]) -> tuple[Any, ab.Model]:
        model = functional()
        return model.fit(**ARRAYS, epochs=8, verbose=0, callbacks=[*callbacks_with_state(folder), *extra]), model

    def names(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    ab.utils.set_random_seed(1)
    (tmp_path / "a").mkdir()
    expected, model = run(tmp_path / "a", [])
    state = state_of(model)
    for calls in (5, 21):
        folder = tmp_path / str(calls)
        folder.mkdir()
        ab.utils.set_random_seed(1)
        with pytest.raises(InterruptionError):
            run(folder, [StopAt(calls), BackupAndRestore(folder / "backup", 3)])
        ab.utils.set_random_seed(2)
        found, again = run(folder, [BackupAndRestore(folder / "backup", 3)])
        assert found.history == expected.history
        assert_same(state_of(again), state)
        assert names(folder) == names(tmp_path / "a")
        assert (folder / "log.csv").read_text() == (tmp_path / "a" / "log.csv").read_text()
    with open(tmp_path / "a" / "log.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(expected.epoch) < 8


SCRIPT = """
import os, sys
import numpy as np
import anabranch as ab
from anabranch.framework.callbacks.api import BackupAndRestore, LambdaCallback
ab.utils.set_random_seed(4)
x = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3), ab.layers.Dropout(0.5), ab.layers.Dense(1)])
model.compile("adam", "mse")
calls = iter(range(int(sys.argv[2]), -1, -1))
die = LambdaCallback(on_train_batch_end=lambda batch, logs: next(calls) or os._exit(3))
model.fit(x, x[:, :1], batch_size=3, epochs=3, verbose=0, callbacks=[die, BackupAndRestore(sys.argv[1], 2)])
print(b"".join(weight.tobytes() for weight in model.get_weights()).hex())
"""


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    def run(calls: int) -> tuple[int, str, str]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "backup"), str(calls)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return ended.returncode, ended.stdout, ended.stderr

    code, expected, error = run(1000)
    assert code == 0, error
    assert not (tmp_path / "backup").exists()
    assert run(10)[:2] == (3, "")
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["step-10"]
    code, found, error = run(1000)
    assert code == 0, error
    assert found == expected


# --- the file -------------------------------------------------------------------------------------------------------


def interrupted(folder: Path, calls: int = 9, **options: Any) -> None:
    with pytest.raises(InterruptionError):
        fit(functional(), ARRAYS, [StopAt(calls), BackupAndRestore(folder, **options)])


def test_state_of_every_kind_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = {
        "number": 0.1,
        "none": None,
        "nan": float("nan"),
        "text": "ä",
        "flag": True,
        "list": [np.arange(6).reshape(2, 3), {"scalar": np.float32(0.1), "empty": np.zeros((0, 2), "int8")}],
        "bfloat16": ab.Variable([[1.5], [2.0]], dtype="bfloat16").stored_value(),
    }
    write_state(tmp_path / "state", state)
    found = read_state(tmp_path / "state")
    assert found["nan"] != found.pop("nan")
    assert found["list"][1]["scalar"].dtype == "float32"
    np.testing.assert_equal(found, {key: value for key, value in state.items() if key != "nan"})
    assert found["bfloat16"].dtype.name == "bfloat16"


def test_random_states_come_back() -> None:
    before = random_state()
    first = random.random(), np.random.normal(), global_generator().next().tolist()  # noqa: NPY002
    set_random_state(before)
    assert (random.random(), np.random.normal(), global_generator().next().tolist()) == first  # noqa: NPY002


def test_states_are_written_as_checkpoints(tmp_path: Path) -> None:
    state = {
        "nan": float("nan"),
        "list": [np.arange(6).reshape(2, 3), {"scalar": np.float32(0.1), "empty": np.zeros((0, 2), "int8")}],
        "bits": np.array([np.nan, -0.0, 1e-45], "float32").view("uint32").view("float32"),
        "bfloat16": ab.Variable([[1.5], [2.0]], dtype="bfloat16").stored_value(),
        "a/b": np.arange(2),
        "a": {"b": np.arange(3)},
        "flags": np.array([True, False]),
        "none": None,
    }
    write_backup(Folder(tmp_path / "step-3"), state, 3)
    found = read_backup(Folder(tmp_path / "step-3"))
    assert found["nan"] != found.pop("nan")
    assert found["bits"].tobytes() == state["bits"].tobytes()
    np.testing.assert_equal(found, {key: value for key, value in state.items() if key != "nan"})
    assert (found["bfloat16"].dtype.name, found["list"][1]["scalar"].dtype) == ("bfloat16", "float32")
    assert ab.io.checkpoint_reader(tmp_path / "step-3")["bits"].tobytes() == state["bits"].tobytes()


def test_a_backup_is_a_checkpoint(tmp_path: Path) -> None:
    interrupted(tmp_path, save_freq=4)
    (folder,) = tmp_path.iterdir()
    reader = ab.io.checkpoint_reader(folder)
    assert (folder.name, reader.manifest["step"], reader.manifest["run"]["batch"]) == ("step-4", 4, 4)
    shapes = {reader[name].shape for name in reader if name.startswith("variables/")}
    assert shapes >= {weight.shape for weight in functional().get_weights()}


def test_files_of_version_0_1_are_taken_up(tmp_path: Path) -> None:
    ab.utils.set_random_seed(5)
    interrupted(tmp_path, save_freq=1)
    (folder,) = tmp_path.iterdir()
    write_state(tmp_path / "training_state.npz", read_backup(Folder(folder)))
    shutil.rmtree(folder)
    seen: list[int] = []
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    found = functional()
    fit(found, ARRAYS, [BackupAndRestore(tmp_path, 1, delete_checkpoint=False), note])
    assert len(seen) < EPOCHS * STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["step-18"]  # the old file has gone
    ab.utils.set_random_seed(5)
    expected = functional()
    fit(expected, ARRAYS, [])
    for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["shard-0-of-1-*.h5", "manifest.json"])
def test_damaged_backups(tmp_path: Path, name: str) -> None:
    interrupted(tmp_path, save_freq=1, double_checkpoint=True)
    latest = max(tmp_path.iterdir(), key=lambda path: int(path.name[5:]))
    (path,) = latest.glob(name)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=f"takes the backup before the latest.*{latest.name}.*damaged"):
        found = fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, delete_checkpoint=False)])
    assert found.epoch == [0, 1, 2]
    (left,) = tmp_path.iterdir()
    damage(next(left.glob(name)))
    with pytest.raises(SavedFileError, match=f"{left.name}' is damaged or cut short"):
        fit(functional(), ARRAYS, [BackupAndRestore(tmp_path)])


def test_checkpoints_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    v = ab.Variable([1.0], name="v")
    with ab.distribute.CheckpointManager(tmp_path, [v], save_async=False) as manager:
        manager.save(4)
        with pytest.raises(InterruptionError):
            fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, 1), StopAt(9)])
        fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, 1)])
        assert manager.restore() == 4
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_a_backup_elsewhere_by_url() -> None:
    pytest.importorskip("fsspec")
    url = "memory://backup of a run"
    with pytest.raises(InterruptionError):
        fit(functional(), ARRAYS, [BackupAndRestore(url, 2), StopAt(9)])
    (name,) = folder_of(url).folders("step-")
    done = ab.io.checkpoint_reader(f"{url}/{name}").manifest["step"]
    seen: list[int] = []
    fit(
        functional(),
        ARRAYS,
        [BackupAndRestore(url, 2), LambdaCallback(on_train_batch_end=lambda b, logs: seen.append(b))],
    )
    assert len(seen) == EPOCHS * STEPS - done
    assert folder_of(url).folders("step-") == []


def test_another_model_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)
    other = ab.Sequential([ab.Input((4,)), layers.Dense(1)])
    other.compile("sgd", "mse")
    with pytest.raises(
        SavedFileError, match=r"(?s)another model, and nothing was restored:\n.*not in the model"
    ) as raised:
        fit(other, ARRAYS, [BackupAndRestore(tmp_path)])
    assert "or delete it to start from the beginning" in str(raised.value)


def test_other_data_are_refused(tmp_path: Path) -> None:
    interrupted(tmp_path, save_freq=1)
    with pytest.raises(SavedFileError, match=r"after 1 of 6 steps of epoch 2, but an epoch of these data has 11 steps"):
        fit(functional(), ARRAYS | {"batch_size": 2}, [BackupAndRestore(tmp_path)])


def test_data_that_end_too_early_are_refused(tmp_path: Path) -> None:
    def some(count: int) -> Iterator[Any]:
        return iter([(X[:4], Y[:4])] * count)

    with pytest.raises(InterruptionError):
        fit(functional(), {"x": some(40), "steps_per_epoch": 6}, [StopAt(10), BackupAndRestore(tmp_path, 1)])
    with pytest.raises(ValueError, match="gave 5 batches, but the run that is taken up had got 8"):
        fit(functional(), {"x": some(5), "steps_per_epoch": 6}, [BackupAndRestore(tmp_path, 1)])


def test_a_run_that_was_stopped_early_does_not_go_on(tmp_path: Path) -> None:
    stop = EarlyStopping("loss", min_delta=1000.0)
    first = fit(functional(), ARRAYS, [stop, BackupAndRestore(tmp_path, delete_checkpoint=False)])
    assert first.epoch == [0, 1]
    again = fit(functional(), ARRAYS, [EarlyStopping("loss"), BackupAndRestore(tmp_path, delete_checkpoint=False)])
    assert again.history == first.history


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, 2)])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("ends_at", [2, 3])
def test_what_a_save_left_that_was_interrupted_is_removed(
    ends_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next save, or at the end; an unfinished checkpoint of somebody else stays."""
    folder, count = tmp_path / "backup", [0]

    def interrupted(*args: Any) -> None:
        count[0] += 1
        if count[0] == ends_at:
            raise InterruptionError
        write_manifest(*args)

    write_manifest = run_files.write_manifest
    monkeypatch.setattr(run_files, "write_manifest", interrupted)
    with pytest.raises(InterruptionError):
        functional().fit(X, Y, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[BackupAndRestore(folder)])
    assert len(list(folder.glob("step-*"))) == 2
    (folder / "step-1").mkdir()
    (folder / "step-1" / "shard").touch()
    seen: list[int] = []
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(len(list(folder.glob("step-*")))))
    functional().fit(X, Y, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[BackupAndRestore(folder), note])
    assert ends_at == 3 or seen[-1] == 2, "the backup, and that of somebody else"
    assert [path.name for path in folder.iterdir()] == ["step-1"]


class KilledDisk(Disk):
    """A disk of a process that is killed behind so many changes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def change(self) -> None:
        if not self.left:
            raise InterruptionError
        self.left -= 1

    def make_folder(self, path: Path) -> None:
        self.change()
        super().make_folder(path)

    def create(self, target: Path) -> Temporary:
        self.change()
        return super().create(target)

    def replace(self, temporary: Path, target: Path) -> None:
        self.change()
        super().replace(temporary, target)

    def remove(self, path: Path) -> None:
        if path.exists() and not path.name.endswith(".tmp"):  # a process that is killed removes no temporary files
            self.change()
            super().remove(path)

    def remove_folder(self, path: Path) -> None:
        self.change()
        super().remove_folder(path)


@pytest.mark.parametrize("is_written", [False, True])
def test_whenever_a_process_is_killed_what_it_leaves_is_removed_at_the_end(is_written: bool, tmp_path: Path) -> None:
    """While it writes a backup, and while it removes one, between any two changes of the disk."""
    state = {"weights": [np.arange(3.0)]}
    for left in range(100):
        place = tmp_path / f"{left}" / "step-3"
        place.parent.mkdir()
        folder = Folder(place, KilledDisk(left))
        try:
            if is_written:
                write_backup(Folder(place), state, 3)
                remove_backup(folder)
            else:
                write_backup(folder, state, 3)
        except InterruptionError:
            assert not place.exists() or is_checkpoint(Folder(place)) or is_unfinished(Folder(place))
            BackupAndRestore(place.parent).on_train_end()
            assert not place.parent.exists()
        else:
            assert left > 3, "it was killed in between"
            return


def test_callbacks_of_ones_own_keep_what_they_name(tmp_path: Path) -> None:
    class Counter(Callback):
        kept_attributes = ("count",)
        count = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.count += 1

    with pytest.raises(InterruptionError):
        fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, 2), Counter(), StopAt(8)])
    counter = Counter()
    seen: list[int] = []
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    fit(functional(), ARRAYS, [BackupAndRestore(tmp_path, 2), counter, note])
    assert counter.count == EPOCHS * STEPS
    assert seen == [*range(6), *range(6)]


@pytest.mark.parametrize("save_freq", ["batch", 0, True, 1.5])
def test_arguments_are_checked(save_freq: Any) -> None:
    with pytest.raises(ValueError, match=f"save_freq must be 'epoch' or a number of batches, got {save_freq!r}"):
        BackupAndRestore("folder", save_freq)
    with pytest.raises(ValueError, match="backup_dir is empty"):
        BackupAndRestore("")
