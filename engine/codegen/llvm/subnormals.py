"""Zeros in the place of subnormal numbers, for products, convolutions and updates of several variables.

x86 processors take some hundred cycles for each operation with a subnormal number (below 1.2e-38 in float32). Gradients
of a network that has learnt its data are that small, as are running means where gradients have ended: 0.9 times the
least number is rounded back to it. Steps became several times slower. A task that flushes takes subnormal numbers as
zeros, and makes none, as all of TensorFlow does and XLA. Other processors compute with them at full speed, and do so.
"""

from __future__ import annotations

from collections.abc import Sequence

FLUSH, RESTORE = "anabranch_flush_subnormals", "anabranch_restore_mode"
DECLARATIONS = f"declare i32 @{FLUSH}()\ndeclare void @{RESTORE}(i32)\n"
_FLUSH_BITS = 0x8040  # of the register MXCSR: results are flushed, operands are taken as zeros

_X86 = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

; Flush subnormal numbers on this thread; returns the mode that was.
define i32 @{FLUSH}() {{
  %cell = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %cell)
  %before = load i32, ptr %cell
  %after = or i32 %before, {_FLUSH_BITS}
  store i32 %after, ptr %cell
  call void @llvm.x86.sse.ldmxcsr(ptr %cell)
  ret i32 %before
}}

define void @{RESTORE}(i32 %mode) {{
  %cell = alloca i32
  store i32 %mode, ptr %cell
  call void @llvm.x86.sse.ldmxcsr(ptr %cell)
  ret void
}}
"""
_ELSEWHERE = f"""
define i32 @{FLUSH}() {{
  ret i32 0
}}

define void @{RESTORE}(i32 %mode) {{
  ret void
}}
"""


def print_functions(host: str) -> str:
    """Print both functions for a host (`Library.host`)."""
    return _X86 if host.startswith(("x86_64", "amd64")) else _ELSEWHERE


def flushing(lines: Sequence[str]) -> list[str]:
    """Return the lines of a function that flushes: the mode is set before, and put back behind them."""
    return [f"  %mode_before = call i32 @{FLUSH}()", *lines, f"  call void @{RESTORE}(i32 %mode_before)"]
