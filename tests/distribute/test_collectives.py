"""Collectives of several members, by memory and by sockets: results, agreement, members that are lost.

Members are threads of this process, each with its own sockets and memory; processes are in test_data_parallel.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
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
from shared.members import TOKEN, Members, addresses, all_at_once, each, linked, made
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute.collectives import links
from anabranch.distribute.collectives.group import ProcessGroup
from anabranch.distribute.collectives.headers import SMALL, SPREAD
from anabranch.distribute.collectives.links import Links
from anabranch.distribute.environment import note_end, time_of_end
from anabranch.distribute.transport.connections import RefusedError
from anabranch.engine.ops import collectives, replicas
from anabranch.engine.queues.errors import CancelledError, TaskFailedError
from anabranch.framework.replicas.buckets import exchanged, summed

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture(scope="module", params=[(2, True), (2, False), (3, True), (3, False)], ids=str)
def members(request: pytest.FixtureRequest) -> Generator[Members]:
    found = made(*request.param)
    assert all(member.shares_memory == request.param[1] for member in found)
    yield found
    for member in found:
        member.close()


@settings(max_examples=examples(10, 40), deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.lists(st.sampled_from([0, 1, 3, 40, 130]), max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int64", "bfloat16", "complex64"]),
    reduce_op=st.sampled_from(["sum", "mean", "max", "min"]),
)
def test_all_reduce_adds_in_the_order_of_ranks(
    members: Members, seed: int, shape: list[int], dtype: str, reduce_op: str
) -> None:
    if (dtype == "int64" and reduce_op == "mean") or (dtype == "complex64" and reduce_op in ("max", "min")):
        reduce_op = "sum"
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    arrays = [(rng.normal(size=shape) * 100).astype(kind) for _ in members]
    wide = [array.astype("float32") if dtype == "bfloat16" else array for array in arrays]  # and rounded once
    want: Any = wide[0]
    for array in wide[1:]:
        want = {"max": np.maximum, "min": np.minimum}.get(reduce_op, np.add)(want, array)
    if reduce_op == "mean":
        want = want.astype(kind) / np.asarray(len(members), kind)
    for found in each(members, lambda member: member.all_reduce(arrays[member.rank], reduce_op)):
        assert (found.dtype, found.shape) == (kind, tuple(shape))
        assert found.tobytes() == want.astype(kind).tobytes()


@settings(max_examples=examples(6, 25), deadline=None)
@given(rows=st.lists(st.sampled_from([0, 1, 2, 5000]), min_size=3, max_size=3), axis=st.integers(0, 1))
def test_all_gather_joins_in_the_order_of_ranks(members: Members, rows: list[int], axis: int) -> None:
    shapes = [(count, 3) if axis == 0 else (3, count) for count in rows]
    arrays = [np.random.default_rng(rank).normal(size=shape) for rank, shape in enumerate(shapes)]
    want = np.concatenate(arrays[: len(members)], axis)
    for found in each(members, lambda member: member.all_gather(arrays[member.rank], axis)):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("size", [1, 100_000])
def test_broadcast_gives_the_array_of_the_root(members: Members, size: int) -> None:
    for root in range(len(members)):
        for found in each(members, lambda member, root=root: member.broadcast(np.full(size, member.rank), root)):
            np.testing.assert_array_equal(found, np.full(size, root))


def test_results_are_nobody_elses(members: Members) -> None:
    """A later collective does not change what an earlier one gave, whichever memory it goes through."""
    found = each(members, lambda member: [member.all_reduce(np.full(50_000, k), "sum") for k in range(5)])
    for results in found:
        for k, array in enumerate(results):
            np.testing.assert_array_equal(array, np.full(50_000, k * len(members)))


KINDS = ["all_reduce", "all_reduce_over", "reduce_scatter", "all_gather", "broadcast"]


@settings(max_examples=examples(8, 60), deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from([6, 6_000, 60_000, 120_000])), min_size=2, max_size=9
    )
)
def test_collectives_one_after_another_leave_results_and_operands_alone(
    members: Members, calls: list[tuple[str, int]]
) -> None:
    """No member writes what another still reads, though some are behind."""
    arrays = [np.random.default_rng(n).normal(size=(len(members), size)) for n, (_, size) in enumerate(calls)]
    totals = [functools.reduce(np.add, array) for array in arrays]

    def run(member: ProcessGroup) -> list[Any]:
        found: list[Any] = []
        for (kind, _), array in zip(calls, arrays, strict=True):
            own = array[member.rank].copy()
            found.append(getattr(member, kind)(own, {"all_gather": 0, "broadcast": 1}.get(kind, "sum")))
            if kind == "all_reduce_over":
                assert np.shares_memory(found[-1], own) == (member.shares_memory and own.nbytes > SMALL)
            else:
                np.testing.assert_array_equal(own, array[member.rank])
        return found

    for rank, found in enumerate(each(members, run)):
        for (kind, size), array, total, result in zip(calls, arrays, totals, found, strict=True):
            part = slice(size * rank // len(members), size * (rank + 1) // len(members))
            wanted = {"all_gather": array.reshape(-1), "broadcast": array[1], "reduce_scatter": total[part]}
            np.testing.assert_array_equal(result, wanted.get(kind, total))


def test_members_wait_at_a_barrier(members: Members) -> None:
    arrived: list[int] = []
    lock = threading.Lock()

    def cross(member: ProcessGroup) -> int:
        with lock:
            arrived.append(member.rank)
        member.barrier()
        return len(arrived)

    assert each(members, cross) == [len(members)] * len(members)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_members_learn_the_addresses_from_the_first_one(host: str) -> None:
    names = [f"/job:worker/task:{rank}" for rank in range(4)]
    at = f"{host}:{addresses(1)[0].rpartition(':')[2]}"
    calls = [lambda rank=rank: Links(names, [at], rank, rank + 1, TOKEN, PATIENCE) for rank in range(4)]
    group = all_at_once(*[lambda link=link: ProcessGroup(link(), shares_memory=False) for link in calls])
    for found in each(group, lambda member: member.all_gather(np.array([member.rank]), 0)):
        assert found.tolist() == [0, 1, 2, 3]
    for member in group:
        member.close()


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (
            lambda member: member.all_reduce(np.zeros((2, 3), "float32"), "sum"),
            lambda member: member.all_reduce(np.zeros((3, 2), "float32"), "sum"),
            r"task:0 runs all_reduce, sum, of float32\[2, 3\] \(number 0\), and .*float32\[3, 2\]",
        ),
        (
            lambda member: member.all_reduce(np.zeros(2, "float32"), "sum"),
            lambda member: member.all_reduce(np.zeros(2, "float32"), "max"),
            "all_reduce, sum.*all_reduce, max",
        ),
        (
            lambda member: member.barrier(),
            lambda member: member.broadcast(np.zeros(2), 1),
            "barrier .*broadcast, root 1",
        ),
        (
            lambda member: member.all_gather(np.zeros((2, 3)), 0),
            lambda member: member.all_gather(np.zeros((2, 4)), 0),
            r"all_gather, axis 0, of float64\[2, 3\]",
        ),
        (
            lambda member: member.reduce_scatter(np.zeros((2, 6)), "sum"),
            lambda member: member.reduce_scatter(np.zeros((4, 3)), "sum"),
            r"reduce_scatter, sum, of float64\[2, 6\] .*float64\[4, 3\]",
        ),
        (
            lambda member: member.all_reduce(np.zeros(2), "sum"),  # as in a callback of the chief
            lambda member: member.gather_bytes(b""),  # as in the fit of another worker
            r"task:1 runs an exchange of fit or of its strategy.* in fit, .*unless they have on_all_workers = True",
        ),
        (
            lambda member: member.gather_bytes(b""),  # as in the fit of a worker under DataParallel
            lambda member: member.gather_bytes(b"", SPREAD),  # as in a process that makes a Pipeline
            r"of fit or of its strategy.*of a model over several processes.* make the same Pipeline or ModelParallel",
        ),
    ],
)
def test_members_that_disagree_are_both_named(first: Any, second: Any, match: str) -> None:
    one, other = made(2, shares_memory=False)
    found = all_at_once(lambda: first(one), lambda: second(other))
    assert [type(error) for error in found] == [ValueError, ValueError]
    with pytest.raises(ValueError, match=match):
        raise found[0]
    for member, error in zip((one, other), found, strict=True):
        with pytest.raises(RuntimeError) as later:
            member.barrier()
        assert str(later.value) == f"The group of processes is closed by an earlier error: {error}"


def test_a_member_that_comes_when_others_have_ended_by_a_disagreement_learns_of_it() -> None:
    """It got a `TaskFailedError`: a connection was closed before it had read what came by it."""
    first, second, third = made(3, shares_memory=False)
    calls = [lambda: first.all_reduce(np.zeros(2), "sum"), lambda: third.all_reduce(np.zeros(3), "sum")]
    assert [type(error) for error in all_at_once(*calls)] == [ValueError, ValueError]
    with pytest.raises(ValueError, match=r"task:1 runs .* float64\[2\] .*, and .*task:2 runs .* float64\[3\] "):
        second.all_reduce(np.zeros(2), "sum")


def test_a_member_that_is_gone_is_named() -> None:
    group = made(3, shares_memory=True)
    group[1].close()
    for member, found in zip((group[0], group[2]), all_at_once(group[0].barrier, group[2].barrier), strict=True):
        assert isinstance(found, TaskFailedError)
        assert found.task == "/job:worker/task:1"
        assert "barrier (number 0)" in found.__notes__[0]
        assert "All members have to run the same collectives, as often." in found.__notes__[0]
        assert "or its script has ended" in str(found)
        with pytest.raises(TaskFailedError, match="task:1 has failed"):
            member.all_reduce(np.zeros(3), "sum")
        member.close()


def test_an_abort_tells_the_others_why() -> None:
    group = made(3, shares_memory=False)
    first, second, _ = all_at_once(group[0].barrier, group[1].barrier, lambda: group[2].abort("no luck"))
    for error in (first, second):
        assert isinstance(error, CancelledError)
        assert str(error) == "/job:worker/task:2 has ended what the group runs: no luck"
    for member in group:
        with pytest.raises(RuntimeError, match=r"closed by an earlier error: (/job:worker/task:2 has .*: )?no luck$"):
            member.barrier()
    for member in group:
        member.close()


def test_who_aborts_notes_before_that_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CHIEF_FILE", str(tmp_path / "chief"))
    assert time_of_end(os.getpid(), str(tmp_path / "chief")) is None
    group = made(2, shares_memory=False)
    all_at_once(group[0].barrier, lambda: group[1].abort("no luck"))
    noted = time_of_end(os.getpid(), str(tmp_path / "chief"))
    assert noted is not None
    note_end()
    assert noted == time_of_end(os.getpid(), str(tmp_path / "chief")), "the first one holds"
    group[0].close()


def test_who_ends_by_the_loss_of_another_leaves_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was named in place of a process that was killed: its note was older than what the launcher saw."""
    monkeypatch.setenv("ANABRANCH_CHIEF_FILE", str(tmp_path / "chief"))
    group = made(2, shares_memory=False)
    group[1].close()
    with pytest.raises(TaskFailedError) as caught:
        group[0].barrier()
    group[0].abort(str(caught.value))
    assert time_of_end(os.getpid(), str(tmp_path / "chief")) is None


