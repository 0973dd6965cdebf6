"""Time products of integers beside onnxruntime and PyTorch: what rows of floats and a matrix of int8 or int4 take.

    OMP_NUM_THREADS=1 python tests/benchmarks/integer_products.py [--torch PYTHON] [--rounds 7] [--without-amx]

prints the instruction that kernels use here, and a table of microseconds: of each candidate the least and the median of
rounds in which all take turns, in processor time of one thread. Rounding rows and scaling results is part of each.
`predict` is the whole call of a model with one Dense layer, 1,024 to 4,096 at 32 rows, float32 and int8.
PyTorch is run by the interpreter that is named; without one its column is empty. `--without-amx` has our kernels use
VNNI on a processor that has AMX, too; the peers use what they find.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import dot_products
from anabranch.engine.ops.neural.int4 import dequantize_int4
from anabranch.engine.ops.neural.quantized import quantized_matmul

SIZES = ((1, 1024, 1024), (1, 4096, 4096), (32, 1024, 4096), (128, 512, 2048))
_GROUP = 128
_SECONDS = 0.05  # of a round
_TORCH = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
torch.set_num_threads(1)
for line in sys.stdin:
    rows, terms, columns = json.loads(line)
    layer = torch.nn.Sequential(torch.nn.Linear(terms, columns, bias=False))
    layer = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
    x = torch.randn(rows, terms)
    with torch.inference_mode():
        layer(x)
        count, began = 0, time.process_time()
        while time.process_time() - began < 0.05:
            layer(x)
            count += 1
    print((time.process_time() - began) / count * 1e6, flush=True)
"""

Call = Callable[[], Any]


def ours(size: tuple[int, int, int]) -> dict[str, Call]:
    """Our products, by name."""
    rows, terms, columns = size
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(rows, terms)).astype("float32"), terms // _GROUP
    kernel, scale = rng.integers(-127, 128, (terms, columns), "int8"), rng.uniform(50, 200, columns).astype("float32")
    packed, zero = rng.integers(-128, 128, (terms, columns // 2), "int8"), np.zeros((groups, columns), "int8")
    scales, group = np.full((groups, columns), 0.05, "float32"), np.arange(terms, dtype="float32") // _GROUP
    calls: dict[str, Call] = {}
    for name in ("float32", "int8", "int4"):
        with ab.Graph().as_default() as graph:
            given: Any = ab.placeholder(x.shape, "float32")
            if name == "float32":
                result = given @ ab.Variable(kernel.astype("float32"))
            elif name == "int8":
                result = quantized_matmul(given, ab.Variable(kernel), ab.Variable(scale))
            else:
                weights: list[Any] = [ab.Variable(value) for value in (packed, scales, zero, group)]
                result = given @ dequantize_int4(*weights, columns=columns)
            step = ab.Session(graph).make_callable(result, [given])
        calls[name] = lambda step=step: step(x)
    return calls


def onnxruntimes(size: tuple[int, int, int]) -> dict[str, Call]:
    """Those of onnxruntime: int8 with dynamic rounding by tensor, int4 by MatMulNBits with rows rounded to int8."""
    rows, terms, columns = size
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, terms)).astype("float32")
    arrays = {"w": rng.integers(-127, 128, (terms, columns), "int8"), "s": np.full(columns, 0.01, "float32")}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "s"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"]),
    ]
    blocks = terms // _GROUP
    four = {
        "b": rng.integers(0, 256, (columns, blocks, _GROUP // 2), "uint8"),
        "t": np.full(columns * blocks, 0.05, "float32"),
    }
    sizes: dict[str, Any] = {"K": terms, "N": columns, "bits": 4, "block_size": _GROUP, "accuracy_level": 4}
    nbits = [helper.make_node("MatMulNBits", ["x", "b", "t"], ["y"], domain="com.microsoft", **sizes)]
    calls: dict[str, Call] = {}
    for name, own, values in (("int8", nodes, arrays), ("int4", nbits, four)):
        ends = [
            helper.make_tensor_value_info(end, TensorProto.FLOAT, [rows, n])
            for end, n in (("x", terms), ("y", columns))
        ]
        constants = [numpy_helper.from_array(value, key) for key, value in values.items()]
        graph = helper.make_graph(own, "product", ends[:1], ends[1:], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        calls[f"onnxruntime {name}"] = lambda session=session: session.run(None, {"x": x})
    return calls


def predictions() -> dict[str, Call]:
    """`predict` of a model, in float32 and in int8."""
    x = np.random.default_rng(0).normal(size=(32, 1024)).astype("float32")
    calls: dict[str, Call] = {}
    for mode in ("float32", "int8"):
        model = ab.Sequential([ab.Input((1024,)), ab.layers.Dense(4096)])
        if mode == "int8":
            model.quantize(mode)
        calls[mode] = lambda model=model: model.predict(x, verbose=0)
    return calls


def timed(calls: dict[str, Call], rounds: int, torch: Call | None) -> dict[str, list[float]]:
    """Microseconds of a call in each round, by name."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            count, began = 0, time.process_time()
            while time.process_time() - began < _SECONDS:
                call()
                count += 1
            found[name].append((time.process_time() - began) / count * 1e6)
        if torch is not None:
            found.setdefault("torch int8", []).append(torch())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time products of integers.")
    parser.add_argument("--torch", help="an interpreter that has PyTorch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-amx", action="store_true", help="have our kernels use VNNI in place of AMX")
    arguments = parser.parse_args()
    if arguments.without_amx:
        dot_products.may_use_tiles = lambda: False
    assert library.usable
    dot = dot_products.dot_product_of(library.host)
    instruction = f"{dot.instruction or 'plain'}{' and tdpbsud' if dot.has_tiles else ''}"
    print(f"{library.host.split()[1]}: {instruction}; onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}\n")
    names = ("float32", "int8", "int4", "onnxruntime int8", "onnxruntime int4", "torch int8")
    print(f"| us, least / median | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    command = [arguments.torch or sys.executable, "-c", _TORCH if arguments.torch else ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin
        assert worker.stdout

        def by_torch(size: tuple[int, int, int]) -> float:
            print(json.dumps(size), file=worker.stdin, flush=True)
            return float(worker.stdout.readline())  # type: ignore[union-attr]

        for size in SIZES:
            torch = (lambda size=size: by_torch(size)) if arguments.torch else None
            found = timed(ours(size) | onnxruntimes(size), arguments.rounds, torch)
            cells = [f"{min(own):,.1f} / {median(own):,.1f}" if (own := found.get(name)) else "" for name in names]
            print(f"| {'x'.join(map(str, size))} | {' | '.join(cells)} |", flush=True)
        worker.stdin.close()
    found = timed(predictions(), arguments.rounds, None)
    ratio = median(own / whole for own, whole in zip(found["int8"], found["float32"], strict=True))
    whole = median(found["float32"])
    print(f"\npredict of Dense 1024-4096 at 32 rows: int8 takes {ratio:.2f} of float32 ({whole:,.0f} us)")


if __name__ == "__main__":
    main()
