"""docs/ops.md lists every public op with the first line of its docstring.

After a change: ``ANABRANCH_WRITE_GOLDEN=1 pytest tests/repository/test_ops_page.py``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from types import FunctionType, ModuleType

from anabranch import ops
from anabranch.engine.ops.random import samplers as random

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
NAMESPACES = ("image", "sparse", "strings")
HEAD = """# Ops

{count} functions under `anabranch.ops` and `anabranch.random`, with the names, argument orders and defaults of
`keras.ops` and `keras.random` wherever Keras has one, and TensorFlow's otherwise. `anabranch.ops.numpy`, `.nn` and
`.linalg` group some of them as Keras does. All take tensors, Variables, arrays and Python numbers; dtypes follow
[dtypes.md](dtypes.md).

An op of your own is a class like these ([op.py](../engine/graph/op.py)): a frozen dataclass with `infer`, `run`, `grad`
and `samples`. `ab.testing.check_op(YourOp)` runs the tests that these have, generated from its samples.

This page is made from the docstrings, by `tests/repository/test_ops_page.py`.

## Indices that are negative or out of range

What is read or written has to be there; an id that names a group may name none, as -1 does for padding.

| ops | a negative index | an index outside |
|---|---|---|
| NumPy's | counts from the end | `IndexError` |
| TensorFlow's | `IndexError` | `IndexError` |
| ids of groups | is left out | is left out |

NumPy's are `x[...]`, `take`, `take_along_axis` and the `Embedding` layer. TensorFlow's are `gather`, `gather_nd`,
`scatter`, `scatter_nd`, `scatter_add`, `scatter_update`, `tensor_scatter_nd_*`, `slice`, `slice_update`,
`embedding_lookup`, `embedding_lookup_sparse` and elements of a `TensorArray`. `segment_*`, `one_hot` and `multi_hot`
take ids of groups.

A row whose id is left out adds to no segment, and gets no gradient; a class that is left out gives zeros. For the time
of `with ab.debugging.check_indices():`, or from `enable_check_indices()` on, both are an `IndexError` that names the
operation, the id and the line that built it.
"""


def test_the_page_is_up_to_date():
    page = ops_page()
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        PAGE.write_text(page, "utf-8")
    assert PAGE.read_text("utf-8") == page


def test_there_are_as_many_ops_as_promised():
    assert len(public_functions(ops)) >= 220


def ops_page() -> str:
    sections: dict[str, list[tuple[str, FunctionType]]] = {}
    for name, function in public_functions(ops).items():
        sections.setdefault(theme(function.__module__), []).append((name, function))
    for namespace in NAMESPACES:
        module = getattr(ops, namespace)
        listed = [(f"{namespace}.{n}", f) for n, f in public_functions(module).items()]
        sections[f"`ops.{namespace}`: {theme(module.__name__)}"] = listed
    sections["`anabranch.random`"] = [(f"random.{name}", f) for name, f in public_functions(random).items()]
    count = sum(len(functions) for functions in sections.values())
    tables = [
        "\n".join([f"\n## {title}\n", "| op | |", "|---|---|", *[row(name, function) for name, function in functions]])
        for title, functions in sections.items()
    ]
    return "\n".join([HEAD.format(count=count), *tables]).replace("\n\n\n", "\n\n") + "\n"


def public_functions(module: ModuleType) -> dict[str, FunctionType]:
    """The functions that a module offers to users, by name, those of one source file together."""
    names = getattr(module, "__all__", None) if module is not ops else dir(ops)
    found = {name: getattr(module, name) for name in names or dir(module) if not name.startswith("_")}
    functions = {name: f for name, f in found.items() if inspect.isfunction(f) and ".engine.ops." in f.__module__}
    return dict(sorted(functions.items(), key=lambda item: (item[1].__module__, item[0])))


def theme(module: str) -> str:
    """The first sentence of a module's docstring."""
    text = inspect.getdoc(importlib.import_module(module)) or module
    return " ".join(re.split(r"\.(?:\s|$)|\n\n", text)[0].split())


def row(name: str, function: FunctionType) -> str:
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    shown = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))  # with its stars
    text = " ".join(re.split(r"\n\s*\n", inspect.getdoc(function) or "")[0].split())
    cells = [f"`{name}{shown}`", text.replace("``", "`")]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
