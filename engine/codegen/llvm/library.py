"""The compiled kernels of a process; object code is kept on disk by content.

What is known to be needed is compiled by other threads (`begin`, `prepare`) while a program is prepared.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.logs import DEBUG, INFO, log, names_dumped
from ..expression.llvm import declarations
from ..host import threads
from . import entry
from .builtin_functions import RUN, entry_of
from .compiler import Compiler, Effort
from .entry import Kernel
from .linker import NotLinkedError, UnknownSymbolsError, can_link, link, may_execute
from .machine_key import machine_key
from .object_files import HOST, ObjectFiles

if TYPE_CHECKING:
    from concurrent.futures import Future

_MOST_WORKERS = 4  # threads that compile
_MOST_MODULES = 4  # of which kernels that are asked for together make so many
_MODULE_WORK = 40_000  # characters of descriptions: LLVM takes about a fifth of a second for that
_SWITCH = "ANABRANCH_KERNELS"  # "0": none; "quick": compiled with the least effort
_LEAST_WORK = {Effort.LARGE: 20_000}  # of a kernel; code that is printed by hand is long, and is described in short

_symbols: dict[str, int] = {}  # the functions that were offered, in all libraries: the addresses of this process


class LaterFunction:
    """A compiled function of the address of numbers, which is loaded when it is called first and compiled meanwhile.

    Attributes:
        run: calls the function with integers, and arrays of which it gets the addresses of the data; returns the last
            number, which the function may have changed.

    Args:
        load: gives the address of the loaded function.
    """

    def __init__(self, load: Callable[[], int]) -> None:
        self._load = load
        self.run: Callable[..., int] = self._first

    def _first(self, *fields: Any) -> int:
        self.run = threads.builtin_function(RUN, np.array([self._load(), id(np.ndarray)], "int64"))
        return self.run(*fields)


class Library:
    """The compiled kernels of this process. Without a working llvmlite it says so, and programs run on NumPy.

    Attributes:
        quick: kernels are compiled with the least effort, and kept apart from the others.

    Args:
        folder: where object code is kept, if not in the user's own (`object_files.cache_folder`).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.quick = os.environ.get(_SWITCH) == "quick"
        self._files = ObjectFiles(folder)
        self._loaded: dict[bool, dict[Kernel, int]] = {False: {}, True: {}}  # the addresses of entries, by `quick`
        self._offered: set[entry.Functions] = set()
        self._begun: list[list[Kernel]] = []  # modules of kernels that are being compiled
        self._coming: dict[str, Future[bytes]] = {}  # object code that is being compiled
        self._workers: Any = None
        self._compiler: Compiler | None = None  # loaded when there is something to compile
        self._lock = threading.Lock()  # of who loads it
        self._engines: list[Any] = []  # they own the machine code
        self.host = ""
        self._usable: bool | None = None

    @property
    def usable(self) -> bool:
        """Test whether kernels can be compiled and NumPy's objects are laid out as they expect.

        Warns once where they are wanted and can't be.
        """
        if self._usable is None:
            is_off = os.environ.get(_SWITCH) == "0"
            reason = f"{_SWITCH}=0" if is_off else self._start()
            self._usable = not reason
            if self._usable:
                threads.prepare(self)
            else:
                log("fallback", INFO, "no kernels are compiled (%s): NumPy computes", reason)
                if not is_off:
                    _warn_of_numpy(reason)
        return self._usable

    @property
    def keeps(self) -> bool:
        """Test whether object code is kept on the disk, and is linked without LLVM."""
        return self._files.keeps and bool(self._note)

    @property
    def has_half(self) -> bool:
        """Test whether the processor has instructions that convert float16; elsewhere LLVM would call functions."""
        return "+f16c" in self.host or "aarch64" in self.host or "arm64" in self.host

    @property
    def _entries(self) -> dict[Kernel, int]:
        return self._loaded[self.quick]

    def _named(self, key: str) -> str:
        """Return the name of the file with the object code of a module."""
        return self._files.name(f"{self.host} quick" if self.quick else self.host, key)

    def get(self, specs: Sequence[Kernel]) -> list[int]:
        """Return the addresses of the entries of `specs`; those that are new are compiled together."""
        begun, self._begun = self._begun, []
        coming = {spec for group in begun for spec in group}
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._entries and spec not in coming]
        groups = [*begun, *modules_of(missing)]
        if len(groups) > 1 or entry.functions_of(missing):
            self._prepare(groups)
        for group in groups:
            self._compile(group)
        return [self._entries[spec] for spec in specs]

    def begin(self, specs: Sequence[Kernel]) -> None:
        """Compile those of `specs` that are new in another thread; `get` will be asked for them."""
        begun = {spec for group in self._begun for spec in group}
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._entries and spec not in begun]
        if missing:
            groups = modules_of(missing)
            self._begun += groups
            self._prepare(groups)

    def printed(self, functions: Mapping[str, Any]) -> dict[str, str]:
        """Return the LLVM IR of those of `functions`, by name, that call compiled kernels."""
        known = {address: spec for spec, address in self._entries.items()}
        found = {name: known.get(entry_of(value)) for name, value in functions.items()}
        return {name: entry.print_kernel(spec, name) for name, spec in found.items() if spec is not None}

    def expect(self, spec: Kernel) -> None:
        """Compile a kernel in another thread, if it is new; `get` may be asked for it alone, while a program runs."""
        if spec not in self._entries:
            self._prepare([[spec]])

    def _prepare(self, groups: Sequence[Sequence[Kernel]]) -> None:
        for functions in entry.functions_of(spec for group in groups for spec in group):
            if functions not in self._offered:
                self.prepare(repr(functions), functions.print_functions, functions.effort)
        for group in groups:
            self.prepare(repr(group), lambda group=group: _print_all(group), entry.effort_of(group[0]))

    def load(self, key: str, text: Callable[[], str], effort: Effort = Effort.FULL) -> Any:
        """Return the engine that holds the machine code of a module of LLVM IR; `get_function_address` is its method.

        The module may call ``anabranch_parallel`` (see `threads`) and what was offered, and uses the intrinsics of
        `llvm.declarations`, which it does not declare itself.

        Args:
            key: stands for the text: the same key, the same text.
            text: prints the module; not called if its object code is known.
            effort: how much the compiler is to do.
        """
        assert self.usable
        if not key.startswith(threads.SYMBOL):
            threads.start(library)
        name = self._named(key)
        coming = self._coming.pop(name, None)
        if coming is not None:
            return self._load(coming.result())
        machine_code = self._files.read(name)
        if machine_code is None:
            machine_code = self._emit(name, text(), self._at_most(effort))
        return self._load(machine_code)

    def contains(self, key: str) -> bool:
        """Test whether the object code of a module is on the disk, or is being compiled."""
        name = self._named(key)
        return name in self._coming or self._files.has(name)

    def prepare(self, key: str, text: Callable[[], str], effort: Effort = Effort.FULL) -> None:
        """Compile a module that `load` will be asked for in another thread, if its object code is not known."""
        assert self.usable
        name = self._named(key)
        if name in self._coming or self._files.has(name):
            return
        if self._workers is None:
            from concurrent.futures import ThreadPoolExecutor  # with a warm cache nothing needs it

            self._workers = ThreadPoolExecutor(_MOST_WORKERS, thread_name_prefix="anabranch compiler")
        self._llvm()  # by this thread, as imports take turns
        self._coming[name] = self._workers.submit(self._emit, name, text(), self._at_most(effort))

    def later(self, key: str, text: Callable[[], str], name: str, effort: Effort = Effort.FULL) -> LaterFunction:
        """Return the function called `name` of a module, of the address of numbers; it need not be compiled yet.

        Args:
            key, text, effort: as for `load`.
            name: the function's.
        """
        self.prepare(key, text, effort)

        def load() -> int:
            return int(self.load(key, text, effort).get_function_address(name))

        return LaterFunction(load)

    def forget_workers(self) -> None:
        """Forget the workers in a child process, which has none of its parent's threads."""
        self._workers, self._begun, self._coming = None, [], {}
        self._lock = threading.Lock()

    def offer(self, name: str, address: int) -> None:
        """Let modules that are loaded from now on call the function at `address` by `name`."""
        assert self.usable
        _symbols[name] = address

    def offer_system(self, names: Iterable[str]) -> bool:
        """Let modules call functions of the system's C library; False where one of them is not there."""
        try:
            for name in names:
                self.offer(name, _address_in_process(name))
        except (OSError, TypeError, AttributeError):
            return False
        return True

    def offer_python(self, names: Iterable[str]) -> None:
        """Let modules call functions of Python's C interface."""
        for name in names:
            function: Any = getattr(ctypes.pythonapi, name)
            self.offer(name, ctypes.cast(function, ctypes.c_void_p).value or 0)

    def _start(self) -> str:
        """Find out for which host there is a compiler; return why there can be none, or ""."""
        if not _layout_is_known():
            return f"Python {sys.version.split()[0]} and NumPy {np.__version__} lay out their objects in another way"
        if can_link() and not may_execute():  # in which LLVM's own code would end the process
            return "this system lets no memory become machine code"
        known = self._files.read(self._note, HOST) if self._note else None
        if known is not None:
            self.host = known.decode()
            return ""
        try:
            self.host = self._llvm().host
        except (ImportError, OSError, RuntimeError) as error:
            return f"llvmlite does not work: {error}"
        if self._note:
            self._files.write(self._note, self.host.encode(), HOST)
        return ""

    @cached_property
    def _note(self) -> str:
        """The name of the file with LLVM's words for the host; "" where LLVM has to be asked each time."""
        machine = machine_key() if can_link() else ""
        return self._files.name("", machine) if machine else ""

    def _llvm(self) -> Compiler:
        """Return the compiler, loaded when it is asked for first.

        Raises:
            RuntimeError: llvmlite does not work any more, though it did when this machine was looked at.
            ImportError, OSError: as above, while this is found out.
        """
        with self._lock:
            if self._compiler is None:
                try:
                    self._compiler = Compiler()
                except (ImportError, OSError, RuntimeError) as error:
                    if self._usable is None:
                        raise
                    self._usable = False
                    self._files.remove(self._note, HOST)  # the next process asks again
                    raise RuntimeError(
                        f"A kernel can't be compiled, as llvmlite does not work any more: {error}. From now on NumPy "
                        "computes: run the step again, or mend llvmlite (pip install --force-reinstall llvmlite)."
                    ) from error
            return self._compiler

    def _at_most(self, effort: Effort) -> Effort:
        return Effort.LEAST if self.quick else effort

    def _offer_functions(self, functions: entry.Functions) -> None:
        if functions in self._offered:
            return
        engine = self.load(repr(functions), functions.print_functions, functions.effort)
        for name in functions.names:
            self.offer(name, engine.get_function_address(name))
        self._offered.add(functions)

    def _compile(self, specs: list[Kernel]) -> None:
        for functions in entry.functions_of(specs):
            self._offer_functions(functions)
        engine = self.load(repr(specs), lambda: _print_all(specs), entry.effort_of(specs[0]))
        for number, spec in enumerate(specs):
            self._entries[spec] = engine.get_function_address(f"kernel_{number}")

    def _emit(self, name: str, text: str, effort: Effort) -> bytes:
        """Compile a module and keep its object code."""
        compiler = self._llvm()
        threading = "" if f"define void @{threads.SYMBOL}(" in text else threads.DECLARATIONS
        if "llvm" in names_dumped():
            sys.stderr.write(f"; {name} ({effort.name})\n{text}\n")
        began = time.perf_counter()
        machine_code = compiler.emit(declarations() + threading + text, effort)
        words = "kernels were not among the object files that are kept: compiled in %.0f ms, %s bytes of code, as %s"
        log("cache", DEBUG, words, (time.perf_counter() - began) * 1e3, f"{len(machine_code):,}", name)
        self._files.write(name, machine_code)
        return machine_code

    def _load(self, machine_code: bytes) -> Any:
        try:
            return link(machine_code, _address_of)
        except UnknownSymbolsError as error:
            raise RuntimeError(
                f"This is a bug in anabranch: a compiled kernel can't be loaded, as {error}. Please report it; with "
                f"{_SWITCH}=0 in the environment the program runs on NumPy."
            ) from error
        except (NotLinkedError, OSError) as error:
            log("cache", DEBUG, "object code is linked by LLVM, as %s", error)
        compiler = self._llvm()
        binding = compiler.binding
        for name, address in list(_symbols.items()):
            binding.add_symbol(name, address)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), compiler.machine())
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        self._engines.append(engine)
        return engine


