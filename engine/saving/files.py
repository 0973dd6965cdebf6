"""Graphs as files and as JSON. A file is a NumPy archive (``.npz``): arrays, and the document as bytes of JSON."""

from __future__ import annotations

import base64
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..common.atomic import atomic_write
from ..common.dtypes import as_dtype
from ..graph.graph import Graph
from .reading import rebuild
from .values import SavedGraphError, storable
from .writing import describe

_DOCUMENT = "document"


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph with its regions, constants and the values of its variables to one file.

    The file is a NumPy archive without pickles; it takes the place of an older one at once, when it is complete.
    Nothing is evaluated. What layers note about tensors (masks, for instance) is not part of a graph.

    Raises:
        SavedGraphError: an operation holds something that can't be written, such as a Python function.
        FileNotFoundError: the folder does not exist.
    """
    document, arrays = describe(graph)
    members: dict[str, Any] = {}
    for number, array in enumerate(arrays):
        if array.dtype.kind == "T":
            array = _as_bytes(_text_document(array))
        members[f"array_{number}"] = storable(array)
    with atomic_write(Path(path)) as stream:
        np.savez(stream, **{_DOCUMENT: _as_bytes(document)}, **members)


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Return the graph that `Graph.save` wrote: the same names give the same bits, and gradients can be taken of it.

    Its variables are new ones, with the values that they had: see `Graph.variables`.

    Raises:
        SavedGraphError: the file is damaged, of another kind or a later version, or holds ops that are not known here.
        FileNotFoundError: there is no such file.

    >>> import os, tempfile
    >>> import anabranch as ab
    >>> graph = ab.Graph()
    >>> with graph.as_default():
    ...     y = ab.ops.square(ab.placeholder((), "float32", name="x"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph.save(os.path.join(folder, "square.npz"))
    ...     again = ab.load_graph(os.path.join(folder, "square.npz"))
    >>> ab.Session(again).run(y.name, {"x:0": 3.0})
    np.float32(9.0)
    """
    source = repr(str(path))
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {source} (looked in {str(Path.cwd())!r}). Check the name.")
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            document = _from_bytes(archive[_DOCUMENT])
            return rebuild(document, lambda number: _member(archive, document, number), source)
    except SavedGraphError:
        raise
    except (OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SavedGraphError(
            f"{source} is no saved graph, or is damaged: {type(error).__name__}: {error}. Save it again."
        ) from error


def _member(archive: Any, document: Any, number: int) -> Any:
    array = archive[f"array_{number}"]
    return _as_text(_from_bytes(array)) if document["dtypes"][number] == "string" else array


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """Return a graph as values that `json.dumps` takes; arrays are base64 text.

    Raises:
        SavedGraphError: an operation holds something that can't be written.

    >>> import json
    >>> import anabranch as ab
    >>> from anabranch.engine.saving import graph_from_dict, graph_to_dict
    >>> graph = ab.Graph()
    >>> with graph.as_default():
    ...     y = ab.constant([1.0, 2.0]) * 3
    >>> again = graph_from_dict(json.loads(json.dumps(graph_to_dict(graph))))
    >>> ab.Session(again).run(y.name)
    array([3., 6.], dtype=float32)
    """
    document, arrays = describe(graph)
    return {**document, "arrays": [array_document(array) for array in arrays]}


def graph_from_dict(document: dict[str, Any]) -> Graph:
    """Return the graph that `graph_to_dict` described.

    Raises:
        SavedGraphError: the document is damaged, of a later version, or holds ops that are not known here.
    """
    return rebuild(document, lambda number: read_array(document["arrays"][number]), "The document")


def array_document(value: Any) -> dict[str, Any]:
    """Return an array as values for JSON."""
    if value.dtype.kind == "T":
        return _text_document(value)
    array = storable(value)
    little = array.astype(array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"kind": array.dtype.name, "shape": list(array.shape), "data": data}


def _text_document(array: Any) -> dict[str, Any]:
    return {"kind": "string", "shape": list(array.shape), "text": array.reshape(-1).tolist()}


def read_array(entry: Any) -> Any:
    """Return the array that `array_document` described."""
    if entry["kind"] == "string":
        return _as_text(entry)
    dtype = as_dtype(entry["kind"])
    array = np.frombuffer(base64.b64decode(entry["data"], validate=True), dtype.newbyteorder("<"))
    return array.reshape(entry["shape"]).astype(dtype)


def _as_text(entry: Any) -> Any:
    return np.array(entry["text"], as_dtype("string")).reshape(entry["shape"])


def _as_bytes(document: Any) -> Any:
    return np.frombuffer(json.dumps(document, allow_nan=False, separators=(",", ":")).encode("utf-8"), "uint8")


def _from_bytes(array: Any) -> Any:
    return json.loads(array.tobytes().decode("utf-8"))
