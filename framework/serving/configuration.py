"""The configuration of a server: models with versions, labels and batching, and limits; in Python, JSON or TOML."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from ...engine.common.quick_dataclass import dataclass
from .batching import Batching

MAX_BODY_BYTES = 64 << 20
DRAIN_SECONDS = 30.0
READ_SECONDS = 30.0
MAX_ROWS = 4096


@dataclass(frozen=True)
class ModelConfig:
    """Describe how a model is served.

    Attributes:
        path: what `model.export` wrote: a folder of versions.
        versions: which of them are served: ``{"latest": n}``, ``{"all": True}`` or ``{"specific": [1, 3]}``.
        labels: names for versions; requests may ask for a label. It moves once its version is loaded.
        batching: how requests are computed together.
        token_file: a file with a token that requests have to bear; None for no token.
        replace: whether a version goes before the next one is loaded, since memory holds one only. Requests that come
            between get 503.

    Raises:
        ValueError: `versions` or a label makes no sense.
    """

    path: str
    versions: Mapping[str, Any] = field(default_factory=lambda: {"latest": 1})
    labels: Mapping[str, int] = field(default_factory=dict[str, int])
    batching: Batching = field(default_factory=Batching)
    token_file: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        kind, value = next(iter(self.versions.items()), ("", 0))
        is_count = kind == "latest" and _is_version(value) and value > 0
        is_list = kind == "specific" and isinstance(value, Sequence) and len(value) > 0 and all(map(_is_version, value))
        if len(self.versions) != 1 or not (is_count or is_list or (kind == "all" and value is True)):
            raise ValueError(
                'versions must be {"latest": n} with n from 1, {"all": true} or {"specific": [1, 3]}; got '
                f"{dict(self.versions)!r}."
            )
        if not all(label and "/" not in label and _is_version(number) for label, number in self.labels.items()):
            raise ValueError(f"labels must be names with the number of a version each; got {dict(self.labels)!r}.")

    def token(self) -> str:
        """Read the token that requests have to bear; empty for none.

        Raises:
            ValueError: its file can't be read, or is empty.
        """
        if self.token_file is None:
            return ""
        try:
            found = Path(self.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"The token file {self.token_file!r} can't be read: {error}") from None
        if not found:
            raise ValueError(f"The token file {self.token_file!r} is empty.")
        return found

    def wanted(self, available: Sequence[int]) -> list[int]:
        """Choose from the versions that there are, in ascending order."""
        ordered = sorted(available)
        if "latest" in self.versions:
            return ordered[-int(self.versions["latest"]) :]
        return ordered if "all" in self.versions else [each for each in ordered if each in self.versions["specific"]]


@dataclass(frozen=True)
class ServerConfig:
    """Describe what a server serves.

    Attributes:
        models: by the names under which they are served.
        max_body_bytes: the largest body, and the largest gRPC message, that is taken.
        drain_seconds: how long requests under way may take when the server stops.
        request_seconds: how long an answer to a request may take; None for any time.
        read_seconds: how long a request may take to come in.
        max_rows: how many rows a request may have.
        max_loaded_bytes: how many bytes all loaded models may take together; None for any number.
    """

    models: Mapping[str, ModelConfig]
    max_body_bytes: int = MAX_BODY_BYTES
    drain_seconds: float = DRAIN_SECONDS
    request_seconds: float | None = None
    read_seconds: float | None = READ_SECONDS
    max_rows: int = MAX_ROWS
    max_loaded_bytes: int | None = None


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_config(path: str | os.PathLike[str]) -> ServerConfig:
    """Read a configuration from a file, TOML if its name ends in ``.toml``, else JSON.

    Raises:
        ValueError: the file can't be read, or says something that has no meaning; the message names where.
    """
    try:
        text = Path(path).read_text("utf-8")
        document = tomllib.loads(text) if str(path).endswith(".toml") else json.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"The configuration {str(path)!r} can't be read: {error}") from None
    try:
        return parse_config(document)
    except ValueError as error:
        raise ValueError(f"The configuration {str(path)!r}: {error}") from None


def parse_config(document: object) -> ServerConfig:
    """Make a configuration of a dict such as JSON and TOML give.

    Raises:
        ValueError: it says something that has no meaning; the message names where.
    """
    top = _checked(document, "the whole", {"models": dict, "limits": dict})
    if not top.get("models"):
        raise ValueError('expected {"models": {NAME: {"path": ...}}}, with at least one model.')
    seconds = (type(None), int, float)
    kinds = {
        "max_body_bytes": int,
        "max_rows": int,
        "max_loaded_bytes": (type(None), int),
        "drain_seconds": (int, float),
        "read_seconds": seconds,
        "request_seconds": seconds,
    }
    limits = _checked(top.get("limits", {}), "limits", kinds)
    if any(value is not None and value <= 0 for value in limits.values()):
        raise ValueError(f"limits must be positive; got {limits}.")
    return ServerConfig({name: _model(name, entry) for name, entry in top["models"].items()}, **limits)


def _model(name: str, entry: object) -> ModelConfig:
    where = f"models.{name}"
    if not name or "/" in name or ":" in name:
        raise ValueError(f"{where}: a model's name has no slash and no colon.")
    given = _checked(
        entry,
        where,
        {
            "path": str,
            "versions": dict,
            "labels": dict,
            "batching": dict,
            "token_file": (type(None), str),
            "replace": bool,
        },
    )
    if "path" not in given:
        raise ValueError(f"{where}: expected a 'path'.")
    kinds: dict[str, object] = {field.name: type(field.default) for field in fields(Batching)}
    kinds["max_queue_delay_ms"] = kinds["sequence_idle_seconds"] = (int, float)
    batching = _checked(given.pop("batching", {}), f"{where}.batching", kinds)
    try:
        return ModelConfig(**given, batching=Batching(**batching))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _checked(value: object, where: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table whose keys are known, and whose values have the types that these ask for."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a table of {', '.join(kinds)}; got {type(value).__name__}.")
    for key, item in value.items():
        if key not in kinds:
            raise ValueError(f"{where}: {key!r} is unknown. Expected {', '.join(map(repr, kinds))}.")
        is_flag = isinstance(item, bool) and kinds[key] is not bool
        if is_flag or not isinstance(item, kinds[key]):
            wanted = kinds[key][-1] if isinstance(kinds[key], tuple) else kinds[key]
            raise ValueError(f"{where}.{key}: expected {wanted.__name__}, got {item!r}.")
    return dict(value)
