"""Roles of ops in kernels: the kinds of steps, beside elementwise ones, of which a kernel over one space is made.

From this one fact of an op the fusion pass finds the layouts of its values, and code generation a printer. An op of no
role is fused if it is elementwise, or if `Op.kernel_steps` writes it as steps that are elementwise or have a role.
"""

from __future__ import annotations

from enum import Enum


class KernelRole(Enum):
    """The part of an op in a kernel."""

    RESHAPE = "the elements of the first input, in row-major order, in the shape of the result"
    BROADCAST = "the first input, repeated to the shape of the result as NumPy broadcasts"
    SUM_TO = "the sum of the first input over the axes that the shape of the result lacks, or in which it has size 1"
    REDUCTION = "one number for each row: what `Op.row_expression` gives over `axes`"
    NORMALISATION = "what `Op.row_expression` gives over `axes`, which reads a row again when it has numbers of it"
    PARTS = "the equal parts of the input along `axis`, which stays, or goes where a result lacks it"
    JOIN = "inputs of one shape along `axis`, which is new where the inputs lack it"


REDUCING = (KernelRole.REDUCTION, KernelRole.NORMALISATION)

__all__ = ["REDUCING", "KernelRole"]
