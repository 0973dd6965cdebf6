"""Add up the counts of the processes of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..metrics import LOADED_BYTES


def merged_metrics(texts: Iterable[str]) -> str:
    """Return Prometheus's text form of several processes as that of one: samples of the same name and labels add up.

    But for the bytes of what is loaded: these are pages of files, which the processes share.

    >>> print(merged_metrics(["# TYPE n counter\\nn 1.0", "# TYPE n counter\\nn 2.0\\nm 1.0"]), end="")
    # TYPE n counter
    n 3.0
    m 1.0
    """
    values: dict[str, float | None] = {}  # by what stands before a sample's value; None for comments
    for text in texts:
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if line.startswith("#"):
                values.setdefault(line, None)
            elif name:
                before = values.get(name)
                values[name] = float(value) if before is None else _merged(name.partition("{")[0], before, float(value))
    lines = [name if value is None else f"{name} {value}" for name, value in values.items()]
    return "\n".join([*_sorted(lines), ""])


def _merged(metric: str, one: float, other: float) -> float:
    if metric.endswith("_created"):  # a time
        return min(one, other)
    return max(one, other) if metric == LOADED_BYTES else one + other


def _sorted(lines: Sequence[str]) -> list[str]:
    """Bring samples behind the comments of their metric, where a process has some that the first has not."""
    groups: dict[str, list[str]] = {}
    family = ""
    for line in lines:
        if line.startswith("#"):
            family = line.split(" ")[2]
        else:
            name = line.partition("{")[0].partition(" ")[0]
            family = max((each for each in groups if name.startswith(each)), key=len, default=family)
        groups.setdefault(family, []).append(line)
    return [line for group in groups.values() for line in group]


def merged_statistics(found: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return Triton's statistics of several processes as those of one."""
    merged: dict[tuple[str, str], dict[str, object]] = {}
    for entries in found:
        for entry in entries:
            key = entry["name"], entry["version"]
            merged[key] = entry if key not in merged else _added(merged[key], entry)
    return list(merged.values())


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in one.items():
        more = other.get(key)
        if key == "batch_stats":
            result[key] = _batches([*value, *(more or ())])
        elif isinstance(value, dict) and isinstance(more, dict):
            result[key] = _added(value, more)
        elif key == "last_inference":
            result[key] = max(value, more or 0)
        else:
            result[key] = value + more if isinstance(value, int) and isinstance(more, int) else value
    return result


def _batches(entries: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    by_size: dict[int, dict[str, object]] = {}
    for entry in entries:
        size = entry["batch_size"]
        by_size[size] = {**_added(by_size[size], entry), "batch_size": size} if size in by_size else entry
    return [by_size[size] for size in sorted(by_size)]
