"""`explain`: what has become of a step in short, the compiled program, and what each pass did on the way to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.nest import flatten
from ..graph.tensor import Symbol
from ..passes.framework.log import recording
from ..runtime.program import Program
from .explanation import Explanation, llvm_of, summary_of
from .inside import fetched_from
from .pass_report import format_pass_log
from .session import Session, graph_of, placeholders_of


def explain(
    fetches: Any, feeds: Sequence[Any] | Mapping[Any, Any] = (), lines: bool = True, passes: bool = False
) -> Explanation:
    """Return what the compiler made of `fetches`: loops, kernels, products, then the program as readable Python.

    Args:
        fetches: tensors and operations, in any structure.
        feeds: the arguments of the program; by default the placeholders that are needed. With values, as a dict, it is
            the program for the shapes of these.
        lines: lead with what was done in at most 15 lines, and name behind each line of the program which operation it
            computes, and which line of yours built that. Without, the text is the program alone. Of a step that spans
            devices the program is printed device by device.
        passes: instead of the program, what each pass of the compiler changed, how often and in what time, what it left
            where it was and why (for instance which value keeps a computation inside a loop), and why a pass did not
            run. See docs/explain.md.

    Returns:
        A string with attributes: `summary`, `source` (the program), `passes`, and `llvm` (its kernels).
        `to_html` writes all of it as a page.

    >>> import anabranch as ab
    >>> with ab.Graph().as_default():
    ...     x = ab.placeholder((), "float32", "x")
    ...     print(ab.explain(x + 1, [x], lines=False))
    def step(x):
        add = x + c
        return (add,)
    <BLANKLINE>
    """
    with recording() as log:
        program = compiled(fetches, feeds)
    listing = program.listing() if isinstance(program, Program) else program.listing(lines)
    told, summary = format_pass_log(log), summary_of(program, log)
    text = f"{summary}\n{listing}" if lines else (program.source if isinstance(program, Program) else listing)
    return Explanation(told if passes else text, program, summary, told, lambda: llvm_of(program))


def compiled(fetches: Any, feeds: Sequence[Any] | Mapping[Any, Any] = ()) -> Any:
    """Make the program for `fetches` again: for the shapes of values that are fed, or for all that the graph allows."""
    graph = graph_of(fetches)
    session = Session(graph)
    leaves = [getattr(leaf, "flow", leaf) for leaf in flatten(fetches)]
    inside = [fetched_from(graph, leaf) if isinstance(leaf, Symbol) else leaf for leaf in leaves]
    given = list(feeds) or placeholders_of(graph, inside)
    if not isinstance(feeds, Mapping) or not feeds:
        return session.program(fetches, given)
    return session.program_for(fetches, feeds)
