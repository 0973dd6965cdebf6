"""Errors for attributes that objects and modules lack, and that other frameworks have: they name what to use here.

PyTorch's names are those that users try most.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .keywords import nearest_name

_TAPE = "Compute the loss inside of `with ab.GradientTape() as tape:`; tape.gradient(loss, variables) gives gradients."
_CAST = "Use ab.ops.cast."
_CONSTANT = "A tensor never changes: compute another one, or assign to an ab.Variable."
_DEVICE = "Declare GPUs by ab.config.set_devices(gpu=1); `with ab.device(...)` names the one to compute on."
_MODE = "Pass training=True or training=False in the call; fit, evaluate and predict do."
_POLICY = 'Call ab.mixed_precision.set_global_policy("mixed_float16") before layers are made.'
_NO_GRADIENTS = "Leave it out: gradients are what a tape gives, and are kept nowhere."
_ESTIMATORS = "ab.wrappers.SKLearnClassifier and ab.wrappers.SKLearnRegressor have scikit-learn's methods."
_LAYERS = "Keep layers as attributes, or in lists and dicts that are attributes."


def _by_op(names: str) -> dict[str, str]:
    return {name: f"Use ab.ops.{name}." for name in names.split()}


TENSORS: dict[str, str] = {
    **_by_op(
        "abs cos erf exp log log10 matmul maximum minimum norm power relu rsqrt sigmoid sin softmax sqrt square tanh"
    ),
    **_by_op(
        "argsort broadcast_to cumprod diagonal expand_dims flip isnan logsumexp repeat roll sort split tile where"
    ),
    **dict.fromkeys(["backward", "grad", "retain_grad", "grad_fn"], _TAPE),
    **dict.fromkeys(["requires_grad", "requires_grad_"], f"Variables and layers have trainable. {_TAPE}"),
    **dict.fromkeys(["bfloat16", "bool", "double", "float", "half", "int", "long", "type", "type_as"], _CAST),
    **dict.fromkeys(["add_", "clamp_", "copy_", "div_", "fill_", "mul_", "sub_", "zero_"], _CONSTANT),
    **dict.fromkeys(["add", "div", "eq", "ge", "gt", "le", "lt", "mul", "ne", "sub"], "Use the operator."),
    **dict.fromkeys(["new_full", "new_ones", "new_zeros"], "Use ab.ops.full, ab.ops.ones and ab.ops.zeros."),
    **dict.fromkeys(["cpu", "cuda", "is_cuda", "to"], f"{_DEVICE} For dtypes use ab.ops.cast."),
    "at": "Use ab.ops.scatter_update, or ab.ops.slice_update, which give another tensor.",
    "block_until_ready": "Leave it out: ops have computed when they return.",
    "bmm": "Use ab.ops.matmul.",
    "chunk": "Use ab.ops.split.",
    "clamp": "Use ab.ops.clip.",
    "clone": "Use it as it is: a tensor never changes.",
    "contiguous": "Leave it out: steps choose layouts themselves.",
    "data": "Use ab.ops.stop_gradient, or numpy() for an array. Variables have assign(value).",
    "detach": "Use ab.ops.stop_gradient.",
    "dim": "Use ndim.",
    "expand": "Use ab.ops.broadcast_to.",
    "expand_as": "Use ab.ops.broadcast_to.",
    "gather": "Use ab.ops.take_along_axis.",
    "index_select": "Use ab.ops.take.",
    "mT": "Use swapaxes(-1, -2).",
    "masked_fill": "Use ab.ops.where.",
    "mm": "Use ab.ops.matmul.",
    "numel": "Use size.",
    "permute": "Use ab.ops.transpose.",
    "pow": "Use ab.ops.power.",
    "scatter_": "Use ab.ops.scatter_update, which gives another tensor; variables have scatter_update, too.",
    "set_shape": "Use ab.tf.ensure_shape, which gives another tensor, or ab.ops.reshape.",
    "t": "Use T, or ab.ops.transpose.",
    "topk": "Use ab.ops.top_k.",
    "unbind": "Use ab.ops.unstack.",
    "unsqueeze": "Use ab.ops.expand_dims.",
    "view": "Use ab.ops.reshape.",
}
# Variables have these.
VALUES: dict[str, str] = dict.fromkeys(
    ["assign", "assign_add", "assign_sub"],
    "A part of a variable is a tensor, which never changes: variable.scatter_update(indices, updates) writes into the "
    "variable, and so does variable.assign(ab.ops.slice_update(variable, start, updates)).",
)
LAYERS: dict[str, str] = {
    **dict.fromkeys(["children", "modules", "named_children", "named_modules"], f"A model has layers. {_LAYERS}"),
    **dict.fromkeys(["cpu", "cuda", "to"], _DEVICE),
    **dict.fromkeys(["eval", "train"], _MODE),
    **dict.fromkeys(["bfloat16", "float", "half"], _POLICY),
    **dict.fromkeys(["get_params", "set_params", "fit_predict"], _ESTIMATORS),
    **dict.fromkeys(["fit_transform", "transform"], "Layers that learn from data have adapt(data); then call them."),
    "add_module": _LAYERS,
    "apply": "Call the model itself; stateless_call takes its variables as arguments.",
    "coef_": "Use get_weights().",
    "evaluate_generator": "Use evaluate, which takes generators.",
    "fit_generator": "Use fit, which takes generators.",
    "forward": "Call the object itself; a class of your own defines call(self, inputs).",
    "load_state_dict": "Use load_weights for a file, and set_weights for arrays.",
    "named_parameters": "Use trainable_variables; each has a path and a name.",
    "partial_fit": "Use fit, which goes on from the weights there are, or train_on_batch.",
    "parameters": "Use trainable_variables, or weights with those that are not trained.",
    "predict_classes": "Use ab.ops.argmax(model.predict(x), axis=-1).",
    "predict_generator": "Use predict, which takes generators.",
    "predict_proba": "Use predict.",
    "register_buffer": "Use add_weight(..., trainable=False) in build.",
    "register_forward_hook": "Make a model of inner outputs: ab.Model(model.inputs, model.get_layer(name).output).",
    "register_parameter": "Use add_weight in build.",
    "requires_grad": "Set trainable.",
    "requires_grad_": "Set trainable.",
    "score": f"Use evaluate. {_ESTIMATORS}",
    "state_dict": "Use save_weights for a file, and get_weights for arrays.",
    "weight": "Use kernel or embeddings, or weights for all.",
    "zero_grad": _NO_GRADIENTS,
}
_SETTINGS = {"data", "lr", "param_groups", "requires_grad"}  # set in other frameworks rather than called
_LIKE = 0.7  # how much of two names is the same, if one may be a mistake for the other
_OWN_PACKAGE = __name__.partition(".")[0]
# Where a name is looked for that another module lacks. Names with a small letter are mostly ops.
_COMMON_MODULES = ("layers", "ops", "optim", "losses", "metrics", "callbacks", "initializers", "random")
OPTIMIZERS: dict[str, str] = {
    "init": "Use build(variables).",
    "load_state_dict": "A saved model has its optimizer's state: use ab.load_model.",
    "lr": "Use learning_rate.",
    "param_groups": "Set learning_rate; ab.optim.MultiOptimizer has optimizers for parts of a model.",
    "state_dict": "model.save keeps the optimizer's state; optimizer.variables has it.",
    "update": "Use apply(gradients, variables), or stateless_apply, which gives new values.",
    "step": "Use apply(gradients, variables) with gradients of ab.GradientTape, or model.fit.",
    "zero_grad": _NO_GRADIENTS,
}


def _use(names: Mapping[str, str], prefix: str = "ab.") -> dict[str, str]:
    return {name: f"Use {prefix}{here}." for name, here in names.items()}


def _of_dimensions(names: Mapping[str, str]) -> dict[str, str]:
    """Map PyTorch's names of layers of one to three dimensions, whose last letter is small."""
    return {f"{name}{k}d": here.replace("#", f"{k}D") for name, here in names.items() for k in (1, 2, 3)}


