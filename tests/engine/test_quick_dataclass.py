"""Dataclasses that are defined cheaply, compared with the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
from typing import Any, ClassVar

import pytest

from anabranch import ops
from anabranch.engine.common import quick_dataclass
from anabranch.engine.graph.op import Op


@quick_dataclass.dataclass(frozen=True, slots=True)
class Slots:
    """At the level of the module, where pickles find it."""

    first: int
    second: str = "b"


MAKERS = {"quick": quick_dataclass.dataclass, "standard": dataclasses.dataclass}


def _classes(decorate: Any, **options: Any) -> list[Any]:
    """No fields; fields with a default; a subclass that adds one; one without own fields; one with own methods."""

    @decorate(**options)
    class Empty:
        kind: ClassVar[str] = "empty"

    @decorate(**options)
    class Pair:
        first: int
        second: Any = 2

    @decorate(**options)
    class Longer(Pair):
        """With a docstring."""

        third: str = "c"
        second: Any = 5

    @decorate(**options)
    class Same(Longer):
        third = "not a field here"  # pyright: ignore[reportAssignmentType]

    @decorate(**options)
    class Own(Pair):
        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and (self.first,) == (other.first,)  # pyright: ignore

    @decorate(**options)
    class Single:
        only: Any

    return [Empty, Pair, Longer, Same, Own, Single]


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((), {"first": 1, "second": 3}),
    ((1,), {"third": "d"}),
    ((1, 2, "x"), {}),
    ((1, 2, 3, 4), {}),
    ((), {"wrong": 1}),
    ((1,), {"first": 1}),
]


def _outcome(call: Any) -> Any:
    """Return what `call` gives, or the error that it raises; names of classes without the place that they stand in."""
    try:
        result = call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)
    return result


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"frozen": True, "eq": False}, {"eq": False}])
def test_it_behaves_as_the_standard_one(options: dict[str, Any]) -> None:
    families = [_classes(decorate, **options) for decorate in MAKERS.values()]
    for classes in zip(*families, strict=True):
        made: list[Any] = []
        for arguments, named in ARGUMENTS:
            instances = [_outcome(lambda cls=cls, a=arguments, n=named: cls(*a, **n)) for cls in classes]
            quick, standard = instances
            if isinstance(standard, tuple):
                assert quick == standard
                continue
            assert repr(quick) == repr(standard)
            assert vars(quick) == vars(standard)
            assert _outcome(lambda q=quick: hash(q) != id(q)) == _outcome(lambda s=standard: hash(s) != id(s))
            made.append(instances)
            for action in (_set_first, _set_other, _delete_first, _replace_first, copy.copy):
                results = [_outcome(lambda i=i, action=action: repr(action(copy.copy(i)))) for i in instances]
                assert results[0] == results[1]
        for a, b in itertools.product(made, repeat=2):
            assert (a[0] == b[0]) == (a[1] == b[1])
            if options == {"frozen": True}:
                assert (hash(a[0]) == hash(b[0])) == (hash(a[1]) == hash(b[1]))
        quick, standard = classes
        assert [(f.name, f.type, f.default) for f in dataclasses.fields(quick)] == [
            (f.name, f.type, f.default) for f in dataclasses.fields(standard)
        ]
        assert quick.__match_args__ == standard.__match_args__
    assert len({len(family) for family in families}) == 1


def _set_first(instance: Any) -> Any:
    instance.first = 9
    return instance


def _set_other(instance: Any) -> Any:
    instance.unheard_of = 9
    return instance


def _delete_first(instance: Any) -> Any:
    del instance.first
    return vars(instance)


def _hash_is_own(instance: Any) -> Any:
    return hash(instance) != id(instance)


def _replace_first(instance: Any) -> Any:
    return dataclasses.replace(instance, first=7)


def test_classes_differ_though_their_fields_are_equal() -> None:
    classes = _classes(quick_dataclass.dataclass, frozen=True)
    assert classes[2](1, 2, "c") != classes[3](1, 2, "c")
    assert classes[1](1) != 1


def test_a_standard_one_inherits_from_it_and_it_from_a_standard_one() -> None:
    pair = _classes(quick_dataclass.dataclass, frozen=True)[1]
    further = dataclasses.dataclass(frozen=True)(
        type("Further", (pair,), {"__annotations__": {"third": "int"}, "third": 3})
    )
    assert repr(further(1)) == "Further(first=1, second=2, third=3)"
    again = quick_dataclass.dataclass(frozen=True)(
        type("Again", (further,), {"__annotations__": {"fourth": "int"}, "fourth": 4})
    )
    assert repr(again(1)).endswith("Again(first=1, second=2, third=3, fourth=4)")
    with pytest.raises(TypeError, match="frozen"):
        dataclasses.dataclass(type("Open", (pair,), {}))


def test_a_subclass_that_calls_the_constructor_of_its_base() -> None:
    pair = _classes(quick_dataclass.dataclass, frozen=True)[1]

    class Doubled(pair):
        def __init__(self, first: int) -> None:
            super().__init__(2 * first)
            self.extra = "extra"  # a subclass that is no dataclass may have attributes

    assert Doubled(2).first == 4
    assert Doubled(2) == Doubled(2)
    assert hash(Doubled(2)) == hash(Doubled(2))
    assert Doubled(3).extra == "extra"
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        Doubled(3).first = 1


def test_values_that_instances_must_not_share_are_refused_or_made_anew() -> None:
    def shared() -> Any:
        @quick_dataclass.dataclass(frozen=True)
        class Shared:
            values: list[int] = []  # noqa: RUF012

        return Shared

    with pytest.raises(ValueError, match="mutable default"):
        shared()

    @quick_dataclass.dataclass(frozen=True)
    class Fresh:
        values: list[int] = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default=1, repr=False)

    assert Fresh().values is not Fresh().values
    assert "hidden" not in repr(Fresh())


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}])
def test_factories_slots_and_what_runs_after_the_constructor_as_the_standard_one(options: dict[str, Any]) -> None:
    # Of frozen slots the standard one raises a TypeError, because its methods belong to the class without slots.
    setting = () if options == {"frozen": True, "slots": True} else (_set_other,)
    actions = (repr, _set_first, _delete_first, _replace_first, copy.copy, copy.deepcopy, _hash_is_own, *setting)
    for quick, standard in zip(*[_made_with_factories(decorate, options) for decorate in MAKERS.values()], strict=True):
        for arguments, named in [*ARGUMENTS, ((1, [2]), {}), ((1,), {"made": [3], "calls": 4})]:
            for action in actions:
                found, expected = (
                    _outcome(
                        lambda c=cls, a=arguments, n=named, act=action: repr(
                            act(c(*copy.deepcopy(a), **copy.deepcopy(n)))
                        )
                    )
                    for cls in (quick, standard)
                )
                assert found == expected, action
        assert quick(1) == quick(1) != quick(2)
        assert quick(1).made is not quick(1).made
        assert hasattr(quick(1), "__dict__") == hasattr(standard(1), "__dict__")
        for name in ("first", "made", "calls"):
            assert repr(getattr(quick, name, None)) == repr(getattr(standard, name, None)).replace("standard", "quick")
        assert getattr(quick, "__slots__", None) == getattr(standard, "__slots__", None)
        assert [(f.name, f.type, f.default, f.default_factory, f.metadata) for f in dataclasses.fields(quick)] == [
            (f.name, f.type, f.default, f.default_factory, f.metadata) for f in dataclasses.fields(standard)
        ]


def _made_with_factories(decorate: Any, options: dict[str, Any]) -> list[Any]:
    class Counted:
        __slots__ = ()

        def __post_init__(self) -> None:
            self.made.append(len(self.made))  # pyright: ignore

    @decorate(**options)
    class Base(Counted):
        first: int = dataclasses.field()
        made: list[int] = dataclasses.field(default_factory=list, metadata={"kept": True})

    @decorate(**options)
    class Further(Base):
        calls: int = dataclasses.field(default=2)

        @property
        def total(self) -> int:
            return self.first + self.calls

    return [Base, Further]


def test_copies_of_slots_are_made_as_pickles_are() -> None:
    reduced: Any = Slots(1).__reduce_ex__(4)
    make, arguments, state = reduced[:3]
    made = make(*arguments)
    made.__setstate__(state)
    assert made == Slots(1, "b")
    assert copy.copy(Slots(1)) == Slots(1, "b")
    assert Slots.__slots__ == ("first", "second")


def test_it_decorates_without_parentheses_and_leaves_the_rest_to_the_standard_one() -> None:
    @quick_dataclass.dataclass
    class Plain:
        value: int

    assert Plain(1) == Plain(1)
    with pytest.raises(TypeError, match="non-default argument 'last' follows default argument"):
        quick_dataclass.dataclass(type("Wrong", (), {"__annotations__": {"first": "int", "last": "int"}, "first": 1}))
    with pytest.raises(TypeError, match="inherit frozen dataclass from a non-frozen one"):
        quick_dataclass.dataclass(frozen=True)(type("Frozen", (Plain,), {}))


def test_what_runs_after_the_constructor_is_run() -> None:
    @quick_dataclass.dataclass(frozen=True)
    class Checked:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError("negative")

    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_the_constructor_is_compiled_once_and_knows_its_parameters() -> None:
    pair = _classes(quick_dataclass.dataclass, frozen=True)[1]
    pair(1)
    compiled = pair.__init__
    pair(2)
    assert pair.__init__ is compiled
    assert str(inspect.signature(pair)) == "(first, second=2)"


def test_ops_are_made_from_their_fields() -> None:
    ours = [op for op in ops.registered_ops().values() if op.__module__.startswith("anabranch.")]  # others are tests'
    found = [op for op in ours if dataclasses.is_dataclass(op) and not dataclasses.fields(op)]
    assert len(found) > 100
    for op in found:
        made: Op = op()
        assert made == op()
        assert hash(made) == hash(op())
        assert repr(made) == f"{op.__qualname__}()"


def test_ops_without_fields_have_hashes_of_their_own() -> None:
    """Keep eager plans, which are found by the op, from being compared in turn."""
    ours = [op for op in ops.registered_ops().values() if op.__module__.startswith("anabranch.")]  # others are tests'
    found = [op for op in ours if dataclasses.is_dataclass(op) and not dataclasses.fields(op)]
    own = [op for op in found if "__hash__" not in op.__dict__ or op.__hash__ is not object.__hash__]
    assert len({hash(op()) for op in own}) == len(own)
    first, second = (quick_dataclass.dataclass(frozen=True)(type(name, (), {})) for name in ("First", "Second"))
    assert hash(first()) != hash(second())
    assert first() != second()
