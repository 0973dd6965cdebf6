"""dtypes: the promotion table and its laws, names, and what Python's own types mean."""

import itertools
from typing import Any

import numpy as np
import pytest

from anabranch.engine.common.dtypes import float_type, is_differentiable, is_floating, is_integer
from anabranch.engine.graph import as_dtype, result_type

# Type promotion as JAX documents it (docs.jax.dev, "Type promotion semantics"), whose rules keras.ops follows. Each
# row joins one type with those of the header from its own column on; i*, f* and c* are Python's int, float, complex.
TABLE = """
     b1  u1  u2  u4  u8  i1  i2  i4  i8  bf  f2  f4  f8  c8  c16 i*  f*  c*
b1   b1  u1  u2  u4  u8  i1  i2  i4  i8  bf  f2  f4  f8  c8  c16 i*  f*  c*
u1       u1  u2  u4  u8  i2  i2  i4  i8  bf  f2  f4  f8  c8  c16 u1  f*  c*
u2           u2  u4  u8  i4  i4  i4  i8  bf  f2  f4  f8  c8  c16 u2  f*  c*
u4               u4  u8  i8  i8  i8  i8  bf  f2  f4  f8  c8  c16 u4  f*  c*
u8                   u8  f*  f*  f*  f*  bf  f2  f4  f8  c8  c16 u8  f*  c*
i1                       i1  i2  i4  i8  bf  f2  f4  f8  c8  c16 i1  f*  c*
i2                           i2  i4  i8  bf  f2  f4  f8  c8  c16 i2  f*  c*
i4                               i4  i8  bf  f2  f4  f8  c8  c16 i4  f*  c*
i8                                   i8  bf  f2  f4  f8  c8  c16 i8  f*  c*
bf                                       bf  f4  f4  f8  c8  c16 bf  bf  c8
f2                                           f2  f4  f8  c8  c16 f2  f2  c8
f4                                               f4  f8  c8  c16 f4  f4  c8
f8                                                   f8  c16 c16 f8  f8  c16
c8                                                       c8  c16 c8  c8  c8
c16                                                          c16 c16 c16 c16
i*                                                               i*  f*  c*
f*                                                                   f*  c*
c*                                                                       c*
"""
NAMES = {
    "b1": "bool",
    "bf": "bfloat16",
    "c8": "complex64",
    "c16": "complex128",
    **{f"u{size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{f"i{size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"float{8 * size}" for size in (2, 4, 8)},
}
WEAK: dict[str, type] = {"i*": int, "f*": float, "c*": complex}
STRONG_OF_WEAK = {"i*": "int32", "f*": "float32", "c*": "complex64"}


def operand(code: str) -> Any:
    """Return the operand that `result_type` is given for a type of the table."""
    return WEAK[code] if code in WEAK else as_dtype(NAMES[code])


def result(code: str) -> Any:
    """The dtype of a result that the table calls `code`."""
    return as_dtype(STRONG_OF_WEAK.get(code) or NAMES[code])


def rows() -> dict[tuple[str, str], str]:
    header, *lines = TABLE.strip().splitlines()
    columns = header.split()
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        first, *joined = line.split()
        for second, value in zip(columns[columns.index(first) :], joined, strict=True):
            found[first, second] = value
    return found


JOINS = rows()
CODES = [*NAMES, *WEAK]


def test_the_table_is_complete():
    assert len(JOINS) == 18 * 19 // 2
    assert {code for pair in JOINS for code in pair} == set(CODES)


@pytest.mark.parametrize(("first", "second"), JOINS, ids=[f"{a} {b}" for a, b in JOINS])
def test_promotion_is_that_of_jax(first: str, second: str):
    expected = result(JOINS[first, second])

    assert result_type(operand(first), operand(second)) == expected
    assert result_type(operand(second), operand(first)) == expected


def test_promotion_is_associative():
    # Weak results are named before they are joined with a strong type only where there are two of them: three at once
    # are joined in the lattice itself, so that any grouping over strong types gives one result.
    strong = [operand(code) for code in NAMES]
    for a, b, c in itertools.product(strong, repeat=3):
        if {a.name, b.name, c.name} >= {"uint64"} and {x.kind for x in (a, b, c)} & {"i"}:
            continue  # uint64 with a signed integer is a weak float, which a join by pairs has to name float32
        together = result_type(a, b, c)
        assert result_type(result_type(a, b), c) == together, (a, b, c)
        assert result_type(a, result_type(b, c)) == together, (a, b, c)


def test_the_order_of_operands_never_counts():
    for codes in itertools.combinations(CODES, 3):
        assert len({result_type(*map(operand, order)) for order in itertools.permutations(codes)}) == 1, codes


def test_a_type_joined_with_itself_or_bool_is_itself():
    for code in CODES:
        assert result_type(operand(code)) == result(code)
        assert result_type(operand(code), operand(code)) == result(code)
        assert result_type(operand(code), bool) == result(code)


def test_uint64_with_signed_integers_keeps_the_precision_of_a_third():
    unsigned, signed = as_dtype("uint64"), as_dtype("int8")

    assert result_type(unsigned, signed) == "float32"
    assert result_type(unsigned, signed, as_dtype("float16")) == "float16"
    assert result_type(unsigned, signed, as_dtype("float64")) == "float64"


def test_types_that_take_no_part():
    with pytest.raises(TypeError, match=r"do not mix: datetime64\[s\] takes part in no promotion"):
        result_type(np.dtype("datetime64[s]"), as_dtype("int32"))
    assert result_type(np.dtype("datetime64[s]")) == "datetime64[s]"


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float32", "float32"),
        (np.float64, "float64"),
        (np.dtype("int8"), "int8"),
        (int, "int32"),
        (float, "float32"),
        (bool, "bool"),
        (complex, "complex64"),
        ("int", "int32"),
        ("float", "float32"),
        ("f8", "float64"),
        ("<i4", "int32"),
    ],
)
def test_as_dtype(name: Any, expected: str):
    assert as_dtype(name) == np.dtype(expected)


def test_bfloat16():
    dtype = as_dtype("bfloat16")

    assert (dtype.name, dtype.itemsize) == ("bfloat16", 2)
    assert as_dtype(dtype) is dtype
    assert is_floating(dtype)
    assert float(np.ones((), dtype)) == 1


@pytest.mark.parametrize(
    ("dtype", "error"),
    [("float33", ValueError), ("", ValueError), ("(f4", ValueError), (3, TypeError), (object(), TypeError)],
)
def test_unknown_dtypes(dtype: Any, error: type[Exception]):
    with pytest.raises(error, match=r"Unknown dtype .* Expected a name such as 'float32'"):
        as_dtype(dtype)


def test_kinds():
    floating = {code for code in NAMES if is_floating(operand(code))}
    integer = {code for code in NAMES if is_integer(operand(code))}

    assert floating == {"bf", "f2", "f4", "f8"}
    assert integer == {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"}
    assert {code for code in NAMES if is_differentiable(operand(code))} == floating | {"c8", "c16"}
    for code in NAMES:
        kept = code in floating or code.startswith("c")
        assert float_type(operand(code)) == (operand(code) if kept else "float32")
