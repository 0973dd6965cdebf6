"""Kernels that serve arrays of any sizes: these are read when they are called, and compared with nothing.

Where sizes change from step to step, such as the rows that are left, no kernel is bound for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..llvm.entry import KernelWithEntry, Operand, open_table_layout, print_open_entry
from ..llvm.library import library
from .kernel_specs import KernelTable, native_dtype


class KernelOfAnySizes(KernelWithEntry):
    """A kernel whose run function gets the sizes of its operands, see `print_open_entry`."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        raise NotImplementedError

    number_count = 0

    def print_run(self, name: str) -> str:
        raise NotImplementedError

    def print_entry(self, name: str) -> str:
        return print_open_entry(self.operands, name)

    def first_size(self, position: int) -> int:
        """Return the position of an operand's first dimension among the sizes."""
        return sum((operand.rank or 0) * (2 if operand.is_strided else 1) for operand in self.operands[:position])

    @property
    def failed(self) -> int:
        """The position among the sizes where it is noted that the kernel could not do its work."""
        return self.first_size(len(self.operands))


class AnySizes(KernelTable):
    """A kernel that is called with arrays; it is compiled meanwhile and loaded when it is called first.

    Args:
        spec: the kernel.
        dtypes: of its operands.
    """

    def __init__(self, spec: KernelOfAnySizes, *dtypes: Any) -> None:
        self.spec = spec
        self._dtypes = [native_dtype(dtype) for dtype in dtypes]
        known = [id(np.ndarray), *map(id, self._dtypes)]
        assert len(known) == len(open_table_layout(spec.operands))
        self._write(known, ())
        library.expect(spec)

    def __call__(self, *arrays: Any) -> bool:
        """Run the kernel, and return whether it did its work; otherwise its output counts for nothing."""
        call = self.call or self.compiled().call
        return not call(*arrays)
