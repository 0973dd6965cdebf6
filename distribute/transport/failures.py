"""Errors on their way from a task to a client: what they say and of what kind they are; no code travels."""

from __future__ import annotations

import builtins
from functools import cache
from typing import Any

import numpy as np

from ...engine.queues import errors

_PLAIN = (
    *(ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError, EOFError, MemoryError),
    OSError,  # of files
)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Write an error down: its kind, message and notes."""
    found: dict[str, Any] = {
        "type": type(error).__name__,
        "message": _text(error),
        "notes": list(getattr(error, "__notes__", ())),
    }
    if isinstance(error, errors.TaskFailedError):
        found |= {"task": error.task, "reason": error.reason, "step": error.step, "waiting": error.waiting}
    return found


def _text(error: BaseException) -> str:
    """Return the message of an error; a user's class may fail to give one."""
    try:
        return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    except Exception as another:
        return f"its text can't be read: {type(another).__name__}"


def read_error(description: dict[str, Any]) -> Exception:
    """Make the error that was written down: of the same kind where that is known here, else a RuntimeError."""
    name, message = str(description.get("type")), str(description.get("message"))
    if name == "TaskFailedError":
        task, reason, step = (description.get(key) for key in ("task", "reason", "step"))
        number = step if isinstance(step, int) else None
        failed = errors.TaskFailedError(message, str(task), str(reason), number)
        waiting = description.get("waiting")
        failed.waiting = {str(key): str(text) for key, text in waiting.items()} if isinstance(waiting, dict) else {}
        made: Exception = failed
    else:
        made = _type_named(name)(message)
        if type(made).__name__ != name:
            made = RuntimeError(f"{name}: {message}")
    for note in description.get("notes") or ():
        made.add_note(str(note))
    return made


@cache
def _own_types() -> dict[str, type[Exception]]:
    """Return the types of errors that are not Python's, by name.

    Most of the engine is imported for them, which the process of a launcher does without.
    """
    from ...engine.machine.report import StalledError
    from ...engine.machine.step import DeadValueError
    from ...engine.place.constraints import PlacementError
    from ...engine.runtime.deep_calls import CallsTooDeepError
    from ...engine.saving import SavedGraphError

    types = (CallsTooDeepError, DeadValueError, PlacementError, SavedGraphError, StalledError, np.linalg.LinAlgError)
    return {name: getattr(errors, name) for name in errors.__all__} | {each.__name__: each for each in types}


def _type_named(name: str) -> type[Exception]:
    known = _own_types().get(name)
    if known is not None:
        return known
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, _PLAIN) and not issubclass(found, UnicodeError):
        return found
    return RuntimeError


def task_unavailable(task: str, error: object) -> errors.TaskFailedError:
    """Report that a task can't be used, for a reason that says how to mend it."""
    reason = str(error).rstrip(".")
    return errors.TaskFailedError(f"{task} has failed: {reason}. Steps that do not need it run.", task, reason, None)


def task_failed(task: str, reason: str, step: int | None = None) -> errors.TaskFailedError:
    """Say that a task is gone."""
    where = "" if step is None else f" Step {step} needed it, and has ended on all tasks."
    return errors.TaskFailedError(
        f"{task} has failed: {reason}.{where} Steps that do not need it run; restart it to use it again.",
        task,
        reason,
        step,
    )
