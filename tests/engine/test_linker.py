"""Object code is linked without LLVM: the same results, nothing of LLVM in a process that compiles nothing."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch.engine.codegen.llvm import library as library_module
from anabranch.engine.codegen.llvm.compiler import Compiler, Effort
from anabranch.engine.codegen.llvm.library import Library
from anabranch.engine.codegen.llvm.linker import Linked, NotLinkedError, can_link, link
from anabranch.engine.codegen.llvm.machine_key import machine_key

pytestmark = pytest.mark.skipif(
    not (library_module.library.usable and can_link()), reason="object code of this system is linked by LLVM"
)

# Constants, data that begin as zeros and others, calls inside and outside of the module, and the address of a function.
MODULE = """
@table =  constant [4 x float] [float 1.0, float 2.0, float 4.0, float 8.0], align 64
@calls = global i64 0, align 128
@step = internal global i64 3, align 8
@chosen = internal global ptr @square, align 8
declare double @fmod(double, double)
declare i64 @offered(i64)
define internal float @square(float %x) noinline {
  %y = fmul float %x, %x
  ret float %y
}
define i64 @count() {
  %before = load i64, ptr @calls
  %step = load i64, ptr @step
  %after = add i64 %before, %step
  store i64 %after, ptr @calls
  ret i64 %after
}
define float @look_up(i64 %index) {
  %at = getelementptr float, ptr @table, i64 %index
  %value = load float, ptr %at
  %function = load volatile ptr, ptr @chosen
  %result = call float %function(float %value)
  ret float %result
}
define double @rest(double %x) {
  %y = call double @fmod(double %x, double 3.25)
  ret double %y
}
define i64 @ask(i64 %x) {
  %y = call i64 @offered(i64 %x)
  ret i64 %y
}
"""


@pytest.fixture(scope="module")
def code() -> bytes:
    return Compiler().emit(MODULE, Effort.PRINTED)


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def offered(x: int) -> int:
    return 100 - x


def address_of(name: str) -> int:
    own = {"offered": offered, "fmod": ctypes.CDLL(None).fmod}
    return ctypes.cast(own[name], ctypes.c_void_p).value or 0 if name in own else 0


def function(linked: Any, name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(linked.get_function_address(name))


def test_functions_constants_and_data_are_linked(code: bytes) -> None:
    linked = link(code, address_of)
    assert [function(linked, "count", ctypes.c_int64)() for _ in range(3)] == [3, 6, 9]
    look_up = function(linked, "look_up", ctypes.c_float, ctypes.c_int64)
    assert [look_up(k) for k in range(4)] == [1, 4, 16, 64]
    assert function(linked, "rest", ctypes.c_double, ctypes.c_double)(10.0) == 0.25
    assert function(linked, "ask", ctypes.c_int64, ctypes.c_int64)(58) == 42
    assert linked.get_function_address("not_there") == 0


def test_each_copy_has_data_of_its_own(code: bytes) -> None:
    first, second = link(code, address_of), link(code, address_of)
    assert [function(each, "count", ctypes.c_int64)() for each in (first, first, second)] == [3, 6, 3]


def test_code_is_not_written_and_data_are_not_run(code: bytes) -> None:
    linked = link(code, address_of)

    def rights_at(name: str) -> list[str]:
        address = linked.get_function_address(name)
        with open("/proc/self/maps") as file:
            rows = [line.split()[:2] for line in file]
        spans = [(*[int(end, 16) for end in span.split("-")], rights) for span, rights in rows]
        return [rights for start, end, rights in spans if start <= address < end]

    assert rights_at("count") == ["r-xp"]
    assert rights_at("table") == ["r--p"]
    assert rights_at("calls") == ["rw-p"]


@pytest.mark.parametrize("length", [0, 5, 20, 63, 64, 200, 1000])
def test_damaged_files_are_refused(code: bytes, length: int) -> None:
    with pytest.raises(NotLinkedError):
        link(code[:length], address_of)


def patched(code: bytes, kind: int, field: int, form: str, value: int) -> bytes:
    """Return the file with another number in the headers of all sections of a kind."""
    found = bytearray(code)
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    for row in range(start, start + size * count, size):
        if struct.unpack_from("<I", code, row + 4)[0] == kind:
            struct.pack_into(form, found, row + field, value)
    return bytes(found)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ((1, 32, "<Q", 1 << 20), "goes beyond its end"),
        ((1, 8, "<Q", 7), "of another kind"),  # written and executed
        ((1, 48, "<Q", 1 << 13), "of another kind"),  # aligned to more than a page
        ((4, 4, "<I", 9), "relocations without addends"),
    ],
)
def test_sections_of_other_kinds_are_refused(code: bytes, patch: tuple[int, int, str, int], message: str) -> None:
    with pytest.raises(NotLinkedError, match=message):
        link(patched(code, *patch), address_of)


def test_relocations_beyond_their_section_are_refused(code: bytes) -> None:
    found = bytearray(code)
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    rows = [struct.unpack_from("<IIQQQQ", code, start + size * number) for number in range(count)]
    for _, kind, _, _, offset, _ in rows:
        if kind == 4:
            struct.pack_into("<Q", found, offset, 1 << 40)
    with pytest.raises(NotLinkedError, match="beyond its section"):
        link(bytes(found), address_of)


def test_symbols_that_linkers_place_are_refused() -> None:
    """Their value is an alignment, which was taken for an address."""
    common = Compiler().emit("@c = common global i64 0, align 8\ndefine ptr @where() { ret ptr @c }", Effort.PRINTED)
    with pytest.raises(NotLinkedError, match="'c' has no address"):
        link(common, address_of)


def test_without_memory_for_machine_code_numpy_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "may_execute", lambda: False)
    monkeypatch.delenv("ANABRANCH_KERNELS", raising=False)
    with pytest.warns(RuntimeWarning, match="this system lets no memory become machine code"):
        assert not Library(tmp_path).usable


def test_files_for_other_machines_are_refused(code: bytes) -> None:
    with pytest.raises(NotLinkedError, match="no relocatable file for x86-64"):
        link(code[:18] + b"\xb7\x00" + code[20:], address_of)


def test_unknown_symbols_are_named(code: bytes) -> None:
    with pytest.raises(NotLinkedError, match="nothing defines offered"):
        link(code, lambda name: address_of(name) if name == "fmod" else 0)


def test_kernels_that_call_what_is_not_there_are_refused(tmp_path: Path) -> None:
    library = Library(tmp_path)
    assert library.usable
    text = "declare void @nowhere()\ndefine void @ask() {\n call void @nowhere()\n ret void\n}\n"
    with pytest.raises(RuntimeError, match="a compiled kernel can't be loaded, as nothing defines nowhere"):
        library.load("module", lambda: text, Effort.PRINTED)


def test_what_is_not_linked_here_llvm_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Linked:
        raise NotLinkedError("another kind")

    engines: list[Any] = []
    for _ in range(2):
        library = Library(tmp_path)
        assert library.usable
        library.offer("offered", address_of("offered"))
        engines.append(library.load("module", lambda: MODULE, Effort.PRINTED))
        monkeypatch.setattr(library_module, "link", refused)
    assert isinstance(engines[0], Linked)
    assert not isinstance(engines[1], Linked)
    for engine in engines:
        assert function(engine, "ask", ctypes.c_int64, ctypes.c_int64)(58) == 42


def test_a_damaged_note_of_the_host_is_written_anew(tmp_path: Path) -> None:
    host = library_module.library.host
    for content in (None, b"", b"x" * 100):
        for file in tmp_path.glob("*.host"):
            assert content is not None
            file.write_bytes(content)
        library = Library(tmp_path)
        assert library.usable
        assert library.host == host
    (file,) = tmp_path.glob("*.host")
    assert host.encode() in file.read_bytes()


def test_a_changed_processor_or_library_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/proc/cpuinfo") as file:
        first = file.read().partition("\n\n")[0]
    processors = tmp_path / "cpuinfo"
    processors.write_text(first + "\n\nprocessor : 1\n")
    known = machine_key(str(processors))
    assert known == machine_key() != ""
    processors.write_text(first.replace("flags\t\t:", "flags\t\t: amx_more") + "\n\n")
    assert machine_key(str(processors)) not in (known, "")
    processors.write_text("processor : 0\n\n")
    assert machine_key(str(processors)) == ""
    assert machine_key(str(tmp_path / "none")) == ""
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert machine_key() == ""


PROGRAM = """
import sys
import numpy as np
import anabranch as ab
model = ab.Sequential([ab.Input((6,)), ab.layers.Dense(40, "tanh"), ab.layers.Dense(3)])
model.set_weights([np.linspace(-1, 1, np.prod(w.shape)).reshape(w.shape) for w in model.weights])
model.compile("adam", "mse")
x = np.linspace(-2, 2, 192).reshape(32, 6)
model.fit(x, x[:, :3], epochs=2, batch_size=32, shuffle=False, verbose=0)
print("llvmlite" in sys.modules, np.concatenate([w.ravel() for w in model.get_weights()]).tobytes().hex())
"""


def test_a_process_with_a_warm_cache_loads_no_llvm_and_computes_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    cold, warm = (run.stdout.split() for run in runs)
    assert (cold[0], warm[0]) == ("True", "False")
    assert cold[1] == warm[1]
    assert np.isfinite(np.frombuffer(bytes.fromhex(warm[1]), "float32")).all()


WITHOUT_LLVM = """
import sys
import numpy as np
import anabranch as ab
sys.modules["llvmlite.binding"] = None
ab.Sequential
with ab.Graph().as_default() as graph:
    x = ab.placeholder((200, 300), "float32")
    y = ab.ops.sin(x) * ab.ops.{name}(x)
    session = ab.Session(graph)
    try:
        session.run(y, {{x: np.ones((200, 300))}})
    except RuntimeError as error:
        print(error)
    print(session.run(y, {{x: np.ones((200, 300))}})[0, 0])
"""


def test_llvm_that_does_not_work_any_more_is_named_once(tmp_path: Path) -> None:
    """It was looked for when the machine was noted; the processes that find the note compile nothing before a step."""
    environment = {**os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path), "ANABRANCH_NUM_THREADS": "2"}
    environment.pop("ANABRANCH_KERNELS", None)

    def run(program: str) -> str:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    blocked = 'sys.modules["llvmlite.binding"] = None'
    one = np.sin(np.float32(1))
    first = run(WITHOUT_LLVM.replace(blocked, "").format(name="cos"))
    assert float(first) == pytest.approx(float(one * np.cos(np.float32(1))), rel=1e-5)
    message, *_, second = run(WITHOUT_LLVM.format(name="tanh")).splitlines()
    assert message.startswith("A kernel can't be compiled, as llvmlite does not work any more")
    assert float(second) == pytest.approx(float(one * np.tanh(np.float32(1))), rel=1e-5)
    assert not list(tmp_path.rglob("*.host"))
