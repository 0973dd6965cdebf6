"""Compiling modules in other threads: the same code as without, whatever happens to the cache."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.runtime.kernels import library as library_module
from anabranch.engine.runtime.kernels.compiler import Compiler, Effort
from anabranch.engine.runtime.kernels.library import Library

pytestmark = pytest.mark.skipif(not library_module.library.usable, reason="no kernels can be compiled here")

SUM_OF_SQUARES = """
define float @sum_of_squares(float* %values, i64 %count) {
entry:
  %total = alloca float
  store float 0.0, float* %total
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %loop]
  %address = getelementptr float, float* %values, i64 %k
  %value = load float, float* %address
  %square = fmul float %value, %value
  %before = load float, float* %total
  %after = fadd float %before, %square
  store float %after, float* %total
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  %result = load float, float* %total
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


def test_what_is_prepared_is_compiled_once_by_another_thread(tmp_path: Path, emitted: list[str]) -> None:
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    library.prepare("squares", text)
    assert call(library.load("squares", text)) == 385
    assert call(library.load("squares", text)) == 385  # now from the disk
    assert len(emitted) == 1
    assert emitted[0].startswith("anabranch compiler")


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
    assert library.usable
    library.prepare("squares", text)
    assert call(library.load("squares", text)) == 385


def test_an_error_in_another_thread_is_raised_where_the_code_is_needed(tmp_path: Path) -> None:
    library = Library(tmp_path)
    assert library.usable
    library.prepare("wrong", lambda: "define this")
    with pytest.raises(RuntimeError, match="expected"):
        library.load("wrong", lambda: "define this")


def test_a_child_process_compiles_what_its_parent_had_begun(tmp_path: Path, emitted: list[str]) -> None:
    library = Library(tmp_path)
    assert library.usable
    library.prepare("squares", text)
    library.forget_workers()
    assert call(library.load("squares", text)) == 385
    assert threading.current_thread().name in emitted


def test_kernels_that_were_begun_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-3, 3, 4096, dtype="float32").reshape(64, 64)

    def run(folder: str, is_begun: bool) -> Any:
        monkeypatch.setattr(library_module.library, "_folder", tmp_path / folder)
        monkeypatch.setattr(library_module.library, "_functions", {})
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
