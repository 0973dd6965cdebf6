"""Compiling modules in other threads: the same code as without, whatever happens to the cache."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.convolution.pooling import PoolingKernel
from anabranch.engine.codegen.elementwise.bound import BoundKernel
from anabranch.engine.codegen.elementwise.kernel_specs import kernel_spec, loop_numbers
from anabranch.engine.codegen.expression.llvm import KernelSpec
from anabranch.engine.codegen.gather import rows
from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm import entry as entry_module
from anabranch.engine.codegen.llvm import library as library_module
from anabranch.engine.codegen.llvm.builder import FunctionBuilder
from anabranch.engine.codegen.llvm.compiler import Compiler, Effort
from anabranch.engine.codegen.llvm.entry import Operand, effort_of
from anabranch.engine.codegen.llvm.library import Library, modules_of
from anabranch.engine.codegen.llvm.object_files import ObjectFiles
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.math.elementwise import Add
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library_module.library.usable, reason="no kernels can be compiled here")

SUM_OF_SQUARES = """
define float @sum_of_squares(ptr %values, i64 %count) {
entry:
  %total = alloca float
  store float 0.0, ptr %total
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %loop]
  %address = getelementptr float, ptr %values, i64 %k
  %value = load float, ptr %address
  %square = fmul float %value, %value
  %before = load float, ptr %total
  %after = fadd float %before, %square
  store float %after, ptr %total
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  %result = load float, ptr %total
  ret float %result
}
"""


def text() -> str:
    return SUM_OF_SQUARES


def call(engine: Any) -> float:
    values = np.arange(1, 11, dtype="float32")
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64)
    return kind(engine.get_function_address("sum_of_squares"))(values.ctypes.data, len(values))


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that compiled something."""
    seen: list[str] = []
    if library_module.library.usable:
        threads.start(library_module.library)  # which may be compiled at the first load, if no test has done that
    emit = Compiler.emit

    def counted(self: Compiler, text: str, effort: Effort) -> bytes:
        seen.append(threading.current_thread().name)
        return emit(self, text, effort)

    monkeypatch.setattr(Compiler, "emit", counted)
    return seen


@pytest.mark.parametrize("effort", Effort)
def test_each_effort_computes_the_same(tmp_path: Path, effort: Effort) -> None:
    assert call(Library(tmp_path).load("squares", text, effort)) == 385


@pytest.mark.parametrize("effort", Effort)
def test_threads_compile_at_once_and_make_the_same_code(compiler: Compiler, effort: Effort) -> None:
    alone = compiler.emit(SUM_OF_SQUARES, effort)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda _: compiler.emit(SUM_OF_SQUARES, effort), range(12)))
    assert set(together) == {alone}


