"""`check_op`: all checks of one op class over its samples, with everything that is wrong in one message."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..graph.graph import Graph
from ..graph.op import ErrorSample, Op, Sample, registered_ops
from .checks import check_axes, check_dtypes, check_emission, check_facts, check_layouts, check_specs, check_value
from .comparing import KNOWN, finding
from .control_flow import check_control_flow, check_session
from .derivatives import check_derivatives
from .kernel_checks import check_kernels
from .saving import check_saving

LEAST_SAMPLES = 3
_NOT_IN_FRONT = (
    "- axes: last_axes = {} was not checked: no sample has axes in front of these. Yield one that has, from the class "
    "method samples()."
)


def _check_derivatives(sample: Sample) -> int:
    return sum(check_derivatives(sample, known) for known in KNOWN)


CHECKS: dict[str, Callable[[Sample], int]] = {
    "value": check_value,
    "specs": check_specs,
    "axes": check_axes,
    "facts": check_facts,
    "emission": check_emission,
    "kernels": check_kernels,
    "layouts": check_layouts,
    "dtypes": check_dtypes,
    "derivatives": _check_derivatives,
    "control flow": check_control_flow,
    "session": check_session,
    "saving": check_saving,
}


def check_error(sample: ErrorSample) -> int:
    """Check that the call is refused with the error and message that the sample says."""
    try:
        sample.call()
    except sample.error as error:
        if re.search(sample.match, str(error)):
            return 1
        raise AssertionError(f"the message {str(error)!r} does not match {sample.match!r}") from error
    raise AssertionError(f"nothing was raised, expected {sample.error.__name__} matching {sample.match!r}")


def _is_op_class(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, Op)


def check_op(op: type[Op], verbose: bool = True) -> dict[str, int]:
    """Run every check of an op class over its `samples()` and `error_samples()`.

    Values, inferred specs at three levels of knowledge, axis maps, facts about values, emitted source, roles and steps
    in kernels, layouts of memory, dtypes, derivatives of both orders against differences, the op inside branches and
    loops, and through a session.

    Args:
        op: the class.
        verbose: print the counts.

    Returns:
        How many cases each check went through.

    Raises:
        AssertionError: something is wrong, or was not checked for want of a sample; everything that is, is listed.
        TypeError: `op` is not an op class.

    >>> import anabranch as ab
    >>> counts = ab.testing.check_op(ab.ops.registered_ops()["softplus"], verbose=False)
    >>> counts["value"], counts["derivatives"] > 0
    (4, True)
    """
    if not _is_op_class(op):
        raise TypeError(f"check_op takes a class of ops, got {op!r}.")
    samples = list(op.samples())
    problems = _too_few(op, samples)
    counts: Counter[str] = Counter()
    with Graph().as_default(), np.errstate(all="ignore"):  # as in a session
        for number, sample in enumerate(samples):
            for name, check in CHECKS.items():
                counts[name] += _tried(check, sample, f"{_label(number, sample)}, {name}", problems)
        if op.last_axes is not None and not counts["axes"] and not any(", axes:" in each for each in problems):
            problems.append(_NOT_IN_FRONT.format(op.last_axes))
        for number, error in enumerate(op.error_samples()):
            counts["errors"] += _tried(check_error, error, f"error {_label(number, error)}", problems)
    if problems:
        count = f"{len(problems)} checks" if len(problems) > 1 else "one check"
        raise AssertionError(f"{op.type_name}: {count} failed.\n" + "\n".join(problems))
    if verbose:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{op.type_name}: {sum(counts.values())} cases ({listed})")
    return dict(counts)


def _too_few(op: type[Op], samples: list[Sample]) -> list[str]:
    if len(samples) >= LEAST_SAMPLES or op.no_samples:
        return []
    return [
        f"- samples: {len(samples)}, expected at least {LEAST_SAMPLES} (ordinary, empty, smallest). Yield them from "
        "the class method samples()."
    ]


def _label(number: int, sample: Sample | ErrorSample) -> str:
    return f"sample {number}" + (f" ({sample.label})" if sample.label else "")


def _tried(check: Callable[[Any], int], sample: Any, where: str, problems: list[str]) -> int:
    try:
        return check(sample)
    except Exception as error:  # whatever the op raises is a finding
        problems.append(finding(where, error))
        return 0


def op_classes(package: str = "anabranch") -> dict[str, type[Op]]:
    """Return the registered op classes that are defined in a package, by their names."""
    known = sorted(registered_ops().items())
    return {name: cls for name, cls in known if f"{cls.__module__}.".startswith(f"{package}.")}


def all_samples(package: str = "anabranch") -> Iterable[tuple[str, Sample]]:
    """Return every sample of every op of a package, with its name. Ops whose samples can't be made have none here."""
    return _named(package, lambda cls: cls.samples())


def all_error_samples(package: str = "anabranch") -> Iterable[tuple[str, ErrorSample]]:
    """Return every error sample of every op of a package, with its name."""
    return _named(package, lambda cls: cls.error_samples())


def _named(package: str, samples_of: Callable[[type[Op]], Iterable[Any]]) -> Iterable[tuple[str, Any]]:
    for name, cls in op_classes(package).items():
        found: list[Any] = []
        with contextlib.suppress(Exception):  # one broken op does not keep the others from being tested
            found = list(samples_of(cls))
        for number, sample in enumerate(found):
            yield f"{name}-{number}-{sample.label}", sample
