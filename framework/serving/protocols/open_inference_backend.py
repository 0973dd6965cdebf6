"""`OpenInferenceBackend`: the models of a server by the Open Inference Protocol, and by what Triton adds to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from .... import __version__
from ....distribute.inference import Answer, InferRequest, RequestError, WireTensor
from ....distribute.inference.large import beside_others
from ..catalogue import Catalogue
from ..decoding.served import ServedDecoder
from ..decoding.wire import answers
from ..sequences import step_of
from ..served_model import ServedModel
from ..signature import OPEN_INFERENCE, Signature, TensorInfo, check_known
from ..workers.member import Member
from ..workers.merging import merged_statistics
from .open_inference import EXTENSIONS, PLATFORM, as_wire, from_wire

if TYPE_CHECKING:
    from ...structures import Array


class OpenInferenceBackend:
    """Implements `InferenceBackend`.

    Args:
        catalogue: the models.
        may_manage: whether clients may load and unload models.
        member: the place of this process among those of the server; None where it is the only one.
    """

    def __init__(self, catalogue: Catalogue, may_manage: bool = False, member: Member | None = None) -> None:
        self._catalogue, self._may_manage, self._member = catalogue, may_manage, member

    def is_ready(self) -> bool:
        return self._catalogue.is_ready and (self._member is None or self._member.all_ready)

    def is_model(self, model: str) -> bool:
        return model in self._catalogue.models

    def is_model_ready(self, model: str, version: str) -> bool:
        entry = self._catalogue.models.get(model)
        found = None if entry is None else entry.find(version, "")
        is_stuck = self._member is not None and model in self._member.stuck
        return self._catalogue.is_open and found is not None and not found.watch.is_stuck and not is_stuck

    def server_metadata(self) -> dict[str, object]:
        return {"name": "anabranch", "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, model: str, version: str) -> dict[str, object]:
        signature = self._signature(self._catalogue.find_any(model, version))
        return {
            "name": model,
            "versions": [str(number) for number in sorted(self._catalogue.models[model].loaded)],
            "platform": PLATFORM,
            "inputs": [_described(info) for info in signature.inputs],
            "outputs": [_described(info) for info in signature.outputs],
        }

    @staticmethod
    def _signature(found: ServedModel | ServedDecoder) -> Signature:
        return found.decoder.signature if isinstance(found, ServedDecoder) else found.servable.signature()

    def model_config(self, model: str, version: str) -> dict[str, object]:
        found = self._catalogue.find_any(model, version)
        signature = self._signature(found)
        settings = self._catalogue.models[model].config.batching
        joined = isinstance(found, ServedModel) and found.servable.why_alone() is None
        start = 1 if joined else 0  # with batches, Triton's sizes leave out the rows
        config: dict[str, object] = {
            "name": model,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": settings.max_batch_size if joined else 0,
            "input": [_configured(info, start) for info in signature.inputs],
            "output": [_configured(info, start) for info in signature.outputs],
        }
        if isinstance(found, ServedModel) and found.sequences is not None:
            config["sequence_batching"] = {
                "max_sequence_idle_microseconds": round(settings.sequence_idle_seconds * 1e6)
            }
        elif joined:
            config["dynamic_batching"] = {"max_queue_delay_microseconds": round(settings.max_queue_delay_ms * 1000)}
        if isinstance(found, ServedDecoder):
            config["model_transaction_policy"] = {"decoupled": True}
        return config

    async def statistics(self, model: str, version: str) -> list[dict[str, object]]:
        own = self.own_statistics(model, version)
        if self._member is None:
            return own
        names = {entry["name"] for entry in own}
        found = merged_statistics(await self._member.ask("statistics", [model, version]))
        return [entry for entry in found if entry["name"] in names]

    def own_statistics(self, model: str, version: str, is_checked: bool = False) -> list[dict[str, object]]:
        """Return this process's statistics, of models for which the request bears the token unless `is_checked`."""
        every = list(self._catalogue.models) if is_checked else self._catalogue.open_names()
        names = [model] if model else every
        found: list[dict[str, object]] = []
        for name in names:
            if (version or model) and not is_checked:
                self._catalogue.find_any(name, version)
            entry = self._catalogue.models.get(name)
            for number, served in sorted(() if entry is None else entry.loaded.items()):
                if not version or str(number) == version:
                    found.append(served.statistics.to_json(name, str(number)))
        return found

    def index(self, only_ready: bool) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for name, entry in self._catalogue.open_models().items():
            for number in sorted(entry.loaded):
                found.append({"name": name, "version": str(number), "state": "READY", "reason": ""})
            if only_ready:
                continue
            for number, why in sorted(entry.failed.items()):
                found.append({"name": name, "version": str(number), "state": "UNAVAILABLE", "reason": why})
            if entry.is_unloaded:
                found.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": "unloaded"})
        return found

    async def load(self, model: str) -> None:
        self._check_may_manage()
        self._catalogue.configured(model)
        await (self._catalogue.load(model) if self._member is None else self._member.ask("load", model))

    async def unload(self, model: str) -> None:
        self._check_may_manage()
        self._catalogue.configured(model)
        await (self._catalogue.unload(model) if self._member is None else self._member.ask("unload", model))

    def _check_may_manage(self) -> None:
        if not self._may_manage:
            raise RequestError(
                403, "Clients may not load and unload models here: the server was started without --manage."
            )

    async def infer(self, request: InferRequest, raw: bool = True) -> Answer:
        found = self._catalogue.find(request.model, request.version)
        step = step_of(request.parameters) if found.sequences is not None else None
        if step is not None and not step.is_first and not request.version:
            found = self._catalogue.models[request.model].with_sequence(step.sequence) or found
        signature = found.servable.signature()
        size = request.size + _bytes_of_text(request.inputs)
        arrays = await found.prepare(lambda: from_wire(signature, request.inputs, found.check_size), size)
        chosen = _chosen(signature, request.outputs) if request.outputs else range(len(signature.outputs))
        values = await found.run(arrays, step=step)
        infos = [(signature.outputs[each], values[each]) for each in chosen]
        size = sum([array.nbytes for info, array in infos if raw and info.dtype == "string"])
        return Answer(found.version, await beside_others(size, _on_wire, infos, raw))

    async def stream(self, request: InferRequest) -> AsyncGenerator[Answer]:
        found = self._catalogue.find_any(request.model, request.version)
        if isinstance(found, ServedDecoder):
            async for answer in answers(found, request):
                yield answer
        else:
            answer = await self.infer(request)
            yield answer._replace(parameters={"triton_final_response": True})


def _on_wire(outputs: Sequence[tuple[TensorInfo, Array]], raw: bool) -> list[WireTensor]:
    return [as_wire(info, array, raw) for info, array in outputs]


def _bytes_of_text(tensors: Sequence[WireTensor]) -> int:
    """Return how many bytes of text, which is read one by one, came as they are."""
    raw = [each.data for each in tensors if each.datatype == "BYTES" and isinstance(each.data, bytes | memoryview)]
    return sum(map(len, raw))


def _chosen(signature: Signature, wanted: Sequence[str]) -> list[int]:
    """Return the places of outputs among those of a signature."""
    places = {info.name: place for place, info in enumerate(signature.outputs)}
    check_known("output", wanted, places)
    return [places[name] for name in wanted]


def _described(info: TensorInfo) -> dict[str, object]:
    return {"name": info.name, "datatype": OPEN_INFERENCE[info.dtype], "shape": info.open_shape}


def _configured(info: TensorInfo, start: int) -> dict[str, object]:
    datatype = "STRING" if info.dtype == "string" else OPEN_INFERENCE[info.dtype]
    return {"name": info.name, "data_type": f"TYPE_{datatype}", "dims": info.open_shape[start:]}
