"""From LLVM IR to object code, by llvmlite; from several threads at once."""

from __future__ import annotations

import ctypes
import sys
import threading
from enum import Enum
from typing import Any

from ...common.forks import forks


class _Forks:
    """Lets no process be forked while LLVM works, as a context around its calls.

    The child has only the thread that forks. What other threads have locked at that moment, in LLVM and in llvmlite,
    nobody would unlock there: the child would wait forever when it compiles something itself. So who forks waits for
    the modules that are being compiled, which takes a few seconds at most; meanwhile no others are begun.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: list[int] = []  # threads
        self._llvm_lock: Any = None

    def __enter__(self) -> None:
        with self._changed:
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            self._changed.notify_all()

    def before(self) -> None:
        """Wait before a fork until nobody is inside, and hold what guards llvmlite's short calls."""
        own = threading.get_ident()
        self._changed.acquire()
        self._changed.wait_for(lambda: all(thread == own for thread in self._inside))
        llvmlite = sys.modules.get("llvmlite.binding.ffi")
        self._llvm_lock = getattr(getattr(llvmlite, "lib", None), "_lock", None)
        if self._llvm_lock is not None:
            self._llvm_lock.__enter__()

    def after(self) -> None:
        """Release after a fork, in both processes, what guards llvmlite's short calls."""
        lock, self._llvm_lock = self._llvm_lock, None
        if lock is not None:
            lock.__exit__(None, None, None)
        self._changed.release()


_forks = _Forks()
forks.register(_forks.before, _forks.after)


class Effort(Enum):
    """The gain of a module of LLVM IR from LLVM's passes, which take longer than printing machine code."""

    FULL = "loops of scalars, to be made loops of vectors"
    LARGE = "much code, which runs well without being unrolled"
    PRINTED = "code as it is to run: vectors already, no variables in memory but what registers hold"
    LEAST = "code of which the results matter, and not the time: compiled in a tenth of the time, as for tests"


class Compiler:
    """LLVM, set up for this host.

    Raises:
        ImportError, OSError, RuntimeError: llvmlite is not there, or can't compile for this machine.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm_binding

        self.binding: Any = llvm_binding
        self.binding.initialize_native_target()
        self.binding.initialize_native_asmprinter()
        self._processor = self.binding.get_host_cpu_name()
        self._features = _features(self.binding)
        self._machine_for_all = self.machine()
        self._data_layout = str(self._machine_for_all.target_data)
        triple = self.binding.get_process_triple()
        self.host = f"{triple} {self._processor} {self._features} {self.binding.llvm_version_info}"

    def machine(self, level: int = 3, **options: Any) -> Any:
        """Return a new target machine; an engine takes over the one that it is given, and a thread needs its own."""
        target = self.binding.Target.from_default_triple()
        host = {"cpu": self._processor, "features": self._features}
        return target.create_target_machine(**host, opt=level, jit=True, **options)

    def emit(self, text: str, effort: Effort) -> bytes:
        """Optimise and assemble a module."""
        binding, machine = self.binding, self.machine(0 if effort is Effort.LEAST else 3, reloc="pic")
        module = binding.parse_assembly(text, binding.create_context())
        module.triple = machine.triple
        module.data_layout = self._data_layout
        self._optimise(module, machine, effort)
        return self._assemble(module, machine)

    def _optimise(self, module: Any, machine: Any, effort: Effort) -> None:
        binding = self.binding
        options = binding.create_pipeline_tuning_options(speed_level=2 if effort is Effort.LARGE else 3)
        options.loop_vectorization = True
        options.loop_unrolling = effort is Effort.FULL
        builder = binding.create_pass_builder(machine, options)
        if effort in (Effort.PRINTED, Effort.LEAST):
            passes = binding.create_new_module_pass_manager()
            passes.add_sroa_pass()
            passes.add_always_inliner_pass()
            passes.add_instruction_combine_pass()
            passes.add_simplify_cfg_pass()
        else:
            passes = builder.getModulePassManager()
        run = self._past_lock("LLVMPY_RunNewModulePassManager", 3)
        if run is None:
            passes.run(module, builder)
        else:
            with _forks:
                run(passes, module, builder)

    def _assemble(self, module: Any, machine: Any) -> bytes:
        emit = self._past_lock("LLVMPY_TargetMachineEmitToMemory", 4)
        if emit is None:
            return machine.emit_object(module)
        library = self.binding.ffi.lib
        with self.binding.ffi.OutputString() as error:
            with _forks:
                buffer = emit(machine, module, 1, error)
            if not buffer:
                raise RuntimeError(f"LLVM could not assemble a kernel: {error}")
        try:
            return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
        finally:
            library.LLVMPY_DisposeMemoryBuffer(buffer)

    def _past_lock(self, name: str, parameters: int) -> Any:
        """Return one of LLVM's long functions, without the lock that llvmlite holds over all its calls.

        LLVM itself needs none where each thread has its own context and target machine. None where llvmlite is not as
        known here: then its own method is called, and modules are compiled one after the other.
        """
        try:
            known = getattr(self.binding.ffi.lib, name)
            if len(known.argtypes) != parameters:
                return None
            function = getattr(ctypes.CDLL(self.binding.ffi.lib._name), name)
        except (AttributeError, OSError, TypeError):
            return None
        function.argtypes, function.restype = known.argtypes, known.restype
        return function


def _features(binding: Any) -> str:
    """Return the features of the host, with vectors of its full length, also where LLVM takes shorter ones as safer."""
    features: str = binding.get_host_cpu_features().flatten()
    return f"{features},-prefer-256-bit" if "+avx512f" in features else features
