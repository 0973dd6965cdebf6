"""The shape of the repository: short top level, short files, relative imports, links that lead somewhere."""

import ast
import collections
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["engine", "layers", "optim", "distribute", "framework"]
TOP_LEVEL = {
    *FOLDERS,
    *["docs", "examples", "tests", ".ci", ".github", ".gitignore"],
    *[
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "__init__.py",
        "__main__.py",
        "py.typed",
        "pyproject.toml",
        "setup.py",
    ],
}
LONGEST_FILE = 600
LONGEST_TEST_FILE = 700
FULLEST_FOLDER = 25  # files
LONGEST_FUNCTION = 60  # lines, besides its docstring
WITH_KERAS_ARGUMENTS = {"layers/recurrent/conv_lstm.py __init__"}  # which it hands on: its lines are their names, twice
BEGIN = re.compile(r"^( *)(?:(?:async )?def |class \w+.*:$)", re.MULTILINE)


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def test_top_level_is_short():
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split("\n") if line and line[0] != "#"]
    patterns = [".git", *(pattern.lstrip("/") for pattern in ignored)]
    names = {path.name for path in ROOT.iterdir()}

    assert {name for name in names if not any(fnmatch.fnmatch(name, each) for each in patterns)} == TOP_LEVEL


def test_files_are_short():
    long: dict[str, int] = {}
    for limit, folders in [(LONGEST_FILE, FOLDERS), (LONGEST_TEST_FILE, ["tests", "examples"])]:
        lengths = {path: path.read_text().count("\n") for path in python_files(*folders)}
        long |= {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > limit}

    assert long == {}, "long files hold more than one subject: split them"


def test_folders_of_the_package_are_small():
    files = collections.Counter(path.parent.relative_to(ROOT).as_posix() for path in python_files(*FOLDERS))

    full = {folder: count for folder, count in files.items() if count > FULLEST_FOLDER}
    assert full == {}, f"folders of more than {FULLEST_FOLDER} files hold more than one subject: part them"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function, those of its signature included, without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    of_docstring = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - of_docstring


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a module; those inside of others count with these."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each
        elif isinstance(each, ast.ClassDef | ast.If | ast.With | ast.Try):
            yield from functions(each)


def may_hold_a_long_function(text: str) -> bool:
    """Test whether some line that begins a function is far from the next one, or the end, that is indented no more."""
    begins = [(text.count("\n", 0, each.start()), len(each[1])) for each in BEGIN.finditer(text)]
    ends = [*begins, (text.count("\n") + 1, 0)]
    for number, (line, indent) in enumerate(begins):
        end = next(end for end, other in ends[number + 1 :] if other <= indent)
        if end - line > LONGEST_FUNCTION:
            return True
    return False


def test_functions_are_short():
    long: dict[str, int] = {}
    for path in [ROOT / "__init__.py", *python_files(*FOLDERS)]:
        text = path.read_text()
        if not may_hold_a_long_function(text):
            continue  # most files: parsing them all takes long
        for node in functions(ast.parse(text, str(path))):
            name = f"{path.relative_to(ROOT)} {node.name}"
            if lines_of(node) > LONGEST_FUNCTION and name not in WITH_KERAS_ARGUMENTS:
                long[name] = lines_of(node)
    assert long == {}, f"functions over {LONGEST_FUNCTION} lines do more than one thing: split them"


def absolute_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if node.level == 0 else []


