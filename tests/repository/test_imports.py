"""`import anabranch` stays light, and the modules that Keras users import by name are there."""

import ast
import importlib
import importlib.util
import operator
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared.sample import first_of

import anabranch as ab
from anabranch.engine.common import names_elsewhere
from anabranch.engine.objects.registry import deserialize_keras_object

ROOT = Path(__file__).parents[2]

HEAVY = [
    *["llvmlite", "h5py", "grpc", "google.protobuf", "tqdm", "cupy", "ml_dtypes", "ray", "sklearn"],
    *["uvicorn", "httptools", "uvloop", "orjson", "prometheus_client"],
]
MODULES = {
    "layers": "Dense",
    "optimizers.schedules": "CosineDecay",
    "ops.image": "resize",
    "utils": "set_random_seed",
    "optim": "Adam",
    "optimizers": "Adam",
    "losses": "MeanSquaredError",
    "metrics": "SparseCategoricalAccuracy",
    "callbacks": "EarlyStopping",
    "initializers": "GlorotUniform",
    "models": "Sequential",
    "saving": "register_keras_serializable",
    "ops": "tanh",
    "preprocessing.sequence": "pad_sequences",
}


def run(code: str) -> str:
    """Output of code in a fresh process, with warnings as errors."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_brings_in_nothing_heavy():
    assert run(f"import sys, anabranch; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


def test_import_brings_in_no_more_than_numpy_needs():
    # Start-up is measured by a benchmark; this names the third-party package that would slow it down.
    code = """
import sys, numpy
before = set(sys.modules)
import anabranch
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(added - sys.stdlib_module_names - {"anabranch", "numpy"}))
"""
    assert run(code) == "[]"


def test_launchers_import_neither_numpy_nor_operations():
    """One starts with each run on a cluster; where it serves the membership of workers, what is sent needs NumPy."""
    code = """
import sys, anabranch.distribute.commands.launch
print([name for name in ("numpy", "anabranch.engine.graph") if name in sys.modules])
import anabranch.distribute.collectives.membership_service
print([name for name in ("anabranch.engine.ops", "anabranch.engine.passes") if name in sys.modules])
"""
    assert run(code).splitlines() == ["[]", "[]"]


def test_import_leaves_the_process_as_it_was():
    code = """
import logging, os, random, signal, sys, threading, warnings
import numpy as np
def state():
    return (
        dict(os.environ), list(warnings.filters), logging.getLogger().handlers, threading.active_count(),
        random.getstate(), np.geterr(), np.get_printoptions(), np.random.get_state()[1].tolist(),
        signal.getsignal(signal.SIGINT), sys.getrecursionlimit(), sys.path[:],
    )
before = state()
import anabranch
print(before == state())
"""
    assert run(code) == "True"


@pytest.mark.parametrize(("module", "name"), first_of(MODULES.items(), 4))
def test_from_import_works_first_thing(module: str, name: str):
    code = f"""
from anabranch.{module} import {name}
import anabranch, anabranch.{module} as imported
print(anabranch.{module} is imported, imported.{name} is {name}, {name!r} in dir(imported))
"""
    assert run(code) == "True True True"


def test_a_file_is_one_module_under_both_names_of_its_package():
    code = """
from anabranch.optimizers.sgd import SGD
import anabranch as ab
print(isinstance(ab.optimizers.SGD(), SGD), isinstance(ab.optimizers.get("sgd"), SGD))
import sys, anabranch.optim.adam, anabranch.optimizers.adam, anabranch.ops.internal.raw
print(anabranch.optimizers.adam is anabranch.optim.adam, sys.modules["anabranch.optimizers.adam"].__name__)
print(anabranch.ops.internal.raw is ab.raw)
for name in ("optimizers.no_such", "losses.no_such", "optimizers.sgd.no_such"):
    try:
        __import__(f"anabranch.{name}")
    except ModuleNotFoundError as error:
        print(error.name)
