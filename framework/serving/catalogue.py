"""`Catalogue`: the models that a server has loaded."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ...distribute.inference import RequestError, authorization
from .configuration import ModelConfig
from .decoding.served import ServedDecoder
from .memory import Memory
from .metrics import Metrics
from .served_model import ServedModel
from .storage import ServableError
from .versions import Limits, ModelVersions


class Catalogue:
    """All models of a server, by the names under which they are served. It belongs to the server's event loop.

    Args:
        limits: of requests.
        max_loaded_bytes: how many bytes all models may take together; None for any number.
    """

    def __init__(self, limits: Limits | None = None, max_loaded_bytes: int | None = None) -> None:
        self._limits = limits or Limits()
        self._memory = Memory(max_loaded_bytes)
        self.metrics = Metrics()
        self.models: dict[str, ModelVersions] = {}
        self.is_open = False
        self._thread = ThreadPoolExecutor(1, "serving-load")
        self._turn = asyncio.Lock()
        self._leaving: dict[asyncio.Task[None], ModelVersions] = {}
        self._tokens: dict[str, str] = {}

    async def configure(self, models: Mapping[str, ModelConfig]) -> None:
        """Serve these models, and no others.

        Raises:
            ServableError: one has no version that can be loaded. Then nothing changes.
            ValueError: a file with a token can't be read. Then nothing changes.
        """
        tokens = {name: config.token() for name, config in models.items()}
        async with self._turn:
            kept = {
                name for name, entry in self.models.items() if name in models and entry.config.path == models[name].path
            }
            added = {
                name: ModelVersions(name, models[name], self.metrics, self._memory, self._limits)
                for name in models
                if name not in kept
            }
            try:
                for entry in added.values():
                    await entry.refresh(self._thread)
                    self._check_loaded(entry)
            except BaseException:
                for entry in added.values():
                    await entry.end()
                raise
            gone = [self.models.pop(name) for name in list(self.models) if name not in kept]
            for name, entry in self.models.items():
                entry.config = models[name]
                for served in entry.loaded.values():
                    served.configure(entry.config.batching)
            self.models.update(added)
            self._tokens = tokens
            for entry in gone:  # their last requests hold nobody up
                task = asyncio.create_task(entry.end())
                self._leaving[task] = entry
                task.add_done_callback(self._leaving.pop)
        await self.refresh()

    @staticmethod
    def _check_loaded(entry: ModelVersions) -> None:
        if not entry.loaded:
            reasons = "; ".join(f"version {number}: {why}" for number, why in entry.failed.items())
            raise ServableError(
                f"Model {entry.name!r}: there is no version at {entry.config.path!r} that can be served"
                f"{f' ({reasons})' if reasons else ''}. model.export() writes folders 1, 2, ... there."
            )

    async def refresh(self) -> None:
        """Look for new versions of all models."""
        async with self._turn:
            for entry in list(self.models.values()):
                await entry.refresh(self._thread)

    def find(self, name: str, version: str = "", label: str = "") -> ServedModel:
        """Return the model of a name, and of a version or a label if one is given.

        Raises:
            RequestError: it is not loaded, is a decoder, or the request does not bear its token.
        """
        found = self.find_any(name, version, label)
        if isinstance(found, ServedDecoder):
            raise RequestError(
                400,
                f"{name!r} is a decoder: send POST /v2/models/{name}/generate or /generate_stream, or call gRPC's "
                "ModelStreamInfer.",
            )
        return found

    def find_decoder(self, name: str, version: str = "") -> ServedDecoder:
        """Return the decoder of a name, and of a version if one is given; as `find`."""
        found = self.find_any(name, version)
        if isinstance(found, ServedModel):
            raise RequestError(
                400, f"{name!r} is no decoder: send POST /v2/models/{name}/infer, or call gRPC's ModelInfer."
            )
        return found

    def needs_token(self, name: str) -> bool:
        """Test whether requests for a model have to bear a token."""
        return bool(self._tokens.get(name))

    def check_token(self, name: str) -> None:
        """Raise a `RequestError` unless the request bears the token of a model, if that has one."""
        if not self._has_token(name):
            raise RequestError(
                401, f"Model {name!r} asks for its token: send the header 'Authorization: Bearer TOKEN'."
            )

    def _has_token(self, name: str) -> bool:
        token = self._tokens.get(name)
        if not token:
            return True
        scheme, _, given = authorization.get().partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())

    def open_names(self) -> list[str]:
        """Return the names of all models for which the request bears the token."""
        return list(self.open_models())

    def open_models(self) -> dict[str, ModelVersions]:
        """Return all models for which the request bears the token, by name."""
        return {name: entry for name, entry in self.models.items() if self._has_token(name)}

    @property
    def is_ready(self) -> bool:
        """Test whether all models answer, but for those that clients have unloaded."""
        return self.is_open and all(
            entry.is_unloaded or (entry.loaded and not entry.is_stuck) for entry in self.models.values()
        )

    def steps(self) -> list[str]:
        """Return descriptions of the steps that are computed now."""
        return [step for entry in self._entries() for step in entry.steps()]

    def remove_files(self) -> None:
        """Remove temporary files, before a process ends that does not wait for its models."""
        for entry in self._entries():
            entry.remove_files()

    def _entries(self) -> list[ModelVersions]:
        return [*list(self.models.values()), *list(self._leaving.values())]

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, or look for new versions of it.

        Raises:
            RequestError: there is no such model, or no version of it can be loaded.
        """
        async with self._turn:
            entry = self._entry(name)
            entry.is_unloaded = False
            try:
                await entry.refresh(self._thread)
                self._check_loaded(entry)
            except ServableError as error:
                entry.is_unloaded = not entry.loaded
                raise RequestError(400, str(error)) from None

    async def unload(self, name: str) -> None:
        """Let a model go, after its last request, until it is loaded again.

        Raises:
            RequestError: there is no such model.
        """
        async with self._turn:
            entry = self._entry(name)
            entry.is_unloaded = True
            await entry.refresh(self._thread)

    def configured(self, name: str) -> None:
        """Raise a `RequestError` unless there is such a model, and the request bears its token."""
        self.check_token(name)
        self._entry(name)

    def _entry(self, name: str) -> ModelVersions:
        entry = self.models.get(name)
        if entry is None:
            known = ", ".join(map(repr, self.open_names())) or "none"
            raise RequestError(404, f"There is no model {name!r} in the configuration. There are {known}.")
        return entry

    def find_any(self, name: str, version: str = "", label: str = "") -> ServedModel | ServedDecoder:
        """Return what is served under a name; as `find`."""
        self.check_token(name)
        entry = self.models.get(name)
        model = None if entry is None else entry.find(version, label)
        if model is not None:
            return model
        if entry is not None and entry.is_replacing:
            raise RequestError(503, f"Model {name!r} is being replaced by a new version. Ask again later.")
        asked = f"Specific({name}, {version or label})" if version or label else f"Latest({name})"
        known = ", ".join(
            f"{name!r} (version {', '.join(map(str, sorted(each.loaded)))})"
            for name, each in self.open_models().items()
            if each.loaded
        )
        raise RequestError(404, f"Servable not found for request: {asked}. Loaded are {known or 'none'}.")

    async def close(self) -> None:
        """Wait for the requests under way, and end all threads."""
        async with self._turn:
            for entry in self.models.values():
                await entry.end()
        await asyncio.gather(*self._leaving)
        self._thread.shutdown()
