"""Data adapters: arrays, generators, iterables, PyDatasets, class weights, splits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, tf
from anabranch.framework.data.adapters import (
    ArrayData,
    Batch,
    as_data,
    convert_structure,
    train_validation_split,
    unpack_x_y_sample_weight,
)
from anabranch.framework.data.class_weights import class_weights_to_sample_weights
from anabranch.framework.training.epochs import Epochs

X = np.arange(20, dtype="float32").reshape(10, 2)
Y = np.arange(10, dtype="int64")


def leaves_of(data) -> list[list[np.ndarray]]:
    return [batch.leaves for batch in data.epoch()]


class Batches(ab.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.ended = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int):
        self.seen.append(index)
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]

    def on_epoch_end(self) -> None:
        self.ended += 1


def counting_model() -> ab.Sequential:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_unshuffled_batches_are_views_of_the_array() -> None:
    batches = leaves_of(as_data(X, Y, batch_size=4))
    assert [len(x) for x, _ in batches] == [4, 4, 2]
    assert all(np.shares_memory(x, X) for x, _ in batches)


def test_shuffling_permutes_rows_together_and_anew_each_epoch() -> None:
    ab.utils.set_random_seed(0)
    data = as_data(X, Y, batch_size=4, shuffle=True)
    epochs = [leaves_of(data) for _ in range(2)]
    orders = [np.concatenate([y for _, y in batches]) for batches in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert list(orders[0]) != list(orders[1])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in epochs[0]]), X[orders[0]])


def test_shuffling_batches_keeps_rows_in_their_batch() -> None:
    ab.utils.set_random_seed(0)
    batches = leaves_of(as_data(X, Y, batch_size=5, shuffle="batch"))
    assert sorted(int(y[0]) for _, y in batches) == [0, 5]
    assert all(list(y) == list(range(y[0], y[0] + 5)) for _, y in batches)


def test_floats_are_converted_once_and_integers_stay() -> None:
    data = as_data({"a": X.astype("float64"), "b": Y}, batch_size=4)
    assert isinstance(data, ArrayData)
    assert [array.dtype.name for array in data.arrays] == ["float32", "int64"]


def test_rows_may_be_given_as_lists() -> None:
    assert convert_structure([[1, 2], [3, 4]], "x").shape == (2, 2)
    assert [a.shape for a in convert_structure([X, Y], "x")] == [(10, 2), (10,)]


def test_structures_keep_their_form() -> None:
    batch = next(as_data({"b": X, "a": (Y, X)}, [Y], batch_size=4).epoch())
    x, y, weight = batch.layout.pack(batch.leaves)
    assert set(x) == {"a", "b"}
    assert x["a"][1].shape == (4, 2)
    assert isinstance(y, list)
    assert weight is None


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X, Y[:4], ValueError, r"same number of rows.*x: 10, y: 4"),
        (np.array([[1], [1, 2]], dtype=object), None, TypeError, "pad_sequences"),
        (3.0, None, TypeError, "Expected arrays"),
        (np.float32(3), None, ValueError, "single number"),
        (X[:0], None, ValueError, "no rows"),
        (iter([X]), Y, ValueError, "y must not be given"),
    ],
)
def test_data_that_do_not_fit_are_refused(x, y, error, message) -> None:
    with pytest.raises(error, match=message):
        as_data(x, y)


def test_batch_size_must_be_positive_and_changes_no_batches_that_are_given() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        as_data(X, batch_size=0)
    model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(2)])
    model.compile("sgd", "mse")
    batches = [(X[:6], X[:6]), (X[6:], X[6:])]
    for source, name in (
        (iter(batches), "list_iterator"),
        (tf.data.Dataset.from_tensors(batches[0]), "ElementDataset"),
    ):
        with pytest.warns(UserWarning, match=f"batch_size=3 has no effect, as x is a {name}, which makes") as caught:
            model.fit(source, batch_size=3, verbose=0)
        assert caught[0].filename == __file__


# --- splits ---------------------------------------------------------------------------------------------------------


def test_validation_rows_come_from_the_end() -> None:
    train, validation = train_validation_split((X, Y, None), 0.3)
    np.testing.assert_array_equal(train[1], np.arange(7))
    np.testing.assert_array_equal(validation[1], [7, 8, 9])
    assert train[2] is None


@pytest.mark.parametrize("split", [1.5, -0.1, 0.999])
def test_a_split_that_leaves_nothing_is_refused(split: float) -> None:
    with pytest.raises(ValueError, match="validation_split"):
        train_validation_split((X[:3], Y[:3], None), split)


def test_validation_split_of_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="works on arrays only"):
        counting_model().fit(iter([(X, Y)]), validation_split=0.5, verbose=0)


# --- weights --------------------------------------------------------------------------------------------------------


def test_class_weights_for_labels_of_every_form() -> None:
    weights = {0: 0.5, 2: 3.0}
    labels = np.array([0, 1, 2])
    expected = [0.5, 1.0, 3.0]
    np.testing.assert_array_equal(class_weights_to_sample_weights(labels, weights), expected)
    np.testing.assert_array_equal(class_weights_to_sample_weights(labels[:, None], weights), expected)
    np.testing.assert_array_equal(class_weights_to_sample_weights(np.eye(3)[labels], weights), expected)
    steps = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(class_weights_to_sample_weights(steps, weights, "indices"), [[0.5, 3], [1, 1]])


def test_class_and_sample_weights_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="at the same time"):
        as_data(X, Y, np.ones(10), class_weight={0: 1.0})


def test_class_weights_for_labels_below_zero() -> None:
    """Labels of hinge losses are -1 and 1; -1 may also stand for no class, which then has no weight of its own."""
    labels = np.array([-1.0, 1.0, 1.0, -1.0])
    np.testing.assert_array_equal(class_weights_to_sample_weights(labels, {-1: 2.0, 1: 0.5}), [2.0, 0.5, 0.5, 2.0])
    np.testing.assert_array_equal(class_weights_to_sample_weights(labels, {0: 3.0, 1: 5.0}), [1.0, 5.0, 5.0, 1.0])


def test_class_weights_reach_labels_of_sequences() -> None:
    model = ab.Sequential([ab.Input((5, 2)), layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = np.ones((4, 5, 2), "float32"), np.tile(np.array([0, 1, 2, 0, 1]), (4, 1))
    model.optimizer.learning_rate = 0.0
    weight = np.array([1.0, 2.0, 0.5])[y]
    weighted = model.fit(x, y, class_weight={1: 2.0, 2: 0.5}, verbose=0).history["loss"][0]
    assert weighted == pytest.approx(model.evaluate(x, y, sample_weight=weight, verbose=0), rel=1e-6)


# --- generators and datasets ----------------------------------------------------------------------------------------


def test_a_generator_goes_on_where_the_last_epoch_stopped() -> None:
    served: list[int] = []

    def batches():
        for number in range(100):
            served.append(number)
            yield X[:2], Y[:2]

    counting_model().fit(batches(), steps_per_epoch=3, epochs=4, verbose=0)
    assert served == list(range(12))


def test_a_generator_that_ends_early_stops_training_with_a_warning() -> None:
    model = counting_model()
    with pytest.warns(UserWarning, match="ended after 2 of 3 steps"):
        history = model.fit(((X[:2], Y[:2]) for _ in range(5)), steps_per_epoch=3, epochs=4, verbose=0)
    assert history.epoch == [0, 1]


def test_an_exhausted_generator_is_noticed() -> None:
    with pytest.warns(UserWarning, match="gave no batch"):
        counting_model().fit(((X[:2], Y[:2]) for _ in range(5)), epochs=3, verbose=0)


@pytest.mark.parametrize("steps", [None, 2])
def test_a_generator_that_yields_nothing_is_an_error(steps: int | None) -> None:
    model = counting_model()
    used = iter([(X[:2], Y[:2])])
    model.fit(used, verbose=0)
    with pytest.raises(ValueError, match="The data gave no batch: there is nothing to run on"):
        model.fit(used, steps_per_epoch=steps, verbose=0)
    with pytest.raises(ValueError, match="The data gave no batch"):
        model.evaluate(used, steps=steps, verbose=0)


@pytest.mark.parametrize("text", ["train.csv", b"train.csv"])
def test_a_text_is_no_source_of_batches(text: Any) -> None:
    with pytest.raises(TypeError, match=rf"x is of type {type(text).__name__}\. Expected arrays"):
        counting_model().fit(text, verbose=0)


def test_lists_of_batches_start_anew_each_epoch() -> None:
    history = counting_model().fit([(X[:4], Y[:4]), (X[4:], Y[4:])], epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3


def sizes(epochs: Epochs) -> list[int]:
    return [batch.size for batch in epochs.epoch()]


def test_an_epoch_ends_with_the_data_that_it_runs_over() -> None:
    """As in Keras: an epoch that is longer than the data, or than what is left of them, is cut short."""
    epochs = Epochs(as_data(X, Y, batch_size=4), steps_per_epoch=5)
    for _ in range(2):
        with pytest.warns(UserWarning, match="ended after 3 of 5 steps; .* that divides the 3 batches of the data"):
            assert sizes(epochs) == [4, 4, 2]
    epochs = Epochs(as_data(X, Y, batch_size=4), steps_per_epoch=2)
    for _ in range(2):
        assert sizes(epochs) == [4, 4]
        with pytest.warns(UserWarning, match="ended after 1 of 2 steps"):
            assert sizes(epochs) == [2]


class Noting(ab.utils.PyDataset):
    """Notes what it is asked for: the hooks as letters, batches by number."""

    def __init__(self, batches: int | None) -> None:
        super().__init__(workers=0)
        self.count, self.calls = batches, ""

    @property
    def num_batches(self) -> int | None:
        return self.count

    def on_epoch_begin(self) -> None:
        self.calls += "b"

    def on_epoch_end(self) -> None:
        self.calls += "e"

    def __getitem__(self, index: int) -> Any:
        self.calls += str(index)
        return X[:2], Y[:2]


@pytest.mark.parametrize(
    ("batches", "steps", "calls"),
    [
        (None, 2, "b01eb23eb45e"),  # there is no pass that ends: the hooks are called by epoch
        (3, 3, "b012eb012eb012e"),
        (6, 2, "b012345e"),
        (4, 3, "b0123eb012e"),  # of the pass that is not read to its end, too
    ],
)
@pytest.mark.filterwarnings("ignore:The data ended after")
def test_each_begin_of_a_dataset_s_pass_has_an_end(batches: int | None, steps: int, calls: str) -> None:
    data = Noting(batches)
    counting_model().fit(data, steps_per_epoch=steps, epochs=3, shuffle=False, verbose=0)
    assert data.calls == calls


def test_a_loop_over_a_dataset_gets_one_pass() -> None:
    class Squares(ab.utils.PyDataset):
        def __getitem__(self, index: int) -> int:
            return index**2

    finite, endless = Noting(3), Noting(None)
    assert len(list(finite)) == 3
    assert finite.calls == "012"  # hooks are fit's
    assert [len(batch) for batch in itertools.islice(endless, 4)] == [2] * 4
    assert list(itertools.islice(Squares(), 3)) == [0, 1, 4]  # neither a length nor a number of batches


def test_validation_by_steps_ends_its_passes() -> None:
    data = Noting(3)
    counting_model().fit(X, Y, validation_data=data, validation_steps=2, epochs=2, verbose=0)
    assert data.calls == "b01eb01e"


def test_an_endless_dataset_goes_on_with_the_hooks_of_the_epochs_before() -> None:
    first, again = Noting(None), Noting(None)
    epochs = Epochs(as_data(first), steps_per_epoch=2)
    for _ in range(2):
        sizes(epochs)
    position = epochs.position
    sizes(epochs)

    resumed = Epochs(as_data(again), steps_per_epoch=2)
    resumed.go_to(0, position)
    sizes(resumed)
    assert again.calls == first.calls == "b01eb23eb45e"


def test_a_list_of_unknown_length_ends_an_epoch_too() -> None:
    class Batches:
        def __iter__(self):
            return iter([(X[:4], Y[:4]), (X[4:], Y[4:])])

    epochs = Epochs(as_data(Batches()), steps_per_epoch=3)
    with pytest.warns(UserWarning, match="ended after 2 of 3 steps"):
        assert sizes(epochs) == [4, 6]
    assert not epochs.exhausted
    exact = Epochs(as_data(Batches()), steps_per_epoch=2)
    assert [sizes(exact), sizes(exact)] == [[4, 6], [4, 6]]  # and no warning


def shuffled_batches() -> dict[str, Callable[[], Any]]:
    """Data of which each pass has other batches, and a generator, which has one pass."""

    class Drawn:
        def __init__(self) -> None:
            self.random = np.random.default_rng(3)

        def __iter__(self) -> Iterator[Any]:
            order = self.random.permutation(10)
            return iter([(X[order[:4]], Y[order[:4]]), (X[order[4:]], Y[order[4:]])])

    dataset = ab.tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    return {
        "dataset": lambda: as_data(ab.tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(10, seed=1).batch(4)),
        "windows": lambda: as_data(
            ab.utils.timeseries_dataset_from_array(X, Y, 1, batch_size=4, shuffle=True, seed=1), shuffle=True
        ),
        "object": lambda: as_data(Drawn()),
        "generator": lambda: as_data(item for item in [*dataset, *dataset]),
        "arrays": lambda: as_data(X, Y, batch_size=4, shuffle=True),
    }


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    return [batch.leaves[1].tolist() for batch in batches]


@pytest.mark.parametrize("kind", shuffled_batches())
def test_a_look_at_the_first_batch_changes_no_batch(kind: str) -> None:
    """Nor random numbers, nor where a run is taken up."""
    make = shuffled_batches()[kind]
    looks: list[Any] = []
    for is_looked_at in (False, True):
        ab.utils.set_random_seed(7)
        epochs = Epochs(make())
        first = [rows_of([batch]) for batch in [epochs.peek(), epochs.peek()] if batch] if is_looked_at else []
        before = epochs.position["passes"]
        passes = [rows_of(epochs.epoch()) for _ in range(1 if kind == "generator" else 3)]
        assert all(each == passes[0][:1] for each in first)
        looks.append([before, passes, epochs.position["passes"], ab.random.uniform(()).numpy()])
    assert looks[0] == looks[1]
    taken_up = Epochs(make())
    ab.utils.set_random_seed(7)
    taken_up.peek()
    latest = taken_up.go_to(1, {"passes": 1, "batches": 1, "random": None})
    assert rows_of([latest] if latest else []) == looks[0][1][0][:1]
    assert rows_of(taken_up.epoch()) == looks[0][1][0][1:]


@pytest.mark.parametrize("together", [1, 2])
def test_each_epoch_of_fit_begins_where_the_data_do_if_they_have_ended(together: int) -> None:
    """10 rows in batches of 3: epochs of 3, 1, 3 and 1 steps, of which the log holds the mean of the targets."""
    model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(ab.optimizers.SGD(0.0), "mean_absolute_error", steps_per_execution=together)
    y = np.arange(10, dtype="float32")[:, None]
    with pytest.warns(UserWarning, match="ended after 1 of 3 steps"):
        history = model.fit(np.ones((10, 2)), y, 3, epochs=4, steps_per_epoch=3, shuffle=False, verbose=0).history
    assert history["loss"] == [4.0, 9.0, 4.0, 9.0]
    with pytest.warns(UserWarning, match="ended after 4 of 6 steps"):
        assert model.predict(np.ones((10, 2)), batch_size=3, steps=6, verbose=0).shape == (10, 1)
    with pytest.warns(UserWarning, match="ended after 4 of 6 steps"):
        assert model.evaluate(np.ones((10, 2)), y, batch_size=3, steps=6, verbose=0) == 4.5


def test_a_dataset_is_shuffled_by_batch_and_told_of_the_end() -> None:
    ab.utils.set_random_seed(1)
    data = Batches()
    counting_model().fit(data, epochs=2, verbose=0)
    assert sorted(data.seen[:5]) == list(range(5))
    assert data.seen[:5] != data.seen[5:]
    assert data.ended == 2


def test_an_unshuffled_dataset_keeps_its_order_and_may_validate() -> None:
    data = Batches()
    history = counting_model().fit(data, shuffle=False, validation_data=Batches(), verbose=0).history
    assert data.seen == list(range(5))
    assert "val_loss" in history


def test_anything_with_length_and_items_is_a_dataset() -> None:
    class Plain:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X, Y, np.full(10, float(index))

    assert [batch.leaves[2][0] for batch in as_data(Plain()).epoch()] == [0.0, 1.0]


def test_batches_of_generators_are_unpacked() -> None:
    assert unpack_x_y_sample_weight([X, Y])[2] is None
    assert unpack_x_y_sample_weight(X)[1] is None
    with pytest.raises(ValueError, match="a tuple of 4"):
        unpack_x_y_sample_weight((X, X, X, X))


# --- utils ----------------------------------------------------------------------------------------------------------


def test_to_categorical() -> None:
    assert ab.utils.to_categorical([[1], [0]], 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="labels run from 0 to 4"):
        ab.utils.to_categorical([0, 4], 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0, 0, 1], [1, 2, 3]]),
        ({"padding": "post", "value": 9}, [[1, 9, 9], [1, 2, 3]]),
        ({"maxlen": 2}, [[0, 1], [2, 3]]),
        ({"maxlen": 2, "truncating": "post"}, [[0, 1], [1, 2]]),
    ],
)
def test_pad_sequences(options, expected) -> None:
    assert ab.utils.pad_sequences([[1], [1, 2, 3]], **options).tolist() == expected


def test_pad_sequences_of_texts() -> None:
    texts = [["a"], ["b", "c"]]
    for dtype in (object, "<U3"):
        padded = ab.utils.pad_sequences(texts, dtype=cast("Any", dtype), value="pad")
        assert padded.tolist() == [["pad", "a"], ["b", "c"]]
    with pytest.raises(ValueError, match=r"value='pad' is text, .* dtype='int32'\. Give dtype=object"):
        ab.utils.pad_sequences(texts, value="pad")


def test_split_dataset() -> None:
    left, right = ab.utils.split_dataset((X, Y), left_size=3)
    assert (len(left), right.cardinality()) == (3, 7)
    x, y = next(iter(left.batch(3)))
    np.testing.assert_array_equal(x, X[:3])
    np.testing.assert_array_equal(y, Y[:3])
    np.testing.assert_array_equal([y for _, y in right], Y[3:])
    left, right = ab.utils.split_dataset([X, Y], left_size=0.2, right_size=0.3, shuffle=True, seed=1)
    drawn = [int(y) for part in (left, right) for _, y in part]
    assert [len(left), len(right), len(set(drawn))] == [2, 3, 5]
    assert drawn != sorted(drawn)
    assert drawn[:2] == [int(y) for _, y in left], "each pass has the same rows"
    for arrays, sizes, message in (
        (X, (8, 8), "can't be taken"),
        (X, (0, None), r"0 and 10 rows can't .* expected at least one for each part\. left_size=0, right_size=None"),
        (X, (0.01, None), r"0 and 10 rows can't be taken .* left_size=0\.01"),
        (X, (None, 1.0), "0 and 10 rows can't be taken"),
        (X, (None, None), "needs left_size or right_size"),
        (X, ("1", None), "split_dataset: left_size must be a number, or None; got '1'"),
        ((X, Y[:3]), (1, None), r"same number of rows, got \[3, 10\]"),
    ):
        with pytest.raises(ValueError, match=message):
            ab.utils.split_dataset(arrays, *cast("Any", sizes))
    with pytest.raises(TypeError, match=r"takes an array.*; got int"):
        ab.utils.split_dataset(cast("Any", 3), left_size=1)


def test_datasets_are_split_by_rows_and_batched_as_before() -> None:
    rows = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y})
    left, right = ab.utils.split_dataset(rows, right_size=0.4)
    assert [int(row["y"]) for row in left] == [0, 1, 2, 3, 4, 5]
    for batches in (rows.batch(4), ab.utils.Dataset(10, lambda chosen: {"x": X[chosen], "y": Y[chosen]}, batch_size=4)):
        left, right = ab.utils.split_dataset(batches, left_size=6, preferred_backend="tensorflow")
        assert [batch["y"].shape for batch in left] == [(4,), (2,)]
        np.testing.assert_array_equal(next(iter(right))["y"], Y[6:])


def test_split_dataset_of_a_dataset() -> None:
    dataset = tf.data.Dataset.from_tensor_slices({"x": np.arange(10)}).filter(lambda row: row["x"] > 1)
    left, right = ab.utils.split_dataset(dataset, 0.25, shuffle=True, seed=1, preferred_backend="tensorflow")
    found = [[int(row["x"]) for row in part.as_numpy_iterator()] for part in (left, right)]
    assert [len(part) for part in found] == [2, 6]
    assert sorted(found[0] + found[1]) == list(range(2, 10))
    assert found == [[int(row["x"]) for row in part] for part in (left, right)]
    with pytest.raises(ValueError, match="datasets of PyTorch"):
        ab.utils.split_dataset(X, 0.5, preferred_backend="torch")


def test_config() -> None:
    assert ab.config.backend() == "anabranch"
    assert ab.config.list_devices("gpu") == []
    with pytest.raises(ValueError, match="set_devices"):
        ab.config.set_devices(["tpu:0"])
    ab.config.set_devices(["cpu:0"])
    assert ab.config.floatx() == "float32"
    ab.config.set_floatx("float64")
    assert convert_structure(X, "x").dtype == np.float64
