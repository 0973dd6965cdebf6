"""The build step that pyproject.toml can't name: files in the wheel for modules that exist at run time only.

`anabranch.losses` is a name that the package gives `anabranch.framework.losses.api`. Editors and type checkers look for
a file of the name, so the wheel has one for each such module. Python never runs them, as the names are there before it
looks for files.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Attributes of modules that are modules of another name, or no modules: type checkers can't list the names of these.
ALIASES = {
    "ops.image": ".engine.ops.signal.image",
    "ops.linalg": ".engine.ops",
    "ops.nn": ".engine.ops",
    "ops.numpy": ".engine.ops",
    "ops.sparse": ".engine.ops.containers.sparse",
    "ops.strings": ".engine.ops.text.strings",
    "preprocessing.image": ".framework.data.images",
    "preprocessing.sequence": ".framework.utils",
}


def public_modules() -> dict[str, str]:
    """Return the modules that exist at run time only, with the module that each is or is an attribute of."""
    spec = importlib.util.spec_from_file_location("anabranch", ROOT / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package._MODULES


def files(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each file in the package, with its text."""
    packages = {name.partition(".")[0] for name in modules if "." in name}
    found: dict[str, str] = {}
    for name, target in modules.items():
        path = f"{name}/__init__" if name in packages else name.replace(".", "/")
        found[f"{path}.py"] = f'"""`anabranch.{name}`, for editors and type checkers."""\n\n{_names(name, target)}'
    return found


def _names(name: str, target: str) -> str:
    parent, _, own = name.partition(".")
    module = ALIASES.get(name) or (f"{target}.{own}" if own else target)
    depth = 2 if own or any(other.startswith(f"{parent}.") for other in public_modules()) else 1
    path = "." * depth + module.removeprefix(".")
    # mypy may read the list of a module before those that it is put together from, so these are named, too.
    folder = ROOT / module.removeprefix(".").replace(".", "/") / "__init__.py"
    parts = re.findall(r"^from (\.[\w.]+) import \*", folder.read_text(), re.MULTILINE) if folder.exists() else []
    return "".join(f"from {path}{part} import *\n" for part in ("", *parts))


class BuildWithPublicModules(build_py):
    """Copies the package, and writes the files of modules that exist at run time only."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] != ("anabranch", "setup")]

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the folders themselves are the package
        for path, text in files(public_modules()).items():
            place = Path(self.build_lib, "anabranch", path)
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)


setup(cmdclass={"build_py": BuildWithPublicModules})