_LAYER_NAMES = {
    **_of_dimensions(
        {"AdaptiveAvgPool": "layers.AdaptiveAveragePooling#", "AdaptiveMaxPool": "layers.AdaptiveMaxPooling#"}
    ),
    **_of_dimensions({"AvgPool": "layers.AveragePooling#", "BatchNorm": "layers.BatchNormalization"}),
    **_of_dimensions({"Conv": "layers.Conv#", "ConvTranspose": "layers.Conv#Transpose"}),
    **_of_dimensions({"Dropout": "layers.SpatialDropout#", "MaxPool": "layers.MaxPooling#"}),
    "Dropout1d": "layers.SpatialDropout1D",
    "GroupNorm": "layers.GroupNormalization",
    "LayerNorm": "layers.LayerNormalization",
    "Linear": "layers.Dense",
    "Model": "Model",
    "Module": "layers.Layer or ab.Model as the base",
    "MultiheadAttention": "layers.MultiHeadAttention",
    "Parameter": "layers.Layer.add_weight in build",
    "RMSNorm": "layers.RMSNormalization",
    "RNNCell": "layers.SimpleRNNCell",
    "Sequential": "Sequential",
    "TransformerDecoderLayer": "layers.TransformerDecoder",
    "TransformerEncoderLayer": "layers.TransformerEncoder",
    "Upsample": "layers.UpSampling2D",
    **{
        name: f'layers.Activation("{name.lower()}")'
        for name in ("GELU", "Mish", "SELU", "SiLU", "Sigmoid", "Softplus", "Tanh")
    },
}
_LOSS_NAMES = {
    "BCELoss": "losses.BinaryCrossentropy",
    "BCEWithLogitsLoss": "losses.BinaryCrossentropy(from_logits=True)",
    "CTCLoss": "losses.CTC",
    "CrossEntropyLoss": "losses.SparseCategoricalCrossentropy(from_logits=True)",
    "HuberLoss": "losses.Huber",
    "KLDivLoss": "losses.KLDivergence",
    "L1Loss": "losses.MeanAbsoluteError",
    "MSELoss": "losses.MeanSquaredError",
    "NLLLoss": "losses.SparseCategoricalCrossentropy",
    "SmoothL1Loss": "losses.Huber",
}
_OP_NAMES = {
    "bmm": "ops.matmul",
    "cat": "ops.concatenate",
    "clamp": "ops.clip",
    "concat": "ops.concatenate",
    "cross_entropy": "ops.sparse_categorical_crossentropy",
    "from_numpy": "ops.convert_to_tensor",
    "index_select": "ops.take",
    "masked_fill": "ops.where",
    "mm": "ops.matmul",
    "permute": "ops.transpose",
    "pow": "ops.power",
    "rand": "random.uniform",
    "randn": "random.normal",
    "reduce_max": "ops.max",
    "reduce_mean": "ops.mean",
    "reduce_min": "ops.min",
    "reduce_sum": "ops.sum",
    "tensor": "ops.convert_to_tensor",
    "unsqueeze": "ops.expand_dims",
}
_CHECKPOINTS = "Use ab.callbacks.BackupAndRestore with fit, or ab.distribute.CheckpointManager in a loop of your own."
_DATA = (
    "Use tf.data.Dataset of `from anabranch import tf`, or ab.utils.PyDataset; fit takes both, arrays and generators."
)
_DRAWS = "Pass seed=, a number or an ab.random.SeedGenerator, to what draws; ab.utils.set_random_seed seeds the rest."
_NOT_RECORDED = "Leave it out: nothing is recorded outside of ab.GradientTape."
_GRADIENTS = "Use ab.GradientTape outside of graphs, and ab.gradients in them."
_SEED = "Use ab.utils.set_random_seed."
_SEVERAL = "Use ab.distribute.DataParallel for processes, and ab.distribution for devices of one process."
_DTYPE = 'Dtypes are strings, such as dtype="float32".'
PACKAGE: dict[str, str] = {
    **dict.fromkeys(["bfloat16", "float16", "float32", "float64", "int32", "int64", "long", "uint8"], _DTYPE),
    **_by_op("arange argmax cast concatenate exp eye full log matmul max maximum mean min minimum ones ones_like"),
    **_by_op("reshape sigmoid softmax sqrt stack sum tanh transpose where zeros zeros_like"),
    **_by_op("argmin argsort broadcast_to clip cumsum dot einsum expand_dims flip gelu linspace norm one_hot relu"),
    **_by_op("repeat roll sort split squeeze take tile top_k unstack"),
    **dict.fromkeys(["LinearRegression", "LogisticRegression", "MLPClassifier", "MLPRegressor"], _ESTIMATORS),
    **dict.fromkeys(["distributed", "pmap"], _SEVERAL),
    **dict.fromkeys(["enable_grad", "inference_mode", "set_grad_enabled"], _NOT_RECORDED),
    **dict.fromkeys(["jacfwd", "jacrev"], "Use ab.jacobian."),
    **_use(_OP_NAMES),
    "Checkpoint": _CHECKPOINTS,
    "DataLoader": "Use ab.utils.PyDataset, or PyTorch's DataLoader: fit takes both.",
    "Dataset": _DATA,
    "Module": "Subclass ab.layers.Layer or ab.Model.",
    "PRNGKey": _DRAWS,
    "SymbolicScope": "Leave it out: what is computed of ab.Input tensors is symbolic.",
    "amp": _POLICY,
    "as_tensor": "Use ab.convert_to_tensor.",
    "autocast": _POLICY,
    "autograd": _GRADIENTS,
    "checkpoint": "Use ab.remat.",
    "compile": "Use ab.function for functions, and model.compile for models.",
    "cuda": "Declare GPUs by ab.config.set_devices(gpu=1).",
    "custom_jvp": "Use ab.custom_gradient.",
    "custom_vjp": "Use ab.custom_gradient.",
    "data": _DATA,
    "debug": "Use ab.ops.print, and ab.debugging.",
    "device_put": "Leave it out, or compute inside of `with ab.device(...)`.",
    "devices": "Use ab.config.list_devices.",
    "eval_shape": "Call it with ab.Input, or ab.placeholder: the result has a shape. Layers have compute_output_shape.",
    "get_variable": "Use ab.Variable(value, name=...), which is one object for all who use it.",
    "global_variables_initializer": "Leave it out: a variable has its first value when it is read.",
    "grad": _GRADIENTS,
    "is_tensor": "Use isinstance(x, ab.Tensor).",
    "jit": "Use ab.function.",
    "keras": "The package has Keras's names itself: import anabranch as keras.",
    "lax": "Use ab.while_loop, ab.cond, ab.scan and ab.ops.fori_loop.",
    "load": "Use ab.load_model for models, and ab.serving.load for what was exported.",
    "make_jaxpr": "Use ab.explain.",
    "manual_seed": _SEED,
    "model_selection": f"Use scikit-learn's. {_ESTIMATORS}",
    "no_grad": _NOT_RECORDED,
    "numpy": "Use ab.ops, which has NumPy's functions by their names.",
    "save": 'Use model.save("model.keras"), or model.save_weights("model.weights.h5").',
    "set_random_seed": _SEED,
    "set_seed": _SEED,
    "tensor": "Use ab.convert_to_tensor.",
    "train": "Optimizers are in ab.optim, checkpoints in ab.callbacks and ab.distribute.CheckpointManager.",
    "tree_map": "Use ab.tree.map_structure.",
    "tree_util": "Use ab.tree.",
    "trainable_variables": "Models and layers have their own; graph.variables has those of a graph.",
    "value_and_grad": _GRADIENTS,
    "vmap": "Use ab.vectorized_map.",
}
_LISTS = dict.fromkeys(["ModuleDict", "ModuleList"], _LAYERS)
_SAME_LAYERS = ("Dropout", "Embedding", "Flatten", "GRU", "GRUCell", "Identity", "LSTM", "LSTMCell", "ReLU", "Softmax")
LAYERS_MODULE: dict[str, str] = {**_use(_LAYER_NAMES), **_use(_LOSS_NAMES), **_LISTS}
LOSSES_MODULE: dict[str, str] = {
    **_use(_LOSS_NAMES),
    "binary_cross_entropy": "Use ab.losses.binary_crossentropy.",
    "binary_cross_entropy_with_logits": "Use ab.losses.binary_crossentropy(y, p, from_logits=True).",
    "cross_entropy": "Use ab.losses.sparse_categorical_crossentropy(y, p, from_logits=True): targets come first.",
    "l1_loss": "Use ab.losses.mean_absolute_error.",
    "mse_loss": "Use ab.losses.mean_squared_error.",
}
NN_MODULE: dict[str, str] = {
    **LAYERS_MODULE,
    **_use({name: f"layers.{name}" for name in _SAME_LAYERS}),
    **_by_op(
        "average_pool conv elu gelu leaky_relu log_softmax max_pool one_hot relu selu sigmoid silu softmax softplus"
    ),
    **_by_op("tanh"),
    "Conv": "Use ab.layers.Conv1D, ab.layers.Conv2D or ab.layers.Conv3D.",
    "DataParallel": _SEVERAL,
    "Dense": "Use ab.layers.Dense.",
    "compact": "Make layers in __init__ or build, and use them in call.",
    "functional": "Use ab.ops, ab.activations and ab.losses.",
    "init": "Use ab.initializers.",
    "utils": "To clip gradients give the optimizer global_clipnorm=.",
}
_DRAWN = ("bernoulli", "beta", "binomial", "categorical", "gamma", "normal", "randint", "shuffle", "uniform")
# Of the folder of the draws' ops, which users take for a module of functions.
DRAWS_FOLDER: dict[str, str] = {
    **_use({name: f"random.{name}" for name in _DRAWN}),
    **_use({"rand": "random.uniform", "randn": "random.normal", "truncated_normal": "random.truncated_normal"}),
}
OPS_MODULE: dict[str, str] = {
    **_use(_OP_NAMES),
    **DRAWS_FOLDER,
    **_use({f"random_{name}": f"random.{name}" for name in ("gamma", "normal", "shuffle", "uniform")}),
    "as_tensor": "Use ab.ops.convert_to_tensor.",
    "dynamic_slice": "Use ab.ops.slice.",
    "dynamic_update_slice": "Use ab.ops.slice_update.",
    "expit": "Use ab.ops.sigmoid.",
    "interpolate": "Use ab.ops.image.resize.",
    "put": "Use ab.ops.scatter_update.",
    "topk": "Use ab.ops.top_k.",
}
RANDOM_MODULE: dict[str, str] = {
    **dict.fromkeys(["PRNGKey", "fold_in", "key", "split"], _DRAWS),
    **dict.fromkeys(["manual_seed", "seed", "set_seed"], _SEED),
    "choice": "Use ab.random.categorical, or ab.ops.take of ab.random.randint.",
    "permutation": "Use ab.random.shuffle.",
    "rand": "Use ab.random.uniform.",
    "randn": "Use ab.random.normal.",
}
METRICS_MODULE: dict[str, str] = {
    "accuracy_score": "Use ab.metrics.Accuracy, or scikit-learn's with arrays.",
    "f1_score": "Use ab.metrics.F1Score, or scikit-learn's with arrays.",
    "r2_score": "Use ab.metrics.R2Score, or scikit-learn's with arrays.",
    "roc_auc_score": "Use ab.metrics.AUC, or scikit-learn's with arrays.",
}
OPTIM_MODULE: dict[str, str] = {
    "apply_updates": "Use apply(gradients, variables) of an optimizer, or stateless_apply, which gives new values.",
    "chain": "Optimizers have clipnorm=, clipvalue=, global_clipnorm=, weight_decay=, use_ema= and schedules.",
    "lr_scheduler": "Use ab.optim.schedules, or the callback ab.callbacks.LearningRateScheduler.",
}
TREE_MODULE: dict[str, str] = {
    **dict.fromkeys(["map", "tree_map"], "Use ab.tree.map_structure."),
    **dict.fromkeys(["leaves", "tree_flatten", "tree_leaves"], "Use ab.tree.flatten, which gives the leaves."),
    **dict.fromkeys(["tree_unflatten", "unflatten"], "Use ab.tree.pack_sequence_as(structure, leaves)."),
    "map_with_path": "Use ab.tree.flatten_with_path and ab.tree.pack_sequence_as.",
    "reduce": "Use functools.reduce over ab.tree.flatten(structure).",
    "structure": "Structures stand for themselves: ab.tree.pack_sequence_as(structure, leaves).",
}
_WINDOWS = "Use padded_batch, or bucket_by_sequence_length."
_KEPT = "cache() keeps elements in memory; ab.io.TFRecordWriter writes them to a file."
DATASETS: dict[str, str] = {
    **dict.fromkeys(["load", "save", "snapshot"], _KEPT),
    **dict.fromkeys(["options", "with_options"], "Leave it out: no option of TensorFlow's has a meaning here."),
    **dict.fromkeys(["ragged_batch", "sparse_batch"], _WINDOWS),
    "element_spec": "Elements declare no shapes: look at one, next(iter(dataset)).",
    "group_by_window": _WINDOWS,
    "ignore_errors": "Give map a function that catches them.",
    "random": "Use Dataset.range and ab.random.",
    "rejection_resample": "Use filter, or sample_from_datasets with weights.",
}
DATA_MODULE: dict[str, str] = {
    "FixedLengthRecordDataset": "Use Dataset.from_generator, or ab.io.FixedLengthRecordReader.",
    "Iterator": "Use iter(dataset).",
    "Options": "Leave it out, and with_options, too: no option of TensorFlow's has a meaning here.",
    "TFRecordDataset": "Use Dataset.from_generator(lambda: ab.io.tf_record_iterator(path), ...).",
}
UTILS_MODULE: dict[str, str] = {"data": PACKAGE["DataLoader"]}
PREPROCESSING_MODULE: dict[str, str] = {
    "MinMaxScaler": "Use ab.layers.Rescaling.",
    "OneHotEncoder": "Use ab.layers.CategoryEncoding.",
    "StandardScaler": "Use ab.layers.Normalization: adapt(data), then call it.",
    "text": "Use ab.layers.TextVectorization.",
}
IMAGES_MODULE: dict[str, str] = {
    "ImageDataGenerator": "Use ab.utils.image_dataset_from_directory, with layers such as ab.layers.RandomFlip.",
    **dict.fromkeys(["random_rotation", "random_shear", "random_shift", "random_zoom"], "Use the layers of that name."),
    **dict.fromkeys(["random_brightness", "random_channel_shift"], "Use ab.layers.RandomBrightness."),
}
# Functions of `tf.keras.backend` that are not in `backend`, as most are.
BACKEND_MODULE: dict[str, str] = {
    "where": "Use ab.ops.where.",
    "conv2d_transpose": "Use ab.ops.conv_transpose.",
    "ctc_decode": "Use ab.ops.ctc_decode.",
    "ctc_label_dense_to_sparse": "Tensors are dense: ab.ops.ctc_loss takes padded labels with their lengths.",
    "binary_focal_crossentropy": "Use ab.losses.binary_focal_crossentropy.",
    "categorical_focal_crossentropy": "Use ab.losses.categorical_focal_crossentropy.",
    "function": "Use ab.function.",
    "gradients": "Use ab.GradientTape, or ab.gradients in a graph.",
    "learning_phase": "Give calls training=True or False.",
    "resize_volumes": "Use ab.layers.UpSampling3D.",
    "rnn": "Use ab.layers.RNN, or ab.scan.",
    "spatial_3d_padding": "Use ab.layers.ZeroPadding3D.",
}


