"""Several large products of matrices, as LLVM IR: each computed by `gemm`, dealt out in parts where there are many."""

from __future__ import annotations

from .gemm_batch import LOOPS, print_places, print_start, print_task_head
from .gemm_code import ProductBuilder

# Numbers that are read, before those of the axes; the sizes and steps are those of one product.
FIELDS = (
    *("part_units", "units", "parts", "product"),
    *("rows", "columns", "terms", "a_step", "is_a_turned", "b_step", "is_b_turned", "c_step"),
)


def print_large(element: str, axes: int, name: str) -> str:
    """Print the module with ``void @name(a, b, c, ptr numbers)``; numbers: `FIELDS`, then those of `axes` axes."""
    return LOOPS + _print_task(element, axes) + print_start(FIELDS.index("parts"), name)


def _print_task(e: str, axes: int) -> str:
    code = ProductBuilder("task", ["ptr %context", "i64 %part"])
    places, numbers, get = print_task_head(code, FIELDS)
    kinds = (
        *("i64", "i64", "i64", "ptr", "i64", "i64", "ptr", "i64", "i64", "ptr", "i64"),
        *("ptr", "i64", "ptr", "i64"),
    )
    product = code.let(f"inttoptr i64 {get['product']} to ptr")
    first = code.mul("%part", get["part_units"])
    with code.loop(first, code.least(get["units"], code.add(first, get["part_units"]))) as unit:
        a, b, c = print_places(code, e, places, unit, numbers, len(FIELDS), axes)
        values = (
            *(get["rows"], get["columns"], get["terms"], a, get["a_step"], get["is_a_turned"]),
            *(b, get["b_step"], get["is_b_turned"], c, get["c_step"], "null", 0, "null", 0),
        )
        arguments = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, values, strict=True))
        code.line(f"call void {product}({arguments})")
    return code.text()
