"""The command ``python -m anabranch predict``: the outputs of a servable for the rows of a file, into another file.

The names' ends say how files are written. ``.npz``: an array for each input, or output, by its name. ``.jsonl``: a row
a line, an object of all inputs, or the value of the only one; rows may have several lengths. ``.csv``: a column for
each input of one value a row, with a header of their names; or, of the only input, a column for each of its features.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .signature import Signature, TensorInfo

if TYPE_CHECKING:
    from ..structures import Array
    from .decoding.decoder import Decoder
    from .servable import Servable

_BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("path", help="what model.export() wrote: a folder of versions")
    parser.add_argument("--input", required=True, metavar="FILE", help="the rows: .npz, .jsonl or .csv")
    parser.add_argument("--output", required=True, metavar="FILE", help="what is written: .npz, .jsonl or .csv")
    parser.add_argument("--version", type=int, metavar="N", help="which version (default: the highest)")
    parser.add_argument("--signature", default="", metavar="NAME", help="which signature (default: serving_default)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of a decoder: how many tokens at most")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of a decoder (default: 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="of a decoder: decides what is drawn")
    parser.add_argument("--batch-size", type=int, default=_BATCH, metavar="ROWS", help=f"default: {_BATCH}")


def run(options: argparse.Namespace) -> int:
    """Compute the outputs, and write them; return the exit status."""
    from ...distribute.inference import RequestError
    from .decoding.decoder import Decoder, load_any
    from .storage import ServableError

    try:
        if options.batch_size < 1:
            raise ValueError(f"--batch-size must be at least 1; got {options.batch_size}.")
        for path in (options.input, options.output):
            if Path(path).suffix not in _READERS:
                raise ValueError(f"{path!r}: the name must end in {', '.join(_READERS)}.")
        servable = load_any(options.path, options.version)
        if isinstance(servable, Decoder):
            return _generate(servable, options)
        signature = servable.signature(options.signature)
        columns = _READERS[Path(options.input).suffix](Path(options.input), signature)
        servable.check_names(signature, columns)
        outputs = predict(servable, columns, options.signature, options.batch_size)
        named = servable.by_name(signature, outputs)
        with _written_aside(Path(options.output)) as path:
            _WRITERS[Path(options.output).suffix](path, named)
    except (ServableError, RequestError, ValueError, OSError) as error:
        print(f"anabranch predict: {error}", file=sys.stderr)
        return 2
    rows = len(outputs[0]) if outputs and outputs[0].ndim else 1
    print(f"{rows} rows in {options.output}")
    return 0


def _generate(decoder: Decoder, options: argparse.Namespace) -> int:
    """Generate a sequence for each row, an object of ``tokens`` or ``text_input`` and the decoder's inputs."""
    for path in (options.input, options.output):
        if Path(path).suffix != ".jsonl":
            raise ValueError(f"{path!r}: sequences of a decoder are read from, and written to, .jsonl only.")
    names = [info.name for info in decoder.signature.inputs[1:]]
    prompts: list[str | Sequence[int]] = []
    inputs: dict[str, list[object]] = {name: [] for name in names}
    for number, row in _objects(Path(options.input)):
        found = [row[key] for key in ("tokens", "text_input") if key in row]
        if len(found) != 1 or row.keys() - {"tokens", "text_input"} != inputs.keys():
            expected = ", ".join(["'tokens' or 'text_input'", *map(repr, names)])
            raise ValueError(f"{options.input!r}, line {number}: expected an object of {expected}.")
        prompts += found
        for name in names:
            inputs[name].append(row[name])
    settings = {"max_tokens": options.max_tokens, "temperature": options.temperature, "seed": options.seed}
    sequences = decoder.generate(prompts, **settings, inputs=inputs)
    with _written_aside(Path(options.output)) as path, path.open("w", encoding="utf-8") as file:
        for sequence in sequences:
            tokens = sequence.tolist()
            text = {"text_output": decoder.text(tokens)} if decoder.gives_text else {}
            file.write(json.dumps({"tokens": tokens, **text}) + "\n")
    print(f"{len(sequences)} rows in {options.output}")
    return 0


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file that are objects, with their numbers; others are errors."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{str(path)!r}, line {number}: expected an object.")
        yield number, row


def predict(servable: Servable, columns: Mapping[str, object], signature: str, batch_size: int) -> list[Array]:
    """Compute the outputs for all rows: in batches, if no row depends on another.

    Rows of several shapes are computed with those of theirs. Where outputs have several shapes, too, they are arrays of
    objects.
    """
    from ...distribute.inference import RequestError
    from .values import as_input

    infos = servable.signature(signature).inputs
    try:
        arrays = [as_input(info, columns[info.name]) for info in infos]
    except RequestError:
        if servable.why_alone(signature) is not None or not all(isinstance(each, list) for each in columns.values()):
            raise
        return _predict_by_shapes(servable, columns, signature, batch_size)
    rows = len(arrays[0]) if arrays and arrays[0].ndim else 0
    servable.check_rows(arrays, signature)
    if servable.why_alone(signature) is not None or rows <= batch_size:
        return servable.run(arrays, signature)
    parts = [
        servable.run([array[start : start + batch_size] for array in arrays], signature)
        for start in range(0, rows, batch_size)
    ]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _predict_by_shapes(
    servable: Servable, columns: Mapping[str, object], signature: str, batch_size: int
) -> list[Array]:
    """Predict as `predict` does, but from rows that have several shapes."""
    from ...distribute.inference import RequestError
    from .values import as_input

    infos = servable.signature(signature).inputs
    rows: list[list[Array]] = []
    for number, row in enumerate(_rows(infos, columns), 1):
        try:
            rows.append([as_input(info, [value]) for info, value in zip(infos, row, strict=True)])
        except RequestError as error:
            raise RequestError(error.status, f"Row {number}: {error}") from None
    if not rows:
        raise ValueError("There are no rows to compute.")
    places: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(tuple(array.shape for array in row), []).append(place)
    found: list[list[Array]] = [[] for _ in rows]
    for group in places.values():
        given = {
            info.name: np.concatenate([rows[place][number] for place in group]) for number, info in enumerate(infos)
        }
        outputs = predict(servable, given, signature, batch_size)
        for row, place in enumerate(group):
            found[place] = [output[row] for output in outputs]
    return [_joined(column) for column in zip(*found, strict=True)]


