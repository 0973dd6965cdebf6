"""Settings of hypothesis; seeds and defaults; runs with few kernels; counts and times, printed at the end."""

import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from shared.processor_time import OneReport, ProcessorTime
from shared.rewritten import rewrite_quickly, rewrite_share
from shared.sample import left_out

# The same examples in every run, so that a red build means a change in the code, not in the luck.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=10)
# New random programs each time, and many: what `make test-all` asks for. A failure prints how to repeat it.
settings.register_profile(
    "all",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
# Hypothesis would also draw constants that it finds in imported modules: examples would depend on the tests before, and
# change with each number in the package. To parse all modules takes 9 s in each process of a new clone.
providers._get_local_constants = lambda: providers._local_constants  # pyright: ignore[reportPrivateUsage]

_TOLD = "told: "
_OF_CHILDREN = str(Path(__file__).parent / "shared" / "children")  # what Python processes that tests start begin with
# Every step that a test prepares, child processes included, is verified after each pass that changed it.
os.environ.setdefault("ANABRANCH_VERIFY", "1")
# In slow files in which that took more than a twentieth of the time, one of four steps is.
_VERIFIED_IN_PART = ("test_control_flow_pitfalls.py", "test_ragged_batches_masks.py", "test_random_programs.py")

# Tests that compare ops, layers, models, optimizers and files with NumPy or Keras: kernels have tests of their own.
_FEW_KERNELS = (
    "examples/test_cluster_training*",
    "examples/test_interchange*",
    "examples/test_language_model*",
    "examples/test_moe*",
    "examples/test_reinforce*",
    "examples/test_seq2seq*",
    "examples/test_translation*",
    "examples/test_two_tasks*",
    "layers/*",
    "framework/*",
    "onnx_files/*",
    "optim/*",
    "serving/*",
    "values/*",
    "repository/test_doctests*",
    "engine/test_associative_scan*",
    "engine/test_batched_cond*",
    "engine/test_control_flow*",
    "engine/test_deep_graphs*",
    "engine/test_derivatives*",
    "engine/test_indexed_slices*",
    "engine/test_ragged_batches_masks*",
    "engine/test_ops_*",
    "engine/test_recompute*",
    "engine/test_recursion*",
    "engine/test_scan*",
    "engine/test_slices*",
    "engine/test_tensor_*",
    "engine/test_unknown_ranks*",
    "engine/test_vectorized_map*",
)


# In these files, one of each kind of kernel, LLVM optimises kernels in `make test` as it does for users.
_OPTIMISED = (
    "engine/test_gemm.py",
    "engine/test_kernel_functions.py",
    "engine/test_kernels.py",
    "engine/test_native_convolution.py",
    "engine/test_native_picks.py",
    "engine/test_native_rows.py",
    "engine/test_native_scalars.py",
    "engine/test_open_sizes.py",
    "engine/test_pack.py",
    "engine/test_quantized_kernel.py",
    "engine/test_thread_counts.py",  # without optimisation the bits of some convolutions depend on the threads
)


def pytest_configure(config: pytest.Config) -> None:
    """Have LLVM compile kernels with the least effort in `make test`, in this process and in those that tests start.

    That takes a third of the time. What the kernels compute is the same; how fast they are is measured elsewhere.
    Processes that tests start also end sooner: see shared/children/sitecustomize.py.
    """
    config.pluginmanager.register(ProcessorTime())
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        config.pluginmanager.register(OneReport())
    if config.option.markexpr == "not slow":
        os.environ.setdefault("ANABRANCH_KERNELS", "quick")
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if _OF_CHILDREN not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([_OF_CHILDREN, *filter(None, paths)])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector: tens of thousands of tests are made, and all of them stay.

    Later it need not look at them again and again, nor after each 700 objects.
    """
    gc.disable()
    try:
        rewrite_quickly()
        rewrite_share(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of slow tests alone are not even collected, unless named, where slow tests do not run."""
    is_asked_for = any(argument.startswith(str(collection_path)) for argument in map(os.path.abspath, config.args))
    is_left_out = collection_path.name.endswith("_exhaustively.py") and config.option.markexpr == "not slow"
    return True if is_left_out and not is_asked_for else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at marks
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Take a sample of families of cases in `make test`."""
    if config.option.markexpr == "not slow":
        for item in left_out(items, Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def same_surroundings(request: pytest.FixtureRequest) -> Generator[None]:
    """Begin each test with the same seeds and settings; take back `floatx`, the dtype policy and the order of axes.

    This is one fixture, not one for each: pytest takes longer to set a fixture up than these take.
    """
    from anabranch.engine.codegen.llvm.library import library
    from anabranch.engine.common import dtypes
    from anabranch.engine.objects import policy
    from anabranch.engine.ops import data_format
    from anabranch.engine.ops.random.keys import set_global_seed

    # Draws without a seed have the same values in every run, whichever tests ran before in the process.
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that users' own code may draw from
    set_global_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtypes, "_default_float", dtypes.default_float())
        patch.setattr(policy, "_global", policy._global)
        patch.setattr(data_format, "_default", data_format.image_data_format())
        if request.path.name in _VERIFIED_IN_PART and os.environ["ANABRANCH_VERIFY"] == "1":
            patch.setenv("ANABRANCH_VERIFY", "4")
        if _is_without_kernels(request.node):
            patch.setattr(library, "_usable", False)
            patch.setenv("ANABRANCH_KERNELS", "0")  # for the processes that the test starts
        yield


def _is_without_kernels(item: pytest.Item) -> bool:
    """Test whether kernels are left out: of some files one in 25 tests compiles, and those marked `kernels` do.

    Compiling takes half the time of these tests, and no result depends on it. In `make test-all` all compile.
    """
    if item.config.option.markexpr != "not slow" or not _has_few_kernels(item.path):
        return False
    return crc32(item.nodeid.encode()) % 25 != 0 and item.get_closest_marker("kernels") is None


@cache
def _has_few_kernels(path: Path) -> bool:
    inside = path.relative_to(Path(__file__).parent).as_posix()
    return any(fnmatch(inside, pattern) for pattern in _FEW_KERNELS)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where llvmlite is missing: all of a program runs on NumPy."""
    from anabranch.engine.codegen.llvm.library import library

    monkeypatch.setattr(library, "_usable", False)


_modules = 0  # that have begun


@pytest.fixture(autouse=True, scope="module")
def surroundings_of_module(request: pytest.FixtureRequest) -> Generator[None]:
    """Let LLVM optimise the kernels of some files, those of module-scoped fixtures included; look at no old objects.

    This is one fixture, not two: pytest asks each of them for its value before each test.
    """
    _leave_old_objects_out()
    path = request.path.relative_to(Path(__file__).parent).as_posix()
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("ANABRANCH_KERNELS") == "quick" and path in _OPTIMISED:
            from anabranch.engine.codegen.llvm.library import library

            patch.setenv("ANABRANCH_KERNELS", "1")
            patch.setattr(library, "quick", False)
        yield


def _leave_old_objects_out() -> None:
    """Leave what earlier modules have made, such as cached programs, out of all later collections of garbage.

    There are millions of objects after some hundred modules, and a full collection takes seconds to look at each. Once
    in some modules it does, so that what has become garbage since is given up.
    """
    global _modules
    _modules += 1
    if _modules % 100 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def loops_stay() -> Generator[None]:
    """Short loops are not unrolled: for tests that look into loops of few iterations."""
    from anabranch.engine.passes.framework.switches import without

    with without("unroll"):
        yield


@pytest.fixture
def native_whatever_the_size() -> Generator[None]:
    """Loops become machine code however little they do."""
    from anabranch.engine.codegen.regions.rule import least_work

    with least_work(0):
        yield


@pytest.fixture
def without_kernels() -> Generator[None]:
    """Programs run on NumPy: for tests in which the compiler has no part, but would take most of the time."""
    from anabranch.engine.passes.framework.switches import without

    with without("fuse", "reductions", "native", "pack", "epilogues"):
        yield


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str, Mapping[str, int]], None]:
    """Note counts under a title; those of all tests are added up and printed."""
    properties = request.node.user_properties  # travels with the report, from the workers of pytest-xdist too

    def note(title: str, counts: Mapping[str, int]) -> None:
        properties.append((_TOLD + title, dict(counts)))

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties if report.when == "call" else ():
            if name.startswith(_TOLD):
                told.setdefault(name.removeprefix(_TOLD), Counter()).update(counts)
    for title, counts in told.items():
        terminalreporter.write_line(f"{title}:")
        for name, count in (+counts).most_common():
            terminalreporter.write_line(f"  {count:7} {name}")