def _address_of(name: str) -> int:
    """Return the address of a function that was offered, or that the process has; 0 where there is none."""
    known = _symbols.get(name)
    try:
        return _address_in_process(name) if known is None else known
    except (OSError, TypeError, AttributeError):
        return 0


def _address_in_process(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _print_all(specs: Sequence[Kernel]) -> str:
    declared = [functions.print_declarations() for functions in entry.functions_of(specs)]
    return "".join([*declared, *[entry.print_kernel(spec, f"kernel_{number}") for number, spec in enumerate(specs)]])


def modules_of(specs: Sequence[Kernel]) -> list[list[Kernel]]:
    """Group kernels that are compiled side by side: of one effort, and of about the same work where there is much.

    The groups depend on the kernels alone, for object code is kept by group.
    """
    by_effort: dict[Effort, list[Kernel]] = {}
    for spec in specs:
        by_effort.setdefault(entry.effort_of(spec), []).append(spec)
    return [group for alike in by_effort.values() for group in _parted(alike)]


def _parted(specs: list[Kernel]) -> list[list[Kernel]]:
    work = {spec: len(repr(spec)) + _LEAST_WORK.get(entry.effort_of(spec), 4000) for spec in specs}
    count = min(_MOST_MODULES, len(specs), 1 + sum(work.values()) // _MODULE_WORK)
    parts: list[list[Kernel]] = [[] for _ in range(count)]
    filled = [0] * count
    for spec in sorted(specs, key=lambda spec: -work[spec]):
        least = filled.index(min(filled))
        parts[least].append(spec)
        filled[least] += work[spec]
    return parts


def _warn_of_numpy(reason: str) -> None:
    warnings.warn(
        f"No kernels are compiled, since {reason}. NumPy computes, and steps may take several times as long. Install "
        f"versions that work together (pip install --upgrade anabranch llvmlite), or set {_SWITCH}=0.",
        RuntimeWarning,
        stacklevel=2,
    )


def _layout_is_known() -> bool:
    """Test whether NumPy's objects hold their fields where the kernels look for them."""
    array = np.arange(6, dtype="float32").reshape(2, 3)
    scalar = np.float32(2.5)

    def read(address: int, kind: Any) -> Any:
        return kind.from_address(address).value

    at = id(array)
    dimensions = read(at + entry.DIMENSIONS_OFFSET, ctypes.c_size_t)
    return (
        read(at + entry.DATA_OFFSET, ctypes.c_size_t) == array.ctypes.data
        and read(at + entry.RANK_OFFSET, ctypes.c_int) == 2
        and read(read(at + entry.STRIDES_OFFSET, ctypes.c_size_t), ctypes.c_ssize_t) == array.strides[0]
        and read(dimensions, ctypes.c_size_t) == 2
        and read(dimensions + 8, ctypes.c_size_t) == 3
        and read(at + entry.DESCRIPTOR_OFFSET, ctypes.c_size_t) == id(array.dtype)
        and read(at + entry.FLAGS_OFFSET, ctypes.c_int) == array.flags.num
        and read(id(scalar) + entry.TYPE_OFFSET, ctypes.c_size_t) == id(np.float32)
        and read(id(scalar) + entry.DATA_OFFSET, ctypes.c_float) == 2.5
    )


library = Library()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=library.forget_workers)
