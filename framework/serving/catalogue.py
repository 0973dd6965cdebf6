"""`Catalogue`: the models that a server has loaded; each computes in a thread of its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ... import __version__
from ...distribute.inference import Answer, RequestError, WireTensor
from .batching import Batcher, Batching
from .metrics import Metrics
from .open_inference import EXTENSIONS, PLATFORM, as_wire, from_wire
from .servable import Servable, load
from .signature import OPEN_INFERENCE, TensorInfo


class ServedModel:
    """A loaded model and the thread that computes it, requests that wait together where `settings` and model allow."""

    def __init__(self, name: str, servable: Servable, metrics: Metrics, settings: Batching) -> None:
        self._metrics = metrics
        self._settings = settings
        self.name = name
        self.servable = servable
        self.version = str(servable.version)
        self._thread = ThreadPoolExecutor(1, f"serving-{name}")
        self._batcher = Batcher(servable, settings, self._thread, metrics.of_model(name))

    async def run(self, arrays: Sequence[Any], signature: str = "") -> list[Any]:
        """The outputs, in order, for arrays that fit the inputs.

        Raises:
            RequestError: the model can't compute them, or too many requests wait for it.
        """
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 1
        with self._metrics.request(self.name, rows):
            self.servable.check_rows(arrays, signature)
            self._check_queue()
            try:
                return await self._batcher.submit(arrays, signature)
            except RequestError:
                raise
            except Exception as error:
                traceback.print_exception(error)
                raise RequestError(500, f"Model {self.name!r} failed: {type(error).__name__}: {error}") from error

    def _check_queue(self) -> None:
        if self._batcher.is_busy and self._batcher.waiting >= self._settings.max_queue_size:
            raise RequestError(
                429,
                f"Model {self.name!r} is busy: {self._settings.max_queue_size} requests wait for it, which is its "
                "limit (max_queue_size). Ask again later.",
            )

    def close(self) -> None:
        """End the thread, after what it computes."""
        self._thread.shutdown()


class Catalogue:
    """All models of a server.

    Args:
        models: paths of servables by the names under which they are served, of each the highest version.
        batching: how requests for a model are computed together, by its name.

    Raises:
        ServableError: one can't be loaded.
    """

    def __init__(self, models: Mapping[str, str | os.PathLike[str]], batching: Mapping[str, Batching]) -> None:
        self.metrics = Metrics()
        self.models = {
            name: ServedModel(name, load(path), self.metrics, batching.get(name, Batching()))
            for name, path in models.items()
        }
        self.is_open = False

    def find(self, name: str, version: str = "", label: str = "") -> ServedModel:
        """The model of a name, and of a version or a label if one is given.

        Raises:
            RequestError: it is not loaded.
        """
        model = self.models.get(name)
        if model is not None and not label and version in ("", model.version):
            return model
        asked = f"Specific({name}, {version or label})" if version or label else f"Latest({name})"
        known = ", ".join(f"{each.name!r} (version {each.version})" for each in self.models.values())
        raise RequestError(404, f"Servable not found for request: {asked}. Loaded are {known or 'none'}.")

    def close(self) -> None:
        """End all threads."""
        for model in self.models.values():
            model.close()

    # --- the Open Inference Protocol: `InferenceBackend` ------------------------------------------------------

    def is_ready(self) -> bool:
        return self.is_open

    def is_model_ready(self, model: str, version: str) -> bool:
        found = self.models.get(model)
        return self.is_open and found is not None and version in ("", found.version)

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "anabranch", "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        found = self.find(model, version)
        signature = found.servable.signature()
        return {
            "name": model,
            "versions": [found.version],
            "platform": PLATFORM,
            "inputs": [_described(info) for info in signature.inputs],
            "outputs": [_described(info) for info in signature.outputs],
        }

    async def infer(
        self, model: str, version: str, inputs: Sequence[WireTensor], outputs: Sequence[str], raw: bool = True
    ) -> Answer:
        found = self.find(model, version)
        signature = found.servable.signature()
        arrays = from_wire(signature, inputs)
        names = [info.name for info in signature.outputs]
        unknown = [name for name in outputs if name not in names]
        if unknown:
            raise RequestError(400, f"There is no output {unknown[0]!r}. There are {', '.join(map(repr, names))}.")
        values = found.servable.by_name(signature, await found.run(arrays))
        infos = {info.name: info for info in signature.outputs}
        return Answer(found.version, [as_wire(infos[name], values[name], raw) for name in outputs or names])


def _described(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": OPEN_INFERENCE[info.dtype], "shape": info.open_shape}
