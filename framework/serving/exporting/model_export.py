"""`export_model`: what `Model.export` does."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ....engine.graph import Graph
from ..image_inputs import image_forms
from ..signature import DEFAULT
from ..storage import write_servable
from .endpoint import WritesVariablesError, arguments_of, report, trace_endpoint, warmup_of
from .padding import with_padding
from .states import trace_sequences

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...structures import Arrays, InputSpecs
    from ...training.base_model import BaseModel


FORMATS = ("anabranch",)


def export_model(
    model: BaseModel,
    filepath: str | os.PathLike[str],
    format: str = "anabranch",
    verbose: int | None = None,
    input_signature: InputSpecs | None = None,
    version: int | None = None,
    warmup: Arrays | None = None,
    pad: Mapping[str, object] | None = None,
    images: Mapping[str, Mapping[str, object]] | None = None,
) -> int:
    """Write a model's inference as a version of a servable; see `Model.export`."""
    if format not in FORMATS:
        raise ValueError(
            f"export(format={format!r}): models are exported as 'anabranch', which `ab.serving.load` and "
            "`python -m anabranch serve` read, or as 'onnx'. Of Keras's other formats none is written."
        )
    check_version("export", version)
    graph = Graph()
    arguments = arguments_of(model, input_signature)
    who = f"Model {model.name!r}"
    try:
        endpoint = trace_endpoint(who, partial(model, training=False), arguments, graph)
    except WritesVariablesError as refusal:
        graph = Graph()
        endpoint = trace_sequences(who, model, arguments, graph, refusal)
    signature = endpoint.signature
    if images is not None:
        signature = replace(signature, inputs=image_forms("export", signature.inputs, images))
    requests = [] if warmup is None else [warmup_of(DEFAULT, endpoint._replace(signature=signature), warmup)]
    if pad is not None:
        signature = with_padding("export", graph, signature, pad, requests[0] if requests else None)
    signatures = {DEFAULT: signature}
    written = write_servable(filepath, graph, signatures, version, requests)
    if verbose or verbose is None:
        print(report(os.path.join(filepath, str(written)), signatures))
    return written


def check_version(caller: str, version: object) -> None:
    """Raise a `ValueError` unless a version is a number from 0 on, or None."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise ValueError(f"{caller}(version={version!r}): expected an int of at least 0, or None for the next.")