def missing(what: str, name: str, remedy: str) -> AttributeError:
    """Make the error for an attribute that other frameworks have."""
    return AttributeError(f"{what} does not have {name}, as other frameworks do. {remedy}", name=name)


def module_error(module: str, name: str, remedies: Mapping[str, str]) -> AttributeError:
    """Make the error for a name that a module lacks.

    Args:
        module: its name.
        name: the name that was looked for.
        remedies: what to use in place of names of other frameworks.
    """
    if name.startswith("_") and name not in remedies:  # such names are tried often, and expected to be absent
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
    public = _public_name(module)
    if name in remedies:
        return missing(f"module {public!r}", name, remedies[name])
    place = _place_of(name)
    if place is not None:
        return AttributeError(f"module {public!r} has no attribute {name!r}. Use {place}.{name}.", name=name)
    text, meant = f"module {public!r} has no attribute {name!r}", _meant(sys.modules[module], name)
    if meant is not None:  # in the text, which logs and notebooks show; Python would add to its own traceback alone
        return AttributeError(f"{text}. Did you mean: {meant!r}?", name=name)
    return AttributeError(text, name=name, obj=sys.modules[module])


def import_error(name: str) -> ImportError | None:
    """Make the error for an import of a name that a module lacks; None if the module has nothing to say of it.

    Args:
        name: the whole name, ``anabranch.layers.Dens``.
    """
    module, _, own = name.rpartition(".")
    if module not in sys.modules or own.startswith("_"):
        return None
    try:
        getattr(sys.modules[module], own)
    except AttributeError as error:
        meant = None if error.obj is None else _meant(sys.modules[module], own)
        if error.obj is None or meant is not None:  # the text of an error with no object has a remedy
            hint = "" if meant is None else f". Did you mean: {meant!r}?"
            return ImportError(f"cannot import name {own!r}: {error}{hint}", name=module)
    return None


