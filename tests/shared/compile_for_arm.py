"""Compile the kernels of some programs for AArch64, too, and run those programs with its vectors on this host.

Run as a script, in a process of its own: kernels are printed for a processor with NEON (vectors of 16 bytes), compiled
by LLVM's cross target, and once more for this host, where they run. Prints the number of modules, and for each program
the greatest difference from the interpreter's results, relative to the largest.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import llvmlite.binding as binding
import numpy as np

import anabranch as ab
from anabranch.engine.codegen.llvm.compiler import Compiler
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.runtime.program import Program

TRIPLE, PROCESSOR, FEATURES = "aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"
_MACHINE_OF_ELF = 183  # EM_AARCH64
ops = ab.ops


class Arm:
    """Compiles each module for AArch64 before this host's compiler gets it."""

    def __init__(self) -> None:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        target = binding.Target.from_triple(TRIPLE)
        self._machine = target.create_target_machine(cpu=PROCESSOR, features=FEATURES, opt=2, reloc="pic")
        self.modules = 0

    def compile(self, text: str) -> None:
        module = binding.parse_assembly(text, binding.create_context())
        module.triple = TRIPLE
        module.data_layout = str(self._machine.target_data)
        module.verify()
        code = self._machine.emit_object(module)
        assert code[:4] == b"\x7fELF"
        assert struct.unpack_from("<H", code, 18) == (_MACHINE_OF_ELF,)
        self.modules += 1


def random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def recurrent() -> tuple[list[Any], dict[Any, Any]]:
    x, w, u = ab.placeholder((9, 40, 16), "float32", "x"), ab.Variable(random(16, 24)), ab.Variable(random(24, 24))
    _, h = ab.while_loop(lambda t, h: t < 9, lambda t, h: (t + 1, ops.tanh(x[t] @ w + h @ u)), (0, ops.zeros((40, 24))))
    loss = ops.mean(ops.softmax(h) * h)
    return [loss, *ab.gradients(loss, [w, u])], {x: random(9, 40, 16)}


def images() -> tuple[list[Any], dict[Any, Any]]:
    x, first = ab.placeholder((2, 18, 18, 16), "float32", "x"), ab.Variable(random(3, 3, 16, 16) / 12)
    second, third = ab.Variable(random(5, 5, 16, 8) / 20), ab.Variable(random(3, 3, 8, 1) / 3)
    y = ops.max_pool(ops.relu(ops.conv(x, first, padding="same")), 2)
    y = ops.depthwise_conv(ops.conv(y, second, padding="same"), third)
    loss = ops.mean(ops.square(ops.average_pool(y, 2)))
    return [loss, *ab.gradients(loss, [first, second, third])], {x: random(2, 18, 18, 16)}


def tables() -> tuple[list[Any], dict[Any, Any]]:
    ids, table, w = ab.placeholder((64,), "int32", "ids"), ab.Variable(random(200, 32)), ab.Variable(random(32, 90))
    scores = ops.layer_normalization(ops.gelu(ops.take(table, ids, axis=0) @ w))
    best, _ = ops.top_k(scores, 3)
    loss = ops.sum(best) + ops.logsumexp(scores)
    return [loss, *ab.gradients(loss, [w])], {ids: (np.arange(64) * 7 % 200).astype("int32")}


def factors() -> tuple[list[Any], dict[Any, Any]]:
    x = ab.placeholder((130, 130), "float32", "x")
    matrix = random(130, 130)
    lower = ops.cholesky(x)
    loss = ops.sum(ops.solve_triangular(lower, x[:, :20], lower=True)) + ops.sum(ops.log(ops.diagonal(lower)))
    return [lower, loss, *ab.gradients(loss, [x])], {x: matrix @ matrix.T + 130 * np.eye(130, dtype="float32")}


def difference(found: list[Any], expected: list[Any]) -> float:
    scale = max(float(np.abs(each).max()) for each in expected)
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)) / scale


def main() -> None:
    assert library.usable
    arm, emit = Arm(), Compiler.emit

    def emitted(compiler: Compiler, text: str, effort: Any) -> bytes:
        arm.compile(text)
        here = "\n".join(line for line in text.split("\n") if "@llvm.aarch64." not in line)  # pauses, which need not be
        return emit(compiler, here, effort)

    Compiler.emit = emitted  # type: ignore[method-assign]
    library.host = f"{TRIPLE} {PROCESSOR} {FEATURES}"
    found: dict[str, float] = {}
    for make in (recurrent, images, tables, factors):
        with ab.Graph().as_default() as graph:
            fetches, fed = make()
            plain, exact = (Program(graph, fetches, list(fed), exact=is_exact) for is_exact in (False, True))
            results = [[np.asarray(value) for value in program(*fed.values())] for program in (plain, exact)]
        found[make.__name__] = difference(*results)
    print(json.dumps({"modules": arm.modules, "differences": found}))


if __name__ == "__main__":
    main()