"""
    assert run(code).splitlines() == [
        *("True True", "True anabranch.optim.adam", "True"),
        *("anabranch.optimizers.no_such", "anabranch.losses.no_such", "anabranch.optimizers.sgd.no_such"),
    ]


@pytest.mark.parametrize("module", ["config", "distribute"])
def test_attribute_is_a_module(module: str):
    assert run(f"import anabranch as ab; print(isinstance(ab.{module}, type(ab)))") == "True"


def test_every_public_name_resolves():
    code = "import anabranch as ab; print([name for name in dir(ab) if not hasattr(ab, name)], len(ab.__all__) > 20)"
    assert run(code) == "[] True"


def test_no_other_name_is_listed():
    assert [name for name in dir(ab) if not name.startswith("__")] == sorted(
        name for name in ab.__all__ if name[0] != "_"
    )


def test_unknown_names_are_plain_errors():
    code = """
import anabranch
try:
    anabranch.Sequentail
except AttributeError as error:
    print("Sequentail" in str(error))
try:
    import anabranch.no_such_module
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(code).splitlines() == ["True", "anabranch.no_such_module"]


# --- files of layers and optimizers, which are imported on first use --------------------------------------------------


def _imported_for_type_checkers(package: str) -> dict[str, str]:
    """The names that a package imports from its files under TYPE_CHECKING, each with the file."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    lines = [line for line in guarded.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: line.module or "" for line in lines for alias in line.names}


@pytest.mark.parametrize("package", ["layers", "optim"])
def test_the_table_of_names_is_what_type_checkers_see(package: str) -> None:
    module = importlib.import_module(f"anabranch.{package}")
    seen = _imported_for_type_checkers(package)
    assert {name: place.removeprefix(f"{module.__name__}.") for name, place in module._NAMES.items()} == seen
    assert set(seen) <= set(module.__all__) <= set(dir(module))
    for name, place in module._NAMES.items():
        assert getattr(module, name) is getattr(sys.modules[place], name)


@pytest.mark.parametrize("package", ["layers", "optim"])
def test_a_name_that_is_not_there_is_an_error_that_says_so(package: str) -> None:
    module = importlib.import_module(f"anabranch.{package}")
    with pytest.raises(AttributeError, match=f"'anabranch.{package}' has no attribute 'Dence'"):
        _ = module.Dence


def test_a_small_model_imports_the_files_of_its_own_layers_only():
    code = """
import sys
import anabranch as ab
from anabranch.engine.common import names_elsewhere
model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2, "relu")])
model.compile("sgd", "mse")
unused = ["attention.transformer", "recurrent.lstm", "convolution.pooling"]
unused = [*(f"layers.{name}" for name in unused), "optim.lbfgs", "optim.muon"]
unused += ["distribute.collectives.group", "engine.saving", "engine.summaries.writer", "framework.saving.api"]
unused += ["engine.codegen.regions.region", "engine.session.explanation"]
print([name for name in unused if f"anabranch.{name}" in sys.modules])
"""
    assert run(code) == "[]"


def test_a_config_names_models_that_were_not_imported_yet():
    code = """
import anabranch as ab
x = ab.Input((3,))
inner = ab.Model(x, ab.layers.Dense(2)(x))
print(ab.Sequential([ab.Input((3,)), inner]).get_config())
"""
    config = run(code)
    assert "Functional" in config
    code = f"import anabranch as ab; print(ab.Sequential.from_config({config}).count_params())"
    assert run(code) == "8"


def test_a_star_import_brings_all_names():
    code = """
from anabranch.layers import *
from anabranch.optim import *
import anabranch as ab
from anabranch.engine.common import names_elsewhere
print(LSTM is ab.layers.LSTM, AvgPool2D is ab.layers.AveragePooling2D, Muon is ab.optimizers.Muon)
"""
    assert run(code) == "True True True"


def test_files_name_layers_and_optimizers_that_were_not_imported_yet():
    code = """
