"""Batches that are made ahead: the same ones, while steps run, and no thread is left behind."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework.data.adapters import as_data
from anabranch.framework.data.prefetch import Prefetch, in_order, iterate_ahead

PATIENCE = 20  # seconds; what takes longer hangs


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Rows(ab.utils.PyDataset):
    """Batches of two rows, whose values say which one it is; notes what is made, and where."""

    def __init__(self, count: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.count = count
        self.made = [threading.Event() for _ in range(count)]
        self.threads: set[threading.Thread] = set()
        self.fail: Callable[[int], None] = lambda index: None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.current_thread())
        self.fail(index)
        self.made[index].set()
        return np.full((2, 1), index, "float32"), np.full((2, 1), -index, "float32")

    def made_so_far(self) -> list[int]:
        return [index for index, event in enumerate(self.made) if event.is_set()]


def small_model() -> Any:
    ab.utils.set_random_seed(5)
    model = ab.Sequential([ab.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class At(ab.callbacks.Callback):
    """Calls a function at the end of one batch of training."""

    def __init__(self, batch: int, call: Callable[[], Any]) -> None:
        super().__init__()
        self.batch = batch
        self.call = call

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch:
            self.call()


def generated(count: int = 8) -> Iterator[Any]:
    for index in range(count):
        yield np.full((2, 1), index, "float32"), np.full((2, 1), -index, "float32")


# --- the same results -----------------------------------------------------------------------------------------------


def trained(data: Any, **options: Any) -> list[Any]:
    model = small_model()
    model.fit(data, verbose=0, **options)
    return [*model.get_weights(), model.history.history["loss"]]


def test_training_gives_the_same_bits_however_batches_are_made():
    expected = trained(Rows(workers=0), epochs=2)
    for options in ({}, {"workers": 1, "max_queue_size": 1}, {"workers": 3}, {"workers": 2, "max_queue_size": 50}):
        for found, wanted in zip(trained(Rows(**options), epochs=2), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

    ordered = trained(Rows(workers=0), shuffle=False)
    for source in (generated(), Prefetch(generated()), Prefetch(list(generated()), 1)):
        for found, wanted in zip(trained(source, shuffle=False), ordered, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_runs_of_steps_go_on_where_they_stopped():
    expected = trained(Rows(workers=0), shuffle=False, epochs=3, steps_per_epoch=4)
    for source in (Rows(), Rows(workers=3), Prefetch(list(generated()), 2)):
        for found, wanted in zip(trained(source, shuffle=False, epochs=3, steps_per_epoch=4), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_evaluate_and_predict_make_batches_ahead_too():
    model = small_model()

    plain, ahead = Rows(workers=0), Rows(workers=2)
    assert model.evaluate(plain, verbose=0) == model.evaluate(ahead, verbose=0)
    np.testing.assert_array_equal(model.predict(plain, verbose=0), model.predict(ahead, verbose=0))
    assert threading.current_thread() not in ahead.threads
    assert plain.threads == {threading.current_thread()}


# --- ahead, but not too far -----------------------------------------------------------------------------------------


def test_the_next_batches_are_made_while_a_step_runs():
    data = Rows(max_queue_size=3)
    seen: list[list[int]] = []

    def look() -> None:
        assert all(data.made[index].wait(PATIENCE) for index in range(4))
        seen.append(data.made_so_far())

    small_model().fit(data, shuffle=False, verbose=0, callbacks=[At(0, look)])

    assert seen == [[0, 1, 2, 3]]  # the batch of the step, and three more


def noted(taken: list[int], enough: threading.Event | None = None, count: int = 3) -> Iterator[Any]:
    """`generated`, noting what is taken."""
    for index, batch in enumerate(generated()):
        taken.append(index)
        if enough is not None and len(taken) == count:
            enough.set()
        yield batch


def test_a_generator_is_asked_ahead_where_that_is_wished():
    taken: list[int] = []
    seen: list[int] = []
    enough = threading.Event()

    def look() -> None:
        assert enough.wait(PATIENCE)
        seen.append(len(taken))

    small_model().fit(Prefetch(noted(taken, enough), 2), verbose=0, callbacks=[At(0, look)])

    assert seen == [3]


def test_a_generator_is_otherwise_asked_when_a_batch_is_needed():
    taken: list[int] = []
    seen: list[int] = []

    small_model().fit(noted(taken), verbose=0, callbacks=[At(0, lambda: seen.append(len(taken)))])

    assert seen == [1]


def pass_two_at_a_time(barrier: threading.Barrier) -> None:
    barrier.wait()


def test_several_workers_work_at_once():
    data, together = Rows(count=4, workers=2, max_queue_size=4), threading.Barrier(2, timeout=PATIENCE)
    data.fail = lambda index: pass_two_at_a_time(together)

    small_model().fit(data, verbose=0)

    assert len(data.threads) == 2


# --- ends -----------------------------------------------------------------------------------------------------------


def failing(error: BaseException, at: int) -> Callable[[int], None]:
    def fail(index: int) -> None:
        if index == at:
            raise error

    return fail


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_unchanged_and_in_its_place(workers: int):
    data, error, steps = Rows(workers=workers), KeyError("a bad batch"), []
    data.fail = failing(error, at=3)

    with pytest.raises(KeyError) as raised:
        small_model().fit(data, shuffle=False, verbose=0, callbacks=[At(2, lambda: steps.append(2))])

    assert raised.value is error
    assert not getattr(error, "__notes__", [])
    assert steps == [2]  # the batches before it were trained on


def test_an_error_of_a_generator_comes_unchanged():
    error = RuntimeError("the disk is gone")

    def source() -> Iterator[Any]:
        yield from generated(3)
        raise error

    with pytest.raises(RuntimeError) as raised:
        small_model().fit(Prefetch(source()), verbose=0)
    assert raised.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("in a callback")])
@pytest.mark.parametrize("make", [Rows, lambda: Rows(workers=3), lambda: Prefetch(generated(), 3)])
@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 4, "epochs": 2}])
def test_no_thread_is_left_behind_after_an_error(error: BaseException, make: Any, options: dict[str, Any]):
    data = make()

    def stop() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        small_model().fit(data, verbose=0, callbacks=[At(1, stop)], **options)

    assert raised.value is error  # its traceback still holds all frames
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_no_thread_is_left_behind_when_training_stops_early():
    model = small_model()

    def stop() -> None:
        model.stop_training = True

    model.fit(Rows(), verbose=0, epochs=3, callbacks=[At(1, stop)])
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]
    model.fit(Rows(), verbose=0, steps_per_epoch=3, validation_data=Rows(), validation_steps=2)
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_hooks_of_a_dataset_run_in_the_caller_s_thread_at_the_ends_of_passes():
    calls: list[Any] = []

    class Hooked(Rows):
        def on_epoch_begin(self) -> None:
            calls.append(("begin", threading.current_thread()))

        def on_epoch_end(self) -> None:
            calls.append(("end", threading.current_thread(), len(self.made_so_far())))

    small_model().fit(Hooked(), verbose=0, epochs=2)

    here = threading.current_thread()
    assert calls == [("begin", here), ("end", here, 8)] * 2


def test_a_dataset_that_does_not_call_the_base_class():
    class Bare(ab.utils.PyDataset):
        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.ones((2, 1), "float32"), np.ones((2, 1), "float32")

    assert len(list(as_data(Bare()).epoch())) == 2


# --- the functions themselves ---------------------------------------------------------------------------------------


def test_results_come_in_order_whoever_is_first():
    first_may_end = threading.Event()

    def first() -> int:
        assert first_may_end.wait(PATIENCE)
        return 1

    def second() -> int:
        first_may_end.set()
        return 2

    assert list(in_order([first, second], workers=2, limit=1)) == [1, 2]


def test_closing_makes_no_further_calls():
    calls: list[int] = []
    results = in_order((lambda index=index: calls.append(index) for index in range(100)), workers=1, limit=2)
    next(results)
    results.close()

    assert len(calls) <= 3
    assert list(results) == []


def test_the_caller_s_context_holds_in_the_threads():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        list(in_order([lambda: np.float32(1) / np.float32(0)], workers=1, limit=1))


def test_items_ahead_are_those_of_the_source():
    assert list(iterate_ahead(iter(range(50)), 3)) == list(range(50))
    assert list(iterate_ahead([], 3)) == []


def test_what_cannot_be_made_ahead():
    with pytest.raises(TypeError, match="Prefetch takes a generator or an iterable of batches; got int"):
        Prefetch(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got Rows\. A PyDataset makes batches ahead by itself"):
        Prefetch(Rows())
    with pytest.raises(ValueError, match="Prefetch: max_queue_size must be at least 1, got 0"):
        Prefetch([], 0)
    with pytest.warns(UserWarning, match="batch_size=3 has no effect, as x is a Prefetch"):
        as_data(Prefetch(iter([])), batch_size=3)
