"""Inputs and outputs of a servable: named tensors with dtypes and shapes, and what protocols call these."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...distribute.inference import RequestError
from ...distribute.inference.dtypes import OPEN_INFERENCE, TENSORFLOW
from ...engine.common.quick_dataclass import dataclass

if TYPE_CHECKING:
    from typing import NotRequired, TypedDict

    class PaddingDocument(TypedDict):
        """A `Padding` as values of JSON."""

        inputs: Sequence[tuple[str, float | str]]
        outputs: Sequence[tuple[str, int]]

    class StateDocument(TypedDict):
        """A `StateInfo` as values of JSON."""

        dtype: str
        shape: Sequence[int | None]
        before: str
        after: str

    class SignatureDocument(TypedDict):
        """A `Signature` as values of JSON."""

        inputs: Sequence[Mapping[str, object]]
        outputs: Sequence[Mapping[str, object]]
        outputs_as: str
        row_wise: NotRequired[bool | None]
        pad: NotRequired[Sequence[PaddingDocument]]
        states: NotRequired[Sequence[StateDocument]]


DEFAULT = "serving_default"  # the signature that a request means that names none
_MOST_SHOWN, _LONGEST_SHOWN = 16, 64  # names in an error, and characters of one


@dataclass(frozen=True)
class ImageForm:
    """The conversion of PNG or JPEG bytes to an array for an input.

    Attributes:
        resize: the interpolation by which an image becomes as large as the input; None for images that are.
        crop_to_aspect_ratio: cut off what does not fit, rather than distort.
        pad_to_aspect_ratio: fill up with 0, rather than distort.
    """

    resize: str | None = None
    crop_to_aspect_ratio: bool = False
    pad_to_aspect_ratio: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the form as values for JSON."""
        return {
            "resize": self.resize,
            "crop_to_aspect_ratio": self.crop_to_aspect_ratio,
            "pad_to_aspect_ratio": self.pad_to_aspect_ratio,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ImageForm:
        """Return the form that `to_json` described.

        Raises:
            ValueError: an option is unknown, or has another type.
        """
        kinds = {"resize": (str, type(None)), "crop_to_aspect_ratio": (bool,), "pad_to_aspect_ratio": (bool,)}
        for name, value in document.items():
            if name not in kinds or not isinstance(value, kinds[name]):
                raise ValueError(f"{name!r}: {value!r} is no option of images. There are {', '.join(kinds)}.")
        return cls(**document)


@dataclass(frozen=True)
class TensorInfo:
    """One input or output.

    Attributes:
        name: its name in requests.
        dtype: the name of its dtype.
        shape: its sizes, None for what is open.
        tensor: the name of the tensor in the graph.
        image: how images become arrays, for an input that may come as these.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    tensor: str
    image: ImageForm | None = None

    def with_image(self, form: ImageForm) -> TensorInfo:
        """Return the same input, which may come as images."""
        return TensorInfo(self.name, self.dtype, self.shape, self.tensor, form)

    @property
    def open_shape(self) -> list[int]:
        """The sizes, -1 for what is open, as protocols write it."""
        return [-1 if size is None else size for size in self.shape]

    def accepts(self, shape: Sequence[int]) -> bool:
        """Test whether an array of such a shape fits."""
        if len(shape) != len(self.shape):
            return False
        for own, size in zip(self.shape, shape, strict=True):  # noqa: SIM110  (a generator takes three times as long)
            if own is not None and own != size:
                return False
        return True


@dataclass(frozen=True)
class Padding:
    """Inputs whose sequences may be filled up together along axis 1, since the model masks what is filled up.

    Attributes:
        inputs: the names of inputs of one length, each with the value that it is filled up with.
        outputs: the names of outputs that are longer then, each with the axis to be cut back.
    """

    inputs: tuple[tuple[str, float | str], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StateInfo:
    """A state of `stateful=True` layers, which a sequence of requests keeps; it begins with zeros.

    Attributes:
        dtype: the name of its dtype.
        shape: its sizes, the first of which, that of the rows, is open.
        before, after: the names of tensors in the graph: what is fed, and what it becomes.
    """

    dtype: str
    shape: tuple[int | None, ...]
    before: str
    after: str

    def to_json(self) -> dict[str, object]:
        """Return the state as values for JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "before": self.before, "after": self.after}

    @classmethod
    def from_json(cls, document: StateDocument) -> StateInfo:
        """Return the state that `to_json` described."""
        shape = tuple(None if size is None else int(size) for size in document["shape"])
        if shape[:1] != (None,) or None in shape[1:]:
            raise ValueError(f"a state of the shape {shape}")
        return cls(str(document["dtype"]), shape, str(document["before"]), str(document["after"]))