def test_a_member_says_for_whom_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    has_said = threading.Event()

    def warn(text: str, *values: Any) -> None:
        said.append(text % values)
        has_said.set()

    first, second = made(2, shares_memory=False)
    monkeypatch.setattr(links, "SAYS_SECONDS", 0.0)
    monkeypatch.setattr(links._logger, "warning", warn)

    def come_late() -> None:
        assert has_said.wait(PATIENCE)
        monkeypatch.setattr(links, "SAYS_SECONDS", PATIENCE)
        second.barrier()

    assert all_at_once(first.barrier, come_late) == [None, None]
    assert said[0].startswith("/job:worker/task:0 has waited 0 s for /job:worker/task:1 in a collective.")
    for member in (first, second):
        member.close()


def test_absent_members_are_named() -> None:
    names, at = ["/job:worker/task:0", "/job:worker/task:1"], addresses(2)
    with pytest.raises(TimeoutError, match=r"task:0 has waited 0.2 s for /job:worker/task:1\. Start all"):
        Links(names, at, 0, 1, TOKEN, 0.2)
    with pytest.raises(TimeoutError, match=r"task:1 has waited 0.2 s for /job:worker/task:0"):
        Links(names, at, 1, 1, TOKEN, 0.2)


def test_members_without_the_token_are_refused() -> None:
    first, second = linked(2, 3.0, {1: b"another token of a stranger"})
    assert isinstance(first, TimeoutError), "who comes without the token is none of the members"
    assert "A connection was refused: the tokens of /job:worker/task:1 and of /job:worker/task:0 differ" in str(first)
    assert isinstance(second, RefusedError)


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        at = [f"127.0.0.1:{other.getsockname()[1]}", "127.0.0.1:1"]
        with pytest.raises(OSError, match=f"Can't listen at {at[0]} .*another process uses the port") as raised:
            Links(["/job:worker/task:0", "/job:worker/task:1"], at, 0, 1, TOKEN, 0.2)
        assert raised.value.errno == errno.EADDRINUSE


