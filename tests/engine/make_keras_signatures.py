"""Writes the table of Keras's op signatures that `test_ops_signatures` reads, from the source of a Keras release.

Run it with the folder ``keras/src`` of an unpacked wheel:

    python tests/engine/make_keras_signatures.py path/to/keras/src > tests/engine/keras_op_signatures.txt
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path


def exported(source: str) -> Iterable[tuple[str, str]]:
    """(public name without ``keras.``, parameters as text) of each function that a module exports."""
    for definition in ast.parse(source).body:
        if not isinstance(definition, ast.FunctionDef):
            continue
        for decorator in definition.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "keras_export":
                names = ast.literal_eval(decorator.args[0])
                for name in [names] if isinstance(names, str) else names:
                    yield name.removeprefix("keras."), ast.unparse(definition.args)


def table(folder: Path) -> list[str]:
    """The lines of the table: ``ops.numpy.abs(x)``."""
    modules = [path for path in (folder / "ops").glob("*.py") if not path.name.endswith("_test.py")]
    found = [pair for path in [*modules, folder / "random" / "random.py"] for pair in exported(path.read_text("utf-8"))]
    return sorted(f"{name}({parameters})" for name, parameters in found if name.startswith(("ops.", "random.")))


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(Path(sys.argv[1]))) + "\n")
