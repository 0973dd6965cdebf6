"""Load the scripts of `examples/`, which belong to no package."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script that the file of tests is named after, run as a module and not as the main one."""
    name = request.path.stem.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # where a script finds those beside it, as it does when it is started
        patch.setitem(sys.modules, name, module)  # where dataclasses look for their annotations
        spec.loader.exec_module(module)
        yield module