def _meant(module: ModuleType, name: str) -> str | None:
    """Return the public name of a module that is nearest to `name`."""
    if name.startswith("_"):  # such names are tried often, and expected to be absent
        return None
    names = module.__dict__.get("__all__") or [each for each in dir(module) if not each.startswith("_")]
    return nearest_name(name, names, _LIKE)


def _place_of(name: str) -> str | None:
    """Return the public module that has `name`, "ab" or "ab.layers", among those that are imported already."""
    if name in sys.modules[_OWN_PACKAGE].__dict__.get("_EXPORTS", ()):
        return "ab"
    for module in _COMMON_MODULES:
        found = sys.modules.get(f"{_OWN_PACKAGE}.{module}")
        if found is not None and name in found.__dict__.get("__all__", ()):
            return f"ab.{module}"
    return None


def _public_name(module: str) -> str:
    """Return users' name of a module: ``anabranch.random`` for ``anabranch.engine.ops.random.samplers``."""
    found = sys.modules[module]
    names = [name for name, each in list(sys.modules.items()) if each is found]
    return min(names, key=lambda name: (name.count("."), len(name)))


class _NameElsewhere:
    """Stands in a class for an attribute of other frameworks: to get it is an `AttributeError` with a remedy.

    A `__getattr__` would do the same, and make each attribute that exists slower: CPython then specialises none.
    """

    def __init__(self, owner: type[object], name: str, remedy: str) -> None:
        self.owner: Any = owner
        self.name, self.remedy = name, remedy

    def __get__(self, instance: object, cls: type[object]) -> Any:
        behind: Any = super(self.owner, cls if instance is None else instance)
        if hasattr(behind, self.name):  # a base that comes later in the class of a user
            return getattr(behind, self.name)
        what = f"class {cls.__name__!r}" if instance is None else f"{cls.__name__!r} object"
        raise missing(what, self.name, self.remedy)


