"""Collectives of some of the processes, and sums between hosts by each way. Members are threads, and processes once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.members import Members, all_at_once, each, made

import anabranch as ab
from anabranch.distribute.collectives import chain
from anabranch.distribute.collectives.choice import Choice
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.distribute.collectives.hosts import _numbers
from anabranch.distribute.commands.processes import Launch
from anabranch.engine.ops import collectives
from anabranch.engine.queues.errors import CancelledError, TaskFailedError

pytestmark = pytest.mark.xdist_group("tasks")
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def four() -> Generator[Members]:
    found = made(4, True)
    yield found
    for member in found:
        member.close()


@pytest.fixture
def as_members(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Runs ops as each of some members: in a thread whose group it is."""
    local = threading.local()
    monkeypatch.setattr(collectives, "current_group", lambda: local.group)

    def run(members: Members, call: Callable[[ProcessGroup], Any]) -> list[Any]:
        def as_member(member: ProcessGroup) -> Any:
            local.group = member
            return call(member)

        return each(members, as_member)

    return run


# --- groups ---------------------------------------------------------------------------------------------------------


def test_groups_run_at_once(four: Members, as_members: Any) -> None:
    """Two groups, then all, then groups that overlap: each result is that of its members, in the order of ranks."""

    def run(member: ProcessGroup) -> list[Any]:
        rank = member.rank
        halves = [0, 2] if rank in (0, 2) else [3, 1]
        x = np.full((2, 3), 10.0**rank)
        found = [
            ab.distribute.all_reduce(x, group=halves),
            ab.distribute.all_gather(x[: rank + 1], group=halves),
            ab.distribute.broadcast(x, root=max(halves), group=halves),
            ab.distribute.reduce_scatter(x, "mean", group=halves),
            ab.distribute.reduce_scatter(x, "max", group=halves),
            ab.distribute.all_reduce(x),
        ]
        ab.distribute.barrier(halves)
        if rank < 3:
            found.append(ab.distribute.all_reduce(x, "max", group=range(3)))
        if rank > 0:
            found.append(ab.distribute.all_reduce(x, "min", group=np.array([1, 2, 3])))
        return [each.numpy() for each in found]

    for rank, found in enumerate(as_members(four, run)):
        low, high = (1.0, 100.0) if rank in (0, 2) else (10.0, 1000.0)
        want: list[Any] = [np.full((2, 3), low + high)]
        rows = [1, 2] if rank in (0, 2) else [2, 2]
        want.append(np.repeat([low, high], rows)[:, None] * np.ones((1, 3)))
        want += [np.full((2, 3), high), np.full((1, 3), (low + high) / 2), np.full((1, 3), high)]
        want.append(np.full((2, 3), 1111.0))
        want += [np.full((2, 3), value) for value, has in ((100.0, rank < 3), (10.0, rank > 0)) if has]
        for one, other in zip(found, want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_large_arrays_of_groups_keep_apart(four: Members) -> None:
    """Each group has memory of its own: what one exchanges does not change what another one does."""
    groups = [(0, 1), (0, 1, 2, 3), (0, 1), (0, 3), (1, 2), (0, 1, 2, 3)]

    def run(member: ProcessGroup) -> list[Any]:
        own = [ranks for ranks in groups if member.rank in ranks]
        return [
            member.subgroup(ranks).all_reduce(np.arange(50_000) * (member.rank + k), "sum")
            for k, ranks in enumerate(own)
        ]

    for rank, found in enumerate(each(four, run)):
        own = [ranks for ranks in groups if rank in ranks]
        for k, (ranks, array) in enumerate(zip(own, found, strict=True)):
            places = [[other for other in groups if member in other] for member in ranks]
            numbers = [[n for n, other in enumerate(place) if other == ranks][own[:k].count(ranks)] for place in places]
            np.testing.assert_array_equal(array, np.arange(50_000) * (sum(ranks) + sum(numbers)))


def test_gradients_of_groups_are_those_of_their_summed_losses(four: Members, as_members: Any) -> None:
    xs = [np.random.default_rng(rank).normal(size=(2, 3)) for rank in range(4)]

    def losses(values: list[Any], rank: int) -> Any:
        """Return a member's loss, from what its group of two has."""
        first, second = values
        total, top = first + second, np.maximum(first, second)
        rows = np.concatenate(values)
        own = total[rank % 2 : rank % 2 + 1]
        return np.sum((rank + 1) * (total**2 + top**3 + second)) + np.sum(rows**3) + np.sum(own**2)

    def gradient(member: ProcessGroup) -> Any:
        group = [0, 1] if member.rank < 2 else [2, 3]
        x = ab.constant(xs[member.rank])
        with ab.GradientTape() as tape:
            tape.watch(x)
            total, top = collectives.all_reduce(x, group=group), collectives.all_reduce(x, "max", group)
            second, rows = collectives.broadcast(x, group[1], group), collectives.all_gather(x, group=group)
            own = collectives.reduce_scatter(x, group=group)
            loss = ab.ops.sum((member.rank + 1) * (total**2 + top**3 + second))
            loss = loss + ab.ops.sum(rows**3) + ab.ops.sum(own**2)
        return tape.gradient(loss, x).numpy()

    for rank, found in enumerate(as_members(four, gradient)):
        group = [0, 1] if rank < 2 else [2, 3]
        for place in np.ndindex(2, 3):
            step = np.zeros((2, 3))
            step[place] = 1e-6
            moved = [[xs[k] + sign * step * (k == rank) for k in group] for sign in (1, -1)]
            up, down = (sum(losses(values, k) for k in group) for values in moved)
            np.testing.assert_allclose(found[place], (up - down) / 2e-6, 1e-5)


@pytest.mark.parametrize(
    ("group", "error", "match"),
    [
        ([1, 2], ValueError, r"rank 0, and is no member of group=\[1, 2\]. Only members call"),
        ([0, 0], ValueError, "names a rank twice"),
        ([0, 4], ValueError, r"group=\[0, 4\] has to hold ranks from 0 to 3"),
        ([-1, 0], ValueError, "ranks from 0 to 3"),
        ([], ValueError, "at least one"),
        ([0.5], TypeError, "takes a list of ranks"),
        (3, TypeError, "takes a list of ranks"),
    ],
)
def test_groups_that_can_not_be_are_refused(four: Members, as_members: Any, group: Any, error: Any, match: str) -> None:
    x = np.zeros(4)
    for call in (
        lambda: ab.distribute.all_reduce(x, group=group),
        lambda: ab.distribute.all_gather(x, group=group),
        lambda: ab.distribute.reduce_scatter(x, group=group),
        lambda: ab.distribute.broadcast(x, group=group),
        lambda: ab.distribute.barrier(group),
    ):
        with pytest.raises(error, match=match):
            as_members(four[:1], lambda _, call=call: call())
    with pytest.raises(ValueError, match=r"root=2 is no member of group=\[0, 1\]"):
        as_members(four[:1], lambda _: ab.distribute.broadcast(x, 2, [1, 0]))


def test_members_that_mean_other_groups_are_both_named() -> None:
    """Also where one waits for a third one, which never comes."""
    group = made(3, shares_memory=False)
    x = np.zeros(2, "float32")
    found = all_at_once(
        lambda: group[0].all_reduce(x, "sum"),
        lambda: group[1].subgroup((0, 1)).all_reduce(x, "sum"),
    )
    assert [type(error) for error in found] == [ValueError, ValueError]
    with pytest.raises(
        ValueError,
        match=r"task:0 runs all_reduce, sum, of float32\[2\] \(number 0\), and /job:worker/task:1 runs "
        r"all_reduce, sum, of float32\[2\] in group \[0, 1\] \(number 0\)",
    ):
        raise found[0]
    for member in group:
        member.close()


def test_a_member_of_a_group_that_is_gone_is_named() -> None:
    group = made(3, shares_memory=False)
    group[2].close()
    with pytest.raises(TaskFailedError, match="task:2 has failed"):
        group[0].subgroup((0, 2)).barrier()
    for member in group:
        member.close()


def test_a_group_of_a_process_alone() -> None:
    assert float(ab.distribute.all_reduce(2.0, group=[0])) == 2.0
    assert ab.distribute.barrier([0]) is None
    with pytest.raises(ValueError, match=r"group=\[0, 1\] has to hold ranks from 0 to 0"):
        ab.distribute.all_reduce(2.0, group=[0, 1])


def test_groups_in_graphs(four: Members, as_members: Any) -> None:
    def run(member: ProcessGroup) -> Any:
        group = [0, 3] if member.rank in (0, 3) else [1, 2]
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((2,), "float64", "x")
            y = ab.distribute.all_reduce(x, "mean", group)
            return ab.Session(graph).run(y, {x: [1.0 * member.rank, 2.0]})

    for rank, found in enumerate(as_members(four, run)):
        np.testing.assert_array_equal(found, [1.5, 2.0], err_msg=str(rank))


# --- ways between hosts ---------------------------------------------------------------------------------------------


HOSTS = [[0, 1], [0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1, 2], [0, 1, 2]]


@pytest.fixture(scope="module", params=HOSTS, ids=str)
def spread(request: pytest.FixtureRequest) -> Generator[Members]:
    """Members on several hosts, which are names here."""
    found = made(len(request.param), True, hosts=[f"host {number}" for number in request.param])
    yield found
    for member in found:
        member.close()


@settings(max_examples=examples(12, 60), deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([0, 1, 2, 7, 1001, 9000, 50_001]),
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bfloat16", "float16", "complex64"]),
    reduce_op=st.sampled_from(["sum", "mean", "max", "min"]),
)
def test_all_ways_add_in_the_order_of_ranks(spread: Members, seed: int, size: int, dtype: str, reduce_op: str) -> None:
    """Sizes around what is small, and elements that are fewer than members; ways are forced, and pieces small."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if (kind.kind in "iu" and reduce_op == "mean") or (dtype == "complex64" and reduce_op in ("max", "min")):
        reduce_op = "sum"
    rng = np.random.default_rng(seed)
    arrays = [(rng.normal(size=size) * 100 + 100).astype(kind) for _ in spread]
    is_half = kind.itemsize == 2
    wide = [array.astype("float32") if is_half else array for array in arrays]
    want: Any = wide[0]
    for array in wide[1:]:
        want = {"max": np.maximum, "min": np.minimum}.get(reduce_op, np.add)(want, array)
    want = want.astype(kind)
    if reduce_op == "mean":
        want = want / np.asarray(len(spread), kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "PIECE_BYTES", 4096)
        patch.setattr("anabranch.distribute.collectives.group.SMALL", 0 if seed % 2 else 1 << 14)
        for way in ("direct", "chain", *["hosts"] * ("hosts" in spread[0].ways)):
            for member in spread:
                patch.setattr(member.choice, "ways", [way])
            for found in each(spread, lambda member: member.all_reduce(arrays[member.rank], reduce_op)):
                assert found.dtype == kind
                assert found.tobytes() == want.tobytes(), way


def test_hosts_are_chained_where_ranks_follow_each_other(spread: Members) -> None:
    hosts = [part for part in spread[0]._parts if part]
    assert ("hosts" in spread[0].ways) == (1 < len(hosts) < len(spread))
    mixed = made(4, True, hosts=["a", "b", "a", "b"])
    assert mixed[0].ways == ["direct", "chain"], "sums of a host would not be in the order of ranks"
    pair = mixed[0].subgroup((0, 2))
    assert pair.shares_memory
    for member in mixed:
        member.close()


def test_hosts_are_those_that_map_each_others_memory() -> None:
    assert _numbers([{0, 1}, {0, 1}, {2}]) == [0, 0, 2]
    assert _numbers([{0, 1}, {1}, {2}]) == [0, 1, 2], "only one of them can"
    assert _numbers([{0, 1, 2}, {0, 1, 2}, {1, 2}]) == [0, 1, 2], "not all of them can"


@pytest.mark.parametrize("way", ["direct", "chain"])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_all_learn_who_was_lost_in_a_sum(way: str, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those who have no bytes to exchange with it."""
    group = made(4, False, way=way)

    def run(member: ProcessGroup) -> Any:
        if member.rank == lost:
            member._agreed(member._header("all_reduce", 0, array), {})
            member.close()
            return None
        return member.all_reduce(array, "sum")

    array = np.zeros(1 << 20)
    for rank, found in enumerate(all_at_once(*[lambda member=member: run(member) for member in group])):
        if rank != lost:
            assert isinstance(found, TaskFailedError), rank
            assert found.task == f"/job:worker/task:{lost}"
    for member in group:
        member.close()


def test_an_abort_ends_a_sum_that_others_begin() -> None:
    group = made(3, False, way="chain")
    first, second, _ = all_at_once(
        lambda: group[0].all_reduce(np.zeros(50_000), "sum"),
        lambda: group[1].all_reduce(np.zeros(50_000), "sum"),
        lambda: group[2].abort("no luck"),
    )
    assert [type(first), type(second)] == [CancelledError, CancelledError]
    for member in group:
        member.close()


def test_the_shorter_way_is_chosen_by_all_alike() -> None:
    """Each way counts as long as the slowest member; the first of each, which is slow, does not count."""
    seconds = {"direct": [1.0, 3.0], "chain": [2.0, 2.0], "hosts": [4.0, 0.1]}
    said: list[list[float]] = []
    choices = [Choice([*seconds], lambda own: said) for _ in range(2)]
    for choice, member in zip(choices, range(2), strict=True):
        for count in range(9):
            way = choice.way(5000)
            choice.took(5000, seconds[way][member] + (100.0 if count < 3 else 0.0))
        said.append([seconds[way][member] for way in choice.ways])
    assert [choice.way(5001) for choice in choices] == ["chain", "chain"]
    assert [choice.chosen for choice in choices] == [{13: "chain"}] * 2
    assert choices[0].way(50_000) == "direct", "another class of sizes is measured anew"
    choices[0].took(5000, 0.0)
    assert choices[0].way(5000) == "chain"


def test_a_choice_is_made_by_measuring() -> None:
    group = made(3, False)
    for _ in range(8):
        each(group, lambda member: member.all_reduce(np.ones(5000), "sum"))
    chosen = [member.choice.chosen for member in group]
    assert chosen[0] == chosen[1] == chosen[2]
    assert [*chosen[0]] == [(5000 * 8).bit_length()]
    for member in group:
        member.close()


@pytest.mark.parametrize("plane", ["sockets", pytest.param("auto", marks=pytest.mark.slow)])
def test_groups_of_processes(plane: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Three processes: sums of all and of pairs, over the plane that was asked for."""
    monkeypatch.setenv("ANABRANCH_PLANE", plane)
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")  # the sums are NumPy's
    with Launch(3, 0, [str(SCRIPTS / "sum_in_groups.py"), plane]) as launch:
        assert launch.wait() == 0
    lines = [line.rpartition("digest ")[2] for line in capfd.readouterr().out.splitlines() if "digest" in line]
    assert len(lines) == 3
    assert len({*lines}) == 1, "all have the same bits"


@pytest.mark.parametrize("shares_memory", [True, False])
def test_each_member_gets_its_part_of_what_one_has(shares_memory: bool) -> None:
    group = made(3, shares_memory)
    for parts in ([b"", b"one", b"x" * 300_000], [b"", b"", b""]):
        for root in range(3):
            given = [parts if member.rank == root else None for member in group]
            assert each(group, lambda m, root=root, given=given: m.scatter_bytes(given[m.rank], root)) == parts
    for member in group:
        member.close()


# --- offers ---------------------------------------------------------------------------------------------------------

ONE, OTHER = b"1" * 16, b"2" * 15 + b"\0"


@pytest.mark.parametrize("shares_memory", [True, False])
def test_members_that_offer_the_same_agree(shares_memory: bool) -> None:
    group = made(3, shares_memory)
    assert each(group, lambda member: member.offer(OTHER)) == [True] * 3
    assert each(group, lambda member: member.offer(OTHER if member.rank == 1 else ONE)) == [False] * 3
    for found in each(group, lambda member: member.all_reduce(np.full(9000, member.rank, "float32"), "sum")):
        np.testing.assert_array_equal(found, np.full(9000, 3.0))
    for member in group:
        member.close()


COLLECTIVES = {
    "barrier": lambda member: member.barrier(),
    "small sum": lambda member: member.all_reduce(np.full(3, member.rank), "sum").tolist(),
    "large sum": lambda member: float(member.all_reduce(np.full(50_000, member.rank), "sum")[-1]),
    "own root": lambda member: float(member.broadcast(np.full(50_000, member.rank), 0)[-1]),
    "other root": lambda member: float(member.broadcast(np.full(50_000, member.rank), 2)[-1]),
    "small rows": lambda member: member.gather_bytes(b"x" * member.rank),
    "large rows": lambda member: [len(part) for part in member.gather_bytes(b"x" * 20_000 * member.rank)],
    "shares": lambda member: float(member.reduce_scatter(np.full(30_000, member.rank), "max")[-1]),
}


@pytest.mark.parametrize("shares_memory", [True, False])
def test_an_offer_of_one_member_leaves_what_the_others_run_alone(shares_memory: bool) -> None:
    """It declines, twice, and then comes to the same collective."""
    group = made(3, shares_memory)

    def run(member: ProcessGroup) -> Any:
        found = []
        for call in COLLECTIVES.values():
            if member.rank == 0:
                assert not member.offer(ONE)
                assert not member.offer(OTHER)
            found.append(call(member))
        return found

    calm = each(group, lambda member: [call(member) for call in COLLECTIVES.values()])
    assert each(group, run) == calm
    for member in group:
        member.close()


def test_an_offer_is_declined_where_a_member_is_gone() -> None:
    one, other = made(2, shares_memory=False)
    other.close()
    assert not one.offer(ONE)
    assert not one.offer(ONE)
    one.close()
    assert not one.offer(ONE), "this member has left itself"
