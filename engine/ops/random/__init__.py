"""Random keys, draws and distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.names_elsewhere import DRAWS_FOLDER, module_error


def _refuse(name: str) -> Any:
    raise module_error(__name__, name, DRAWS_FOLDER)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _refuse
