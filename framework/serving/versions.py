"""`ModelVersions`: the versions of a model that a server has loaded, and those that it could not load."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...distribute.inference import RequestError
from .configuration import MAX_ROWS, ModelConfig
from .decoding.decoder import Decoder, load_any
from .decoding.served import ServedDecoder
from .exporting.keras_files import KerasFile
from .memory import Memory, give_back, give_back_cycles
from .metrics import Metrics
from .servable import Servable
from .served_model import ServedModel
from .storage import ServableError, bytes_on_disk, versions_in

if TYPE_CHECKING:
    from ..structures import Array

_log = logging.getLogger("anabranch.serving")


class Limits(NamedTuple):
    """Bounds for a model: rows of a request, seconds for a batch (None for any time), and what it may be.

    Where several processes serve it (`is_shared`), none may keep anything between two requests.
    """

    max_rows: int = MAX_ROWS
    patience: float | None = None
    is_shared: bool = False


class ModelVersions:
    """The versions of one model.

    All methods run on the event loop; files are read, and programs compiled, in another thread.

    Args:
        name: under which it is served.
        config: which versions are wanted.
        metrics: of the server.
        memory: that all models share.
        limits: of requests.

    Attributes:
        loaded: those that answer, by number.
        failed: why others could not be loaded, by number.
        is_unloaded: whether a client wants none of them loaded.
        is_replacing: whether the old version has gone, and the new one is not there yet.
    """

    def __init__(self, name: str, config: ModelConfig, metrics: Metrics, memory: Memory, limits: Limits) -> None:
        self.name = name
        self.config = config
        self._metrics, self._memory, self._limits = metrics, memory, limits
        self._file = KerasFile(config.path) if config.path.endswith(".keras") else None
        self._path = config.path if self._file is None else self._file.folder
        self.loaded: dict[int, ServedModel | ServedDecoder] = {}
        self.failed: dict[int, str] = {}
        self.is_unloaded = self.is_replacing = False
        self._labels: dict[str, int] = {}  # the loaded versions of labels: one moves when its next version is loaded
        self._tried: dict[int, object] = {}  # what the manifest of a version that failed looked like
        self._leaving: set[asyncio.Task[None]] = set()
        self._ending: set[ServedModel | ServedDecoder] = set()  # versions that those tasks wait for
        self._replaced: list[ServedModel] = []  # versions that answer the sequences that they have, and no others

    def find(self, version: str, label: str) -> ServedModel | ServedDecoder | None:
        """Return the version of a number or a label, by default the highest; None if it is not loaded."""
        if label:
            number = self.config.labels.get(label)
            if number is None:
                return None
            return self.loaded.get(number) or self.loaded.get(self._labels.get(label, number))
        if version:
            return self.loaded.get(int(version)) if version.isdecimal() else None
        return self.loaded[max(self.loaded)] if self.loaded else None

    def with_sequence(self, sequence: int | str) -> ServedModel | None:
        """Return the version that has a sequence, of those that others have replaced; None if none has."""
        for served in self._replaced:
            if served.sequences is not None and sequence in served.sequences:
                return served
        return None

    @property
    def is_stuck(self) -> bool:
        """Test whether a version computes a step that does not end."""
        return any(served.watch.is_stuck for served in self.loaded.values())

    def steps(self) -> list[str]:
        """Return descriptions of the steps that are computed now, also of versions that leave."""
        found = [(served, served.watch.seconds) for served in (*self.loaded.values(), *list(self._ending))]
        return [
            f"a step of model {self.name!r}, version {served.version}, that has taken {seconds:.0f} s"
            for served, seconds in found
            if seconds
        ]

    async def refresh(self, thread: Executor) -> None:
        """Load what is wanted and was not there before; then let go what is no longer wanted.

        A version that can't be loaded is noted in `failed`, and tried again when its manifest changes. The others stay,
        and of the latest the next lower one takes its place.

        Raises:
            ServableError: there is no such folder, and nothing is loaded.
        """
        if self.is_unloaded:
            self.failed.clear()
            for number in list(self.loaded):
                self._retire(number)
            return
        loop = asyncio.get_running_loop()
        try:
            available = await loop.run_in_executor(thread, self._available)
        except (OSError, ServableError) as error:
            if not self.loaded:
                raise ServableError(f"Model {self.name!r}: {error}") from None
            _log.warning("model %r: %s", self.name, error)
            return
        wanted = await self._load_wanted(available, thread)
        self._labels = {
            label: number if number in self.loaded else self._labels.get(label, number)
            for label, number in self.config.labels.items()
        }
        self.failed = {
            number: why
            for number, why in self.failed.items()
            if number in available and number in self.config.wanted([*wanted, number])
        }
        if any(number in self.loaded for number in wanted):
            for number in [each for each in self.loaded if each not in wanted]:
                self._retire(number, is_replaced=True)

    async def _load_wanted(self, available: Sequence[int], thread: Executor) -> list[int]:
        """Load what is wanted of the versions that can be loaded, and return the numbers of all that are."""
        while True:
            failed = {number for number in self._tried if self._has_failed(number)}
            wanted = self.config.wanted([number for number in available if number not in failed])
            missing = [number for number in wanted if number not in self.loaded]
            if not missing:
                return wanted
            for number in missing:
                await self._load_or_replace(number, wanted, thread)

    async def _load_or_replace(self, number: int, wanted: Sequence[int], thread: Executor) -> None:
        old = [each for each in self.loaded if each not in wanted] if self.config.replace else []
        if not old or self._has_failed(number):
            await self._load(number, thread)
            return
        self.is_replacing = True
        try:
            for each in old:
                await self.loaded.pop(each).end()
                self._release(each)
            await self._load(number, thread)
            if number not in self.loaded:  # rather the old ones than none
                for each in old:
                    await self._load(each, thread)
        finally:
            self.is_replacing = False

    def _has_failed(self, number: int) -> bool:
        """Test whether a version could not be loaded, and has not changed since."""
        return self._tried.get(number, ()) == _stamp(Path(self._path, str(number), "manifest.json"))

    def _available(self) -> list[int]:
        if self._file is not None:
            self._file.refresh()
        return versions_in(self._path)

    async def _load(self, number: int, thread: Executor) -> None:
        stamp = _stamp(Path(self._path, str(number), "manifest.json"))
        if self._has_failed(number):
            return
        newest = self.loaded[max(self.loaded)] if self.loaded else None
        shapes = newest.servable.recent() if isinstance(newest, ServedModel) else ()
        try:
            size = bytes_on_disk(Path(self._path, str(number)))
            self._memory.reserve(self.name, number, size)
            servable = await asyncio.get_running_loop().run_in_executor(
                thread, _loaded_and_warm, self._path, number, tuple(shapes), self.config.batching.max_batch_size
            )
            if self._limits.is_shared:
                _check_keeps_nothing(servable)
        except Exception as error:
            self._memory.release(self.name, number)
            self._tried[number] = stamp
            self.failed[number] = str(error) if isinstance(error, ServableError) else f"{type(error).__name__}: {error}"
            _log.warning("model %r: version %d can't be loaded: %s", self.name, number, self.failed[number])
            return
        self._tried.pop(number, None)
        self.failed.pop(number, None)
        settings = self.config.batching
        if isinstance(servable, Decoder):
            self.loaded[number] = ServedDecoder(self.name, servable, self._metrics, settings, self._limits.patience)
        else:
            self.loaded[number] = ServedModel(self.name, servable, self._metrics, settings, *self._limits[:2])
        self._metrics.note_loaded(self.name, number, size)
        _log.info("model %r: version %d is served", self.name, number)

    def _retire(self, number: int, is_replaced: bool = False) -> None:
        """Take no more requests for a version; it ends after its last, if it is replaced after its last sequence."""
        served = self.loaded.pop(number)
        if is_replaced and isinstance(served, ServedModel) and served.sequences:
            self._replaced.append(served)
        self._ending.add(served)
        task = asyncio.create_task(self._end(number, served, is_replaced))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _end(self, number: int, served: ServedModel | ServedDecoder, is_replaced: bool) -> None:
        await served.end(is_replaced)
        self._replaced = [each for each in self._replaced if each is not served]
        self._ending.discard(served)
        del served
        self._release(number)
        await asyncio.get_running_loop().run_in_executor(None, give_back_cycles)
        _log.info("model %r: version %d has gone", self.name, number)

    def _release(self, number: int) -> None:
        """Count a version that has gone no more, unless it has been loaded again."""
        if number not in self.loaded:
            self._memory.release(self.name, number)
            self._metrics.note_loaded(self.name, number, None)

    async def end(self) -> None:
        """Let all versions go, and wait until their last requests are answered."""
        for number in list(self.loaded):
            self._retire(number)
        for served in self._replaced:
            if served.sequences is not None:
                served.sequences.forget()
        while self._leaving:
            await asyncio.wait(self._leaving)
        self.remove_files()

    def remove_files(self) -> None:
        """Remove what a ``.keras`` file was exported to, also while a step of the model does not end."""
        if self._file is not None:
            self._file.close()


def _check_keeps_nothing(servable: Servable | Decoder) -> None:
    """Raise a `ServableError` where requests have to come to the process that has answered others."""
    if isinstance(servable, Decoder):
        what = "is a decoder, whose slots are in one process"
    elif any(signature.states for signature in servable.signatures.values()):
        what = "has stateful layers, whose sequences are in one process"
    else:
        return
    raise ServableError(f"It {what}: serve it without --workers.")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _loaded_and_warm(
    path: str | os.PathLike[str], number: int, shapes: Sequence[tuple[str, Sequence[Array]]], max_batch_size: int
) -> Servable | Decoder:
    """Return a version, compiled for its warm-up, and for the shapes that the one before it was asked for."""
    servable = load_any(path, number)
    if isinstance(servable, Decoder):
        servable.warm_up()
    else:
        _warm_up(servable, shapes, max_batch_size)
    give_back()
    return servable


def _warm_up(servable: Servable, shapes: Sequence[tuple[str, Sequence[Array]]], max_batch_size: int) -> None:
    servable.warm_up(max_batch_size)
    for signature, arrays in shapes:
        if servable.takes(signature, arrays):
            try:
                servable.run(arrays, signature)
            except RequestError:  # an op may refuse values that are all alike
                continue
