"""`KerasFileEditor`: look into a file of weights, rename and remove what is there, and write it again."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from .archive import atomic_write, check_readable, read_archive
from .weights_file import Array, Group, WeightsReader, check_seal, seal, write_weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..models.model import Model
    from ..structures import PathLike

OPTIMIZER = "optimizer"


class Comparison(TypedDict):
    """The result of `KerasFileEditor.compare`."""

    status: str
    error_count: int
    match_count: int


class KerasFileEditor:
    """Weights of a ``.keras`` or ``.weights.h5`` file, to be fitted to a model that has changed since.

    An object (a layer, say) is called by its path, such as ``"layers/dense_2"``, or by the last part of it where no
    other object has that. Its weights are called "0", "1" and so on. The file itself stays as it is; `save` writes
    another one, with what the optimizer had saved, too.

    Args:
        filepath: a file that Keras or anabranch has saved.

    Attributes:
        weights_dict: the weights' arrays, by the path of their object and by their name.

    Raises:
        ValueError: the name ends in neither. SavedFileError: the file is damaged.

    >>> import anabranch as ab, tempfile, pathlib
    >>> old = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2, name="head")])
    >>> new = ab.Sequential([ab.Input((3,)), ab.layers.Dense(4), ab.layers.Dense(2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old.save_weights(pathlib.Path(folder, "old.weights.h5"))
    ...     editor = ab.saving.KerasFileEditor(pathlib.Path(folder, "old.weights.h5"))
    >>> editor.summary()
    layers/dense
      0: (3, 2) float32
      1: (2,) float32
    >>> editor.rename_object("dense", "dense_1")
    >>> editor.compare(new)["status"]
    layers/dense: missing in the file, 2 weights in the model
    layers/dense_1/0: shape (3, 2) in the file, (4, 2) in the model
    'error'
    """

    def __init__(self, filepath: PathLike) -> None:
        path = Path(filepath)
        self.filepath = str(path)
        self.config: dict[str, Any] | None = None
        if path.suffix == ".keras":
            archive = read_archive(path)
            self.config = archive.config
            with WeightsReader(archive.weights, path) as reader:
                self.weights_dict = {place: reader.read(place) for place in reader.index}
        elif path.name.endswith(".weights.h5"):
            check_readable(path)
            with open(path, "rb") as stream:
                check_seal(stream, path)
                with WeightsReader(stream, path) as reader:
                    self.weights_dict = {place: reader.read(place) for place in reader.index}
        else:
            raise ValueError(
                f"KerasFileEditor opens files that end in .keras or .weights.h5, got {str(path)!r}. Save the model "
                "with model.save('model.keras')."
            )

    def summary(self) -> None:
        """Print the paths of objects, with the shapes and dtypes of their weights."""
        for place, weights in self.weights_dict.items():
            print(place or "(the model itself)")
            for name, value in weights.items():
                print(f"  {name}: {value.shape} {value.dtype}")

    def compare(self, reference_model: Model) -> Comparison:
        """Compare with the weights of a model, and print each difference.

        Returns:
            "status", "success" or "error"; "error_count", the number of differences; "match_count", the number of
            weights that fit. What an optimizer has saved is not compared.
        """
        from .state_tree import collect

        wanted = {group.path: group.arrays for group in collect(reference_model) if not _is_optimizers(group.path)}
        saved = {place: weights for place, weights in self.weights_dict.items() if not _is_optimizers(place)}
        differences = list(_differences(saved, wanted))
        matches = sum(
            name in saved.get(place, {}) and saved[place][name].shape == np.shape(value)
            for place, weights in wanted.items()
            for name, value in weights.items()
        )
        print(*(differences or [f"All {matches} weights fit."]), sep="\n")
        status = "error" if differences else "success"
        return {"status": status, "error_count": len(differences), "match_count": matches}

    def rename_object(self, object_name: str, new_name: str) -> None:
        """Give an object another name, in the place where it is.

        Args:
            object_name: its path, or its name where no other object has that.
            new_name: a name without folders.

        Raises:
            ValueError: there is no such object, there are several, or the new name is taken or a path.
        """
        if "/" in new_name:
            raise ValueError(f"rename_object: new_name must be a name, not a path, got {new_name!r}.")
        old = self._find(object_name)
        new = "/".join([*old.split("/")[:-1], new_name])
        if new in self._places():
            raise ValueError(f"rename_object: {new!r} is in the file already. Rename or delete that one first.")
        self.weights_dict = {
            new + place[len(old) :] if _is_within(place, old) else place: weights
            for place, weights in self.weights_dict.items()
        }

    def delete_object(self, object_name: str) -> None:
        """Remove an object, with all objects inside of it.

        Raises:
            ValueError: there is no such object, or there are several.
        """
        found = self._find(object_name)
        self.weights_dict = {
            place: weights for place, weights in self.weights_dict.items() if not _is_within(place, found)
        }

    def add_object(self, object_path: str, weights: Mapping[str, ArrayLike]) -> None:
        """Add an object.

        Args:
            object_path: its path, such as "layers/dense_2".
            weights: arrays by name, such as ``{"0": kernel, "1": bias}``.

        Raises:
            ValueError: the object is there already. TypeError: `weights` is not a dict.
        """
        if object_path in self._places():
            raise ValueError(f"add_object: {object_path!r} is in the file already. add_weights adds weights to it.")
        self.weights_dict[object_path] = _arrays("add_object", weights)

    def add_weights(self, object_name: str, weights: Mapping[str, ArrayLike]) -> None:
        """Add weights to an object, or replace those of the same names.

        Raises:
            ValueError: there is no such object, or there are several. TypeError: `weights` is not a dict.
        """
        self.weights_dict.setdefault(self._find(object_name), {}).update(_arrays("add_weights", weights))

    def delete_weight(self, object_name: str, weight_name: str) -> None:
        """Remove a weight of an object.

        Raises:
            ValueError: there is no such object or weight, or there are several such objects.
        """
        place = self._find(object_name)
        weights = self.weights_dict.get(place, {})
        if weight_name not in weights:
            names = ", ".join(map(repr, weights)) or "none"
            raise ValueError(f"delete_weight: {place!r} has no weight {weight_name!r}. It has {names}.")
        del weights[weight_name]

    def save(self, filepath: PathLike) -> None:
        """Write the weights to a ``.weights.h5`` file.

        Raises:
            ValueError: the name ends otherwise.
        """
        path = Path(filepath)
        if not path.name.endswith(".weights.h5"):
            raise ValueError(f"KerasFileEditor saves to a file that ends in .weights.h5, got {str(path)!r}.")
        with atomic_write(path) as stream:
            groups = (Group(place, place.rpartition("/")[2] or None, arrays) for place, arrays in self._filled())
            write_weights(stream, groups)
            seal(stream)

    def resave_weights(self, filepath: PathLike) -> None:
        """Write the weights to a file; the same as `save`."""
        self.save(filepath)

    def _filled(self) -> Iterator[tuple[str, dict[str, Array]]]:
        return ((place, weights) for place, weights in self.weights_dict.items() if weights)

    def _places(self) -> list[str]:
        """Return the paths of objects, of those that have others inside, too."""
        parts = [place.split("/") for place in self.weights_dict]
        return list(dict.fromkeys("/".join(each[: n + 1]) for each in parts for n in range(len(each))))

    def _find(self, name: str) -> str:
        """Return the path of an object."""
        places = self._places()
        if name in places:
            return name
        found = [place for place in places if "/" not in name and place.rpartition("/")[2] == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{name!r} is the name of {len(found)} objects; give one's path: {', '.join(found)}.")
        near = difflib.get_close_matches(name, [*places, *(place.rpartition("/")[2] for place in places)], 1)
        hint = f"Did you mean {near[0]!r}?" if near else "summary() prints those that there are."
        raise ValueError(f"{self.filepath!r} has no object {name!r}. {hint}")


def _is_within(place: str, outer: str) -> bool:
    return place == outer or place.startswith(f"{outer}/")


def _is_optimizers(place: str) -> bool:
    return _is_within(place, OPTIMIZER)


def _arrays(method: str, weights: object) -> dict[str, Array]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{method}: weights must be a dict of arrays by name, such as {{'0': kernel, '1': bias}}; got "
            f"{type(weights).__name__}."
        )
    return {str(name): np.asarray(value) for name, value in weights.items()}


def _differences(
    saved: Mapping[str, Mapping[str, Array]], wanted: Mapping[str, Mapping[str, ArrayLike]]
) -> Iterator[str]:
    """Yield how a file's weights, by object, differ from a model's."""
    for place in [*wanted, *(place for place in saved if place not in wanted)]:
        ours, theirs = saved.get(place, {}), wanted.get(place, {})
        title = place or "(the model itself)"
        if not ours and theirs:
            yield f"{title}: missing in the file, {_count(theirs)} in the model"
            continue
        if ours and not theirs:
            yield f"{title}: {_count(ours)} in the file, missing in the model"
            continue
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            if name not in ours:
                yield f"{title}/{name}: missing in the file"
            elif name not in theirs:
                yield f"{title}/{name}: missing in the model"
            elif ours[name].shape != np.shape(theirs[name]):
                yield f"{title}/{name}: shape {ours[name].shape} in the file, {np.shape(theirs[name])} in the model"


def _count(weights: Mapping[str, object]) -> str:
    return f"{len(weights)} weight{'s' if len(weights) != 1 else ''}"
