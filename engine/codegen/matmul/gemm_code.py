"""Functions of matrix products."""

from __future__ import annotations

from typing import ClassVar

from ..llvm.builder import FunctionBuilder

# Of a product: A may be transposed, `form` is that of B, D and E are added or null. All but C have a step between rows.
PARAMETERS = (
    *("i64 %m", "i64 %n", "i64 %k", "ptr %a", "i64 %a_step", "i64 %a_transposed", "ptr %b", "i64 %b_step", "i64 %form"),
    *("ptr %c", "i64 %c_step", "ptr %d", "i64 %d_step", "ptr %e", "i64 %e_step"),
)


class ProductBuilder(FunctionBuilder):
    """The body of a function of products, whose loops stay as they are: tiles are unrolled while they are printed."""

    loop_metadata: ClassVar[str] = ", !llvm.loop !100"
    usual_attributes: ClassVar[str] = ""
