"""Prepare docstrings for Markdown: doctests become fenced blocks, which Markdown would read as quotations."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Class, Extension, Function, Module, Object

import anabranch

ROOT = Path(__file__).resolve().parents[2]
_TITLES = frozenset(
    ["Args:", "Attributes:", "Example:", "Examples:", "Raises:", "Returns:", "Yields:", "Warns:", "Note:", "Notes:"]
)


def fence_doctests(text: str) -> str:
    """Return the docstring `text` with each run of ``>>>`` examples, up to the next blank line, as a ``pycon`` block.

    >>> print(fence_doctests("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    indent: str | None = None
    for line in text.splitlines():
        start = re.match(r"\s*(?=>>> )", line)
        if indent is None and start:
            indent = start.group()
            if lines and lines[-1].strip() and lines[-1].strip() not in _TITLES:
                lines.append("")
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    if indent is not None:
        lines.append(f"{indent}```")
    return "\n".join(lines)


def with_sections(text: str, sections: str) -> str:
    """Return the docstring `text` with `sections` behind its description, in front of its examples.

    >>> print(with_sections("Add.\\n\\n>>> 1 + 1\\n2", "Returns:\\n    The sum."))
    Add.
    <BLANKLINE>
    Returns:
        The sum.
    <BLANKLINE>
    >>> 1 + 1
    2
    """
    description, prompt, examples = text.partition(">>> ")
    return f"{description.rstrip()}\n\n{sections}\n" + (f"\n{prompt}{examples}" if prompt else "")


def source_line(file: Path, first: int, lines: Sequence[str], repository: str | None) -> str:
    """Return the line of a page that says where a function or a class is defined.

    Args:
        file: its file, below the root of the repository, by any link.
        first: the number of the first of its `lines`, which may be that of a decorator.
        lines: its source.
        repository: the address of the repository, None where it has none: there is no link then.
    """
    path = file.resolve().relative_to(ROOT).as_posix()
    line = first + next(place for place, text in enumerate(lines) if re.match(r"\s*(async )?(def|class) ", text))
    text = f"`{path}`, line {line}"
    if repository is None:
        return f"Source: {text}"
    version = anabranch.__version__
    tree = "main" if ".dev" in version else f"v{version}"
    return f"Source: [{text}]({repository}/blob/{tree}/{path}#L{line})"


def repository() -> str | None:
    """Return the address of the repository that pyproject.toml names, None if it names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"site_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Docstrings(Extension):
    """Apply `fence_doctests` to every docstring that is collected.

    Some get the sections of `arguments.py` and the example of `examples.py`. Those of functions and classes end with
    the line of their source.
    """

    def __init__(self) -> None:
        super().__init__()
        self._module, self._arguments = _load("examples"), _load("arguments")
        values = {self._module.value_of(name): code for name, code in self._module.examples().items()}
        self._examples = {f"{value.__module__}.{value.__qualname__}": code for value, code in values.items()}
        ops = {name: getattr(anabranch.ops, name) for name in self._arguments.kinds()}
        self._repository = repository()
        self._ops = {f"{value.__module__}.{value.__qualname__}": name for name, value in ops.items()}

    def on_package(self, **kwargs: Any) -> None:
        """Look through the bases of each class once, now that all of them are read, not for each part of its entry."""
        found = Object.inherited_members.fget
        assert found is not None
        Class.inherited_members = property(cache(found))

    def on_function_instance(self, *, func: Function, **kwargs: Any) -> None:
        """Write what a private constant stands for where it is the default of a parameter."""
        for parameter in func.parameters:
            if re.fullmatch(r"_[A-Z][A-Z_0-9]*", str(parameter.default)):
                value = getattr(importlib.import_module(func.module.path), str(parameter.default), None)
                if isinstance(value, (str, int, float, tuple)):
                    parameter.default = repr(value)

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of `obj` before it is parsed."""
        if obj.docstring is None:
            return
        op = self._ops.get(obj.path)
        if op is not None:
            obj.docstring.value = with_sections(obj.docstring.value, self._arguments.sections(op))
        code = self._examples.get(obj.path)
        if code is not None and ">>> " not in obj.docstring.value:
            obj.docstring.value += f"\n\n{self._module.run(code)}\n"
        if ">>> " in obj.docstring.value:
            obj.docstring.value = fence_doctests(obj.docstring.value)
        if isinstance(obj, (Function, Class)) and isinstance(obj.parent, Module):
            assert isinstance(obj.filepath, Path)
            assert obj.lineno is not None
            where = source_line(obj.filepath, obj.lineno, obj.lines, self._repository)
            obj.docstring.value = f"{obj.docstring.value.rstrip()}\n\n{where}"