import sys
from anabranch.engine.objects.registry import deserialize_keras_object
import anabranch.layers, anabranch.optim
before = "anabranch.layers.convolution.pooling" in sys.modules, "anabranch.optim.adaptive" in sys.modules
pool = {"module": "keras.layers", "class_name": "MaxPooling1D", "config": {"pool_size": 3}, "registered_name": None}
old = {**pool, "module": "keras.src.layers.pooling.max_pooling1d"}
lion = {"module": "keras.optimizers", "class_name": "Lion", "config": {}, "registered_name": None}
print(before, *[type(deserialize_keras_object(config)).__name__ for config in (pool, old, lion)])
"""
    assert run(code) == "(False, False) MaxPooling1D MaxPooling1D Lion"


def test_a_class_taken_from_its_own_file_is_written_under_its_public_module():
    code = """
from anabranch.layers.core.dense import Dense
from anabranch.optim.sgd import SGD
from anabranch.layers.recurrent.cell_wrappers import CellWrapper
from anabranch.engine.objects.registry import serialize_keras_object
print(serialize_keras_object(Dense(2))["module"], serialize_keras_object(SGD())["registered_name"])
print(serialize_keras_object(Dense)["module"], serialize_keras_object(CellWrapper)["module"])
"""
    assert run(code).splitlines() == ["keras.layers None", "keras.layers anabranch.layers.recurrent.cell_wrappers"]


@pytest.mark.parametrize("name", ["Convolution2D", "Input", "CellWrapper", "add", "LBFG"])
def test_what_no_file_names_is_not_found_in_one(name: str) -> None:
    config = {"module": "keras.layers", "class_name": name, "config": {}, "registered_name": None}
    with pytest.raises(TypeError, match=f"names class '{name}'"):
        deserialize_keras_object(config)


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_leave_the_collector_as_it_was(enabled: bool) -> None:
    code = f"""
import gc
gc.{"enable" if enabled else "disable"}()
import anabranch as ab
from anabranch.engine.common import names_elsewhere
ab.Sequential, ab.losses.Loss, ab.layers.Dense, ab.engine
print(gc.isenabled())
try:
    ab._import(".no_such_module")
except ModuleNotFoundError:
    print(gc.isenabled())
"""
    assert run(code).splitlines() == [str(enabled)] * 2


def test_public_modules_list_public_names_only() -> None:
    code = """
import types
import anabranch as ab
from anabranch.engine.common import names_elsewhere
for name in set(ab.__all__) - {"engine", "framework"}:
    module = getattr(ab, name)
    if isinstance(module, types.ModuleType):
        foreign = {"Any", "TYPE_CHECKING", "annotations", "Callable", "Mapping", "Sequence", "np", "importlib", "sys"}
        listed = [each for each in dir(module) if not each.startswith("__")]
        assert listed, name
        for each in listed:
            if (name, each) != ("utils", "Sequence"):  # Keras's own name for a PyDataset
                assert not each.startswith("_") and each not in foreign, (name, each)
            getattr(module, each)
        missing = set(getattr(module, "__all__", ())) - set(listed)
        assert not missing, (name, missing)
