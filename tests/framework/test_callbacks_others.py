"""Callbacks that keep files, report progress, swap weights or find where a NaN comes from; and `check_saveable`."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.framework.callbacks.api import (
    Callback,
    CallbackList,
    EarlyStopping,
    LambdaCallback,
    ModelCheckpoint,
    ProgbarLogger,
    RemoteMonitor,
    SwapEMAWeights,
    TerminateOnNaN,
)
from anabranch.framework.training.progress import LinePrinter, make_progress

X = np.linspace(-1, 1, 12, dtype="float32").reshape(6, 2)
Y = X.sum(1, keepdims=True)


def model_for_tests(optimizer: Any = "sgd") -> ab.Sequential:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


class Scripted(Callback):
    """Puts given values of ``val_loss`` into the logs, ahead of the callback under test."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs["val_loss"] = self.values[epoch]


def fit_with(values: list[Any], callback: Callback) -> ab.Sequential:
    model = model_for_tests()
    model.fit(X, Y, epochs=len(values), callbacks=[Scripted(values), callback], verbose=0)
    return model


# --- ModelCheckpoint ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "keep_last", "options", "left"),
    [
        ([5, 4, 3, 2, 1], 2, {}, [4, 5]),
        ([5, 1, 3, 2, 4], 2, {}, [2, 4, 5]),
        ([1, 2, 3, 4, 5], 1, {}, [1, 5]),
        ([1, 2, 3, 4, 5], 2, {"mode": "max"}, [4, 5]),
        ([1, 2, 3], 5, {}, [1, 2, 3]),
        ([5, 6, 4, 3, 7], 2, {"save_best_only": True}, [3, 4]),
    ],
)
def test_the_last_files_and_the_best_are_kept(
    tmp_path: Path, values: list[float], keep_last: int, options: dict[str, Any], left: list[int]
) -> None:
    (tmp_path / "other.keras").touch()
    fit_with(values, ModelCheckpoint(tmp_path / "{epoch}.keras", keep_last=keep_last, **options))
    assert sorted(file.stem for file in tmp_path.iterdir()) == [*map(str, left), "other"]


def test_without_the_quantity_the_last_files_are_kept(tmp_path: Path) -> None:
    model = model_for_tests()
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}.weights.h5", "nothing", save_weights_only=True, keep_last=2)
    model.fit(X, Y, epochs=4, verbose=0, callbacks=checkpoint)
    assert sorted(file.name[0] for file in tmp_path.iterdir()) == ["3", "4"]


def test_a_best_file_without_its_quantity_is_written_with_a_warning(tmp_path: Path) -> None:
    model = model_for_tests()
    with pytest.warns(UserWarning, match="watches 'val_loss', which is not among the logs"):
        model.fit(X, Y, verbose=0, callbacks=ModelCheckpoint(tmp_path / "a.keras", save_best_only=True))
    assert (tmp_path / "a.keras").exists()
    with pytest.warns(UserWarning, match=r"only if 'val_loss' is one number; it has shape \(2,\)"):
        fit_with([np.zeros(2)], ModelCheckpoint(tmp_path / "b.keras", save_best_only=True))
    assert (tmp_path / "b.keras").exists()


def test_batches_are_counted_where_several_run_at_once(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=3)
    model.fit(X, Y, batch_size=1, epochs=2, verbose=0, callbacks=checkpoint)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["1-4", "2-2", "2-6"]


@pytest.mark.parametrize("keep_last", [0, -1, 1.5, True])
def test_keep_last_is_checked(keep_last: Any) -> None:
    with pytest.raises(ValueError, match="keep_last must be a number of files, or None"):
        ModelCheckpoint("{epoch}.keras", keep_last=keep_last)
    with pytest.raises(ValueError, match=r"need names of their own, got 'model.keras' for all. Put \{epoch\}"):
        ModelCheckpoint("model.keras", keep_last=2)


# --- check_saveable -------------------------------------------------------------------------------------------------