# --- ops ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_threads(members: Members, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[ProcessGroup], Any]], Any]:
    """Runs ops as each member: in a thread whose group it is."""
    local = threading.local()
    for module in (collectives, replicas):
        monkeypatch.setattr(module, "current_group", lambda: local.group)

    def run(call: Callable[[ProcessGroup], Any]) -> list[Any]:
        def as_member(member: ProcessGroup) -> Any:
            local.group = member
            return call(member)

        return each(members, as_member)

    return run


def test_gradients_are_those_of_the_summed_losses(members: Members, in_threads: Any) -> None:
    """Each member's loss depends on all members' inputs; the gradient by its own is that of the sum."""
    count = len(members)
    xs = [np.random.default_rng(rank).normal(size=(2, 3)) for rank in range(count)]
    ws = [np.random.default_rng(10 + rank).normal(size=(2, 3)) for rank in range(count)]

    def total(values: list[Any]) -> float:
        y, top = sum(values), np.max(values, axis=0)
        rows = np.concatenate(values)
        weights = np.arange(rows.size).reshape(rows.shape)
        found = 0.0
        for rank in range(count):
            found += np.sum(ws[rank] * (y**2 + top**3 + y / count + values[0])) + np.sum(rank * weights * rows**2)
        return found

    def gradient(member: ProcessGroup) -> Any:
        x, rank = ab.constant(xs[member.rank]), member.rank
        with ab.GradientTape() as tape:
            tape.watch(x)
            y, top = collectives.all_reduce(x), collectives.all_reduce(x, "max")
            mean, first = collectives.all_reduce(x, "mean"), collectives.broadcast(x)
            rows = collectives.all_gather(x)
            weights = np.arange(2.0 * 3 * count).reshape(2 * count, 3)
            loss = ab.ops.sum(ws[rank] * (y**2 + top**3 + mean + first)) + ab.ops.sum(rank * weights * rows**2)
        return tape.gradient(loss, x).numpy()

    for rank, found in enumerate(in_threads(gradient)):
        for place in np.ndindex(2, 3):
            step = np.zeros((2, 3))
            step[place] = 1e-6
            up = total([x + step * (k == rank) for k, x in enumerate(xs)])
            down = total([x - step * (k == rank) for k, x in enumerate(xs)])
            np.testing.assert_allclose(found[place], (up - down) / 2e-6, 1e-5)