import anabranch.layers, anabranch.ops, anabranch.callbacks
print("Any" in dir(anabranch.ops), "Dense" in dir(anabranch.layers), "TYPE_CHECKING" in dir(anabranch.layers))
print("annotations" in dir(anabranch.callbacks))
"""
    assert run(code).splitlines() == ["False True False", "False"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("data", "tf.data.Dataset of `from anabranch import tf`"),
        ("keras", "import anabranch as keras"),
        ("no_grad", "nothing is recorded outside of ab.GradientTape"),
        ("train", "ab.distribute.CheckpointManager"),
        ("save", "model.save_weights"),
    ],
)
def test_names_of_other_frameworks_lead_to_those_of_this_one(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"does not have {name}, as other frameworks do. .*{re.escape(remedy)}"):
        getattr(ab, name)


def test_what_names_of_other_frameworks_lead_to_is_there() -> None:
    x, layer, model, optimizer = ab.ops.ones(2), ab.layers.Dense(1), ab.Sequential(), ab.optim.Adam()
    of_tables: list[tuple[dict[str, str], tuple[object, ...]]] = [
        (names_elsewhere.TENSORS, (x, ab.Variable(1.0), ab.Input(()))),
        (names_elsewhere.VALUES, (x, ab.Variable([1.0, 2.0])[0])),
        (names_elsewhere.LAYERS, (layer, model)),
        (names_elsewhere.OPTIMIZERS, (optimizer,)),
        (names_elsewhere.PACKAGE, (ab,)),
        (names_elsewhere.LAYERS_MODULE, (ab.layers,)),
        (names_elsewhere.LOSSES_MODULE, (ab.losses,)),
        (names_elsewhere.NN_MODULE, (ab.nn,)),
        (names_elsewhere.OPS_MODULE, (ab.ops,)),
        (names_elsewhere.RANDOM_MODULE, (ab.random,)),
        (names_elsewhere.METRICS_MODULE, (ab.metrics,)),
        (names_elsewhere.OPTIM_MODULE, (ab.optim,)),
        (names_elsewhere.UTILS_MODULE, (ab.utils,)),
        (names_elsewhere.PREPROCESSING_MODULE, (ab.preprocessing,)),
        (names_elsewhere.IMAGES_MODULE, (ab.preprocessing.image,)),
        (names_elsewhere.BACKEND_MODULE, (ab.backend,)),
        (names_elsewhere.DATASETS, (ab.tf.data.Dataset.range(3), ab.tf.data.Dataset.range(3).batch(2))),
        (names_elsewhere.DATA_MODULE, (ab.tf.data,)),
        (names_elsewhere.TREE_MODULE, (ab.tree,)),
    ]
    for remedies, owners in of_tables:
        for name, remedy in remedies.items():
            for owner in owners:
                with pytest.raises(AttributeError, match=f"does not have {name}, as other frameworks do. "):
                    getattr(owner, name)
            for path in re.findall(r"\bab\.([\w.]+\w)", remedy):
                operator.attrgetter(path)(ab)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("loss.backward()", "Compute the loss inside of `with ab.GradientTape() as tape:`"),
        ("model.parameters()", "Use trainable_variables"),
        ("ab.layers.Linear(3, 4)", "Use ab.layers.Dense."),
        ("ab.layers.Conv2d(3, 4, 3)", "Use ab.layers.Conv2D."),
        ("ab.nn.ConvTranspose1d(3, 4, 3)", "Use ab.layers.Conv1DTranspose."),
        ("ab.losses.CrossEntropyLoss()", r"Use ab.losses.SparseCategoricalCrossentropy(from_logits=True)."),
        ("model.to('cuda')", "Declare GPUs by ab.config.set_devices(gpu=1)"),
        ("loss.cuda()", "Declare GPUs by ab.config.set_devices(gpu=1)"),
        ("optimizer.zero_grad()", "Leave it out"),
        ("optimizer.step()", "Use apply(gradients, variables)"),
        ("model.train()", "Pass training=True"),
        ("variable.view(2)", "Use ab.ops.reshape."),
        ("ab.ops.cat([loss, loss])", "Use ab.ops.concatenate."),
    ],
)
def test_lines_of_pytorch_name_the_way_here(line: str, remedy: str) -> None:
    loss, variable = ab.ops.sum(ab.ops.ones(2)), ab.Variable([1.0, 2.0])
    scope = {"ab": ab, "loss": loss, "variable": variable, "model": ab.Sequential(), "optimizer": ab.optim.Adam()}
    with pytest.raises(AttributeError, match=re.escape(remedy)):
        eval(line, scope)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("ab.random.PRNGKey(0)", "Pass seed=, a number or an ab.random.SeedGenerator"),
        ("ab.random.split(0)", "Pass seed=, a number or an ab.random.SeedGenerator"),
        ("ab.nn.relu(x)", "Use ab.ops.relu."),
        ("ab.einsum('i->', x)", "Use ab.ops.einsum."),
        ("ab.jacfwd(len)", "Use ab.jacobian."),
        ("ab.make_jaxpr(len)", "Use ab.explain."),
        ("ab.SymbolicScope()", "Leave it out: what is computed of ab.Input tensors is symbolic."),
        ("x.block_until_ready()", "Leave it out: ops have computed when they return."),
        ("x.chunk(2)", "Use ab.ops.split."),
        ("model.partial_fit(x, x)", "Use fit, which goes on"),
        ("model.get_params()", "ab.wrappers.SKLearnClassifier"),
        ("ab.metrics.f1_score(x, x)", "Use ab.metrics.F1Score"),
        ("ab.preprocessing.StandardScaler()", "Use ab.layers.Normalization: adapt(data)"),
        ("ab.optim.lr_scheduler", "Use ab.optim.schedules"),
        ("ab.utils.data.DataLoader", "Use ab.utils.PyDataset"),
        ("ab.backend.where(x)", "Use ab.ops.where."),
    ],
)
def test_lines_of_jax_and_scikit_learn_name_the_way_here(line: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(remedy)):
        eval(line, {"ab": ab, "x": ab.ops.ones(2), "model": ab.Sequential()})


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("ab.Tensor([1.0, 2.0])", "Use ab.convert_to_tensor"),
        ("x.__setitem__(0, 5.0)", "Use ab.ops.slice_update"),
        ("ab.Input((2,)).__setitem__(0, 5.0)", "Use ab.ops.slice_update"),
        ("ab.ops.zeros(2, 3)", "Unknown dtype 3. .* A shape is one argument: zeros((2, 3))."),
        ("x.sum(out=x)", "tensors never change. Leave out `out`."),
    ],
)
def test_calls_of_pytorch_and_numpy_name_the_way_here(line: str, remedy: str) -> None:
    pattern = ".*".join(map(re.escape, remedy.split(".*")))
    with pytest.raises(TypeError, match=pattern):
        eval(line, {"ab": ab, "x": ab.ops.ones(2)})


def test_a_property_that_fails_says_what_it_lacks() -> None:
    class Broken(ab.Layer):
        @property
        def parameters(self) -> object:
            return operator.attrgetter("nothing_of_the_kind")(self)

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        operator.attrgetter("parameters")(Broken())


def test_names_of_other_frameworks_are_free() -> None:
    class Mixed:
        def state_dict(self) -> str:
            return "of a later base"

    class Own(ab.Model, Mixed):
        def parameters(self) -> str:
            return "own"

    model: Any = Own()
    model.to = "set"
    assert (model.state_dict(), model.parameters(), model.to) == ("of a later base", "own", "set")
    assert type(model).state_dict(model) == "of a later base"
    assert {"state_dict", "parameters", "to"} <= set(dir(model))
    assert "zero_grad" not in dir(model)
    for thing in (ab.ops.ones(2), ab.Variable(1.0), ab.layers.Dense(1), ab.optim.Adam()):
        assert not {"backward", "forward", "zero_grad", "data"} & set(dir(thing))
        assert not hasattr(thing, "data")
        assert not hasattr(thing, "zero_grad")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ops.jacobian", "ab"),
        ("layers.GradientTape", "ab"),
        ("losses.Dense", "ab.layers"),
        ("layers.softmax_cross_entropy", None),
        ("layers.matmul", "ab.ops"),
        ("ops.Adam", "ab.optim"),
    ],
)
def test_a_name_of_another_module_leads_there(name: str, place: str | None) -> None:
    module, _, own = name.partition(".")
    assert all((ab.layers.Dense, ab.ops.matmul, ab.optim.Adam))  # what is imported is looked into
    with pytest.raises(AttributeError) as caught:
        operator.attrgetter(name)(ab)
    remedy = "" if place is None else f". Use {place}.{own}."
    assert str(caught.value) == f"module 'anabranch.{module}' has no attribute {own!r}{remedy}"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("Sequentail", "Sequential"),
        ("layers.Dens", "Dense"),
        ("ops.matmull", "matmul"),
        ("optim.Adm", "Adam"),
        ("losses.MeanSquareError", "MeanSquaredError"),
        ("callbacks.EarlyStoping", "EarlyStopping"),
        ("distribute.DataParalel", "DataParallel"),
    ],
)
def test_the_error_suggests_the_name_that_was_meant(wrong: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, own = wrong.rpartition(".")
    with pytest.raises(AttributeError) as caught:
        operator.attrgetter(wrong)(ab)
    if caught.value.obj is None:  # that of a module with names on demand; the others' is Python's
        assert str(caught.value).endswith(f"has no attribute {own!r}. Did you mean: {right!r}?")
    assert (caught.value.obj is None) == (module != "distribute")
    sys.__excepthook__(caught.type, caught.value, None)
    assert capsys.readouterr().err.count("Did you mean") == 1  # Python adds no second one
    found = sys.modules[f"anabranch.{module}" if module else "anabranch"]
    if hasattr(found, "__path__"):  # else Python asks nobody but the module, and leaves out what it says
        with pytest.raises(ImportError, match=rf"cannot import name {own!r}.* Did you mean: {right!r}\?"):
            exec(f"from {found.__name__} import {own}", {})


def test_imports_of_names_that_other_frameworks_have_name_a_remedy() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'Linear'.* Use ab\.layers\.Dense\."):
        exec("from anabranch.layers import Linear", {})
    for absent in ("anabranch.zzz", "anabranch.layers.zzz", "anabranch.layers._near", "anabranch._dense"):
        assert importlib.util.find_spec(absent) is None
    with pytest.raises(ImportError, match=r"cannot import name 'zzz' from 'anabranch\.layers'"):
        exec("from anabranch.layers import zzz", {})


def test_what_suggests_names_is_imported_by_errors_only() -> None:
    assert run("import sys, anabranch; print('difflib' in sys.modules)") == "False"


def test_ops_that_few_programs_use_are_imported_at_the_first_look_up() -> None:
    code = """
