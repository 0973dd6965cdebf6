"""Prepare docstrings for Markdown: doctests become fenced blocks, which Markdown would read as quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

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


class Docstrings(Extension):
    """Apply `fence_doctests` to every docstring that is collected."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of `obj` before it is parsed."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fence_doctests(obj.docstring.value)
