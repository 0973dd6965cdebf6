"""Compiles kernels with llvmlite, all of a program at once, and keeps the object code on disk by content."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import entry, threads
from .entry import Kernel
from .llvm import declarations

_VERSION = "9"  # raise it whenever the printed code changes


class Library:
    """The compiled kernels of this process. Without a working llvmlite it says so, and programs run on NumPy.

    Args:
        folder: where object code is kept, if not in `cache_folder`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._functions: dict[Kernel, Any] = {}
        self._binding: Any = None
        self._machine: Any = None
        self._engines: list[Any] = []  # they own the machine code
        self.host = ""
        self._usable: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether kernels can be compiled and NumPy's objects are laid out as they expect."""
        if self._usable is None:
            self._usable = os.environ.get("ANABRANCH_KERNELS", "1") != "0" and _layout_is_known() and self._start()
        return self._usable

    @property
    def has_half(self) -> bool:
        """Whether the processor has instructions that convert float16; elsewhere LLVM would call functions for that."""
        return "+f16c" in self.host or "aarch64" in self.host or "arm64" in self.host

    def get(self, specs: Sequence[Kernel]) -> list[Any]:
        """Callable entries for `specs`; those that are new are compiled together."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._functions]
        if missing:
            self._compile(missing)
        return [self._functions[spec] for spec in specs]

    def load(self, key: str, text: Callable[[], str], is_large: bool = False) -> Any:
        """The engine that holds the machine code of a module of LLVM IR; `get_function_address` is its method.

        The module may call ``anabranch_parallel`` (see `threads`) and what was offered, and uses the intrinsics of
        `llvm.declarations`, which it does not declare itself.

        Args:
            key: stands for the text: the same key, the same text.
            text: prints the module; not called if its object code is known.
            is_large: the module holds much code that runs well without being unrolled: compile it in half the time.
        """
        assert self.usable
        if not key.startswith(threads.SYMBOL):
            threads.start(library)
        digest = hashlib.sha256(repr((_VERSION, self.host, key)).encode()).hexdigest()
        path = (self._folder or cache_folder()) / f"{digest}.o"
        machine_code = _read(path)
        if machine_code is None:
            machine_code = self._emit(text(), is_large)
            _write(path, machine_code)
        return self._load(machine_code)

    def offer(self, name: str, address: int) -> None:
        """Let modules that are loaded from now on call the function at `address` by `name`."""
        assert self.usable
        self._binding.add_symbol(name, address)

    def offer_system(self, names: Iterable[str]) -> bool:
        """Let modules call functions of the system's C library; False where one of them is not there."""
        try:
            system = ctypes.CDLL(None)
            for name in names:
                self.offer(name, ctypes.cast(getattr(system, name), ctypes.c_void_p).value or 0)
        except (OSError, TypeError, AttributeError):
            return False
        return True

    def _start(self) -> bool:
        try:
            import llvmlite.binding as llvm_binding  # pyright: ignore[reportMissingTypeStubs]

            binding: Any = llvm_binding

            binding.initialize_native_target()
            binding.initialize_native_asmprinter()
            target = binding.Target.from_default_triple()
            features = _features(binding)
            self._machine = target.create_target_machine(
                cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True, reloc="pic"
            )
        except (ImportError, OSError, RuntimeError):
            return False
        self._binding = binding
        self.host = (
            f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features} {binding.llvm_version_info}"
        )
        return True

    def _compile(self, specs: list[Kernel]) -> None:
        names = [f"kernel_{k}" for k in range(len(specs))]
        engine = self.load(repr(specs), lambda: "".join(map(entry.print_kernel, specs, names)))
        for spec, name in zip(specs, names, strict=True):
            signature = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * (1 + len(spec.operands)))
            self._functions[spec] = signature(engine.get_function_address(name))

    def _emit(self, text: str, is_large: bool = False) -> bytes:
        """Optimise and assemble a module."""
        binding = self._binding
        threading = "" if f"define void @{threads.SYMBOL}(" in text else threads.DECLARATION
        module = binding.parse_assembly(declarations() + threading + text)
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        options = binding.create_pipeline_tuning_options(speed_level=2 if is_large else 3)
        options.loop_vectorization = True
        options.loop_unrolling = not is_large
        passes = binding.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(module, passes)
        return self._machine.emit_object(module)

    def _load(self, machine_code: bytes) -> Any:
        binding = self._binding
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), self._machine_for_engine())
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        self._engines.append(engine)
        return engine

    def _machine_for_engine(self) -> Any:
        """A target machine that an engine takes over."""
        binding = self._binding
        target = binding.Target.from_default_triple()
        return target.create_target_machine(
            cpu=binding.get_host_cpu_name(), features=_features(binding), opt=3, jit=True
        )


def _features(binding: Any) -> str:
    """What the host can do; vectors are as long as it has them, also where LLVM thinks that shorter ones are safer."""
    features: str = binding.get_host_cpu_features().flatten()
    return f"{features},-prefer-256-bit" if "+avx512f" in features else features


def cache_folder() -> Path:
    """Where object code is kept: $ANABRANCH_CACHE_DIR, or the user's cache folder."""
    named = os.environ.get("ANABRANCH_CACHE_DIR")
    if named:
        return Path(named) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "anabranch" / "kernels"


def _read(path: Path) -> bytes | None:
    """Cached object code, or None where there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, machine_code: bytes) -> None:
    """Keep object code; a cache that can't be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(machine_code).digest() + machine_code)
        os.replace(file.name, path)
    except OSError:
        return


def _layout_is_known() -> bool:
    """Whether NumPy's objects hold their fields where the kernels look for them."""
    array = np.arange(6, dtype="float32").reshape(2, 3)
    scalar = np.float32(2.5)

    def read(address: int, kind: Any) -> Any:
        return kind.from_address(address).value

    at = id(array)
    dimensions = read(at + entry.DIMENSIONS_OFFSET, ctypes.c_size_t)
    return (
        read(at + entry.DATA_OFFSET, ctypes.c_size_t) == array.ctypes.data
        and read(at + entry.RANK_OFFSET, ctypes.c_int) == 2
        and read(dimensions, ctypes.c_size_t) == 2
        and read(dimensions + 8, ctypes.c_size_t) == 3
        and read(at + entry.DESCRIPTOR_OFFSET, ctypes.c_size_t) == id(array.dtype)
        and read(at + entry.FLAGS_OFFSET, ctypes.c_int) == array.flags.num
        and read(id(scalar) + entry.TYPE_OFFSET, ctypes.c_size_t) == id(np.float32)
        and read(id(scalar) + entry.DATA_OFFSET, ctypes.c_float) == 2.5
    )


library = Library()