import sys
import anabranch as ab
from anabranch.engine import ops
model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
model.compile("adam", "mse")
model.fit([[1.0, 2.0, 3.0]], [[1.0, 2.0]], verbose=0)
early = [name for name in (*ops._LATER, *ops._MODULES.values()) if f"anabranch.engine.ops.{name}" in sys.modules]
print(early, ab.ops.median([1.0, 3.0, 8.0]).numpy(), len(set(ab.ops.registered_ops())) > 240)
"""
    assert run(code) == "[] 3.0 True"


def test_the_names_of_ops_that_are_imported_late_are_those_of_their_modules() -> None:
    from anabranch.engine import ops

    for module, names in ops._LATER.items():
        public = importlib.import_module(f"anabranch.engine.ops.{module}").__all__
        own = {"containers.sparse": {"SparseTensor", "embedding_lookup_sparse"}, "signal.filtering": {"psnr"}}
        assert set(names.split()) == own.get(module, set(public)), module
        for name in names.split():
            assert getattr(ops, name) is getattr(ops, name)  # the one that enters graphs


def test_own_ops_keep_their_name_when_one_of_the_package_is_imported_later(tmp_path: Path) -> None:
    code = f"""
import anabranch as ab
class Gcd(ab.ops.Op):
    def infer(self, x, y): return x
    def run(self, xp, x, y): return x * 0 + 42
with ab.Graph().as_default() as graph:
    x = ab.placeholder((2,), "int32", "x")
    y = ab.ops.apply(Gcd(), x, x)
before = ab.ops.lcm([4], [6])
graph.save({str(tmp_path / "graph.npz")!r})
loaded = ab.load_graph({str(tmp_path / "graph.npz")!r})
operation = [each for each in loaded.operations if each.type == "gcd"][0]
print(type(operation.op) is Gcd, ab.ops.registered_ops()["gcd"] is Gcd, before.numpy())
"""
    assert run(code) == "True True [12]"