@dataclass(frozen=True)
class Signature:
    """One way to call a servable.

    Attributes:
        inputs, outputs: what it takes and gives, in order.
        outputs_as: "one", "list" or "dict": in which structure the model gave its outputs.
        row_wise: whether each row is computed for itself, if whoever exported said so; None leaves it to the graph.
        paddings: which inputs may be filled up, in groups of the same length.
        states: what a sequence of requests keeps between these.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    outputs_as: str
    row_wise: bool | None = None
    paddings: tuple[Padding, ...] = ()
    states: tuple[StateInfo, ...] = ()

    @property
    def takes_images(self) -> bool:
        """Test whether an input may come as images, which take time to be read."""
        for info in self.inputs:  # noqa: SIM110  (a generator takes three times as long)
            if info.image is not None:
                return True
        return False

    def to_json(self) -> dict[str, object]:
        """Return the signature as values for JSON."""
        return {
            "inputs": [_info_to_json(info) for info in self.inputs],
            "outputs": [_info_to_json(info) for info in self.outputs],
            "outputs_as": self.outputs_as,
            **({} if self.row_wise is None else {"row_wise": self.row_wise}),
            **({"pad": [_padding_to_json(each) for each in self.paddings]} if self.paddings else {}),
            **({"states": [each.to_json() for each in self.states]} if self.states else {}),
        }

    @classmethod
    def from_json(cls, document: SignatureDocument) -> Signature:
        """Return the signature that `to_json` described."""
        inputs, outputs = (tuple(_info_from_json(each) for each in document[key]) for key in ("inputs", "outputs"))
        row_wise = document.get("row_wise")
        paddings = tuple(_padding_from_json(each, inputs, outputs) for each in document.get("pad", ()))
        row_wise = None if row_wise is None else bool(row_wise)
        states = tuple(StateInfo.from_json(each) for each in document.get("states", ()))
        return cls(inputs, outputs, str(document["outputs_as"]), row_wise, paddings, states)


def _info_to_json(info: TensorInfo) -> dict[str, object]:
    written: dict[str, object] = {
        "name": info.name,
        "dtype": info.dtype,
        "shape": list(info.shape),
        "tensor": info.tensor,
    }
    return written if info.image is None else {**written, "image": info.image.to_json()}


def _info_from_json(document: Mapping[str, Any]) -> TensorInfo:
    if document["dtype"] not in OPEN_INFERENCE:
        raise ValueError(f"unknown dtype {document['dtype']!r}")
    shape = tuple(None if size is None else int(size) for size in document["shape"])
    image = None if document.get("image") is None else ImageForm.from_json(document["image"])
    return TensorInfo(str(document["name"]), document["dtype"], shape, str(document["tensor"]), image)


def _padding_to_json(padding: Padding) -> dict[str, object]:
    return {"inputs": [list(each) for each in padding.inputs], "outputs": [list(each) for each in padding.outputs]}


def _padding_from_json(
    document: PaddingDocument, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> Padding:
    padding = Padding(
        tuple((str(name), value) for name, value in document["inputs"]),
        tuple((str(name), int(axis)) for name, axis in document["outputs"]),
    )
    ranks = {info.name: len(info.shape) for info in inputs}
    if any(ranks.get(name, 0) < 2 for name, _ in padding.inputs):
        raise ValueError(f"inputs {padding.inputs} are padded, of {list(ranks)}")
    ranks = {info.name: len(info.shape) for info in outputs}
    if any(not 0 < axis < ranks.get(name, 0) for name, axis in padding.outputs):
        raise ValueError(f"outputs {padding.outputs} are cut back, of {list(ranks)}")
    return padding


# --- names in requests ------------------------------------------------------------------------------------------------


def check_given(names: Sequence[str], given: Collection[str], where: str = "Expected") -> None:
    """Check that exactly the inputs of these names are given.

    Args:
        names: those that are expected.
        given: those that came.
        where: the beginning of the error.

    Raises:
        RequestError: some are missing or unknown.

    >>> check_given(["a", "b"], ["a", "bb"])
    Traceback (most recent call last):
    anabranch.distribute.inference.RequestError: Expected the inputs 'a', 'b', got 'a', 'bb' (missing: 'b'; unknown: \
'bb'). Did you mean 'b'?
    """
    if len(given) == len(names) and all(name in given for name in names):
        return
    missing, unknown = [name for name in names if name not in given], [name for name in given if name not in names]
    parts = [f"{what}: {listed(some)}" for what, some in (("missing", missing), ("unknown", unknown)) if some]
    wanted = f"the inputs {listed(names)}" if names else "no inputs"
    end = _meant(unknown, missing)
    raise RequestError(400, f"{where} {wanted}, got {listed(given)} ({'; '.join(parts)}).{end}")


def check_known(kind: str, given: Collection[str], known: Collection[str]) -> None:
    """Check that names are among those that there are.

    Args:
        kind: what they name, in the singular.
        given: the names.
        known: those that there are.

    Raises:
        RequestError: some are not.

    >>> check_known("output", ["sun"], ["sum", "mean"])
    Traceback (most recent call last):
    anabranch.distribute.inference.RequestError: There is no output 'sun'. There are 'sum', 'mean'. Did you mean 'sum'?
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    are = f"are no {kind}s" if len(unknown) > 1 else f"is no {kind}"
    raise RequestError(400, f"There {are} {listed(unknown)}. There are {listed(known)}.{_meant(unknown, known)}")


def listed(names: Collection[str]) -> str:
    """Return names as an error lists them: the first 16, up to 64 characters of each, since requests have any."""
    first = islice(names, _MOST_SHOWN)
    shown = [repr(name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}...") for name in first]
    more = [f"{len(names) - _MOST_SHOWN:,} more"] if len(names) > _MOST_SHOWN else []
    return ", ".join([*shown, *more]) or "none"


def _meant(unknown: Collection[str], possible: Collection[str]) -> str:
    """Return the question whether similar names were meant, as the end of an error."""
    import difflib  # only errors need it

    if len(unknown) > _MOST_SHOWN:
        return ""
    near: dict[str, str] = {}
    for wrong in unknown:
        found = difflib.get_close_matches(wrong, possible, 1) if len(wrong) <= _LONGEST_SHOWN else ()
        near |= dict.fromkeys([wrong] if found else [], "".join(found))
    if len(unknown) == 1:
        return "".join(f" Did you mean {meant!r}?" for meant in near.values())
    return f" Did you mean {', '.join(f'{meant!r} for {wrong!r}' for wrong, meant in near.items())}?" if near else ""


__all__ = [
    "DEFAULT",
    "OPEN_INFERENCE",
    "TENSORFLOW",
    "ImageForm",
    "Padding",
    "Signature",
    "StateInfo",
    "TensorInfo",
    "check_given",
    "check_known",
    "listed",
]