def test_imports_inside_the_package_are_relative():
    absolute: list[str] = []
    for path in [ROOT / "__init__.py", *python_files(*FOLDERS)]:
        text = path.read_text()
        if not re.search(r"^ *(from|import) .*\banabranch\b", text, re.MULTILINE):
            continue  # most files: parsing them all takes long
        for node in ast.walk(ast.parse(text, str(path))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            if any(name.partition(".")[0] == "anabranch" for name in absolute_names(node)):
                absolute.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")

    # For type checkers alone: `tf.keras` is the package itself, which no relative import names.
    assert absolute == ["framework/tensorflow_names/__init__.py: import anabranch as keras"]


def test_no_package_in_tests():
    # An __init__.py here makes pytest import the root a second time under another name.
    assert [path for path in python_files("tests", "examples") if path.name == "__init__.py"] == []


def page_names() -> list[str]:
    return [
        "README.md",
        ".github/SECURITY.md",
        ".github/SUPPORT.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    ]


@pytest.mark.parametrize("name", page_names())
def test_links_lead_somewhere(name: str):
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # code has no links
    links = re.findall(r"\]\(([^)#\s]+)", text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]

    assert [link for link in local if not (page.parent / link).exists()] == []


def test_readme_promises_make_targets_that_exist():
    promised = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert promised >= {"demo", "test"}
    assert promised <= targets


# What the structure of a step is made of; `framework/changes.py` has the functions that assign to it.
STRUCTURE = {
    "captures",
    "control_inputs",
    "effects",
    "inputs",
    "op",
    "operation",
    "operations",
    "outputs",
    "parameters",
}
STRUCTURE |= {"results", "spec"}
LISTS = {"captures", "operations", "parameters", "results"}  # the others are tuples
IN_PLACE = {"append", "clear", "extend", "insert", "pop", "remove"}
MAY_CHANGE_STRUCTURE = {"changes.py", "order.py", "specialise.py"}  # which sort a graph, and make the copy of a step
# The folders whose code gets whole steps, or graphs of replicas. Others build graphs, or have a form of their own.
CHANGE_STEPS = [
    "engine/autodiff",
    "engine/codegen",
    "engine/passes",
    "engine/place",
    "engine/testing",
    "framework/pipeline",
    "framework/replicas",
]


def changed_structure(tree: ast.Module) -> Iterator[int]:
    """The lines that assign to a part of the structure of an operation or region, or to an element of one."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in IN_PLACE:
            targets = [node.func.value]
        for target in targets:
            changed = target.value if isinstance(target, ast.Subscript) else target
            if not isinstance(changed, ast.Attribute):
                continue
            is_own = isinstance(changed.value, ast.Name) and changed.value.id in ("self", "error")
            if changed.attr in (LISTS if isinstance(node, ast.Call) else STRUCTURE) and not is_own:
                yield target.lineno


@pytest.mark.parametrize(
    "text",
    [
        "node.inputs = (a, b)",
        "self.node.outputs = found",
        "body.results[0] = a",
        "del region.parameters[0]",
        "node.op, node.index = op, 0",
        "loop.body.results.append(a)",
    ],
)
def test_a_change_of_structure_is_seen(text: str):
    assert list(changed_structure(ast.parse(text))) == [1]


def test_steps_are_changed_by_the_functions_for_it_alone():
    files = [path for path in python_files(*CHANGE_STEPS) if path.name not in MAY_CHANGE_STRUCTURE]
    found = [
        f"{path.relative_to(ROOT)}:{line}" for path in files for line in changed_structure(ast.parse(path.read_text()))
    ]

    assert len(files) > 250
    assert found == [], "a pass changes a step by the `Rewriter`, or by `passes/framework/changes.py`"


SIZE = re.compile(r"^\| `((?:passes|codegen)/\w+)` \| ([\d,]+) \|", re.MULTILINE)


def test_the_page_on_the_compiler_says_how_large_it_is():
    page = (ROOT / "docs" / "compiler.md").read_text()
    described = {folder: int(lines.replace(",", "")) for folder, lines in SIZE.findall(page)}
    actual: collections.Counter[str] = collections.Counter()
    for path in python_files("engine/passes", "engine/codegen"):
        folder = path.parent.relative_to(ROOT / "engine").as_posix()
        actual[folder] += path.read_text().count("\n")

    assert described.keys() == {folder for folder in actual if "/" in folder}
    wrong = {
        folder: actual[folder]
        for folder, lines in described.items()
        if abs(actual[folder] - lines) > max(100, lines / 10)
    }
    assert wrong == {}, "docs/compiler.md, Size: these folders have other numbers of lines"
