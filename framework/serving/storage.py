"""Servables as folders ``<filepath>/<version>/``: written aside and renamed, checked and mapped when they are read.

A folder holds ``graph.json`` (operations and small arrays), ``weights/<number>.npy`` (plain arrays),
``signature.json``, perhaps ``warmup.jsonl`` (requests to compute before others) and ``manifest.json`` (the size and
SHA-256 of every other file). Nothing in it is code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...engine.common.memory import machine_bytes
from ...engine.common.paths import local_path
from ...engine.graph import Graph, Operation
from ...engine.graph.state.initial_values import Given
from ...engine.saving import SavedGraphError
from ...engine.saving.files import array_document, read_array
from ...engine.saving.reading import made_resource, made_variable, rebuild
from ...engine.saving.values import storable
from ...engine.saving.writing import describe
from .signature import Signature

if TYPE_CHECKING:
    from typing import TypedDict

    from ...engine.graph import ShardedVariable, Variable
    from ..structures import Array
    from .decoding.plan import PlanDocument

    class _Formatted(TypedDict):
        """The beginning of a document of JSON."""

        format: object
        version: int


FORMAT, FORMAT_VERSION = "anabranch servable", 1
WARMUP = "warmup.jsonl"
WarmupRequest = tuple[str, "Mapping[str, Array]"]  # the name of a signature, and arrays by the names of its inputs
_INLINE = 4096  # bytes up to which an array is part of graph.json
_PIECE = 1 << 20
_WRITTEN_BY = {  # by the end of a file's name
    ".keras": "model.save()",
    ".h5": "model.save_weights()",
    ".onnx": 'model.export(path, "onnx")',
}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


class Contents(NamedTuple):
    """The contents of a version of a servable.

    Attributes:
        graph: the inference graph.
        signatures: by name.
        decoder: the plan of a decoder, as values of JSON; None for a model.
    """

    graph: Graph
    signatures: dict[str, Signature]
    decoder: PlanDocument | None


class ServableError(ValueError):
    """A folder holds no servable that can be loaded: it is missing, damaged, or of a later version.

    >>> import anabranch as ab
    >>> try:
    ...     ab.serving.load("no_such_folder")
    ... except ab.serving.ServableError as error:
    ...     print(error)
    There is no folder 'no_such_folder'. Give the path that was given to model.export().
    """


def versions_in(filepath: str | os.PathLike[str]) -> list[int]:
    """Return the versions that a folder holds, in ascending order."""
    try:
        base = local_path(filepath, "A server or ab.serving.load")
    except ValueError as error:
        raise ServableError(f"{error}") from None
    if base.is_file():
        raise ServableError(
            f"{str(base)!r} is a file, and a servable is a folder. ab.load_model reads saved models; model.export(), "
            "or `python -m anabranch export`, writes servables."
        )
    if not base.is_dir():
        raise ServableError(f"There is no folder {str(base)!r}. Give the path that was given to model.export().")
    return sorted(int(entry.name) for entry in base.iterdir() if _is_version(entry.name) and entry.is_dir())


def pick_version(filepath: str | os.PathLike[str], version: int | None) -> int:
    """Return `version`, or the highest that there is.

    Raises:
        ServableError: there is no such version.
    """
    known = versions_in(filepath)
    if not known:
        folder = Path(filepath).resolve()
        if _is_version(folder.name) and (folder / "manifest.json").is_file():
            raise ServableError(
                f"{str(filepath)!r} is version {folder.name} of a servable. Load it with "
                f"ab.serving.load({str(folder.parent)!r}, version={folder.name})."
            )
        raise ServableError(f"{str(filepath)!r} holds no version: model.export() writes folders 1, 2, ... there.")
    if version is not None and version not in known:
        raise ServableError(f"{str(filepath)!r} has no version {version}. It holds {', '.join(map(str, known))}.")
    return known[-1] if version is None else version


def _is_version(name: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,17}", name) is not None


# --- writing --------------------------------------------------------------------------------------------------------


def write_servable(
    filepath: str | os.PathLike[str],
    graph: Graph,
    signatures: Mapping[str, Signature],
    version: int | None = None,
    warmup: Sequence[WarmupRequest] = (),
    decoder: Mapping[str, object] | None = None,
    operations: Collection[Operation] | None = None,
) -> int:
    """Write a graph and its signatures as a version of a servable.

    Args:
        filepath: the folder of all versions, made if it is not there.
        graph: the inference graph.
        signatures: by name.
        version: its number; by default one more than the highest.
        warmup: requests for a server to compute before others.
        decoder: the plan of a decoder, as values of JSON.
        operations: those of the graph that are written; None for all.

    Returns:
        The version.

    Raises:
        SavedGraphError: an operation holds something that can't be written, such as a Python function.
        FileExistsError: there is this version already.
        ValueError: the name is that of a file of another kind.
    """
    base = local_path(filepath, "export")
    _check_is_no_file_name(base)
    document, arrays = describe(graph, operations)
    aside = base / f".{secrets.token_hex(4)}.anabranch.tmp"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if version is not None and (base / str(version)).exists():
            raise _exists(base, version)
        aside.mkdir()
    except (FileExistsError, NotADirectoryError) as error:
        if base.is_dir():
            raise
        raise type(error)(f"{error.filename!r} is a file. Give the folder in which versions are written.") from None
    except OSError as error:
        raise _unwritten(base, error, "Export to another folder, or change its mode or owner") from error
    try:
        try:
            _write_files(aside, document, arrays, _signature_document(signatures, decoder), warmup)
        except OSError as error:
            raise _unwritten(base, error, "Is the disk full?") from error
        taken = _rename(aside, base, version)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync(base)
    return taken


def _unwritten(base: Path, error: OSError, remedy: str) -> OSError:
    text = f"No version could be written to {str(base)!r}: {error.strerror or error}. {remedy}"
    return OSError(text) if error.errno is None else OSError(error.errno, text)


def _check_is_no_file_name(base: Path) -> None:
    remedy = _WRITTEN_BY.get(base.suffix.lower())
    if remedy is not None:
        raise ValueError(
            f"export({str(base)!r}): a servable is a folder of versions, and {base.suffix} ends the name of a file, "
            f"as which `serve` would read it. Name the folder {base.stem!r}, or write such a file by {remedy}."
        )


def _write_files(
    folder: Path,
    document: Mapping[str, object],
    arrays: list[Array],
    signature: Mapping[str, object],
    warmup: Sequence[WarmupRequest],
) -> None:
    weights = folder / "weights"
    weights.mkdir()
    written: dict[str, dict[str, object]] = {}
    entries: list[object] = []
    zeros = 0  # bytes of arrays that hold nothing else
    for number, array in enumerate(arrays):
        if array.dtype.kind == "T" or array.nbytes <= _INLINE:
            entries.append(array_document(array))
            continue
        if not storable(array).any():  # such as the states of a decoder
            entries.append({"zeros": list(array.shape), "dtype": storable(array).dtype.str})
            zeros += array.nbytes
            continue
        name = f"weights/{number}.npy"
        with (folder / name).open("xb") as stream:
            np.lib.format.write_array(stream, storable(array), allow_pickle=False)
        _sync(folder / name)
        entries.append(name)
    texts = {"graph.json": {**document, "arrays": entries}, "signature.json": signature}
    for name, content in texts.items():
        _write_json(folder / name, content)
    files = [*texts, *[entry for entry in entries if isinstance(entry, str)]]
    if warmup:
        _write_warmup(folder / WARMUP, warmup)
        files.append(WARMUP)
    for name in files:
        path = folder / name
        written[name] = {"size": path.stat().st_size, "sha256": _digest(path)}
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "zeros": zeros, "files": written}
    _write_json(folder / "manifest.json", manifest)
    _sync(weights)
    _sync(folder)


def _signature_document(signatures: Mapping[str, Signature], decoder: Mapping[str, object] | None) -> dict[str, object]:
    written = {name: signature.to_json() for name, signature in signatures.items()}
    document: dict[str, object] = {"format": FORMAT, "version": FORMAT_VERSION, "signatures": written}
    return document if decoder is None else {**document, "decoder": dict(decoder)}


def _write_warmup(path: Path, requests: Sequence[WarmupRequest]) -> None:
    """Write a request a line: the signature, and the inputs as JSON."""
    lines: list[str] = []
    for signature, arrays in requests:
        inputs = {name: array.tolist() for name, array in arrays.items()}
        lines.append(json.dumps({"signature": signature, "inputs": inputs}))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    _sync(path)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), "utf-8")
    _sync(path)


def _rename(aside: Path, base: Path, version: int | None) -> int:
    while True:
        wanted = max([0, *versions_in(base)]) + 1 if version is None else version
        try:
            os.rename(aside, base / str(wanted))  # fails where somebody else was quicker
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if version is not None:
                raise _exists(base, version) from None
        else:
            return wanted


def _exists(base: Path, version: int) -> FileExistsError:
    return FileExistsError(
        f"{str(base)!r} holds a version {version} already, and versions never change. Leave out version= for the next."
    )


def _sync(path: Path) -> None:
    """Write a file, or a folder's own entries, to the disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse this for folders
    finally:
        os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------------------------


