"""The machine code of kernels for other processors than this one, as text."""

from __future__ import annotations

import re
from typing import Any

from anabranch.engine.codegen.expression.llvm import declarations
from anabranch.engine.codegen.host import threads
from anabranch.engine.codegen.llvm.entry import print_kernel


def machine_code(kernel: Any, triple: str, processor: str, features: str) -> str:
    """Return the assembly of a kernel whose functions are named `kernel_` and what they do."""
    import llvmlite.binding as binding  # pyright: ignore[reportMissingTypeStubs]

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target: Any = binding.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=processor, features=features, opt=3, reloc="pic")
    module = binding.parse_assembly(declarations() + threads.DECLARATIONS + print_kernel(kernel, "kernel"))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    builder: Any = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)


def loop_of(text: str, function: str, instruction: str) -> list[str]:
    """Return the instructions of the block of a function that has `instruction` most often."""
    body = text.split(f"\nkernel_{function}:\n")[1].split(".Lfunc_end")[0]
    blocks = re.split(r"^\.L\w+:", body, flags=re.MULTILINE)
    return max(blocks, key=lambda block: block.count(instruction)).strip().split("\n")


def on_the_stack(lines: list[str]) -> list[str]:
    """Return the instructions that read or write the stack; LLVM 20 and older read constants from there."""
    import llvmlite.binding as binding  # pyright: ignore[reportMissingTypeStubs]

    reads_constants = binding.llvm_version_info[0] <= 20
    return [line for line in lines if "(%rsp" in line and not (reads_constants and not line.endswith("(%rsp)"))]