def test_where_the_lock_cannot_be_passed_the_code_is_the_same(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = compiler.emit(SUM_OF_SQUARES, Effort.FULL)
    monkeypatch.setattr(Compiler, "_past_lock", lambda *_: None)
    assert compiler.emit(SUM_OF_SQUARES, Effort.FULL) == known


def test_functions_of_another_llvmlite_are_not_called(compiler: Compiler) -> None:
    assert compiler._past_lock("LLVMPY_RunNewModulePassManager", 4) is None
    assert compiler._past_lock("LLVMPY_IsNotThere", 3) is None
    assert compiler._past_lock("LLVMPY_RunNewModulePassManager", 3) is not None


def test_objects_of_another_layout_turn_kernels_off_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a version of Python or NumPy that is not known yet."""
    monkeypatch.setattr(entry_module, "DATA_OFFSET", entry_module.DATA_OFFSET + 8)
    library = Library(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"No kernels are compiled, since Python 3.* NumPy .* another way"):
        assert not library.usable
    assert not library.usable


@pytest.mark.parametrize("error", [ImportError("no llvmlite"), OSError("no library"), RuntimeError("no target")])
def test_a_compiler_that_does_not_work_turns_kernels_off_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(self: Compiler) -> None:
        raise error

    monkeypatch.setattr(Compiler, "__init__", broken)
    with pytest.warns(RuntimeWarning, match=f"llvmlite does not work: {error}"):
        assert not Library(tmp_path).usable


def test_kernels_that_are_switched_off_are_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")
    assert not Library(tmp_path).usable


def test_what_is_prepared_is_compiled_once_by_another_thread(tmp_path: Path, emitted: list[str]) -> None:
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    library.prepare("squares", text)
    assert call(library.load("squares", text)) == 385
    assert call(library.load("squares", text)) == 385  # now from the disk
    assert len(emitted) == 1
    assert emitted[0].startswith("anabranch compiler")


def test_quick_kernels_take_the_least_effort_and_are_kept_apart(tmp_path: Path, monkeypatch: Any) -> None:
    efforts: list[Effort] = []
    emit = Compiler.emit

    def noted(self: Compiler, text: str, effort: Effort) -> bytes:
        efforts.append(effort)
        return emit(self, text, effort)

    monkeypatch.setattr(Compiler, "emit", noted)
    for quick in ("quick", "1"):
        monkeypatch.setenv("ANABRANCH_KERNELS", quick)
        library = Library(tmp_path)
        library.prepare("squares", text)
        assert call(library.load("squares", text)) == 385
    assert efforts == [Effort.LEAST, Effort.FULL]
    assert len([*tmp_path.glob("*.o")]) == 2
    library.quick = True  # a kernel that was loaded is another's, too
    assert call(library.load("squares", text)) == 385
    assert len(efforts) == 2


def test_prepared_and_loaded_code_are_the_same_bytes(tmp_path: Path) -> None:
    for name, prepared in (("a", True), ("b", False)):
        library = Library(tmp_path / name)
        assert library.usable
        if prepared:
            library.prepare("squares", text, Effort.PRINTED)
        library.load("squares", text, Effort.PRINTED)
    (a,), (b,) = ([*(tmp_path / name).glob("*.o")] for name in "ab")
    assert a.name == b.name
    assert a.read_bytes() == b.read_bytes()


def test_what_is_on_the_disk_is_not_prepared(tmp_path: Path, emitted: list[str]) -> None:
    Library(tmp_path).load("squares", text)
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    library.load("squares", text)
    assert len(emitted) == 1


def test_a_damaged_file_is_compiled_anew_though_nothing_was_prepared(tmp_path: Path, emitted: list[str]) -> None:
    Library(tmp_path).load("squares", text)
    (file,) = tmp_path.glob("*.o")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    assert call(library.load("squares", text)) == 385
    assert len(emitted) == 2


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    library = Library(tmp_path / "file" / "kernels")
    with pytest.warns(RuntimeWarning, match="can't be kept in '.*kernels': .*Not a directory"):
        assert library.usable
    library.prepare("squares", text)
    assert call(library.load("squares", text)) == 385


def test_an_error_in_another_thread_is_raised_where_the_code_is_needed(tmp_path: Path) -> None:
    library = Library(tmp_path)
    assert library.usable
    library.prepare("wrong", lambda: "define this")
    with pytest.raises(RuntimeError, match="expected"):
        library.load("wrong", lambda: "define this")


def test_a_child_process_compiles_what_its_parent_had_begun(
    tmp_path: Path, emitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, forgotten, own = threading.Event(), threading.Event(), threading.current_thread().name
    emit = Compiler.emit

    def emit_late(self: Compiler, text: str, effort: Effort) -> bytes:
        """Compile in the parent's thread only when the child has all it needs: the child has no such thread."""
        if threading.current_thread().name != own:
            begun.set()
            forgotten.wait()
        return emit(self, text, effort)

    monkeypatch.setattr(Compiler, "emit", emit_late)
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    begun.wait()
    workers = library._workers
    library.forget_workers()
    assert call(library.load("squares", text)) == 385
    forgotten.set()
    workers.shutdown()
    assert sorted(emitted) == sorted(["anabranch compiler_0", own])


def test_kernels_that_were_begun_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-3, 3, 4096, dtype="float32").reshape(64, 64)

    def run(folder: str, is_begun: bool) -> Any:
        monkeypatch.setattr(library_module.library, "_files", ObjectFiles(tmp_path / folder))
        monkeypatch.setattr(library_module.library, "_loaded", {False: {}, True: {}})
        if not is_begun:
            monkeypatch.setattr(Library, "begin", lambda *_: None)
        with ab.Graph().as_default():
            value = ab.placeholder((64, 64), "float32")
            y = ab.ops.tanh(ab.ops.matmul(value, value)) * 2 + ab.ops.exp(value)
            gradient = ab.gradients(ab.ops.sum(y * y), [value])[0]
            return [part.tobytes() for part in ab.Session().run([y, gradient], {value: x})]

    cold = run("a", is_begun=True)
    warm = run("a", is_begun=True)
    assert cold == warm == run("b", is_begun=False)