def test_collectives_in_loops_of_graphs(members: Members, in_threads: Any) -> None:
    def run(member: ProcessGroup) -> Any:
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((3,), "float64", "x")
            _, y = ab.while_loop(lambda k, y: k < 4, lambda k, y: (k + 1, collectives.all_reduce(y) / 2.0), [0, x])
            (dx,) = ab.gradients(ab.ops.sum(y), [x])
            return ab.Session(graph).run([y, dx], {x: np.arange(3.0) + member.rank})

    n = len(members)
    want = sum(np.arange(3.0) + rank for rank in range(n)) / 2 * (n / 2) ** 3
    for y, dx in in_threads(run):
        np.testing.assert_allclose(y, want)
        np.testing.assert_allclose(dx, np.full(3, n * (1 / 2) * (n / 2) ** 3))


def test_reduce_scatter_gives_each_its_rows(members: Members, in_threads: Any) -> None:
    n = len(members)
    x = np.arange(4.0 * n).reshape(2 * n, 2)
    for rank, found in enumerate(in_threads(lambda member: collectives.reduce_scatter(x * member.rank).numpy())):
        np.testing.assert_array_equal(found, (x * sum(range(n)))[2 * rank : 2 * rank + 2])
    with pytest.raises(ValueError, match="do not divide"):
        in_threads(lambda member: collectives.reduce_scatter(np.zeros((n + 1, 2))))


