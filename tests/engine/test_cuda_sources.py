"""Sources that are printed as CUDA compile for each architecture, by NVRTC: `make test-cuda` installs it."""

import pytest
from shared.cuda_compiler import compile_cuda
from shared.cuda_rows import row_sources
from shared.cuda_sources import elementwise

from anabranch.engine.codegen.cuda.draws import draw_launch
from anabranch.engine.codegen.cuda.elementwise import OPTIONS
from anabranch.engine.codegen.cuda.row_sums import print_row_sums
from anabranch.engine.graph import as_dtype
from anabranch.engine.ops.random.samplers import RandomIntegers, RandomKeep, RandomNormal, RandomUniform

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def in_one(sources: list[str]) -> str:
    """Sources in a namespace each; what they include comes first."""
    lines = dict.fromkeys(line for source in sources for line in source.splitlines() if line.startswith("#include"))
    parts = list(lines)
    for number, source in enumerate(sources):
        kept = [line for line in source.splitlines() if line not in lines]
        text = "\n".join(kept).replace("__global__ void ", f"__global__ void k{number}_")
        parts.append(f"namespace n{number} {{\n{text}\n}}")
    return "\n".join(parts)


def check(sources: list[str], architecture: str) -> None:
    count = sum(source.count("__global__") for source in sources)
    assert compile_cuda(in_one(sources), OPTIONS, architecture).count(".entry") == count


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_elementwise_operations(architecture: str) -> None:
    """Whatever is fused on CPUs, of each type."""
    sources = list(dict.fromkeys(case.launches((3,)).source for case in elementwise()))
    assert len(sources) > 300
    check(sources, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reductions_and_normalisations(architecture: str) -> None:
    sources = row_sources()
    assert len(sources) > 60
    check(sources, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_random_numbers(architecture: str) -> None:
    floats = [as_dtype(name) for name in ("float32", "float64", "float16", "bfloat16")]
    found = [cls((3,), dtype) for cls in (RandomUniform, RandomNormal, RandomKeep) for dtype in floats]
    integers = [RandomIntegers((3,), as_dtype(name)) for name in ("int8", "int32", "int64", "uint16", "uint64")]
    check([draw_launch(op).source for op in [*found, *integers]], architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_combined_rows(architecture: str) -> None:
    types = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64")
    ufuncs = ("add", "multiply", "maximum", "minimum")
    check([print_row_sums(ufunc, name).source for ufunc in ufuncs for name in types], architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_wrong_source_is_refused(architecture: str) -> None:
    with pytest.raises(AssertionError, match="expected a"):
        compile_cuda('extern "C" __global__ void f(float* x) { x[0] = 1 }', OPTIONS, architecture)
