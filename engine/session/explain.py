"""`explain`: what has become of a step in short, the compiled program, and what each pass did on the way to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..common.nest import flatten
from ..graph.graph import Operation
from ..graph.tensor import Symbol, Tensor
from ..passes.framework.log import recording
from ..runtime.program import Program
from .function import Function
from .inside import fetched_from
from .pass_report import format_pass_log
from .session import Session, graph_of, placeholders_of

if TYPE_CHECKING:
    from .explanation import Explanation


def explain(
    fetches: Any, feeds: Sequence[Any] | Mapping[Any, Any] = (), lines: bool = True, passes: bool = False
) -> Explanation:
    """Return what the compiler made of `fetches`: loops, kernels, products, then the program as readable Python.

    Args:
        fetches: tensors and operations, in any structure; or a function made by `ab.function`, for the graph that its
            latest call has traced.
        feeds: the arguments of the program; by default the placeholders that are needed. With values, as a dict, it is
            the program for the shapes of these.
        lines: lead with what was done in at most 15 lines, and name behind each line of the program which operation it
            computes, and which line of yours built that. Without, the text is the program alone. Of a step that spans
            devices the program is printed device by device.
        passes: instead of the program, what each pass of the compiler changed, how often and in what time, what it left
            where it was and why (for instance which value keeps a computation inside a loop), and why a pass did not
            run. See docs/explain.md.

    Raises:
        TypeError: `fetches` is a function that no graph has been traced of.

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
    from .explanation import Explanation, llvm_of, summary_of  # it brings the compiler of regions, which few steps need

    if isinstance(fetches, Function):
        fetches, feeds = _traced(cast("Function", fetches), feeds)
    elif callable(fetches) and not isinstance(fetches, (Tensor, Operation)):
        raise _not_traced(fetches)
    with recording() as log:
        program = compiled(fetches, feeds)
    listing = program.listing() if isinstance(program, Program) else program.listing(lines)
    report, summary = format_pass_log(log), summary_of(program, log)
    text = f"{summary}\n{listing}" if lines else (program.source if isinstance(program, Program) else listing)
    return Explanation(report if passes else text, program, summary, report, lambda: llvm_of(program))


def _traced(function: Function, feeds: Sequence[Any] | Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Return the fetches and feeds of the latest trace of a function."""
    if not isinstance(feeds, (Sequence, Mapping)) or feeds:
        raise TypeError(
            "explain() of a function explains the graph that its latest call has traced, and takes no feeds. Call the "
            "function on what it is to be explained for, and then explain it."
        )
    found = function.latest_trace()
    if found is None:
        raise _not_traced(function)
    return list(found[0]), list(found[1])


def _not_traced(called: Callable[..., Any]) -> TypeError:
    """Make the error for something that can be called and has no graph."""
    own = getattr(called, "__name__", "")
    name = own if own.isidentifier() else "f"
    if isinstance(called, Function):
        way = f"was not called yet, so that it has no graph. Call it first: {name}(x); ab.explain({name})"
    elif own:
        way = f"is a plain Python function, which has no graph. Decorate it with @ab.function and call it: {name}(x)"
    else:
        way = f"is a {type(called).__name__}, which has no graph by itself. Models have an explain() of their own"
    return TypeError(
        f"explain() takes tensors of a graph, and {name!r} {way}. Or call it on a placeholder: "
        f"x = ab.placeholder((None, 3), 'float32'); ab.explain({name}(x))."
    )


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
