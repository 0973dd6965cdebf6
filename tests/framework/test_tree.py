"""`anabranch.tree`: nested structures, with the meaning that keras.tree gives them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import tree

Point = namedtuple("Point", ["x", "y"])
Other = namedtuple("Other", ["x", "y"])
NO_FUNCTION: Any = 3
LEAVES = st.none() | st.integers() | st.text(max_size=3)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | st.lists(inner, max_size=3).map(deque)
    ),
    max_leaves=8,
)


@given(STRUCTURES)
def test_what_is_flattened_is_packed_again(structure: Any) -> None:
    leaves = tree.flatten(structure)
    assert tree.pack_sequence_as(structure, leaves) == structure
    assert [leaf for _, leaf in tree.flatten_with_path(structure)] == leaves
    numbered = tree.pack_sequence_as(structure, range(len(leaves)))
    assert tree.flatten(numbered) == list(range(len(leaves)))
    tree.assert_same_structure(structure, numbered)
    tree.assert_same_paths(structure, tree.lists_to_tuples(numbered))
    assert tree.map_structure(lambda a, b: a, structure, numbered) == structure


@given(STRUCTURES)
def test_paths_lead_to_their_leaves(structure: Any) -> None:
    for path, leaf in tree.flatten_with_path(structure):
        found = structure
        for key in path:
            found = found[key]
        assert found is leaf


def test_deques_are_structures() -> None:
    queue = deque([1, [2]], maxlen=4)
    assert tree.is_nested(deque())
    assert tree.flatten(deque()) == []
    assert tree.flatten_with_path(queue) == [((0,), 1), ((1, 0), 2)]
    added: Any = tree.map_structure(lambda a, b: a + b, queue, deque([10, [20]]))
    assert added == deque([11, [22]])
    assert added.maxlen == 4
    assert tree.lists_to_tuples(queue) == deque([1, (2,)])
    assert tree.traverse(lambda part: 0 if part == 1 else None, queue) == deque([0, [2]])
    assert tree.map_shape_structure(len, deque([(1, None)])) == deque([2])
    with pytest.raises(ValueError, match=r"the first is of type deque, the second of type list"):
        tree.assert_same_structure(queue, [1, [2]])


def test_order_of_dicts() -> None:
    assert tree.flatten({100: "world!", 6: "Hello"}) == ["Hello", "world!"]
    assert tree.flatten(OrderedDict([("b", 1), ("a", 2)])) == [1, 2]
    packed = tree.pack_sequence_as({"key3": "", "key1": ""}, ["first", "second"])
    assert list(packed.items()) == [("key3", "second"), ("key1", "first")]
    assert isinstance(tree.map_structure(str, OrderedDict(a=1)), OrderedDict)
    made = tree.map_structure(str, defaultdict(list, a=1))
    assert made["b"] == []


def test_leaves() -> None:
    array = np.arange(3)
    assert tree.flatten(array) == [array]
    assert tree.flatten("text") == ["text"]
    assert tree.flatten([]) == tree.flatten({}) == []
    assert not tree.is_nested({1, 2})
    tensor = ab.Input((3,))
    assert tree.map_structure(lambda leaf: leaf.shape, {"x": [tensor]}) == {"x": [(None, 3)]}


def test_none() -> None:
    assert tree.map_structure(lambda leaf: leaf is None, [None, 1]) == [True, False]
    assert tree.map_structure(lambda leaf: leaf + 1, [None, 1], none_is_leaf=False) == [None, 2]
    assert tree.map_structure(str, None, none_is_leaf=False) is None


def test_up_to() -> None:
    assert tree.map_structure_up_to([None, [None, None]], str, [[1, 1], [2, 2]]) == ["[1, 1]", ["2", "2"]]
    assert tree.map_structure_up_to(None, len, [1, 2]) == 2
    with pytest.raises(ValueError, match=r"at \[1\] the first is of type list, the second of type int"):
        tree.map_structure_up_to([None, [None]], str, [1, 2])


def test_traverse() -> None:
    seen: list[Any] = []
    structure = [(1, 2), [3], {"a": 4}]
    assert tree.traverse(seen.append, structure) == structure
    assert seen == [structure, (1, 2), 1, 2, [3], 3, {"a": 4}, 4]
    seen.clear()
    assert tree.traverse(seen.append, structure, top_down=False) == structure
    assert seen == [1, 2, (1, 2), 3, [3], 4, {"a": 4}, structure]
    assert tree.traverse(lambda part: "cut" if isinstance(part, tuple) else None, structure) == ["cut", [3], {"a": 4}]
    assert tree.traverse(lambda part: tree.MAP_TO_NONE if part == 3 else None, structure) == [(1, 2), [None], {"a": 4}]


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        ([1], (1,), r"at the top the first is of type list, the second of type tuple"),
        ({"a": [1, 2]}, {"a": [1]}, r"at \['a'\] the first has the parts \[0, 1\], the second \[0\]"),
        ({"a": 1}, {"b": 1}, r"the first has the parts \['a'\], the second \['b'\]"),
        (Point(1, 2), Other(1, 2), "of type Point, the second of type Other"),
        ([1], 1, "of type list, the second of type int"),
        (None, [], "of type NoneType, the second of type list"),
    ],
)
def test_structures_that_differ(a: Any, b: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tree.assert_same_structure(a, b)
    with pytest.raises(ValueError, match=match):
        tree.map_structure(lambda x, y: x, a, b)


def test_paths_that_differ() -> None:
    with pytest.raises(ValueError, match=r"Only the first has \[\(1,\)\], only the second \[\]"):
        tree.assert_same_paths([1, 2], (1,))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: tree.map_structure(len), ValueError, "at least one structure"),
        (lambda: tree.map_structure(NO_FUNCTION, [1]), TypeError, "func must be callable, got 3"),
        (lambda: tree.traverse(NO_FUNCTION, [1]), TypeError, "func must be callable"),
        (lambda: tree.map_shape_structure(NO_FUNCTION, [1]), TypeError, "func must be callable"),
        (lambda: tree.pack_sequence_as([1], "a"), TypeError, "must be a sequence, got 'a'"),
        (lambda: tree.pack_sequence_as([1], [1, 2]), ValueError, "has 1 leaves, but flat_sequence has 2"),
    ],
)
def test_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_shapes() -> None:
    assert tree.map_shape_structure(lambda shape: (*shape, 1), [(None, 2), {"a": []}]) == [(None, 2, 1), {"a": (1,)}]
    assert tree.lists_to_tuples([1, [2], {"a": [3]}]) == (1, (2,), {"a": (3,)})
