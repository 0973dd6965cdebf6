"""`MachineProfile`: the costs and thresholds of a machine, by which passes and kernels decide what pays.

Each figure has a unit, and is an estimate unless ``python -m anabranch profile-machine`` measured it. Results do not
depend on them but for rounding: sums may be divided into other parts. Limits that follow from no property of a machine,
such as how far an analysis looks or how large a kernel may be, are beside the code that they bound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from .quick_dataclass import dataclass

VARIABLE = "ANABRANCH_MACHINE_PROFILE"


@dataclass(frozen=True)
class MachineProfile:
    """The figures of a machine.

    The defaults were measured on two cores of an x86-64 server with AVX-512; with AVX2 or NEON they are estimates.

    Attributes:
        name: of the machine.
        is_measured: whether the costs were measured on this machine.

        call_seconds: to call an operation from Python, and to make its result.
        array_seconds: to begin an operation on a small array in compiled code.
        scalar_seconds: an operation on scalars in compiled code.
        flop_seconds: a floating-point operation of an elementwise kernel or small product, one thread.
        product_flop_seconds: a floating-point operation of a large matrix product, all threads.
        lapack_flop_seconds: a floating-point operation of a small factorisation, one thread.
        byte_seconds: a byte to or from memory.
        swap_byte_seconds: a byte to the memory of another device and back.
        dispatch_seconds: to hand out one operation of a step that runs on several devices.
        thread_seconds: of a piece of work from which it pays to wake another thread of Python.
        lock_seconds: of a region from which it releases the interpreter's lock.
        long_seconds: of an operation from which it leaves the loop that hands out work.
        long_measured_seconds: the same, of operations that were timed.

        first_cache_bytes: the first data cache of a core.
        row_elements: of a row that stays in the caches between two passes over it.
        weight_elements: of the weights of a convolution that stay in the last cache.

        part_nanoseconds: of a part of an elementwise kernel that is worth another thread.
        product_work: multiplications of a matrix product that are worth several threads.
        product_element_work: further ones for each element of operands and result, where the first is transposed.
        product_part_work: multiplications of each part of one.
        product_shared_work: multiplications from which operands are laid out once for all parts.
        batch_part_work: multiplications of each part of a stack of products.
        convolution_work: multiplications of a convolution that are worth several threads.
        quantized_work: multiplications of 8-bit integers that are worth several threads.
        narrow_elements: of a matrix from which its product with few columns has a kernel of its own.
        narrow_part_elements: of such a matrix, for each part.
        parallel_elements: that are moved or compared, worth several threads.
        parallel_row_elements: of rows that are gathered or added up, worth several threads.
        row_change_elements: of rows that are changed in place, for each part.
        single_elements: of an elementwise operation by itself that is worth several threads.
        saved_elements: that several threads compute in the time of one call from Python.

        kernel_elements: times operations, from which a kernel for sizes seen at run time is faster than NumPy.
        row_kernel_elements: from which a row kernel for such sizes is faster than NumPy.
        batch_work: multiplications of a stack of products from which a kernel is faster than NumPy.
        gather_words: 4 bytes each, from which rows are gathered by a kernel.
        segment_width: elements of a row from which rows are put in order to be added up.
        epilogue_work: multiplications of a product from which what follows is computed on its tiles.
        epilogue_elements: of the result of such a product.
        normalised_elements: from which a normalisation spelled out is one operation.
        blas_work: multiplications up to which regions print products themselves.
        region_elements: beside products, up to which a region is computed by one thread.

        batched_elements: of the result of one iteration up to which all iterations are computed before the loop.
        full_speed_rows: of a product from which it gains nothing by being computed for all iterations at once.
        multiplications_per_element: in the time in which one element is read and written.
        elements_per_call: that are read and written in the time of one call.
        merged_rows: of a product up to which products that share an operand are one.
        merged_least_rows: of all iterations together from which that pays.
        ragged_work: floating-point operations of the products of an iteration from which ended rows are left out.
        ragged_rows: of a batch from which ended rows are left out.
        ragged_steps: of a loop from which ended rows are left out.
        table_share: rows taken for each row of a table from which the whole table is multiplied.
        unrolled_around_trips: of a loop around a short one from which the short one stays a loop.
    """

    name: str = "x86-64 server, AVX-512, 2 cores"
    is_measured: bool = False

    call_seconds: float = 1e-6
    array_seconds: float = 5e-8
    scalar_seconds: float = 1e-9
    flop_seconds: float = 1 / 20e9
    product_flop_seconds: float = 1e-11
    lapack_flop_seconds: float = 5e-10
    byte_seconds: float = 1 / 20e9
    swap_byte_seconds: float = 2 / 6e9
    dispatch_seconds: float = 2e-6
    thread_seconds: float = 5e-5
    lock_seconds: float = 5e-5
    long_seconds: float = 1e-4
    long_measured_seconds: float = 1e-3

    first_cache_bytes: int = 1 << 15
    row_elements: int = 1 << 14
    weight_elements: int = 1 << 22

    part_nanoseconds: float = 10_000.0
    product_work: int = 1_500_000
    product_element_work: int = 24
    product_part_work: int = 500_000
    product_shared_work: int = 50_000_000
    batch_part_work: int = 250_000
    convolution_work: int = 1 << 20
    quantized_work: int = 1 << 17
    narrow_elements: int = 1 << 17
    narrow_part_elements: int = 1 << 16
    parallel_elements: int = 1 << 15
    parallel_row_elements: int = 1 << 14
    row_change_elements: int = 1 << 12
    single_elements: int = 1 << 16
    saved_elements: int = 10_000

    kernel_elements: int = 1 << 14
    row_kernel_elements: int = 1 << 8
    batch_work: int = 4096
    gather_words: int = 1 << 11
    segment_width: int = 64
    epilogue_work: int = 1 << 21
    epilogue_elements: int = 1 << 12
    normalised_elements: int = 1 << 12
    blas_work: int = 1 << 21
    region_elements: int = 3 << 12

    batched_elements: int = 4096
    full_speed_rows: int = 128
    multiplications_per_element: int = 8
    elements_per_call: int = 1024
    merged_rows: int = 1024
    merged_least_rows: int = 32
    ragged_work: int = 1 << 19
    ragged_rows: int = 16
    ragged_steps: int = 16
    table_share: float = 1.5
    unrolled_around_trips: int = 500

    def to_json(self) -> str:
        """Return the figures as a JSON document, which `from_json` reads."""
        import json

        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "the profile") -> MachineProfile:
        """Return the profile that a JSON document describes; what it leaves out has its default.

        Args:
            text: an object of figures by name.
            where: the document comes from, for messages.

        Raises:
            ValueError: the text is not such a document, a name is unknown, or a figure has a wrong type or sign.
        """
        import json

        try:
            given: Any = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{where} is no JSON document: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(f"{where} has to be a JSON object of figures by name; got {type(given).__name__}.")
        figures = cast("dict[str, Any]", given)
        return replace(cls(), **{name: _figure(name, value, where) for name, value in figures.items()})


def _figure(name: str, value: Any, where: str) -> Any:
    default: bool | int | float | str | None = getattr(MachineProfile(), name, None)
    if default is None or name not in MachineProfile.__dataclass_fields__:
        raise ValueError(f"{where} has {name!r}, which is no figure of a machine profile.")
    kinds: tuple[type[Any], ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool):
        raise ValueError(f"{where}: {name} has to be of type {kinds[-1].__name__}; got {value!r}.")
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < float("inf"):
        raise ValueError(f"{where}: {name} has to be above 0; got {value!r}.")
    return value


class Current:
    """The profile of this process; None before it is asked for."""

    profile: MachineProfile | None = None


def machine_profile() -> MachineProfile:
    """Return the profile that this process goes by.

    It is the document that the environment variable ``ANABRANCH_MACHINE_PROFILE`` names, or the default one.

    Raises:
        ValueError: the variable names no file, or one that is not a profile.
    """
    found = Current.profile
    if found is None:
        found = Current.profile = _of_environment(os.environ)
    return found


def _of_environment(environment: Mapping[str, str]) -> MachineProfile:
    path = environment.get(VARIABLE)
    if not path:
        return MachineProfile()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ValueError(
            f"{VARIABLE}={path} can't be read: {error.strerror}. `python -m anabranch profile-machine --output {path}` "
            "measures this machine and writes it; without the variable a default profile is used."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{VARIABLE}={path} is no text in UTF-8, so no profile of a machine.") from None
    return MachineProfile.from_json(text, f"{VARIABLE}={path}")