@pytest.mark.parametrize("reduce_op", ["sum", "mean", "max", "min"])
def test_shares_of_rows_whose_number_is_found_at_run_time(members: Members, in_threads: Any, reduce_op: str) -> None:
    """Their gradients, too, in which ties share; so are all_gather's axes from the end, where no rank is known."""
    n, reduce = len(members), {"mean": np.mean, "max": np.max, "min": np.min}.get(reduce_op, np.sum)
    xs = [np.random.default_rng(rank).integers(0, 3, (2 * n, 3)).astype("float64") for rank in range(n)]

    def run(member: ProcessGroup) -> Any:
        with ab.Graph().as_default() as graph:
            rows, anything = ab.placeholder((None, 3), "float64"), ab.placeholder(None, "float64")
            share = collectives.reduce_scatter(rows, reduce_op)
            (gradient,) = ab.gradients(ab.ops.sum(share * (member.rank + 1.0)), [rows])
            others = collectives.reduce_scatter(anything, reduce_op), collectives.all_gather(anything, -1)
            x = xs[member.rank]
            return ab.Session(graph).run([share, gradient, *others], {rows: x, anything: x})

    whole, stacked = reduce(xs, axis=0), np.stack(xs)
    cotangent = np.repeat(np.arange(1.0, n + 1), 2)[:, None]
    for rank, (share, gradient, other, joined) in enumerate(in_threads(run)):
        here = stacked == whole if reduce_op in ("max", "min") else np.ones_like(stacked)
        count = np.sum(here, axis=0) if reduce_op in ("max", "min") else n if reduce_op == "mean" else 1
        np.testing.assert_allclose(share, whole[2 * rank : 2 * rank + 2])
        np.testing.assert_allclose(other, share)
        np.testing.assert_allclose(gradient, cotangent * here[rank] / count)
        np.testing.assert_array_equal(joined, np.concatenate(xs, axis=-1))


def test_rows_that_do_not_divide_at_run_time_are_refused(members: Members, in_threads: Any) -> None:
    def run(member: ProcessGroup) -> Any:
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((None, 2), "float64")
            return ab.Session(graph).run(collectives.reduce_scatter(x, "max"), {x: np.zeros((len(members) + 1, 2))})

    with pytest.raises(ValueError, match=r"the rows of float64\[\d,2\] do not divide by \d members. Pad them."):
        in_threads(run)