class Scale(layers.Layer):
    """Its config is complete."""

    def __init__(self, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


class Forgetful(Scale):
    """Its config lacks an argument that has a default."""

    def get_config(self) -> dict[str, Any]:
        return layers.Layer.get_config(self)


class Needy(layers.Layer):
    """Its config lacks an argument that is needed."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def call(self, x: Any) -> Any:
        return x

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


class Drifting(Scale):
    """Comes back otherwise than it was written."""

    def __init__(self, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(factor * 2, **kwargs)


class Holding(layers.Layer):
    """Takes what no config can hold."""

    def __init__(self, thing: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.thing = thing

    def call(self, x: Any) -> Any:
        return x


def with_layer(layer: layers.Layer) -> ab.Sequential:
    model = ab.Sequential([layers.Dense(2), layer, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def unregistered() -> layers.Layer:
    class Local(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    return Local(name="bad")


KNOWN = {cls.__name__: cls for cls in (Forgetful, Needy, Drifting, Holding, Scale)}
BAD = {
    "is not known here. Import": unregistered,
    "holds a Python lambda": lambda: layers.Lambda(lambda x: x * 2, name="bad"),
    "its argument factor=3.0 is not in its config, and would be 1.0. Let get_config": lambda: Forgetful(
        3.0, name="bad"
    ),
    "could not make the object from config": lambda: Needy(3, name="bad"),
    "'factor' is 2.0 in its config, but 4.0 when it is loaded": lambda: Drifting(1.0, name="bad"),
    "Override get_config": lambda: Holding(object(), name="bad"),
}


@pytest.mark.parametrize("message", BAD)
def test_what_could_not_be_loaded_is_told_with_the_layer(message: str) -> None:
    layer = BAD[message]()
    with pytest.raises(ValueError, match=f"(?s)could not be loaded again:\n  layer 'bad' .*{message}"):
        with_layer(layer).check_saveable(KNOWN)


def test_every_layer_is_told_once_where_it_is(tmp_path: Path) -> None:
    inner = ab.Sequential([ab.Input((3, 2)), layers.TimeDistributed(Needy(1, name="a"), name="around")])
    model = ab.Sequential([inner, Needy(2, name="b"), layers.Dense(1)])
    with pytest.raises(ValueError, match="could not be loaded") as raised:
        model.check_saveable()
    told = [line.split("'")[1] for line in str(raised.value).splitlines() if line.startswith("  layer")]
    assert sorted(told) == ["a", "b"]


def test_what_can_be_loaded_passes_and_leaves_no_trace() -> None:
    inputs = ab.Input((4, 3))
    hidden = layers.Bidirectional(layers.LSTM(2))(inputs)
    hidden = layers.Dropout(0.5, seed=1)(Scale(2.0)(hidden))
    model = ab.Model(inputs, layers.Dense(1, kernel_regularizer="l2")(hidden))
    ab.utils.set_random_seed(3)
    number = int(layers.Dense(1).name.rpartition("_")[2])
    model.check_saveable(KNOWN)
    assert layers.Dense(1).name == f"dense_{number + 1}"
    first = layers.Dropout(0.5).seed_generator.seed
    ab.utils.set_random_seed(3)
    assert layers.Dropout(0.5).seed_generator.seed == first


def test_custom_objects_and_trusted_lambdas_pass() -> None:
    layer = unregistered()
    with_layer(layer).check_saveable({"Local": type(layer)})
    with_layer(layers.Lambda(lambda x: x * 2)).check_saveable(safe_mode=False)


def test_a_fit_that_will_save_checks_first(tmp_path: Path) -> None:
    steps: list[int] = []
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    with pytest.raises(ValueError, match="layer 'bad' \\(Needy\\)"):
        with_layer(Needy(3, name="bad")).fit(X, Y, verbose=0, callbacks=[note, ModelCheckpoint(tmp_path / "a.keras")])
    assert steps == []
    weights = ModelCheckpoint(tmp_path / "a.weights.h5", save_weights_only=True)
    with_layer(Needy(3, name="bad")).fit(X, Y, verbose=0, callbacks=weights)
    assert (tmp_path / "a.weights.h5").exists()


# --- RemoteMonitor --------------------------------------------------------------------------------------------------


class Server:
    """Notes what is posted."""

    def __init__(self, status: int) -> None:
        self.requests: list[tuple[str, dict[str, str], str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.requests.append((self.path, dict(self.headers), body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture(params=[200])
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    running = Server(request.param)
    yield running
    running.close()


def test_remote_monitor_posts_json(server: Server) -> None:
    monitor = RemoteMonitor(server.root, "/here", headers={"X-Run": "7"}, send_as_json=True)
    fit_with([2.0, np.float32(1.5)], monitor)
    (first, _), (path, headers, body) = (server.requests[0][::2], server.requests[1])
    assert first == path == "/here"
    assert (headers["Content-Type"], headers["X-Run"]) == ("application/json", "7")
    told = json.loads(body)
    assert (told["epoch"], told["val_loss"]) == (1, 1.5)


def test_remote_monitor_posts_a_form(server: Server) -> None:
    fit_with([[1, 2]], RemoteMonitor(server.root, field="logs"))
    ((path, _, body),) = server.requests
    assert path == "/publish/epoch/end/"
    assert json.loads(urllib.parse.parse_qs(body)["logs"][0])["val_loss"] == [1, 2]


@pytest.mark.parametrize("server", [500], indirect=True)
def test_failures_of_the_server_are_one_warning(server: Server) -> None:
    with pytest.warns(UserWarning, match=r"could not reach 'http://127.0.0.1:\d+/publish/epoch/end/' \(HTTP Error 500"):
        fit_with([3.0, 2.0, 1.0], RemoteMonitor(server.root))
    assert len(server.requests) == 3


def test_remote_monitor_wants_http() -> None:
    with pytest.raises(ValueError, match="root must begin with http:// or https://, got 'file:///etc'"):
        RemoteMonitor("file:///etc")


# --- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_progbar_logger_prints_in_place_of_fit(verbose: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_for_tests()
    model.fit(X, Y, batch_size=2, epochs=2, verbose=verbose, validation_data=(X, Y), callbacks=ProgbarLogger())
    printed = capsys.readouterr().out
    assert printed.count("3/3") >= 2
    assert printed.count("Epoch 2/2") >= 1
    assert "val_loss" in printed
    model.evaluate(X, Y, batch_size=3, verbose=2, callbacks=[ProgbarLogger()])
    model.predict(X, batch_size=3, verbose=2, callbacks=[ProgbarLogger()])
    assert capsys.readouterr().out.count("2/2") == 2


def test_a_silent_progbar_logger(capsys: pytest.CaptureFixture[str]) -> None:
    model_for_tests().fit(X, Y, verbose=0, callbacks=ProgbarLogger())
    assert capsys.readouterr().out == ""


def test_without_a_terminal_there_is_a_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    model_for_tests().fit(X, Y, epochs=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:9] for line in lines] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]


def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still but for what the test adds to it."""
    now = [0.0]
    monkeypatch.setattr("anabranch.framework.training.progress.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("data", "step", "text"),
    [(0.03, 0.01, "40ms/step (30ms data)"), (0.0001, 0.01, "10ms/step"), (1.5, 0.5, "2s/step (2s data)")],
)
def test_waiting_for_data_is_told_from_the_steps(
    data: float, step: float, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = clocked(monkeypatch)

    def batches() -> Any:
        for number in range(4):
            now[0] += data
            yield number

    progress = make_progress(2, "Epoch 1/1", 4, dict)
    assert isinstance(progress, LinePrinter)
    for _ in progress.timed(batches()):
        now[0] += step
    progress.close(4, {})
    assert capsys.readouterr().out.strip().endswith(f"s - {text}")
    assert progress.data_seconds == pytest.approx(4 * data)


# --- SwapEMAWeights -------------------------------------------------------------------------------------------------


def values(model: ab.Model) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_averages_are_in_place_while_the_model_is_evaluated(swap_on_epoch: bool) -> None:
    model = model_for_tests(ab.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    seen: dict[str, list[np.ndarray]] = {"trained": [], "test": [], "end": [], "begin": []}
    note = LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen["begin"].append(values(model)),
        on_train_batch_end=lambda batch, logs: seen["trained"].append(values(model)),
        on_test_begin=lambda logs: seen["test"].append(values(model)),
        on_epoch_end=lambda epoch, logs: seen["end"].append(values(model)),
    )
    options: dict[str, Any] = {"validation_data": (X, Y), "callbacks": [SwapEMAWeights(swap_on_epoch), note]}
    model.fit(X, Y, epochs=3, verbose=0, **options)
    average = seen["trained"][0]
    for epoch, trained in enumerate(seen["trained"]):
        average = 0.5 * average + 0.5 * trained
        np.testing.assert_allclose(seen["test"][epoch], average, rtol=1e-5)
        np.testing.assert_allclose(seen["end"][epoch], average if swap_on_epoch else trained, rtol=1e-5)
        if epoch:
            np.testing.assert_array_equal(seen["begin"][epoch], seen["trained"][epoch - 1])
    np.testing.assert_allclose(values(model), average, rtol=1e-5)


@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_averages_are_in_place_behind_a_training_that_stops_early(swap_on_epoch: bool) -> None:
    model = model_for_tests(ab.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    trained: list[np.ndarray] = []
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: trained.append(values(model)))
    stop = ab.callbacks.EarlyStopping("loss", min_delta=100, patience=1)
    swap = SwapEMAWeights(swap_on_epoch)
    for _ in range(2):  # a callback may be used again
        model.fit(X, Y, epochs=9, verbose=0, callbacks=[swap, note, stop])
    assert len(trained) == 4
    average = trained[0]
    for each in trained[1:]:
        average = 0.5 * average + 0.5 * each
    np.testing.assert_allclose(values(model), average, rtol=1e-5)


def test_a_run_that_is_taken_up_between_epochs_goes_on_with_the_weights(tmp_path: Path) -> None:
    """The backup is made while the averages are in place; the callback has the weights."""

    def trained(*more: Callback) -> np.ndarray:
        ab.utils.set_random_seed(0)
        model = model_for_tests(ab.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
        model.fit(X, Y, epochs=4, verbose=0, callbacks=[SwapEMAWeights(swap_on_epoch=True), *more])
        return values(model)

    def interrupt(epoch: int, logs: Any) -> None:
        if epoch == 2:
            raise InterruptedError

    backup = ab.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(InterruptedError):
        trained(backup, LambdaCallback(on_epoch_begin=interrupt))
    np.testing.assert_array_equal(trained(ab.callbacks.BackupAndRestore(tmp_path)), trained())


def test_averages_are_needed() -> None:
    with pytest.raises(ValueError, match=r"compile the model with an optimizer that has use_ema=True. It has <SGD"):
        model_for_tests().evaluate(X, Y, verbose=0, callbacks=[SwapEMAWeights()])


def test_averages_of_one_of_several_optimizers_are_put_in_place() -> None:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(2, name="averaged"), layers.Dense(1, name="plain")])
    averaging = ab.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    chosen = ab.optimizers.OptimizerMap(ab.optimizers.SGD(0.1), {"averaged/.*": averaging})
    model.compile(ab.optimizers.MultiOptimizer(chosen), "mse")
    for _ in range(2):
        model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    before = model.get_weights()
    average = next(each.numpy() for each in averaging.variables if "average" in each.path and each.shape == (2, 2))
    swap = SwapEMAWeights()
    swap.set_model(model)
    swap.on_test_begin()
    np.testing.assert_array_equal(model.layers[0].kernel, average)
    np.testing.assert_array_equal(model.layers[1].kernel, before[2])
    assert not np.allclose(average, before[0])
    swap.on_test_end()
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


# --- NaN ------------------------------------------------------------------------------------------------------------


def rooted() -> ab.Sequential:
    class Roots(layers.Layer):
        def call(self, x: Any) -> Any:
            return ab.ops.sqrt(x)

    model = ab.Sequential([ab.Input((1,)), Roots(name="roots"), layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    return model


BROKEN = np.array([[1.0], [2.0], [3.0], [4.0], [-5.0], [6.0]], "float32")


@pytest.mark.parametrize("per_batch", [False, True])
def test_where_a_nan_comes_from(per_batch: bool) -> None:
    others = [LambdaCallback(on_train_batch_end=lambda batch, logs: None)] if per_batch else []
    model = rooted()
    with pytest.raises(FloatingPointError, match=r"sqrt.*gives NaN") as raised:
        model.fit(
            BROKEN,
            BROKEN,
            batch_size=2,
            shuffle=False,
            epochs=2,
            verbose=0,
            callbacks=[TerminateOnNaN(locate=True), *others],
        )
    text = str(raised.value)
    assert "This is in layer 'roots' (Roots)." in text
    assert "It happened in epoch 1/2, batch 2 (counted from 0), after 2 steps of the optimizer." in text
    assert np.isnan(model.predict(BROKEN)[4]).all()  # the guard is off again


def test_the_guard_names_batches_without_the_callback() -> None:
    with (
        ab.debugging.check_numerics(),
        pytest.raises(FloatingPointError, match=r"It happened in batch 2 \(counted from 0\)"),
    ):
        rooted().evaluate(BROKEN, BROKEN, batch_size=2, verbose=0)


def test_terminate_on_nan_says_how_to_find_it(capsys: pytest.CaptureFixture[str]) -> None:
    rooted().fit(BROKEN, BROKEN, batch_size=2, shuffle=False, verbose=0, callbacks=TerminateOnNaN())
    assert (
        "Batch 2: the loss is nan, terminating training. TerminateOnNaN(locate=True) reports" in capsys.readouterr().out
    )


# --- CallbackList ---------------------------------------------------------------------------------------------------


def test_a_list_is_called_as_in_keras() -> None:
    called: list[str] = []
    names = [
        name
        for name in dir(Callback)
        if name.startswith("on_") and name not in ("on_batch_begin", "on_batch_end", "on_all_workers")
        if "predict" not in name
    ]
    hooks: dict[str, Any] = {name: lambda *args, name=name, logs=None: called.append(name) for name in names}
    callbacks = CallbackList(
        [LambdaCallback(**hooks)], add_history=True, add_progbar=True, model=model_for_tests(), verbose=0
    )
    assert [type(item).__name__ for item in callbacks.callbacks] == ["LambdaCallback", "ProgbarLogger", "History"]
    for name in names:
        arguments = () if name.split("_")[1] in ("train", "test") and "batch" not in name else (0,)
        getattr(callbacks, name)(*arguments)
    assert called == names
    callbacks.on_batch_begin(0)
    callbacks.on_batch_end(0, {"loss": 1.0})
    assert called[-2:] == ["on_train_batch_begin", "on_train_batch_end"]


def test_lists_may_be_nested() -> None:
    stop = EarlyStopping()
    assert CallbackList([[stop], [LambdaCallback()]]).callbacks[0] is stop  # pyright: ignore[reportArgumentType]