COUNT = """
define void @count(ptr %number) {
  %before = load i64, ptr %number
  %after = add i64 %before, 1
  store i64 %after, ptr %number
  ret void
}
"""


def test_a_function_for_later_is_compiled_by_another_thread_and_loaded_by_its_first_call(
    tmp_path: Path, emitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    assert library.usable
    loads: list[str] = []
    load = Library.load
    monkeypatch.setattr(Library, "load", lambda self, key, *rest: loads.append(key) or load(self, key, *rest))
    function = library.later("count", lambda: COUNT, "count")
    assert "count" not in loads
    for number in (5, np.int64(6), 7):
        assert function.run(number) == number + 1
    array = np.array([7, 0])
    assert function.run(array) == array.ctypes.data + 1
    with pytest.raises(TypeError, match="integer"):
        function.run("7")
    with pytest.raises(OverflowError):
        function.run(1 << 63)
    assert loads.count("count") == 1
    assert {name.partition("_")[0] for name in emitted} == {"anabranch compiler"}


def test_what_is_known_is_on_the_disk_or_being_compiled(tmp_path: Path) -> None:
    library = Library(tmp_path)
    assert library.usable
    assert not library.contains("squares")
    library.prepare("squares", text)
    assert library.contains("squares")
    library.load("squares", text)
    assert library.contains("squares")
    assert not library.contains("other squares")


def _sum_kernel(terms: int) -> KernelSpec:
    """The sum of so many vectors."""
    spec = TensorSpec((64,), np.dtype("float32"))
    steps = [(Add(), (0, 1)), *[(Add(), (terms + k, 2 + k)) for k in range(terms - 2)]]
    return kernel_spec(Fused(terms, tuple(steps), (2 * terms - 2,)), [spec] * terms, [spec])


def _run(address: int, spec: KernelSpec, terms: int) -> Any:
    kind = TensorSpec((64,), np.dtype("float32"))
    kernel = BoundKernel(spec, [kind] * terms, [kind], loop_numbers(spec, [kind] * terms, [kind]))
    kernel.link(address)
    values = [np.full(64, k, "float32") for k in range(terms)]
    out = np.empty(64, "float32")
    assert not kernel.call(*values, out)
    return out


@pytest.mark.parametrize("terms", [(), (3,), (3, 5), (40, 41, 42, 3, 4), tuple(range(2, 40))])
def test_kernels_are_parted_into_modules(terms: tuple[int, ...]) -> None:
    specs = [_sum_kernel(count) for count in terms]
    groups = modules_of(specs)
    assert sorted(repr(spec) for group in groups for spec in group) == sorted(map(repr, specs))
    assert all(groups)
    assert len(groups) <= 4
    assert modules_of(specs) == groups
    sizes = [len(repr(group)) for group in groups]
    assert max(sizes, default=0) <= 2 * min(sizes, default=0) + max((len(repr(spec)) for spec in specs), default=0)


def test_little_is_one_module_and_much_is_several() -> None:
    assert len(modules_of([_sum_kernel(3), _sum_kernel(4)])) == 1
    assert len(modules_of([_sum_kernel(count) for count in range(30, 60)])) == 4


def test_kernels_of_one_module_are_of_one_effort() -> None:
    pooling = PoolingKernel((), "max_pool", "float", 16, (2, 2), is_inside=True, is_spread=False)
    groups = modules_of([_sum_kernel(3), pooling, _sum_kernel(4)])
    assert [{effort_of(spec) for spec in group} for group in groups] == [{Effort.FULL}, {Effort.LARGE}]


def test_kernels_of_several_modules_are_got_in_the_order_asked_for(tmp_path: Path, emitted: list[str]) -> None:
    counts = [45, 3, 50, 4, 55]
    specs = [_sum_kernel(count) for count in counts]
    for folder, begun in (("a", 0), ("a", 0), ("b", 2), ("c", 5)):
        library = Library(tmp_path / folder)
        assert library.usable
        library.begin(specs[:begun])
        for address, spec, count in zip(library.get(specs), specs, counts, strict=True):
            np.testing.assert_array_equal(_run(address, spec, count), np.full(64, count * (count - 1) / 2, "float32"))
    assert "anabranch compiler" in {name.partition("_")[0] for name in emitted}


def test_an_expected_kernel_is_compiled_by_another_thread(tmp_path: Path, emitted: list[str]) -> None:
    spec = _sum_kernel(3)
    library = Library(tmp_path)
    assert library.usable
    library.expect(spec)
    library.expect(spec)
    (address,) = library.get([spec])
    library.expect(spec)
    np.testing.assert_array_equal(_run(address, spec, 3), np.full(64, 3, "float32"))
    assert len([name for name in emitted if name.startswith("anabranch compiler")]) == len(emitted)


@dataclass(frozen=True)
class _Constant:
    """A function that writes one number."""

    number: int

    effort = Effort.PRINTED

    @property
    def names(self) -> tuple[str, ...]:
        return (f"constant_{self.number}",)

    def print_declarations(self) -> str:
        return f"declare void @{self.names[0]}(ptr)\n"

    def print_functions(self) -> str:
        code = FunctionBuilder(self.names[0], ["ptr %out"], linkage="")
        code.store("i64", self.number, "%out")
        return code.text()


@dataclass(frozen=True)
class _Caller:
    """A kernel that calls functions one after the other, each on the element behind that of the one before."""

    calls: tuple[_Constant, ...]
    effort: Effort

    operands = (Operand("i64", 1, is_written=True),)
    number_count = 0

    def print_run(self, name: str) -> str:
        code = FunctionBuilder(f"{name}_run", ["ptr %d0", "ptr %numbers"])
        for position, called in enumerate(self.calls):
            code.call(called.names[0], [("ptr", code.at("i64", "%d0", position))])
        return code.text()


@pytest.mark.parametrize("begun", [0, 2])
def test_functions_that_kernels_of_several_modules_call_are_compiled_once(
    tmp_path: Path, emitted: list[str], begun: int
) -> None:
    one, two = _Constant(1), _Constant(2)
    specs = [_Caller((one, two), Effort.PRINTED), _Caller((one, one), Effort.PRINTED), _Caller((two,), Effort.LARGE)]
    threads.start(library_module.library)  # or a new library compiles what that needs, at any time
    library = Library(tmp_path)
    assert library.usable
    emitted.clear()
    library.begin(specs[:begun])
    for address, spec in zip(library.get(specs), specs, strict=True):
        out = np.zeros(2, "int64")
        kind = TensorSpec((2,), out.dtype)
        kernel = BoundKernel(spec, [], [kind], [])
        kernel.link(address)
        assert not kernel.call(out)
        assert out.tolist() == [called.number for called in spec.calls] + [0] * (2 - len(spec.calls))
    assert len(emitted) == 4  # two functions, and a module of each effort
    assert all(name.startswith("anabranch compiler") for name in emitted)


def _open_step() -> tuple[ab.Graph, list[Any], list[Any]]:
    """Products, elementwise operations and taken rows, of arrays whose rows are not known."""
    with ab.Graph().as_default() as graph:
        x, ids = ab.placeholder((None, 256), "float32"), ab.placeholder((None,), "int32")
        weight = ab.placeholder((256, 512), "float32")
        hidden = ab.ops.relu(ab.ops.matmul(ab.ops.take(x, ids, axis=0), weight))
        fetches = [hidden, ab.ops.segment_sum(hidden, ids, 50), ab.ops.exp(x) * x]
    return graph, fetches, [x, ids, weight]


def test_what_runs_on_sizes_not_known_yet_is_compiled_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emitted: list[str]
) -> None:
    monkeypatch.setattr(library_module.library, "_files", ObjectFiles(tmp_path))
    monkeypatch.setattr(library_module.library, "_loaded", {False: {}, True: {}})
    rows._function.cache_clear()
    graph, fetches, feeds = _open_step()
    program = Program(graph, fetches, feeds)
    emitted.append("run")
    rng = np.random.default_rng(1)
    x, ids = rng.standard_normal((700, 256), "float32"), rng.integers(0, 50, 600).astype("int32")
    weight = rng.standard_normal((256, 512), "float32")
    hidden, sums, others = program(x, ids, weight)
    own = threading.current_thread().name
    assert own not in emitted[emitted.index("run") :]
    expected = np.maximum(x[ids] @ weight, 0)
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4)
    totals = np.zeros((50, 512), "float32")
    np.add.at(totals, ids, hidden)
    np.testing.assert_allclose(sums, totals, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(others, np.exp(x) * x, rtol=1e-5)