@pytest.mark.parametrize(
    ("call", "value", "message"),
    [
        (ab.distribute.broadcast, 0.5, "broadcast: root must be a rank, an int; got 0.5 of type float"),
        (ab.distribute.broadcast, "0", "broadcast: root must be a rank, an int; got '0' of type str"),
        (ab.distribute.all_gather, "rows", "all_gather: axis must be an int; got 'rows' of type str"),
        (ab.distribute.all_gather, None, "all_gather: axis must be an int; got None of type NoneType"),
    ],
)
def test_ranks_and_axes_are_whole_numbers(call: Any, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call([1.0], value)


@pytest.mark.parametrize("masked", [False, True])
def test_synchronized_normalisation_is_that_of_all_rows(members: Members, in_threads: Any, masked: bool) -> None:
    """Each member has other rows, and more or fewer; outputs and gradients are those of all rows together."""
    counts = [3, 1, 2][: len(members)]
    rng = np.random.default_rng(0)
    x, out = (rng.normal(2.0, 3.0, size=(sum(counts), 4, 5)).astype("float32") for _ in range(2))
    mask = rng.random((sum(counts), 4)) < 0.6 if masked else None
    begins = np.cumsum([0, *counts])

    def normalised(rows: slice, weight: Any = None) -> Any:
        layer = ab.layers.BatchNormalization(synchronized=True, momentum=0.5)
        layer.build((None, 4, 5))
        given = ab.constant(x[rows])
        scope = contextlib.nullcontext() if weight is None else replicas.replicated(weight)
        with ab.GradientTape() as tape, scope:
            tape.watch(given)
            y = layer(given, training=True, mask=None if mask is None else mask[rows])
            loss = ab.ops.mean(ab.ops.sum(ab.ops.sin(y) * out[rows], axis=(1, 2)))
        gradients = tape.gradient(loss, [given, layer.gamma])
        return y.numpy(), *[gradient.numpy() for gradient in gradients], layer.moving_variance.numpy()

    want = normalised(slice(None))
    weights = [count / sum(counts) for count in counts]
    found = in_threads(lambda m: normalised(slice(*begins[m.rank : m.rank + 2]), weights[m.rank]))
    outputs, inner, gamma, variance = zip(*found, strict=True)
    np.testing.assert_allclose(np.concatenate(outputs), want[0], 1e-4, 1e-5)
    weighted = [weight * each for weight, each in zip(weights, inner, strict=True)]
    np.testing.assert_allclose(np.concatenate(weighted), want[1], 1e-3, 1e-5)
    np.testing.assert_allclose(sum(w * g for w, g in zip(weights, gamma, strict=True)), want[2], 1e-4, 1e-5)
    for one in variance:
        np.testing.assert_allclose(one, want[3], 1e-4)


# --- what is begun --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(6, 25), deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 300, 9000]), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_what_was_begun_is_ended_in_any_order(members: Members, sizes: list[int], seed: int) -> None:
    """Among others that are run at once, which wait for it, so that all members keep to one order."""
    rng = np.random.default_rng(seed)
    arrays = [[rng.normal(size=size) for size in sizes] for _ in members]
    ends = rng.permutation(len(sizes))

    def run(member: ProcessGroup) -> list[Any]:
        own = arrays[member.rank]
        begun = [member.begin_all_reduce(array, "sum") for array in own]
        between = member.all_reduce(np.float64(member.rank), "sum")
        assert between == sum(range(len(members)))
        found: list[Any] = [None] * len(own)
        for number in ends:
            found[number] = member.end_all_reduce(begun[number], own[number])
        return found

    for results in each(members, run):
        for number, found in enumerate(results):
            want = sum((arrays[rank][number] for rank in range(1, len(members))), start=arrays[0][number])
            assert found.tobytes() == want.tobytes()


def test_errors_of_what_was_begun_are_raised_where_it_ends() -> None:
    before = set(threading.enumerate())
    pair = made(2, True)
    begun = [member.begin_all_reduce(np.zeros(3 + member.rank), "sum") for member in pair]
    for member, number in zip(pair, begun, strict=True):
        with pytest.raises(ValueError, match="Members of the group disagree"):
            member.end_all_reduce(number, np.zeros(3 + member.rank))
        member.close()
        with pytest.raises(RuntimeError, match="The group of processes is closed"):
            member.begin_all_reduce(np.zeros(3), "sum")
    assert set(threading.enumerate()) <= before


def test_an_abort_ends_what_others_have_begun() -> None:
    first, second = made(2, False)
    numbers = [first.begin_all_reduce(np.zeros(3), "sum") for _ in range(3)]
    second.abort("it was enough")
    for number in numbers:
        with pytest.raises((CancelledError, TaskFailedError), match=r"it was enough|task:1"):
            first.end_all_reduce(number, np.zeros(3))
    first.close()


def test_sums_begin_while_the_backward_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which it makes gradients: those of the last layer are on their way before those of the first."""
    events: list[Any] = []

    class Noting(collectives.Group):
        def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
            events.append(array.size)
            return len(events)

        def end_all_reduce(self, number: int, array: Any) -> Any:
            events.append("end")
            return array

    monkeypatch.setattr(collectives, "_current", Noting())
    weights = [ab.Variable(np.ones((size, size), "float32") / size) for size in (4, 4, 4)]
    with ab.Graph().as_default() as graph:
        hidden: Any = ab.ops.ones((2, 4))
        for number, weight in enumerate(weights):
            hidden = ab.ops.tanh(hidden @ weight)

            def backward(_: Any, __: Any, upstream: Any, number: int = number) -> Any:
                def note(value: Any) -> Any:
                    events.append(f"backward of {number}")
                    return value

                return [ab.ops.numpy_function(note, upstream, "float32", stateful=False, shape=(2, 4))]

            hidden = ab.ops.numpy_function(np.copy, [hidden], "float32", stateful=False, shape=(2, 4), grad=backward)
        gradients = ab.gradients(ab.ops.sum(hidden), weights)
        since = len(graph.operations)
        order = sorted(range(3), key=lambda number: gradients[number].operation.index)
        halves = [0.5 * gradient for gradient in gradients]
        sums = summed(halves, order, 64, [None] * 3, since)
        assert order == [2, 1, 0]
        found = ab.Session().run([*sums, *halves])
    for one, other in zip(found[:3], found[3:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert events == ["backward of 2", 16, "backward of 1", 16, "backward of 0", 16, "end", "end", "end"]


def test_all_collectives_of_a_step_are_found(graph: ab.Graph) -> None:
    """Updates wait for them, and a worker without rows has to take part in all of them."""
    x = ab.constant([1.0, 2.0])
    ab.distribute.all_reduce(x)
    ab.distribute.broadcast(x)
    ab.distribute.reduce_scatter(x)
    ab.distribute.all_gather(x)
    ab.distribute.barrier()
    names = [operation.op.type_name for operation in exchanged(graph)]
    assert names == ["all_reduce", "broadcast", "reduce_scatter", "all_gather", "barrier"]


def test_a_process_alone_is_a_group_of_one() -> None:
    assert (ab.distribute.rank(), ab.distribute.world_size()) == (0, 1)
    x = np.arange(4.0)
    np.testing.assert_array_equal(ab.distribute.all_reduce(x), x)
    np.testing.assert_array_equal(ab.distribute.reduce_scatter(x), x)
    np.testing.assert_array_equal(ab.distribute.broadcast(x), x)
    assert ab.distribute.barrier() is None
    with pytest.raises(ValueError, match="root=1 is no rank of a group of 1"):
        ab.distribute.broadcast(x, 1)
