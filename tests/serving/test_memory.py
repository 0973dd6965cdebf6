"""The bytes that loaded models may take, and versions that replace each other."""

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
from shared.serving_clients import ask

import anabranch as ab
from anabranch.engine.runtime.collector import leave_out_modules
from anabranch.framework.serving.memory import give_back_cycles
from anabranch.framework.serving.storage import bytes_on_disk

for _name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
    pytest.importorskip(_name)


def dense(folder: Path, units: int = 1000) -> None:
    """A version of `units` times 400 bytes."""
    ab.Sequential([ab.Input((100,), name="x"), ab.layers.Dense(units)]).export(folder, verbose=False)


def config(models: dict[str, Path], limit: int | None, replace: bool = False) -> dict[str, Any]:
    entries = {name: {"path": str(path), "replace": replace} for name, path in models.items()}
    return {"models": entries, "limits": {"max_loaded_bytes": limit}}


def states(server: Any, name: str = "m") -> dict[str, str]:
    found = ask(server.rest_url, f"/v1/models/{name}").json["model_version_status"]
    return {each["version"]: each["state"] for each in found}


def test_what_does_not_fit_is_not_loaded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        dense(tmp_path / name)
    both = {name: tmp_path / name for name in ("a", "b")}
    with ab.serving.Server(config=config(both, 1_000_000)):
        pass
    with pytest.raises(ab.serving.ServableError, match=r"of 600,000 \(max_loaded_bytes\)"):
        ab.serving.Server(config=config(both, 600_000)).start()


def test_a_version_for_which_there_is_no_room_is_reported(tmp_path: Path) -> None:
    dense(tmp_path)
    with ab.serving.Server(config=config({"m": tmp_path}, 600_000), poll_seconds=0) as server:
        dense(tmp_path)
        server.refresh()
        assert states(server) == {"1": "AVAILABLE", "2": "END"}
        assert b"max_loaded_bytes" in ask(server.rest_url, "/v1/models/m").body


def test_versions_replace_each_other(tmp_path: Path) -> None:
    dense(tmp_path)
    with ab.serving.Server(config=config({"m": tmp_path}, 600_000, replace=True), poll_seconds=0) as server:
        for version in ("2", "3"):
            dense(tmp_path)
            server.refresh()
            assert states(server) == {version: "AVAILABLE"}
            text = ask(server.rest_url, "/metrics").body.decode()
            size = bytes_on_disk(tmp_path / version)
            assert re.findall("^anabranch_loaded_bytes.*$", text, re.M) == [
                f'anabranch_loaded_bytes{{model="m",version="{version}"}} {float(size)}'
            ]
        dense(tmp_path, 5000)  # too large by itself: the old one comes back
        server.refresh()
        assert states(server) == {"3": "AVAILABLE", "4": "END"}
        server.refresh()
        assert states(server) == {"3": "AVAILABLE", "4": "END"}
        body = {"instances": [[0.0] * 100]}
        assert ask(server.rest_url, "/v1/models/m:predict", body).status == 200


def test_a_configuration_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        dense(tmp_path / name)
    with ab.serving.Server(config=config({"a": tmp_path / "a"}, 600_000), poll_seconds=0) as server:
        with pytest.raises(ab.serving.ServableError, match="max_loaded_bytes"):
            server.configure(config({"a": tmp_path / "a", "b": tmp_path / "b"}, None))
        assert server.models == ["a"]


class Cycle:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.held: Cycle | None = self


def test_collections_leave_out_what_was_made_before() -> None:
    """The collection after each reload held Python's lock for 50 ms, most of it for modules."""
    earlier = Cycle()
    leave_out_modules()
    try:
        assert all(each is not earlier for each in gc.get_objects())
        made = weakref.ref(Cycle())
        give_back_cycles()
        assert made() is None
    finally:
        earlier.held = None
