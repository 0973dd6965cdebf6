"""anabranch: Keras-style modelling on a dataflow engine with differentiable control flow.

>>> import anabranch as ab
>>> x = ab.placeholder((None,), "float32")
>>> y = ab.ops.sum(x * x)
>>> ab.Session().run(ab.gradients(y, [x])[0], {x: [1.0, 2.0]})
array([2., 4.], dtype=float32)
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

# OpenBLAS's threads look for work for 30 ms after each product, and as they start, on the cores that threads of ours
# want next; now for some 60 microseconds (2 ** 17 cycles). It is read when NumPy is loaded, so it helps where that
# comes later: products between steps. While a step runs OpenBLAS has one thread, whatever was loaded first: see
# `common.blas`.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "17")

__version__ = "0.3.0.dev0"


def version() -> str:
    """Return the version of this package."""
    return __version__


# Names of the public interface and the modules that hold them; loaded on first use, so that the import is quick.
_EXPORTS: dict[str, str] = {
    **dict.fromkeys(
        [
            "Graph",
            "IndexedSlices",
            "Operation",
            "StatelessScope",
            "Tensor",
            "Variable",
            "colocate_with",
            "container",
            "control_dependencies",
            "device",
            "get_default_graph",
            "name_scope",
        ],
        ".engine.graph",
    ),
    **dict.fromkeys(
        ["TensorArray", "TensorStore", "case", "cond", "group", "no_op", "switch", "while_loop"], ".engine.control_flow"
    ),
    **dict.fromkeys(["constant", "convert_to_tensor"], ".engine.ops"),
    "placement": ".engine.place",
    "Session": ".engine.session",
    "explain": ".engine.session.explain",
    "profile": ".engine.session.profile",
    "lowered": ".engine.session.lowered",
    **dict.fromkeys(["custom_gradient", "gradients", "jvp", "vjp"], ".engine.autodiff"),
    **dict.fromkeys(["batch_jacobian", "hessian", "jacobian"], ".engine.control_flow.jacobian"),
    **dict.fromkeys(["batched_cond", "batched_switch"], ".engine.control_flow.batched_cond"),
    "associative_scan": ".engine.control_flow.associative_scan",
    "dynamic_rnn": ".layers.recurrent.dynamic_rnn",
    "dynamic_schedule": ".engine.control_flow.scheduling",
    **dict.fromkeys(["vectorize", "vectorized_map"], ".engine.control_flow.vectorized_map"),
    "trace": ".engine.tracing",
    "placeholder": ".engine.session.placeholder",
    "function": ".engine.session.function",
    "load_graph": ".engine.saving",
    **dict.fromkeys(["foldl", "foldr", "map_fn", "scan", "fori_loop"], ".engine.control_flow.scan"),
    "Input": ".layers.core.input_layer",
    "Model": ".framework.models.model",
    "Sequential": ".framework.models.sequential",
    "load_model": ".framework.saving.api",
    "Function": ".framework.models.function",
    "Quantizer": ".layers.quantizers",
    "RematScope": ".layers.core.remat_scope",
    "remat": ".engine.autodiff.remat",
    "GradientTape": ".framework.training.gradient_tape",
    **dict.fromkeys(["DTypePolicy", "FloatDTypePolicy"], ".engine.objects.policies"),
    **dict.fromkeys(["InputSpec", "Layer"], ".layers"),
    "Initializer": ".engine.objects.initializers",
    "KerasTensor": ".framework.backend",
    "Loss": ".framework.losses.api",
    "Metric": ".framework.metrics.api",
    "Optimizer": ".optim",
    "Regularizer": ".engine.objects.regularizers",
}
_DATA_SETS = [
    "boston_housing",
    "california_housing",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "imdb",
    "mnist",
    "multi30k",
    "ptb",
    "reuters",
]
_APPLICATIONS = [
    "convnext",
    "densenet",
    "efficientnet",
    "efficientnet_v2",
    "imagenet_utils",
    "inception_resnet_v2",
    "inception_v3",
    "mobilenet",
    "mobilenet_v2",
    "mobilenet_v3",
    "nasnet",
    "resnet",
    "resnet50",
    "resnet_v2",
    "vgg16",
    "vgg19",
    "xception",
]
# Modules that are reached as `anabranch.x`, with the module that each one is.
_MODULES: dict[str, str] = {
    "activations": ".engine.objects.activations",
    "applications": ".framework.applications",
    **dict.fromkeys([f"applications.{name}" for name in _APPLICATIONS], ".framework.applications"),
    "backend": ".framework.backend",
    "callbacks": ".framework.callbacks.api",
    "config": ".framework.config",
    "constraints": ".engine.objects.constraints",
    "datasets": ".framework.public_data",
    **dict.fromkeys([f"datasets.{name}" for name in _DATA_SETS], ".framework.public_data"),
    "debugging": ".engine.runtime.numerics",
    "decoding": ".layers.decoding.search",
    "distillation": ".framework.models.distillation",
    "distribution": ".distribute.strategies.distribution",
    "dtype_policies": ".engine.objects.policies",
    "errors": ".engine.queues.errors",
    "export": ".framework.serving.exporting.public",
    "initializers": ".engine.objects.initializers",
    "io": ".framework.io",
    "lora": ".framework.models.lora",
    "losses": ".framework.losses.api",
    "metrics": ".framework.metrics.api",
    "mixed_precision": ".framework.mixed_precision",
    "models": ".framework.models.api",
    "nn": ".layers.nn",
    "onnx": ".framework.onnx",
    "ops": ".engine.ops",
    **dict.fromkeys([f"ops.{name}" for name in ("image", "linalg", "nn", "numpy", "sparse", "strings")], ".engine.ops"),
    "optimizers": ".optim",
    "optimizers.schedules": ".optim",
    "preprocessing": ".framework.preprocessing",
    **dict.fromkeys([f"preprocessing.{name}" for name in ("image", "sequence")], ".framework.preprocessing"),
    "pretrained": ".framework.pretrained",
    "quantizers": ".layers.quantizers",
    "queues": ".engine.queues",
    "random": ".engine.ops.random.samplers",
    "raw": ".engine.ops.internal.raw",
    "regularizers": ".engine.objects.regularizers",
    "saving": ".framework.saving.api",
    "serving": ".framework.serving",
    "summary": ".engine.summaries.public",
    "testing": ".framework.testing",
    "tf": ".framework.tensorflow_names",
    **dict.fromkeys(
        [f"tf.{name}" for name in ("config", "data", "image", "io", "linalg", "math", "nn", "random", "strings")],
        ".framework.tensorflow_names",
    ),
    "tree": ".framework.tree",
    "utils": ".framework.utils",
    "utils.bounding_boxes": ".framework",
    "visualization": ".framework.visualization",
    "wrappers": ".framework.wrappers",
}
_TRAINED = (".framework.models", ".layers")  # who asks for these is likely to run steps
_PACKAGES = ("distribute", "engine", "framework", "layers", "optim")

if TYPE_CHECKING:
    from . import distribute, engine, framework, layers, optim
    from . import optim as optimizers
    from .distribute.strategies import distribution
    from .engine import ops, queues
    from .engine.autodiff import custom_gradient, gradients, jvp, vjp
    from .engine.autodiff.remat import remat
    from .engine.control_flow import TensorArray, TensorStore, case, cond, group, no_op, switch, while_loop
    from .engine.control_flow.associative_scan import associative_scan
    from .engine.control_flow.batched_cond import batched_cond, batched_switch
    from .engine.control_flow.jacobian import batch_jacobian, hessian, jacobian
    from .engine.control_flow.scan import foldl, foldr, fori_loop, map_fn, scan
    from .engine.control_flow.scheduling import dynamic_schedule
    from .engine.control_flow.vectorized_map import vectorize, vectorized_map
    from .engine.graph import (
        Graph,
        IndexedSlices,
        Operation,
        StatelessScope,
        Tensor,
        Variable,
        colocate_with,
        container,
        control_dependencies,
        device,
        get_default_graph,
        name_scope,
    )
    from .engine.objects import activations, constraints, initializers, regularizers
    from .engine.objects import policies as dtype_policies
    from .engine.objects.initializers import Initializer
    from .engine.objects.policies import DTypePolicy, FloatDTypePolicy
    from .engine.objects.regularizers import Regularizer
    from .engine.ops import constant, convert_to_tensor
    from .engine.ops.internal import raw
    from .engine.ops.random import samplers as random
    from .engine.place import placement
    from .engine.queues import errors
    from .engine.runtime import numerics as debugging
    from .engine.saving import load_graph
    from .engine.session import Session
    from .engine.session.explain import explain
    from .engine.session.function import function
    from .engine.session.lowered import lowered
    from .engine.session.placeholder import placeholder
    from .engine.session.profile import profile
    from .engine.summaries import public as summary
    from .engine.tracing import trace
    from .framework import (
        applications,
        backend,
        config,
        io,
        mixed_precision,
        onnx,
        preprocessing,
        pretrained,
        serving,
        testing,
        tree,
        utils,
        visualization,
        wrappers,
    )
    from .framework import public_data as datasets
    from .framework import tensorflow_names as tf
    from .framework.backend import KerasTensor
    from .framework.callbacks import api as callbacks
    from .framework.losses import api as losses
    from .framework.losses.api import Loss
    from .framework.metrics import api as metrics
    from .framework.metrics.api import Metric
    from .framework.models import api as models
    from .framework.models import distillation, lora
    from .framework.models.api import Input, Model, Sequential, load_model
    from .framework.models.function import Function
    from .framework.saving import api as saving
    from .framework.serving.exporting import public as export
    from .framework.training.gradient_tape import GradientTape
    from .layers import InputSpec, Layer, nn, quantizers
    from .layers.core.remat_scope import RematScope
    from .layers.decoding import search as decoding
    from .layers.quantizers import Quantizer
    from .layers.recurrent.dynamic_rnn import dynamic_rnn
    from .optim import Optimizer


class _LazyModule(ModuleType):
    """A public module name that becomes the module behind it at the first look inside."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name)
        self.__dict__["_target"] = target
        self.__dict__["__path__"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(_load(self.__name__.removeprefix(f"{__package__}."), self.__dict__["_target"]), name)

    def __reduce__(self) -> Any:  # cloudpickle takes modules that functions refer to along, those of this class by this
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return dir(_load(self.__name__.removeprefix(f"{__package__}."), self.__dict__["_target"]))


def _import(target: str) -> ModuleType:
    """Import a module of this package, and all that it needs.

    The garbage collector waits meanwhile, which would take a quarter of the time, and takes what was made for old.
    """
    from .engine.common.forks import importing
    from .engine.runtime.collector import make_old, without_collector

    @without_collector
    def load() -> ModuleType:
        if target.startswith(_TRAINED):
            from .engine.codegen.ahead import begin

            begin()
        is_new = f"{__name__}{target}" not in sys.modules
        module = importlib.import_module(target, __name__)
        if is_new:  # names of placeholders come here each time
            make_old()
        return module

    with importing:
        module = load()
    if target == ".engine.session":  # which is below what runs sessions elsewhere, and refers to it by name only
        module.register_scheme("grpc", f"{__name__}.distribute.tasks.client")
    return module


def _listed(names: dict[str, Any]) -> list[str]:
    """List what a user completes after a module: its public names."""
    return sorted({*names["__all__"], *(name for name in names if name.startswith("__"))})


def _load(name: str, target: str) -> ModuleType:
    """Import the module behind a public name and put it in the name's place."""
    package, _, own = name.rpartition(".")
    if package:  # a namespace that is an attribute of another module
        module = getattr(_load(package, _MODULES[package]), own)
    else:
        module = globals()[name] = _import(target)
        if "__all__" in module.__dict__:  # what a file imports for itself is not completed after its name
            module.__dict__.setdefault("__dir__", partial(_listed, module.__dict__))
    sys.modules[f"{__name__}.{name}"] = module
    return module


class _FilesOfPackages:
    """Finds the files of packages by public names: `anabranch.optimizers.sgd` is `anabranch.optim.sgd`, imported once.

    A finder and a loader of the import system (PEP 451).
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        root, _, own = name.partition(".")
        public, _, file = own.partition(".")
        if root != __name__ or not file or public not in _MODULES:
            return None
        try:
            module = _import(f"{_MODULES[public]}.{file}")
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith(f"{__name__}."):
                return None  # there is no such file; the import system says so
            raise
        loader: Any = _FilesOfPackages
        return ModuleSpec(name, loader, origin=module.__file__, loader_state=module)

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Leave the new module to the import system; `exec_module` puts another in its place."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        assert module.__spec__ is not None
        sys.modules[module.__name__] = module.__spec__.loader_state


class _NamesThatAreMeant:
    """Finds nothing: asked last, it raises the error of `from anabranch.layers import Dens` with what its module says.

    Python would leave that out, as it looks for a file of the name once the module lacks it.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if not name.startswith(f"{__name__}."):
            return
        from .engine.common.names_elsewhere import import_error  # only errors need it

        error = import_error(name)
        if error is not None:
            raise error


sys.meta_path.append(_NamesThatAreMeant)
sys.meta_path.insert(0, _FilesOfPackages)  # before the finder that would load the file a second time
for _name, _target in _MODULES.items():
    sys.modules.setdefault(f"{__name__}.{_name}", _LazyModule(f"{__name__}.{_name}", _target))


def _look_up(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(_import(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return _load(name, _MODULES[name])
    if name in _PACKAGES:
        return _import(f".{name}")
    from .engine.common.names_elsewhere import PACKAGE, module_error  # only errors need it

    raise module_error(__name__, name, PACKAGE)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up


def __dir__() -> list[str]:
    """List what a user completes after ``ab.``: public names, and none that this file only uses."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "DTypePolicy",
    "FloatDTypePolicy",
    "Function",
    "GradientTape",
    "Graph",
    "IndexedSlices",
    "Initializer",
    "Input",
    "InputSpec",
    "KerasTensor",
    "Layer",
    "Loss",
    "Metric",
    "Model",
    "Operation",
    "Optimizer",
    "Quantizer",
    "Regularizer",
    "RematScope",
    "Sequential",
    "Session",
    "StatelessScope",
    "Tensor",
    "TensorArray",
    "TensorStore",
    "Variable",
    "activations",
    "applications",
    "associative_scan",
    "backend",
    "batch_jacobian",
    "batched_cond",
    "batched_switch",
    "callbacks",
    "case",
    "colocate_with",
    "cond",
    "config",
    "constant",
    "constraints",
    "container",
    "control_dependencies",
    "convert_to_tensor",
    "custom_gradient",
    "datasets",
    "debugging",
    "decoding",
    "device",
    "distillation",
    "distribute",
    "distribution",
    "dtype_policies",
    "dynamic_rnn",
    "dynamic_schedule",
    "engine",
    "errors",
    "explain",
    "export",
    "foldl",
    "foldr",
    "fori_loop",
    "framework",
    "function",
    "get_default_graph",
    "gradients",
    "group",
    "hessian",
    "initializers",
    "io",
    "jacobian",
    "jvp",
    "layers",
    "load_graph",
    "load_model",
    "lora",
    "losses",
    "lowered",
    "map_fn",
    "metrics",
    "mixed_precision",
    "models",
    "name_scope",
    "nn",
    "no_op",
    "onnx",
    "ops",
    "optim",
    "optimizers",
    "placeholder",
    "placement",
    "preprocessing",
    "pretrained",
    "profile",
    "quantizers",
    "queues",
    "random",
    "raw",
    "regularizers",
    "remat",
    "saving",
    "scan",
    "serving",
    "summary",
    "switch",
    "testing",
    "tf",
    "trace",
    "tree",
    "utils",
    "vectorize",
    "vectorized_map",
    "version",
    "visualization",
    "vjp",
    "while_loop",
    "wrappers",
]
