"""Types by which type checkers find what a call returns: of a function, a layer, a model or a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

Result = TypeVar("Result", covariant=True)

if TYPE_CHECKING:  # the standard library has defaults of type variables from Python 3.13 on
    from typing_extensions import TypeVar as TypeVarWithDefault

    Outputs = TypeVarWithDefault("Outputs", default=Any)
else:
    Outputs = TypeVar("Outputs")


class HasCall(Protocol[Result]):
    """A layer by what its `call` returns."""

    def call(self, *args: Any, **kwargs: Any) -> Result: ...


class HasResult(Protocol[Result]):
    """A metric by what its `result` returns."""

    def update_state(self, *args: Any, **kwargs: Any) -> Any: ...

    def result(self) -> Result: ...
