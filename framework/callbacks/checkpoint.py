"""Callbacks that save: `ModelCheckpoint` a model, `BackupAndRestore` a run, which then can be taken up again."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.checkpoint.files import is_checkpoint
from ...engine.checkpoint.folders import Folder, folder_of
from ..models.fit_callbacks import Callback
from ..saving.archive import SavedFileError
from ..saving.checkpointing import RunCallback, TrainingRun
from ..saving.run_files import is_backup, is_unfinished, remove_backup
from ..training.base_callback import Logs
from ..training.limits import show
from .monitor import MonitorCallback


def _check_frequency(callback: Callback, save_freq: object) -> None:
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
    if save_freq != "epoch" and not is_count:
        raise ValueError(
            f"{type(callback).__name__}: save_freq must be 'epoch' or a number of batches, got {save_freq!r}."
        )


class _BatchCounter:
    """Says when so many batches have gone by, also where a callback is called for several at once.

    Args:
        frequency: how many.
    """

    def __init__(self, frequency: str | int) -> None:
        self.frequency = frequency
        self.since = 0
        self.latest = -1

    def is_due(self, batch: int) -> bool:
        """Count up to `batch` of the epoch under way, from 0."""
        if not isinstance(self.frequency, int):
            return False
        self.since += batch + 1 if batch <= self.latest else batch - self.latest
        self.latest = batch
        if self.since < self.frequency:
            return False
        self.since = 0
        return True


class ModelCheckpoint(MonitorCallback):
    """Saves the model, or its weights, while it trains. Files are written whole or not at all.

    Before training it is checked that the model could be loaded again (`Model.check_saveable`).

    Args:
        filepath: where; may hold ``{epoch}`` (counted from 1), ``{batch}`` and names of logs with formats, as in
            ``"{epoch:02d}-{val_loss:.2f}.keras"``. Ends in ``.keras``, or in ``.weights.h5`` with
            `save_weights_only`.
        monitor: the quantity that says which model is best.
        verbose: 1 prints a line for each file.
        save_best_only: write a file only when the quantity improves.
        save_weights_only: weights instead of the whole model.
        mode: "min", "max" or "auto".
        save_freq: "epoch", or a number of batches.
        initial_value_threshold: the first value to beat.
        keep_last: keep this many of the files, and the best one, too; older ones that this callback wrote are
            deleted. None keeps all.

    Raises:
        ValueError: the file name has the wrong ending, or an option is unknown.

    >>> import anabranch as ab, tempfile, pathlib
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep = ModelCheckpoint(pathlib.Path(folder, "{epoch}.keras"), monitor="loss", keep_last=2)
    ...     _ = model.fit([[1.0]], [[2.0]], epochs=5, verbose=0, callbacks=keep)
    ...     sorted(os.listdir(folder))
    ['4.keras', '5.keras']
    """

    kept_attributes = ("best", "counted", "_current_epoch", "_files", "_best_file", "_best_kept")

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
        keep_last: int | None = None,
    ) -> None:
        super().__init__(monitor, mode, initial_value_threshold)
        self.filepath = os.fspath(filepath)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        _check_frequency(self, save_freq)
        self.save_freq = save_freq
        self.keep_last = keep_last
        self._counter = _BatchCounter(save_freq)
        self._current_epoch = 0
        self._files: list[str] = []
        self._best_file: str | None = None
        self._best_kept: float | None = None
        self._check_names()

    def _needs_whole_optimizer(self) -> bool:
        return not self.save_weights_only

    def _check_names(self) -> None:
        endings = (".weights.h5",) if self.save_weights_only else (".keras", ".h5")
        if not self.filepath.endswith(endings):
            raise ValueError(
                f"ModelCheckpoint: with save_weights_only={self.save_weights_only} the file name must end in "
                f"{endings[0]!r}, got {self.filepath!r}."
            )
        if self.keep_last is None:
            return
        if isinstance(self.keep_last, bool) or not isinstance(self.keep_last, int) or self.keep_last < 1:
            raise ValueError(f"ModelCheckpoint: keep_last must be a number of files, or None, got {self.keep_last!r}.")
        if "{" not in self.filepath:
            raise ValueError(
                f"ModelCheckpoint: with keep_last the files need names of their own, got {self.filepath!r} for all. "
                "Put {epoch} into the name."
            )

    @property
    def counted(self) -> list[int]:
        """The number of batches since the latest file, and the latest batch."""
        return [self._counter.since, self._counter.latest]

    @counted.setter
    def counted(self, value: list[int]) -> None:
        self._counter.since, self._counter.latest = value

    def wants_batches(self, mode: str) -> bool:
        return mode == "train" and self.save_freq != "epoch"

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if not self.save_weights_only:
            self.model.check_saveable(safe_mode=False)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._current_epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self._counter.is_due(batch):
            self._save(self._current_epoch, batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.save_freq == "epoch":
            self._save(epoch, None, logs or {})

    def _save(self, epoch: int, batch: int | None, logs: Logs) -> None:
        path = self._path(epoch, batch, logs)
        if not self._is_wanted(epoch, path, logs):
            return
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        if os.path.isdir(path):
            raise IsADirectoryError(f"ModelCheckpoint: {path!r} is a folder. Give the name of a file.")
        save = self.model.save_weights if self.save_weights_only else self.model.save
        save(path, overwrite=True)
        if self.keep_last is not None:
            self._keep(path, logs.get(self.monitor))

    def _is_wanted(self, epoch: int, path: str, logs: Logs) -> bool:
        if not self.save_best_only:
            self._note(f"Epoch {epoch + 1}: saving to {path}")
            return True
        value = self.monitored(logs)
        if value is None:
            return True  # rather a file too many than none
        if np.ndim(value):
            warnings.warn(
                f"ModelCheckpoint can save the best model only if {self.monitor!r} is one number; it has shape "
                f"{np.shape(value)}, so every model is saved.",
                stacklevel=2,
            )
            return True
        if not self.improves(value, self.best):
            self._note(f"Epoch {epoch + 1}: {self.monitor} did not improve from {self.best}")
            return False
        self._note(f"Epoch {epoch + 1}: {self.monitor} improved from {self.best} to {value}, saving to {path}")
        self.best = value
        return True

    def _keep(self, path: str, value: float | None) -> None:
        """Note a file, and delete those that are neither among the latest nor the best."""
        if value is not None and not np.ndim(value) and self.improves(value, self._best_kept):
            self._best_file, self._best_kept = path, float(value)
        self._files = [*(file for file in self._files if file != path), path]
        latest = self._files[-(self.keep_last or 1) :]
        for file in self._files:
            if file not in latest and file != self._best_file:
                Path(file).unlink(missing_ok=True)
        self._files = [file for file in self._files if file in latest or file == self._best_file]

    def _path(self, epoch: int, batch: int | None, logs: Logs) -> str:
        known: dict[str, object] = {**logs, "epoch": epoch + 1}
        if batch is not None:
            known["batch"] = batch + 1
        try:
            return self.filepath.format(**known)
        except KeyError as error:
            raise KeyError(
                f"ModelCheckpoint: the file name {self.filepath!r} asks for {error}, which is not known here. "
                f"There are: {', '.join(sorted(known))}."
            ) from error

    def _note(self, text: str) -> None:
        if self.verbose:
            show(f"\n{text}")


class BackupAndRestore(RunCallback, Callback):
    """Backs up a `fit` under way, and takes it up again when the same program is started again.

    A checkpoint, in the format of `distribute.CheckpointManager`, holds the weights, the optimizers' state, all random
    state, the other callbacks' state (see `Callback.get_state`), the history, and the place in the data. It is written
    whole or not at all. However `fit` was interrupted, calling it again with the same model, data and callbacks goes on
    from the latest backup, and ends with the same bits as if nothing had happened.

    Args:
        backup_dir: a folder, or the URL of one (extra ``remote``), for the checkpoint ``step-N``; N is the number of
            updates that the optimizer has made. Files of version 0.1, ``training_state.npz``, are read.
        save_freq: "epoch", or a number of batches after which to write it.
        double_checkpoint: keep the backup before the latest, too, and take that if the latest is damaged.
        delete_checkpoint: delete the backup when training has come to its end.

    Raises:
        ValueError: no folder is given, or `save_freq` is something else.

    Batches that were run are drawn once more and left out. So data from generators or a `utils.PyDataset` have to come
    out the same from the start of a pass on: drawn from `numpy.random` or `random`, whose state is kept, or from a
    generator of their own that starts from the same seed.

    >>> import anabranch as ab, tempfile
    >>> model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> def interrupt(epoch, logs):
    ...     if epoch == 2:
    ...         raise InterruptedError
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     backup = ab.callbacks.BackupAndRestore(folder)
    ...     stop = ab.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    ...     try:
    ...         model.fit([[1.0]], [[2.0]], epochs=5, verbose=0, callbacks=[backup, stop])
    ...     except InterruptedError:
    ...         model.fit([[1.0]], [[2.0]], epochs=5, verbose=0, callbacks=[backup]).epoch
    [0, 1, 2, 3, 4]
    """

    reads_batch_logs = False

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        super().__init__()
        if not backup_dir or not os.fspath(backup_dir):
            raise ValueError("BackupAndRestore: backup_dir is empty. Give the name of a folder.")
        _check_frequency(self, save_freq)
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self._folder = folder_of(self.backup_dir)
        self._counter = _BatchCounter(save_freq)
        self._epoch = 0

    def wants_batches(self, mode: str) -> bool:
        return mode == "train" and self.save_freq != "epoch"

    def get_state(self) -> dict[str, object]:
        return {"since": self._counter.since, "latest": self._counter.latest, "epoch": self._epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        self._counter.since, self._counter.latest, self._epoch = state["since"], state["latest"], state["epoch"]

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._counter = _BatchCounter(self.save_freq)
        self.take_up()

    def take_up(self) -> bool:
        while self.run is not None and (found := self._found()):
            try:
                self._load(self.run, found)
                return True
            except (SavedFileError, FileNotFoundError):
                if [str(place) for place in self._found()] == [str(place) for place in found]:
                    raise  # else another process has saved meanwhile
        return False

    @staticmethod
    def _load(run: TrainingRun, found: Sequence[Folder | Path]) -> None:
        """Load the first backup that is whole."""
        for place in found[:-1]:
            try:
                run.load(place)
                return
            except (SavedFileError, FileNotFoundError) as error:
                warnings.warn(f"BackupAndRestore takes the backup before the latest: {error}", stacklevel=3)
        run.load(found[-1])

    def _found(self) -> list[Folder | Path]:
        """Find the backups, the latest first."""
        return [*[self._folder / f"step-{step}" for step in reversed(self._steps())], *self._old_files()]

    def _steps(self) -> list[int]:
        return [step for step in self._all_steps() if is_backup(self._folder / f"step-{step}")]

    def _all_steps(self) -> list[int]:
        """Return the numbers of all checkpoints in the folder, others' among them."""
        names = [name.removeprefix("step-") for name in self._folder.folders("step-")]
        numbers = [int(name) for name in names if name.isdigit()]
        return sorted([number for number in numbers if is_checkpoint(self._folder / f"step-{number}")])

    def _old_files(self) -> list[Path]:
        """Find files that version 0.1 has written."""
        if type(self._folder) is not Folder:
            return []
        files = [self._folder.path / name for name in ("training_state.npz", "training_state.previous.npz")]
        return [file for file in files if file.exists()]

    def save_first(self, epoch: int) -> None:
        if not self._found():
            self._save(epoch, 0)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self._counter.is_due(batch):
            self._save(self._epoch, batch + 1)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def _save(self, epoch: int, batch: int) -> None:
        if self.run is None:
            return
        if self.run.check is not None:  # before the folder is made: another process may have come to its end
            self.run.check()
        step = max([self.run.steps, *[number + 1 for number in self._all_steps()]])
        self.run.save(self._folder / f"step-{step}", step, epoch, batch)
        self._remove_but(2 if self.double_checkpoint else 1)

    def _remove_but(self, count: int) -> None:
        """Remove all backups but the latest ones."""
        steps = self._steps()
        for step in steps[: max(len(steps) - count, 0)]:
            remove_backup(self._folder / f"step-{step}")
        for file in self._old_files() if len(steps) >= count else ():
            file.unlink(missing_ok=True)
        self._remove_unfinished(steps[-1] if count else None)

    def _remove_unfinished(self, before: int | None) -> None:
        """Remove what processes have left that were killed while they wrote: with numbers before another, or all."""
        for name in self._folder.folders("step-"):
            number = name.removeprefix("step-")
            is_old = number.isdigit() and (before is None or int(number) < before)
            if is_old and is_unfinished(self._folder / name):
                remove_backup(self._folder / name)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.run = None
        if not self.delete_checkpoint:
            return
        self._remove_but(0)
        if os.path.isdir(self.backup_dir) and not os.listdir(self.backup_dir):
            os.rmdir(self.backup_dir)