def read_servable(folder: Path) -> Contents:
    """Read the folder of one version; no code is run.

    Raises:
        ServableError: it is not a servable, or its files are not those of the manifest.
        SavedGraphError: it holds ops that are not known here.
    """
    source = repr(str(folder))
    manifest = _read_json(folder / "manifest.json")
    try:
        _check_format(manifest, source)
        for name, entry in manifest["files"].items():
            _check_file(folder, name, entry)
        document, written = _read_json(folder / "graph.json"), _read_json(folder / "signature.json")
        _check_format(written, source)
        signatures = {str(name): Signature.from_json(each) for name, each in written["signatures"].items()}
        entries = document["arrays"]
        graph = rebuild(
            document, lambda number: _array(folder, manifest["files"], entries[number]), source, _made_resource
        )
        for signature in signatures.values():
            states = [name for state in signature.states for name in (state.before, state.after)]
            for name in (*[info.tensor for info in (*signature.inputs, *signature.outputs)], *states):
                graph.get_tensor_by_name(name)
    except (SavedGraphError, ServableError):
        raise
    except (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ServableError(f"{source} is damaged: {type(error).__name__}: {error}. Export it again.") from error
    return Contents(graph, signatures, written.get("decoder"))


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes that weights, constants and operations of a version take on the disk: about as many as in
    memory.

    Raises:
        ServableError: its manifest can't be read.
    """
    manifest = _read_json(folder / "manifest.json")
    try:
        return int(manifest.get("zeros", 0)) + sum(int(entry["size"]) for entry in manifest["files"].values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServableError(f"{str(folder)!r} is damaged: {type(error).__name__}: {error}. Export it again.") from error


def read_warmup(folder: Path) -> list[tuple[str, dict[str, object]]]:
    """Read the requests that a server is to compute before others: signatures, and inputs as nested lists by name.

    Raises:
        ServableError: the file is damaged.
    """
    path = folder / WARMUP
    if not path.exists():
        return []
    try:
        documents = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [(str(each["signature"]), dict(each["inputs"])) for each in documents]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ServableError(f"{str(path)!r} is damaged: {type(error).__name__}: {error}. Export it again.") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ServableError(
            f"{str(path.parent)!r} holds no {path.name}: it is no servable. model.export() writes them."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ServableError(f"{str(path)!r} is damaged: {error}. Export it again.") from error


def _check_format(document: _Formatted, source: str) -> None:
    if document["format"] != FORMAT:
        raise ServableError(f"{source} holds no servable, but {document['format']!r}. model.export() writes servables.")
    if document["version"] > FORMAT_VERSION:
        raise ServableError(
            f"{source} is of format version {document['version']}; this version of anabranch reads up to "
            f"{FORMAT_VERSION}. Load it with a newer one."
        )


def _check_file(folder: Path, name: str, entry: Mapping[str, object]) -> None:
    path = folder / name
    if not re.fullmatch(r"(weights/[0-9]+\.npy|graph\.json|signature\.json|warmup\.jsonl)", name):
        raise ServableError(f"{str(folder)!r}: the manifest names {name!r}, which is no file of a servable.")
    if not path.is_file():
        raise ServableError(f"{str(path)!r} is missing: the manifest names it. Copy the whole folder, or export again.")
    size = path.stat().st_size
    if size != entry["size"]:
        raise ServableError(f"{str(path)!r} has {size:,} bytes; the manifest says {entry['size']:,}. Copy it again.")
    if _digest(path) != entry["sha256"]:
        raise ServableError(f"{str(path)!r} is not what was written: its SHA-256 is another. Copy it again.")


def _array(folder: Path, files: Mapping[str, object], entry: object) -> Array:
    if isinstance(entry, dict) and "zeros" in entry:
        return _zeros(folder, entry)
    if not isinstance(entry, str):
        return read_array(entry)
    if entry not in files:
        raise ServableError(f"{str(folder)!r}: graph.json names {entry!r}, which the manifest does not.")
    # Pages of the file, which all processes share. What is written gets pages of its own.
    return np.asarray(np.lib.format.open_memmap(folder / entry, mode="c"))


def _made_resource(description: dict[str, Any], array: Callable[[int], Array]) -> Variable | ShardedVariable:
    """Make a resource as `made_resource` does, but variables keep the memory of large arrays."""
    if description["kind"] != "variable" or "first" in description:
        return made_resource(description, array)
    value = array(description["value"])
    if value.dtype.kind == "T" or value.nbytes <= _INLINE or not value.flags.c_contiguous:
        return made_variable(description, value)
    value.setflags(write=True)
    variable = made_variable(description, Given(value))
    variable.stored_value()  # takes it
    return variable


def _zeros(folder: Path, entry: Mapping[str, Any]) -> Array:
    shape, dtype = [int(size) for size in entry["zeros"]], np.dtype(str(entry["dtype"]))
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize > machine_bytes():
        raise ServableError(f"{str(folder)!r}: an array of the shape {shape} is larger than this machine's memory.")
    return np.zeros(shape, dtype)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