def _rows(infos: Sequence[TensorInfo], columns: Mapping[str, object]) -> Iterator[tuple[object, ...]]:
    return zip(*[columns[info.name] for info in infos], strict=True)


def _joined(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    found = np.empty(len(rows), object)
    found[:] = [row.tolist() for row in rows]
    return found


@contextmanager
def _written_aside(path: Path) -> Generator[Path]:
    """Yield a path beside `path`: the file there becomes `path` when the block ends well, and is removed otherwise."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, signature: Signature) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_jsonl(path: Path, signature: Signature) -> dict[str, list[object]]:
    names = [info.name for info in signature.inputs]
    columns: dict[str, list[object]] = {name: [] for name in names}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}") from None
        row = row if isinstance(row, dict) else dict.fromkeys(names, row) if len(names) == 1 else None
        if not isinstance(row, dict) or row.keys() != columns.keys():
            raise ValueError(f"{str(path)!r}, line {number}: expected an object of the inputs {', '.join(names)}.")
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _read_csv(path: Path, signature: Signature) -> dict[str, object]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        lines = [(reader.line_num, line) for line in reader if line]
    only = signature.inputs[0] if len(signature.inputs) == 1 else None
    if only is not None and len(only.shape) == 2:
        if lines and not _are_numbers(lines[0][1]) and only.dtype != "string":
            del lines[0]  # the names of the features
        count = only.shape[1]
        return {only.name: [_cells(path, at, line, [only] * (count or len(line))) for at, line in lines]}
    if not lines:
        raise ValueError(f"{str(path)!r} is empty; expected a header with the names of the inputs.")
    infos = {info.name: info for info in signature.inputs}
    (_, header), *rows = lines
    unknown = [name for name in header if name not in infos]
    if unknown:
        raise ValueError(f"{str(path)!r}: there is no input {unknown[0]!r}. There are {', '.join(infos)}.")
    found = [_cells(path, number, row, [infos[name] for name in header]) for number, row in rows]
    return {name: [row[place] for row in found] for place, name in enumerate(header)}


def _cells(path: Path, number: int, line: Sequence[str], infos: Sequence[TensorInfo]) -> list[object]:
    """Return the values of a line, one for each of the inputs of its columns."""
    if len(line) != len(infos):
        raise ValueError(f"{str(path)!r}, line {number}: expected {len(infos)} values, got {len(line)}.")
    try:
        return [_number(info, cell) for info, cell in zip(infos, line, strict=True)]
    except ValueError as error:
        raise ValueError(f"{str(path)!r}, line {number}: {error}") from None


def _are_numbers(cells: Sequence[str]) -> bool:
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return True


def _number(info: TensorInfo, cell: str) -> str | float | bool | int:
    if info.dtype == "string":
        return cell
    try:
        return float(cell) if "float" in info.dtype else bool(int(cell)) if info.dtype == "bool" else int(cell)
    except ValueError:
        raise ValueError(f"Input {info.name!r}: {cell!r} is no value of {info.dtype}.") from None


# --- writing --------------------------------------------------------------------------------------------------------


def _write_npz(path: Path, outputs: Mapping[str, Any]) -> None:
    _check_shapes(outputs)
    np.savez(path, **{name: array.astype("U") if array.dtype.kind == "T" else array for name, array in outputs.items()})


def _write_jsonl(path: Path, outputs: Mapping[str, Array]) -> None:
    names, columns = list(outputs), [array.tolist() for array in outputs.values()]
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*columns, strict=True):
            file.write(json.dumps(row[0] if len(names) == 1 else dict(zip(names, row, strict=True))) + "\n")


def _check_shapes(outputs: Mapping[str, Array]) -> None:
    for name, array in outputs.items():
        if array.dtype == object:
            raise ValueError(f"Output {name!r} has rows of several shapes; write .jsonl.")


def _write_csv(path: Path, outputs: Mapping[str, Array]) -> None:
    _check_shapes(outputs)
    header: list[str] = []
    columns: list[Array] = []
    for name, array in outputs.items():
        if array.ndim not in (1, 2):
            raise ValueError(f"Output {name!r} of shape {array.shape} has no form in .csv; write .npz or .jsonl.")
        header += [name] if array.ndim == 1 else [f"{name}_{place}" for place in range(array.shape[1])]
        columns += [array] if array.ndim == 1 else list(array.T)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(*[column.tolist() for column in columns], strict=True))


_READERS = {".npz": _read_npz, ".jsonl": _read_jsonl, ".csv": _read_csv}
_WRITERS = {".npz": _write_npz, ".jsonl": _write_jsonl, ".csv": _write_csv}