class _SettingElsewhere(_NameElsewhere):
    """The same where to set it is an error, too: nothing would read what is set.

    A user's own optimizer may have an attribute of the name.
    """

    def __get__(self, instance: object, cls: type[object]) -> Any:
        own = getattr(instance, "__dict__", {})
        return own[self.name] if self.name in own else super().__get__(instance, cls)

    def __set__(self, instance: object, value: object) -> None:
        cls = type(instance)
        if self.name not in OPTIMIZERS or cls.__module__.partition(".")[0] == _OWN_PACKAGE:
            raise missing(f"{cls.__name__!r} object", self.name, self.remedy)
        vars(instance)[self.name] = value


class ExplainsNames:
    """The base of classes that name what to use here where users try a name of another framework.

    Args:
        elsewhere: of a subclass: what to use in place of each of those names.
    """

    __slots__ = ()

    def __init_subclass__(cls, elsewhere: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, remedy in (elsewhere or {}).items():
            kind = _SettingElsewhere if name in _SETTINGS else _NameElsewhere
            setattr(cls, name, kind(cls, name, remedy))

    def __dir__(self) -> list[str]:
        """List the attributes that there are."""
        names = super().__dir__()
        own: dict[str, object] = {}
        for base in reversed(type(self).__mro__):
            own.update(vars(base))
        absent = {name for name, value in own.items() if isinstance(value, _NameElsewhere)}
        return [name for name in names if name not in absent or hasattr(self, name)]  # some are the user's own


__all__ = [
    "BACKEND_MODULE",
    "DATASETS",
    "DATA_MODULE",
    "DRAWS_FOLDER",
    "IMAGES_MODULE",
    "LAYERS",
    "LAYERS_MODULE",
    "LOSSES_MODULE",
    "METRICS_MODULE",
    "NN_MODULE",
    "OPS_MODULE",
    "OPTIMIZERS",
    "OPTIM_MODULE",
    "PACKAGE",
    "PREPROCESSING_MODULE",
    "RANDOM_MODULE",
    "TENSORS",
    "TREE_MODULE",
    "UTILS_MODULE",
    "VALUES",
    "ExplainsNames",
    "import_error",
    "missing",
    "module_error",
]
