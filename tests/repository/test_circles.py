"""Circles of imports, those inside of functions counted: there are none.

An import inside of a function ends no circle, it only hides it: neither file can be read, or tested, without the other.
Imports for type checkers alone may make one among the files of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "layers", "optim", "distribute", "framework")
TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:(?:    .*)?\n)+", re.M)
IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import (\([^)]*\)|.+)", re.M)

Imports = dict[str, list[str]]


def imports_of(files: dict[str, str], with_types: bool = False) -> Imports:
    """The files that each file imports.

    Args:
        files: the text of each, by its path without suffix.
        with_types: count imports for type checkers alone, too.
    """
    texts = files if with_types else {file: TYPES_ONLY.sub("", text) for file, text in files.items()}
    return {file: [other for other in imported(file, text, files) if other != file] for file, text in texts.items()}


def imported(file: str, text: str, files: dict[str, str]) -> Iterator[str]:
    for dots, module, names in IMPORT.findall(text):
        folder = file.split("/")[: -len(dots)]
        place = "/".join([*folder, *module.split(".")]) if module else "/".join(folder)
        for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)):
            for other in (f"{place}/{name}", f"{place}/{name}/__init__", place, f"{place}/__init__"):
                if other in files:
                    yield other
                    break


def circles(imports: Imports) -> list[list[str]]:
    """The files of each circle, in order (R. Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    pending: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = lowest[file] = len(number)
        pending.append(file)
        for other in imports[file]:
            if other not in number:
                visit(other)
            if other in pending:
                lowest[file] = min(lowest[file], lowest[other])
        if lowest[file] == number[file]:
            circle = pending[pending.index(file) :]
            del pending[pending.index(file) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for file in imports:
        if file not in number:
            visit(file)
    return found


def package() -> dict[str, str]:
    """The texts of the package, by their paths without suffix."""
    paths = [ROOT / "__init__.py", *[path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]]
    return {path.relative_to(ROOT).with_suffix("").as_posix(): path.read_text() for path in paths}


def test_no_imports_make_circles():
    assert circles(imports_of(package())) == []


def test_no_imports_for_type_checkers_make_circles_over_folders():
    found = circles(imports_of(package(), with_types=True))
    assert [circle for circle in found if len({file.rpartition("/")[0] for file in circle}) > 1] == []


def test_a_circle_through_a_function_is_found():
    files = {
        "a/one": "from .two import f\n",
        "a/two": "def g():\n    from ..b import three\n",
        "a/__init__": "",
        "b/three": "from ..a.one import (\n    g,  # twice\n)\n",
        "b/four": "if TYPE_CHECKING:\n    from .three import h\n    from .five import k\n\nfrom . import three\n",
        "b/five": "from .four import m\n",
    }
    assert circles(imports_of(files)) == [["a/one", "a/two", "b/three"]]
    assert circles(imports_of(files, with_types=True)) == [["a/one", "a/two", "b/three"], ["b/five", "b/four"]]
