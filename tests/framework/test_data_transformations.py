"""Transformations of datasets give what TensorFlow's documentation says of `tf.data.Dataset`."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import tf
from anabranch.framework.data.element_dataset import ElementDataset

Dataset = tf.data.Dataset
NUMBERS = ElementDataset.range(7)


def listed(dataset: Any) -> list[Any]:
    return [[plain(part) for part in item] if isinstance(item, tuple) else plain(item) for item in dataset]


def plain(value: Any) -> Any:
    return value if isinstance(value, str) else value.tolist()


def ragged(*lengths: int) -> ElementDataset:
    return Dataset.from_generator(lambda: (np.full(n, n) for n in lengths))


@pytest.mark.parametrize(
    ("dataset", "expected", "length"),
    [
        (NUMBERS.enumerate(start=5).take(2), [[5, 0], [6, 1]], 2),
        (NUMBERS.take_while(lambda x: x < 3), [0, 1, 2], None),
        (NUMBERS.shard(3, 1), [1, 4], 2),
        (NUMBERS.scan(10, lambda total, x: (total + x, total + x)), [10, 11, 13, 16, 20, 25, 31], 7),
        (NUMBERS.batch(4).rebatch(3), [[0, 1, 2], [3, 4, 5], [6]], None),
        (NUMBERS.batch(4).rebatch(3, drop_remainder=True), [[0, 1, 2], [3, 4, 5]], None),
        (NUMBERS.apply(lambda dataset: dataset.take(1)), [0], 1),
        (Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique(), [1, 37, 2], None),
        (NUMBERS.skip(-1), [], 0),
        (NUMBERS.filter(lambda x: x > 9).repeat(), [], None),
        (NUMBERS.take(2).repeat(-1).take(5), [0, 1, 0, 1, 0], None),
        (NUMBERS.take(3).flat_map(lambda n: Dataset.range(n)), [0, 0, 1], None),
        (Dataset.counter(3, 2).take(3), [3, 5, 7], None),
        (Dataset.range(2, output_type=tf.int32), [0, 1], 2),
        (
            Dataset.choose_from_datasets([NUMBERS, NUMBERS.skip(5)], Dataset.from_tensor_slices([1, 0, 1, 1, 0])),
            [5, 0, 6],
            None,
        ),
        (
            Dataset.choose_from_datasets(
                [NUMBERS, NUMBERS.skip(5)], Dataset.from_tensor_slices([1, 0, 1, 1, 0]), stop_on_empty_dataset=False
            ),
            [5, 0, 6, 1],
            None,
        ),
    ],
)
def test_transformations(dataset: ElementDataset, expected: list[Any], length: int | None):
    assert listed(dataset) == expected
    assert listed(dataset) == expected  # once more from the beginning
    assert dataset.cardinality() == (-2 if length is None else length)


def test_a_dataset_is_reduced_by_ops():
    assert NUMBERS.reduce(np.int64(0), lambda total, x: total + x) == 21
    count, total = NUMBERS.map(lambda x: (x, 2 * x)).reduce(
        (np.int64(0), np.int64(0)), lambda state, pair: (state[0] + 1, state[1] + pair[1])
    )
    assert (count, total) == (7, 42)
    assert NUMBERS.take(0).reduce(5, lambda total, x: total) == 5


def test_the_only_element():
    assert NUMBERS.skip(6).get_single_element() == 6
    for count, found in ((0, "no element"), (2, "several elements")):
        with pytest.raises(ValueError, match=f"get_single_element: the dataset has {found}"):
            NUMBERS.take(count).get_single_element()


def test_datasets_are_interleaved_in_blocks():
    dataset = Dataset.range(1, 6).interleave(
        lambda x: Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    )
    expected = [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2 + [5] * 6
    assert listed(dataset) == expected


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_each_interleaved_element_comes_once_and_in_its_order(lengths: list[int], cycle: int, block: int):
    pairs = [(place, row) for place, length in enumerate(lengths) for row in range(length)]

    def rows(place: Any) -> ElementDataset:
        return Dataset.from_generator(lambda: (pair for pair in pairs if pair[0] == place))

    found = listed(Dataset.range(len(lengths)).interleave(rows, cycle, block))
    assert sorted(map(tuple, found)) == pairs
    for place in range(len(lengths)):
        assert [row for where, row in found if where == place] == list(range(lengths[place]))


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_windows_are_slices(count: int, size: int, shift: int, stride: int, drop: bool):
    windows = Dataset.range(count).window(size, shift, stride, drop)
    expected = [list(range(count))[first : first + size * stride : stride] for first in range(0, count, shift)]
    expected = [window[:size] for window in expected]
    if drop:
        whole = [len(window) == size for window in expected]
        expected = expected[: whole.index(False) if False in whole else None]
    assert [listed(window) for window in windows] == expected


def test_windows_of_structures_are_structures_of_datasets():
    pairs = NUMBERS.map(lambda x: (x, 10 * x))
    joined = pairs.window(2, shift=3, drop_remainder=True).flat_map(lambda x, y: Dataset.zip((x.batch(2), y.batch(2))))
    assert listed(joined) == [[[0, 1], [0, 10]], [[3, 4], [30, 40]]]
    named = NUMBERS.map(lambda x: {"x": x}).window(3)
    assert listed(next(iter(named))["x"]) == [0, 1, 2]


def test_batches_are_padded_to_their_longest_element_or_to_a_shape():
    assert listed(ragged(1, 3, 0).padded_batch(2)) == [[[1, 0, 0], [3, 3, 3]], [[]]]
    assert listed(ragged(1, 2).padded_batch(2, padded_shapes=[3], padding_values=-1)) == [[[1, -1, -1], [2, 2, -1]]]
    pairs = Dataset.from_generator(lambda: ((np.ones((n, 2)), {"text": ["a"] * n}) for n in (1, 2)))
    (batch,) = list(pairs.padded_batch(2, padded_shapes=([None, 3], {"text": [None]})))
    assert batch[0].tolist() == [[[1, 1, 0], [0, 0, 0]], [[1, 1, 0], [1, 1, 0]]]
    assert batch[1]["text"].tolist() == [["a", ""], ["a", "a"]]
    (batch,) = list(pairs.padded_batch(2, padding_values=(7.0, {"text": "?"})))
    assert batch[0][0, 1].tolist() == [7, 7]
    assert batch[1]["text"][0].tolist() == ["a", "?"]
    assert listed(NUMBERS.take(2).padded_batch(2)) == [[0, 1]]
    assert listed(ragged(1, 1, 1).padded_batch(2, drop_remainder=True)) == [[[1], [1]]]


def test_shapes_and_values_of_padding_belong_to_the_arrays_of_their_names():
    named = Dataset.from_generator(lambda: ({"b": [n] * n, "a": [0.5] * n} for n in (1, 2)))
    (batch,) = list(named.padded_batch(2, {"b": [2], "a": [3]}, {"b": -1, "a": None}))
    assert batch["a"].tolist() == [[0.5, 0, 0], [0.5, 0.5, 0]]
    assert batch["b"].tolist() == [[1, -1], [2, 2]]
    pairs = Dataset.from_generator(lambda: (([n] * n, ["x"] * n) for n in (1, 2)))
    (batch,) = list(pairs.padded_batch(2, padding_values=(None, "?")))
    assert [part.tolist() for part in batch] == [[[1, 0], [2, 2]], [["x", "?"], ["x", "x"]]]
    with pytest.raises(ValueError, match="padding_values must be one, or one for each of 2 arrays; got 1"):
        list(pairs.padded_batch(2, padding_values=(0,)))


@pytest.mark.parametrize("value", [0.5, float("nan"), "a", "3", np.float32(2.5), 2**40])
def test_padding_that_the_array_cannot_hold_is_refused(value: Any):
    with pytest.raises(TypeError, match=r"padded_batch: padding_values has .* for an array of int32"):
        list(ragged(1, 2).map(lambda x: ab.ops.cast(x, "int32")).padded_batch(2, padding_values=value))
    texts = Dataset.from_generator(lambda: (["a"] * n for n in (1, 2)))
    with pytest.raises(TypeError, match="padding_values has 0 for an array of string"):
        list(texts.padded_batch(2, padding_values=0))


def test_padding_is_converted_where_that_keeps_its_value():
    assert listed(ragged(1, 2).padded_batch(2, padding_values=7.0)) == [[[1, 7], [2, 2]]]
    halves = ragged(1, 2).map(lambda x: ab.ops.cast(x, "float16"))
    assert listed(halves.padded_batch(2, padding_values=0.1)) == [[[1, float(np.float16(0.1))], [2, 2]]]
    truths = ragged(1, 2).map(lambda x: x > 1)
    assert listed(truths.padded_batch(2, padding_values=True)) == [[[False, True], [True, True]]]


def test_texts_are_unique_by_their_characters():
    texts = [letter * 40 for letter in "abab"]  # too long to be in the memory of an array itself
    for dataset in (Dataset.from_tensor_slices(texts), Dataset.from_generator(lambda: (text for text in texts))):
        assert listed(dataset.unique()) == texts[:2]
        assert listed(dataset.batch(2).unique()) == [texts[:2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ragged(4).padded_batch(1, padded_shapes=[3]), r"an element of shape \(4,\) does not fit into \(3,\)"),
        (lambda: ragged(4).padded_batch(1, padded_shapes=[3, 3]), r"have not 2 axes, as \[3, 3\] has"),
        (lambda: ragged(4).padded_batch(1, padded_shapes=([3], [3])), "a shape for each of the 1 arrays"),
        (lambda: ragged(1, 2).batch(2), r"one shape, got \(1,\), \(2,\)\. padded_batch pads"),
        (lambda: NUMBERS.batch(0), "batch: batch_size must be at least 1, got 0"),
        (lambda: NUMBERS.padded_batch(-1), "padded_batch: batch_size must be at least 1, got -1"),
        (lambda: NUMBERS.shuffle(0), "buffer_size must be at least 1, got 0"),
        (lambda: NUMBERS.shard(2, 2), "index must be from 0 to 1 for num_shards=2, got 2"),
        (lambda: NUMBERS.window(0), "size, shift and stride must be at least 1, got 0, 0 and 1"),
        (lambda: NUMBERS.interleave(lambda x: NUMBERS, 0), "must be at least 1, got 0 and 1"),
        (lambda: Dataset.sample_from_datasets([NUMBERS], [0.0]), "must be 1 numbers from 0 up, not all 0"),
        (
            lambda: Dataset.choose_from_datasets([NUMBERS], Dataset.from_tensor_slices([1])),
            "there are 1 datasets; got the choice 1",
        ),
        (lambda: ragged(9).bucket_by_sequence_length(len, [3, 2], [1, 1, 1]), "bucket_boundaries must ascend"),
        (lambda: ragged(9).bucket_by_sequence_length(len, [3], [1]), "must have one entry more"),
        (
            lambda: ragged(9).bucket_by_sequence_length(len, [3], [1, 1], pad_to_bucket_boundary=True),
            "needs elements shorter than the last bound, 3",
        ),
        (
            lambda: Dataset.from_generator(lambda: [(1, 2)], output_signature=tf.TensorSpec((), "int32")),
            "the signature has 1 arrays in an element, but 2 were yielded",
        ),
        (lambda: tf.data.TextLineDataset("a.txt", "ZLIB"), "compression_type must be"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        list(make())


def test_sequences_of_like_lengths_are_batched_together():
    dataset = ragged(1, 5, 2, 6, 9, 3)
    found = listed(dataset.bucket_by_sequence_length(len, [3, 7], [2, 2, 1]))
    assert found == [[[1, 0], [2, 2]], [[5] * 5 + [0], [6] * 6], [[9] * 9], [[3, 3, 3]]]
    padded = dataset.take(2).bucket_by_sequence_length(len, [3, 7], [1, 1, 1], pad_to_bucket_boundary=True)
    assert [batch.shape for batch in padded] == [(1, 2), (1, 6)]
    dropped = dataset.bucket_by_sequence_length(len, [3, 7], [2, 2, 2], drop_remainder=True)
    assert [batch.shape for batch in dropped] == [(2, 2), (2, 6)]


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 4))
def test_each_sequence_is_in_one_batch(lengths: list[int], size: int):
    dataset = ragged(*lengths).map(lambda x: (x, tf.shape(x)[0]))
    batches = list(dataset.bucket_by_sequence_length(lambda x, n: n, [4, 8], [size] * 3))
    assert Counter(int(n) for _, lengths in batches for n in lengths) == Counter(lengths)
    for _, rows in batches:
        assert len({np.searchsorted([4, 8], n, side="right") for n in rows}) == 1


def test_a_shuffled_dataset_may_keep_its_order():
    fixed = NUMBERS.shuffle(7, seed=2, reshuffle_each_iteration=False)
    assert listed(fixed) == listed(fixed)
    for _ in range(5):  # a part to train on and a part to validate with have nothing in common
        assert sorted(listed(fixed.take(5)) + listed(fixed.skip(5))) == list(range(7))
    assert sorted(listed(NUMBERS.shuffle(7))) == list(range(7))
    default = NUMBERS.shuffle(7, seed=2, reshuffle_each_iteration=None)  # for TensorFlow, too
    assert listed(default) != listed(default)


def test_the_first_whole_pass_is_cached():
    passes = []

    def numbers() -> Any:
        passes.append(0)
        return iter([np.int64(1), np.int64(2)])

    cached = ElementDataset(numbers).cache()
    assert next(iter(cached)) == 1  # a pass that is not finished keeps nothing
    assert listed(cached) == listed(cached) == [1, 2]
    assert len(passes) == 2
    assert listed(ElementDataset(numbers).repeat().cache().take(3)) == [1, 2, 1]


def test_elements_are_drawn_from_datasets_by_weight():
    sources = [Dataset.from_tensors(0).repeat(), Dataset.from_tensors(1).repeat(), Dataset.from_tensors(2)]
    drawn = Dataset.sample_from_datasets(sources, [0.75, 0.25, 0.0], seed=0)
    counts = Counter(listed(drawn.take(400)))
    assert counts[2] == 0
    assert 270 < counts[0] < 330
    everything = Dataset.sample_from_datasets([NUMBERS, NUMBERS.map(lambda x: x + 7)], seed=1)
    assert sorted(listed(everything)) == list(range(14))
    assert listed(everything) != listed(everything)
    same = Dataset.sample_from_datasets([NUMBERS, NUMBERS], seed=1, rerandomize_each_iteration=False)
    assert listed(same) == listed(same)
    short = Dataset.sample_from_datasets([NUMBERS, NUMBERS.take(0)], seed=1, stop_on_empty_dataset=True)
    assert len(listed(short)) < 7


def test_a_generator_has_arguments_and_a_signature():
    def count(stop: int, scale: float) -> Any:
        return ((n, scale * n) for n in range(stop))

    signature = (tf.TensorSpec((), "int32"), tf.TensorSpec((), "float32"))
    dataset = Dataset.from_generator(count, args=(3, 0.5), output_signature=signature)
    assert listed(dataset) == [[0, 0.0], [1, 0.5], [2, 1.0]]
    assert [part.dtype for part in next(iter(dataset))] == [np.int32, np.float32]
    typed = Dataset.from_generator(lambda: [1, 2], output_types=tf.float16)
    assert next(iter(typed)).dtype == np.float16


def test_zipped_datasets_keep_the_structure_that_holds_them():
    (first, *_) = Dataset.zip({"a": NUMBERS, "b": (NUMBERS, NUMBERS.skip(2))})
    assert first == {"a": 0, "b": (0, 2)}
    assert listed(Dataset.zip((NUMBERS, NUMBERS)).take(1)) == [[0, 0]]
    assert Dataset.zip(NUMBERS, NUMBERS.take(3)).cardinality() == 3


def test_files_and_their_lines(tmp_path: Path):
    (tmp_path / "b.txt").write_bytes("zwei\r\nüber\n".encode())
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"packed\n"))
    files = Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
    assert [Path(path).name for path in listed(files)] == ["a.txt", "b.txt"]
    assert sorted(listed(Dataset.list_files([tmp_path / "a*", tmp_path / "b*"], seed=1))) == listed(files)
    assert listed(tf.data.TextLineDataset(listed(files))) == ["one", "", "two", "zwei", "über"]
    assert listed(files.flat_map(lambda path: tf.data.TextLineDataset(str(path))).take(1)) == ["one"]
    assert listed(tf.data.TextLineDataset(tmp_path / "c.txt.gz", compression_type="GZIP")) == ["packed"]
    with pytest.raises(FileNotFoundError, match=r"list_files: no file fits '.*nothing'"):
        Dataset.list_files(str(tmp_path / "nothing"))


def test_datasets_of_folders_have_the_same_transformations(tmp_path: Path):
    for name in ("neg", "pos"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}")
    dataset = ab.utils.text_dataset_from_directory(tmp_path, batch_size=4, shuffle=False)
    assert dataset.cardinality() == 2
    mapped = dataset.map(lambda text, label: (text, ab.ops.cast(label, "float32") * 2))
    first = next(mapped.as_numpy_iterator())
    assert all(type(part) is np.ndarray for part in first)
    assert first[1].tolist() == [0, 0, 0, 2]
    assert [len(text) for text, _ in dataset.rebatch(3)] == [3, 3]
    assert [str(text) for text, label in dataset.unbatch().filter(lambda text, label: label > 0)] == [
        "pos 0",
        "pos 1",
        "pos 2",
    ]
    assert len(dataset.concatenate(dataset).repeat(2)) == 8
    assert len(list(dataset.repeat().take(5))) == 5


def test_fit_takes_repeated_batches_of_a_folder_dataset():
    x = np.linspace(-1, 1, 40, dtype="float32")[:, None]
    dataset = Dataset.from_tensor_slices((x, 3 * x)).shuffle(40, seed=0).batch(8).repeat()
    model = ab.Sequential([ab.Input((1,)), ab.layers.Dense(1)])
    model.compile(ab.optimizers.SGD(0.5), "mse")
    history = model.fit(dataset, epochs=8, steps_per_epoch=5, verbose=0).history
    assert history["loss"][-1] < 1e-3


def test_elements_are_tensors_to_who_iterates(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.txt").write_text("one")
    for dataset in (NUMBERS.batch(2), ab.utils.text_dataset_from_directory(tmp_path, labels=None)):
        (batch, *_) = dataset
        assert isinstance(batch, ab.Tensor)
        assert type(batch.numpy()) is np.ndarray
        assert type(next(dataset.as_numpy_iterator())) is np.ndarray
    names = ["zero", "one"]
    assert [names[label] for label in NUMBERS.take(2)] == names
    with ab.GradientTape() as tape:
        v = ab.Variable(2.0)
        tape.watch(v)
        loss = ab.constant(0.0)
        for number in NUMBERS.take(3):
            loss = loss + v * ab.ops.cast(number, "float32")
    assert tape.gradient(loss, v) == 3.0


@pytest.mark.parametrize("make", [Dataset.from_tensor_slices, lambda arrays: Dataset.from_tensors(arrays).unbatch()])
def test_a_dataset_keeps_its_numbers_when_the_array_changes(make: Any):
    array = np.arange(6.0).reshape(3, 2)
    dataset = make((array, array[:, 0]))
    array[:] = 9
    assert listed(dataset) == [[[0, 1], 0], [[2, 3], 2], [[4, 5], 4]]


def test_the_elements_of_a_dataset_cannot_be_changed():
    array = np.zeros((3, 2))
    rows = Dataset.from_tensor_slices(array)
    windows = ab.utils.timeseries_dataset_from_array(array, None, 1)
    batches = (rows.batch(2), rows.padded_batch(2), rows.batch(2).shuffle(2, seed=1))
    typed = Dataset.from_generator(lambda: [array], output_types="float32")
    for dataset in (rows, Dataset.from_tensors(array), *batches, typed, windows.cache()):
        for _ in range(2):  # passes: a cache keeps what the first one gives
            row = next(dataset.as_numpy_iterator())
            with pytest.raises(ValueError, match="read-only"):
                row += 1
            assert not row.any()


def test_an_array_that_nobody_can_change_is_not_copied():
    array = np.zeros((3, 2))
    array.flags.writeable = False
    assert np.shares_memory(next(Dataset.from_tensor_slices(array).as_numpy_iterator()), array)


def test_a_generator_may_use_one_array_for_all_elements():
    def count() -> Any:
        array = np.zeros(2)
        for _ in range(3):
            array += 1
            yield array

    assert listed(Dataset.from_generator(count).batch(3)) == [[[1, 1], [2, 2], [3, 3]]]
    typed = Dataset.from_generator(count, output_types="float64")
    assert listed(typed.batch(3)) == [[[1, 1], [2, 2], [3, 3]]]


def test_what_a_function_of_ops_returns_is_iterated_as_arrays():
    dataset = NUMBERS.batch(2).map(lambda x: (x * 2, {"text": ab.ops.strings.as_string(x), "sum": ab.ops.sum(x)}))
    doubled, rest = next(dataset.as_numpy_iterator())
    assert type(doubled) is np.ndarray
    assert type(rest["text"]) is np.ndarray
    assert isinstance(rest["sum"], np.generic)


def test_text_is_standardized_by_a_function_of_string_ops():
    def standardize(text: Any) -> Any:
        return tf.strings.regex_replace(tf.strings.lower(text), "[!?]", "")

    vectorize = ab.layers.TextVectorization(standardize=standardize)
    vectorize.adapt(Dataset.from_tensor_slices(["Hello you!", "hello?"]).batch(2))
    assert vectorize.get_vocabulary() == ["", "[UNK]", "hello", "you"]


def test_passes_over_mapped_elements_in_a_function_are_made_at_once() -> None:
    """Python iterates, and elements become constants of the function, whatever computed them."""
    mapped = NUMBERS.map(lambda x: x * 2).filter(lambda x: x > 2).scan(0, lambda total, x: (total + x, total + x))

    @ab.function
    def total(x: Any) -> Any:
        for batch in mapped.batch(2):
            x = x + ab.ops.sum(batch)
        return x

    assert int(total(1)) == 1 + sum([4, 10, 18, 28, 40])
    with ab.Graph().as_default():
        assert [item.tolist() for item in mapped.as_numpy_iterator()] == [4, 10, 18, 28, 40]


def test_functions_that_look_at_elements_run_for_each() -> None:
    def far(x: Any, y: Any) -> Any:
        return (x * 10, y) if x > 1 else (x, y)

    pairs = Dataset.from_tensor_slices((np.arange(4.0), np.arange(4)))
    mapped = pairs.map(far)
    assert listed(mapped) == listed(mapped) == [[0.0, 0], [1.0, 1], [20.0, 2], [30.0, 3]]
    assert listed(pairs.filter(lambda x, y: x > 0 and y < 3)) == [[1.0, 1], [2.0, 2]]
    assert [x.dtype for x in pairs.map(lambda x, y: float(x))] == [np.float32] * 4
    assert listed(pairs.map(lambda x, y: np.sqrt(x)).take(2)) == [0.0, 1.0]

    @ab.function
    def total() -> Any:
        return sum(y for _, y in mapped)

    assert int(total()) == 6


def test_draws_decide_for_each_element() -> None:
    ab.utils.set_random_seed(1)
    flipped = NUMBERS.repeat(20).map(lambda x: x if tf.random.uniform(()) < 0.5 else -1)
    counts = Counter(listed(flipped))
    assert 40 < counts[-1] < 100
    assert len(counts) == 8
