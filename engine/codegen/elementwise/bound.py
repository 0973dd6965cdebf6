"""Kernels with the sizes for which they are called, and operands as they take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ...common.blas import on_one_thread
from ...common.cached import cached_property
from ...common.descriptions import describe_value
from ...common.logs import DEBUG, is_logged, log
from ...common.machine_profile import machine_profile
from ...graph.op import Op, is_plain_array
from ...graph.spec import TensorSpec
from ..host.numpy_interface import empty_function
from ..host.refits import refits
from ..llvm.entry import Kernel, table_layout
from ..llvm.library import library
from .apart import copied_by_rows
from .kernel_specs import KernelTable, Shape, fits, native_dtype, static_shape
from .open_sizes import BoundedCache, Shapes
from .turned_copies import copied_by_squares


class BoundKernel(KernelTable):
    """A kernel with the sizes for which it is called.

    Attributes:
        input_count: how many of the operation's inputs it takes, the first ones.

    Args:
        spec, outputs, numbers, strides: as for `KernelTable`.
        inputs: what it reads: the operation's inputs, without those at the end of which it needs no more than the spec.
    """

    def __init__(
        self,
        spec: Kernel,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        numbers: Sequence[int],
        strides: Sequence[Shape] = (),
    ) -> None:
        super().__init__(spec, inputs, outputs, numbers, strides)
        self.input_count = len(inputs)
        self._dtypes = [native_dtype(operand.dtype) for operand in (*inputs, *outputs)]

    def resized(self, shapes: Sequence[Shape], numbers: Sequence[int]) -> BoundKernel:
        """Return the same kernel for operands of other sizes, all of them contiguous.

        Args:
            shapes: of the inputs, then of the outputs; of the same ranks.
            numbers: what its code reads, as for the kernel itself.
        """
        found: BoundKernel = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        head = self._head.copy()
        for place, position, axis in self._sizes:
            head[place] = shapes[position][axis]
        found._write(head, numbers, self.address)
        return found

    @cached_property
    def _sizes(self) -> list[tuple[int, int, int]]:
        """The places of sizes in the table, each with its operand and axis."""
        layout = enumerate(table_layout(self.spec.operands))
        return [(place, position, axis) for place, (kind, position, axis) in layout if kind == "dim"]

    @staticmethod
    def empty(shape: Shape, dtype: Any) -> Callable[[], Any]:
        """Return what makes arrays for results."""
        return empty_function(shape, native_dtype(dtype))

    @staticmethod
    def lay_out(target: Any, value: Any) -> None:
        """Copy a transpose into an array of its shape."""
        is_small = value.size < machine_profile().parallel_elements or value.dtype is not target.dtype
        if is_small or copied_by_squares(value, value.dtype, target) is None:
            target[...] = value

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Call again with operands made contiguous, of the very dtype; they were refused as they are.

        Outputs may be buffers in which NumPy laid out a value in its own way: they are filled afterwards.

        Raises:
            RuntimeError: they do not have the shapes for which the program was compiled.
        """
        refits.note()
        if is_logged("fallback"):
            described = ", ".join(map(describe_value, operands))
            log("fallback", DEBUG, "operands of a kernel are copied to another layout before it runs: %s", described)
        count = len(operands)
        found = [
            dtype.type(value) if operand.rank is None else fitted(value, dtype)
            for value, dtype, operand in zip(operands, self._dtypes, self.spec.operands, strict=False)
        ]
        results = [
            value if fits(value, dtype) and value.flags.writeable else np.empty(np.shape(value), dtype)
            for value, dtype in zip(outputs, self._dtypes[count:], strict=True)
        ]
        if self.call(*found, *results):
            raise misfit((*operands, *outputs))
        for output, result in zip(outputs, results, strict=True):
            if output is not result:
                output[...] = result


_BEGINS, _READS = 32, 64  # calls with operands of the same strides


class _Strided:
    """The number of calls with operands of some strides, and the kernel that reads them, once there were many."""

    def __init__(self) -> None:
        self.calls = 0
        self.kernel: KernelTable | None = None


class FusedKernel(BoundKernel):
    """The kernel of a fused op. Operands that are not contiguous are read by their strides, where a kernel can.

    That kernel gives the same bits as copies do, and is compiled beside the program once such operands came `_BEGINS`
    times: a first step does not wait for it.

    Args:
        spec, inputs, outputs, numbers: as for `BoundKernel`.
        bind: gives the kernel for operands of some strides, if there is one, not compiled yet.
    """

    def __init__(
        self,
        spec: Kernel,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        numbers: Sequence[int],
        bind: Callable[[Shapes], KernelTable | None],
    ) -> None:
        super().__init__(spec, inputs, outputs, numbers)
        self._bind = bind
        self._is_large = any(math.prod(static_shape(spec)) >= machine_profile().kernel_elements for spec in inputs)
        self._strided = BoundedCache[Shapes, _Strided](lambda _: _Strided())

    def _for_strides(self, strides: Shapes) -> KernelTable | None:
        known = self._strided[strides]
        known.calls += 1
        if known.calls == _BEGINS:
            known.kernel = self._bind(strides)
            library.begin([] if known.kernel is None else [known.kernel.spec])
        kernel = known.kernel
        if kernel is None or known.calls < _READS:
            return None
        return kernel.compiled()

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Call the kernel for operands of these strides; what that can't read, either, is copied as ever."""
        strides = tuple([getattr(value, "strides", ()) for value in operands])
        kernel = self._for_strides(strides) if self._is_large else None
        if kernel is not None:
            given = [
                value if operand.is_strided or operand.rank is None else fitted(value, dtype)
                for value, operand, dtype in zip(operands, kernel.spec.operands, self._dtypes, strict=False)
            ]
            if not kernel.call(*given, *outputs):
                if any(value is not other for value, other in zip(operands, given, strict=True)):
                    refits.note()
                return
        super().refit(operands, outputs)


class KernelOrNumPy(BoundKernel):
    """A kernel for what NumPy can compute as well, from operands of any layout in memory.

    Args:
        op: the operation.
        spec, inputs, outputs, numbers: as for `BoundKernel`.
    """

    def __init__(
        self, op: Op, spec: Kernel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], numbers: Sequence[int]
    ) -> None:
        super().__init__(spec, inputs, outputs, numbers)
        self._op = op

    def refit(self, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """Compute it by NumPy, which takes a transposed view as it is, of which the kernel would need a copy."""
        refits.note()
        with on_one_thread(nullcontext)():  # steps whose products all have kernels leave that to them
            results = [self._op.run(np, *operands)]
        for output, result in zip(outputs, results, strict=True):
            output[...] = result


def misfit(values: Sequence[Any]) -> RuntimeError:
    """Return the error of operands that a kernel still refuses when they are laid out as it wants them."""
    shapes = ", ".join(map(describe_value, values))
    return RuntimeError(
        f"This is a bug in anabranch: an op's inferred shape or dtype differs from its result ({shapes}). "
        "Please report it; with ANABRANCH_KERNELS=0 in the environment the program runs on NumPy."
    )


def fitted(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as kernels take it."""
    if fits(value, dtype):
        return value
    if is_plain_array(value) and value.dtype is dtype and value.size >= machine_profile().parallel_elements:
        made = copied_by_squares(value, dtype)
        made = copied_by_rows(value, dtype) if made is None else made
        if made is not None:
            return made
    made = np.empty(np.shape(value), dtype)
    made[...] = value
    return made
