"""A disk in memory on which several tasks write in an order drawn from a seed, until one is killed or the power fails.

It promises what POSIX does and no more. What a file holds is safe once the file is synced, its name once its folder is.
A power failure keeps any part of what isn't safe: writes in any order, the last one torn, and any of the changes of
names. A process that is killed loses its locks alone.
"""

from __future__ import annotations

import errno
import io
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from anabranch.engine.common.atomic import SUFFIX, Disk, Temporary, is_temporary

ROOT = Path("/")


class KilledError(BaseException):
    """The process that wrote is gone: nothing may catch this."""


class _File:
    """A file: what a reader sees, and what a power failure leaves."""

    def __init__(self) -> None:
        self.data = b""
        self.safe = b""
        self.writes: list[tuple[int, bytes]] = []  # since it was synced; (size, b"") cuts it off there
        self.writer: object = None  # the task that has its lock

    def write(self, at: int, data: bytes) -> None:
        self.data = _changed(self.data, at, data)
        self.writes.append((at, data))

    def sync(self) -> None:
        self.safe = self.data
        self.writes.clear()

    def lose(self, chance: random.Random) -> None:
        kept = [each for each in self.writes if chance.random() < 0.5]
        chance.shuffle(kept)
        if kept:
            at, data = kept[-1]
            kept[-1] = at, data[: chance.randint(min(1, len(data)), len(data))]
        for at, data in kept:
            self.safe = _changed(self.safe, at, data)
        self.data = self.safe
        self.writes.clear()


def _changed(old: bytes, at: int, data: bytes) -> bytes:
    if not data:
        return old[:at].ljust(at, b"\0")
    return old[:at].ljust(at, b"\0") + data + old[at + len(data) :]


class _Folder:
    """A folder: the names in it, and those that a power failure leaves."""

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.safe: dict[str, _File | _Folder] = {}
        self.changes: list[dict[str, _File | _Folder | None]] = []  # since it was synced; None removes a name

    def change(self, names: dict[str, _File | _Folder | None]) -> None:
        _apply(self.names, names)
        self.changes.append(names)

    def sync(self) -> None:
        self.safe = dict(self.names)
        self.changes.clear()

    def lose(self, chance: random.Random) -> None:
        for change in self.changes:
            if chance.random() < 0.5:
                _apply(self.safe, change)
        self.changes.clear()
        self.names = dict(self.safe)
        for each in self.names.values():
            each.lose(chance)


def _apply(names: dict[str, Any], change: dict[str, Any]) -> None:
    for name, found in change.items():
        if found is None:
            names.pop(name, None)
        else:
            names[name] = found


class _Stream(io.RawIOBase):
    """An open file of the disk; each write is an event, at which no other task goes on: h5py holds a lock meanwhile."""

    def __init__(self, disk: SimulatedDisk, file: _File) -> None:
        super().__init__()
        self._disk, self.inode, self._at = disk, file, 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self.inode.data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self.inode.data[self._at : self._at + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def write(self, data: Any) -> int:
        self._disk.event(space=True, gives_way=False)
        self.inode.write(self._at, bytes(data))
        self._at += len(data)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        self._disk.event(space=True, gives_way=False)
        self.inode.write(size, b"")
        return size


class SimulatedDisk(Disk):
    """A disk in memory.

    Args:
        seed: of the order of tasks, of temporary names and of what is lost.

    Attributes:
        events: how many changes were asked for.
        fails_at: the number of the event at which the task that asks for it is killed.
        full_from, full_until: the events between which there is no room.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.root = _Folder()
        self.events = 0
        self.fails_at: int | None = None
        self.full_from = self.full_until = 0
        self._tasks = _Turns(self.chance)

    # --- faults -----------------------------------------------------------------------------------------------------

    def event(self, space: bool = False, gives_way: bool = True) -> None:
        """Let others go first, and fail if that is due."""
        if gives_way:
            self._tasks.give_way()
        if self._is_dead:
            raise KilledError
        self.events += 1
        if self.events == self.fails_at:
            self._tasks.dead.add(threading.current_thread())
            raise KilledError
        if space and self.full_from <= self.events < self.full_until:
            raise OSError(errno.ENOSPC, "No space left on device")

    @property
    def _is_dead(self) -> bool:
        return threading.current_thread() in self._tasks.dead

    def run(self, tasks: Sequence[Callable[[], Any]], pace: Sequence[float] | None = None) -> list[Any]:
        """Run functions beside each other, an event of one at a time; return what they gave, or raised.

        Args:
            tasks: the functions.
            pace: how often each goes on, in proportion: a tenth is a task ten times slower.
        """
        found = self._tasks.run(tasks, pace or [1.0] * len(tasks))
        for file in self._files(self.root):
            file.writer = None  # the system releases locks of processes that are gone
        self.fails_at, self.full_until = None, 0
        return found

    def lose_power(self) -> None:
        """Keep what is safe, and any part of the rest."""
        self.root.lose(self.chance)

    def _files(self, folder: _Folder) -> list[_File]:
        found: list[_File] = []
        for each in folder.names.values():
            found += self._files(each) if isinstance(each, _Folder) else [each]
        return found

    # --- the calls --------------------------------------------------------------------------------------------------

    def _at(self, path: Path) -> _File | _Folder | None:
        found: _File | _Folder | None = self.root
        for name in path.parts[1:]:
            found = found.names.get(name) if isinstance(found, _Folder) else None
        return found

    def _folder(self, path: Path) -> _Folder:
        found = self._at(path)
        if not isinstance(found, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found

    def real_path(self, path: Path) -> Path:
        return path

    def is_folder(self, path: Path) -> bool:
        return isinstance(self._at(path), _Folder)

    def size(self, path: Path) -> int | None:
        found = self._at(path)
        return len(found.data) if isinstance(found, _File) else None

    def names(self, folder: Path) -> list[str]:
        return list(self._folder(folder).names)

    def read(self, path: Path) -> bytes:
        found = self._at(path)
        if not isinstance(found, _File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found.data

    def readable(self, path: Path) -> Any:
        return io.BytesIO(self.read(path))

    def free(self, folder: Path) -> int:
        return 0

    def make_folder(self, path: Path) -> None:
        self.event()
        if not self.is_folder(path):
            self._folder(path.parent).change({path.name: _Folder()})

    def create(self, target: Path) -> Temporary:
        self.event(space=True)
        path = target.with_name(f".{target.name}.{self.chance.getrandbits(32):08x}{SUFFIX}")
        file = _File()
        file.writer = threading.current_thread()
        self._folder(path.parent).change({path.name: file})
        stream: Any = _Stream(self, file)
        return Temporary(path, stream, file)

    def release(self, temporary: Temporary) -> None:
        if not self._is_dead:
            temporary.lock.writer = None

    def begin_sync(self, stream: BinaryIO, first: int, size: int) -> None:
        """Do nothing: what is not safe may be lost or not."""

    def sync(self, stream: BinaryIO) -> None:
        self.event(space=True)
        assert isinstance(stream, _Stream)
        stream.inode.sync()

    def replace(self, temporary: Path, target: Path) -> None:
        self.event()
        folder = self._folder(target.parent)
        file = folder.names.get(temporary.name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(temporary))
        folder.change({temporary.name: None, target.name: file})

    def remove(self, path: Path) -> None:
        self.event()
        folder = self._at(path.parent)
        if isinstance(folder, _Folder) and path.name in folder.names:
            folder.change({path.name: None})

    def remove_folder(self, path: Path) -> None:
        folder = self._folder(path)
        for name, each in list(folder.names.items()):
            if isinstance(each, _Folder):
                self.remove_folder(path / name)
            else:
                self.remove(path / name)
        self.event()
        self._folder(path.parent).change({path.name: None})

    def remove_abandoned(self, folder: Path) -> None:
        for name, each in list(self._folder(folder).names.items()):
            if is_temporary(name) and isinstance(each, _File) and each.writer is None:
                self.remove(folder / name)

    def sync_folder(self, folder: Path) -> None:
        self.event()
        found = self._at(folder)
        if isinstance(found, _Folder):
            found.sync()


class _Turns:
    """Threads of which one runs at a time, drawn from a seed at each event."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._changed = threading.Condition()
        self._alive: dict[threading.Thread, float] = {}
        self._now: threading.Thread | None = None
        self.dead: set[threading.Thread] = set()

    def run(self, tasks: Sequence[Callable[[], Any]], pace: Sequence[float]) -> list[Any]:
        results: list[Any] = [None] * len(tasks)

        def work(number: int) -> None:
            self._wait()
            try:
                results[number] = tasks[number]()
            except BaseException as error:  # handed to the test
                results[number] = error
            with self._changed:
                del self._alive[threading.current_thread()]
                self._pass_on()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(tasks))]
        self._alive = dict(zip(threads, pace, strict=True))
        self._pass_on()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def give_way(self) -> None:
        """Let the task go on that is drawn; outside of `run` there is none but this."""
        if threading.current_thread() in self._alive:
            with self._changed:
                self._pass_on()
            self._wait()

    def _pass_on(self) -> None:
        alive = list(self._alive)
        self._now = self._chance.choices(alive, list(self._alive.values()))[0] if alive else None
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now is threading.current_thread())


__all__ = ["ROOT", "KilledError", "SimulatedDisk"]
