"""Examples of public names whose docstrings have none; the reference shows them with what they print when it is built.

Names of one kind share an example. Where `{}` is in it, it stands for the name as users write it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from operator import attrgetter
from pathlib import Path
from runpy import run_path
from typing import Any

import anabranch

# Each example, and the names that it is for, by module; "ab" are names of the package itself.
_EXAMPLES: list[tuple[str, str]] = [
    # --- ops: elementwise ---------------------------------------------------------------------------------------------
    (
        "{}([0.25, 0.5])",
        "ops: arccos arcsin arcsinh arctan arctanh cos cosh deg2rad erf erfinv exp2 expm1 log log10 log1p log2 rad2deg "
        "reciprocal rsqrt sin sinh tan tanh copy size ndim ones_like zeros_like",
    ),
    (
        "{}([-1.5, 0.75])",
        "ops: abs absolute ceil celu elu fabs floor gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh "
        "leaky_relu log_sigmoid negative relu6 selu sign signbit silu soft_shrink softsign sparse_plus sparse_sigmoid "
        "square squareplus swish tanh_shrink trunc | activations: exponential gelu linear mish relu sigmoid",
    ),
    ("{}([1.0, 2.0]).shape", "ops: empty_like"),
    ("{}([1.0 + 2.0j])", "ops: conj"),
    ("{}([1.5, 2.0])", "ops: arccosh"),
    ("{}([[1.0, 2.0, 3.0]])", "activations: softmax"),
    ("{}([1.0, float('nan'), float('inf')])", "ops: isfinite isinf isnan isneginf isposinf nan_to_num"),
    (
        "{}([4.0, 2.0], [2.0, 3.0])",
        "ops: divide_no_nan floor_divide fmin greater greater_equal heaviside hypot isclose less less_equal logaddexp "
        "logaddexp2 maximum minimum multiply nextafter not_equal squared_difference subtract true_divide",
    ),
    ("{}([12, 10], [10, 3])", "ops: bitwise_and bitwise_or bitwise_xor lcm"),
    ("{}([1, 2], [2, 3])", "ops: bitwise_left_shift bitwise_right_shift left_shift right_shift"),
    ("{}([1, 2])", "ops: bitwise_invert bitwise_not"),
    ("{}([True, True, False], [True, False, False])", "ops: logical_and logical_or logical_xor"),
    ("{}([True, False])", "ops: logical_not"),
    ("{}([1.0, 2.0, 3.0], threshold=1.5, default_value=0.0)", "ops: threshold"),
    ("{}([1.0, 2.0, 0.0, 1.0])", "ops: glu"),
    # --- ops: reductions, statistics ----------------------------------------------------------------------------------
    (
        "{}([[1.0, 2.0], [3.0, 4.0]], axis=1)",
        "ops: amax amin argmin average cumprod l2_normalize log_softmax logsumexp",
    ),
    ("{}([[1.0, 2.0], [3.0, 4.0]], axis=1)", "ops: min normalize prod ptp rms_normalization sparsemax std var"),
    ("{}([[1.0, 2.0], [3.0, 4.0]], axis=1)", "ops: layer_normalization argsort"),
    ("{}([[True, False], [True, True]], axis=1)", "ops: all any"),
    ("{}([[0, 3], [4, 5]], axis=1)", "ops: count_nonzero"),
    (
        "{}([[1.0, float('nan')], [3.0, 4.0]], axis=1)",
        "ops: nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nanvar",
    ),
    ("{}([1.0, 2.0, 3.0, 4.0], 25)", "ops: nanpercentile percentile"),
    ("{}([[1.0, 2.0], [3.0, 4.0]], axes=0)", "ops: moments"),
    ("{}([[1.0], [3.0]], mean=[2.0], variance=[1.0], axis=-1)", "ops: batch_normalization"),
    ("{}([3, 1, 2], 1)", "ops: argpartition"),
    ("{}([1, 1, 3])", "ops: bincount"),
    ("{}([0.5, 1.5, 2.5], bins=[1.0, 2.0])", "ops: digitize"),
    ("{}([1.0, 2.0, 3.0], [0.5, 2.0])", "ops: searchsorted"),
    ("{}([1, 0], [[0.1, 0.9], [0.2, 0.8]], k=1)", "ops: in_top_k"),
    # --- ops: arrays --------------------------------------------------------------------------------------------------
    ("{}(1.0)", "ops: atleast_1d atleast_2d atleast_3d"),
    ("{}([[1, 2], [3, 4]])", "ops: array diag diagonal fliplr flipud nonzero ravel rot90 trace tril triu unstack"),
    ("{}([[1, 2], [3, 4]], axis=0)", "ops: reverse"),
    ("{}([1, 2, 3], shift=1)", "ops: roll"),
    ("{}(ab.ops.ones((2, 3, 4)), 0, 2).shape", "ops: moveaxis swapaxes"),
    ("{}((2, 2))", "ops: ones zeros"),
    ("{}((2, 2)).shape", "ops: empty"),
    ("{}(3)", "ops: identity tri"),
    ("{}([1, 2], 7)", "ops: full_like"),
    ("{}([1, 2], [3, 4])", "ops: append dot inner outer vdot meshgrid"),
    ("{}([[1, 2], [3, 4]])", "ops: hstack vstack"),
    ("{}(ab.ops.ones((2, 4)), 2)[0].shape", "ops: hsplit vsplit"),
    ("{}(ab.ops.ones((2, 2, 4)), 2)[0].shape", "ops: dsplit"),
    ("{}([10, 20, 30], [True, False, True])", "ops: boolean_mask"),
    ("{}([10, 20, 30], 1)", "ops: get_item"),
    ("{}([[1, 2], [3, 4]], [[1], [0]], axis=1)", "ops: take_along_axis"),
    ("{}([1, 2, 3], [[0], [0]], [10, 20])", "ops: scatter_add"),
    ("{}([[0], [2]], [10, 20], (4,))", "ops: scatter_nd"),
    (
        "{}([1, 2, 3], [[0], [2]], [5, 1])",
        "ops: tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub "
        "tensor_scatter_nd_update",
    ),
    ("{}([3, 1, 2], [0, 0, 1])", "ops: segment_min"),
    ("{}(ab.ops.zeros(3), (1,), [5.0])", "ops: slice_update"),
    ("{}(5)", "ops: blackman hamming hanning"),
    # --- ops: linear algebra, Fourier ---------------------------------------------------------------------------------
    ("{}([[4.0, 2.0], [2.0, 3.0]])", "ops: cholesky det inv logdet norm"),
    ("{}([[4.0, 2.0], [2.0, 3.0]], [[1.0], [2.0]])", "ops: solve"),
    ("{}([[4.0, 0.0], [2.0, 3.0]], [[1.0], [2.0]], lower=True)", "ops: solve_triangular"),
    ("{}([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])", "ops: cross"),
    ("{}(ab.ops.ones((2, 3)), ab.ops.ones((3, 2)), axes=1)", "ops: tensordot"),
    ("{}((ab.ops.ones((2, 2)), ab.ops.zeros((2, 2))))", "ops: fft2 ifft ifft2"),
    # --- ops: checks, control flow, losses ----------------------------------------------------------------------------
    ("{}([3.0], [2.0])", "ops: assert_greater assert_greater_equal"),
    ("{}([1.0], [2.0])", "ops: assert_less assert_less_equal"),
    ("{}([1.0, 2.0])", "ops: assert_non_negative assert_positive"),
    ("{}([[1.0, 2.0]], 2)", "ops: assert_rank"),
    ("{}([[1.0, 2.0]], (1, 2))", "ops: assert_shape"),
    ("{}(ab.ops.all(ab.ops.ones(2) > 0))", "ops: assert_true"),
    ("{}(0, 3, lambda i, total: total + i, 0)", "ops: fori_loop"),
    ("{}(1, [lambda x: x, lambda x: x * 2], 3.0)", "ops: switch"),
    ("len({}()) > 400", "ops: registered_ops"),
    # --- losses and metrics -------------------------------------------------------------------------------------------
    (
        "{}([[0.0, 1.0]], [[0.25, 0.75]])",
        "ops: categorical_crossentropy | losses: binary_crossentropy binary_focal_crossentropy "
        "categorical_crossentropy "
        "categorical_focal_crossentropy categorical_hinge cosine_similarity hinge "
        "huber kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error "
        "mean_squared_logarithmic_error "
        "poisson squared_hinge tversky | metrics: binary_accuracy categorical_accuracy",
    ),
    (
        "{}()([[0.0, 1.0]], [[0.25, 0.75]])",
        "losses: BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy "
        "CategoricalHinge CosineSimilarity Dice Hinge Huber KLDivergence LogCosh "
        "MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson "
        "SquaredHinge "
        "Tversky",
    ),
    ("{}()([1], [[0.25, 0.75]])", "losses: SparseCategoricalCrossentropy CategoricalGeneralizedCrossEntropy"),
    ("{}([1], [[0.25, 0.75]], q=0.7)", "losses: categorical_generalized_cross_entropy"),
    ("{}()([[1, 2]], ab.ops.ones((1, 4, 3))).shape", "losses: CTC"),
    ("{}([[1, 2]], ab.ops.ones((1, 4, 3))).shape", "losses: ctc"),
    ("{}()([0, 0, 1], [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])", "losses: Circle"),
    ("{}([0, 0, 1], [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])", "losses: circle"),
    ("{}(ab.losses.mean_squared_error)([[1.0]], [[3.0]])", "losses: LossFunctionWrapper"),
    (
        "metric = {}()\nmetric.update_state([[0.0, 1.0], [1.0, 0.0]], [[0.25, 0.75], [0.4, 0.6]])\nmetric.result()",
        "metrics: BinaryAccuracy BinaryCrossentropy CategoricalAccuracy CategoricalCrossentropy CategoricalHinge "
        "CosineSimilarity FalseNegatives FalsePositives Hinge KLDivergence LogCoshError MeanAbsoluteError "
        "MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson Recall RootMeanSquaredError "
        "SquaredHinge TopKCategoricalAccuracy TrueNegatives TruePositives",
    ),
    ("metric = {}()\nmetric.update_state([1, 2], [1, 3])\nmetric.result()", "metrics: Accuracy"),
    (
        "metric = {}()\nmetric.update_state([1, 0], [[0.25, 0.75], [0.4, 0.6]])\nmetric.result()",
        "metrics: SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy",
    ),
    (
        "metric = {}(ab.losses.mean_squared_error)\nmetric.update_state([[1.0]], [[3.0]])\nmetric.result()",
        "metrics: MeanMetricWrapper",
    ),
    (
        "metric = {}(num_classes=2, target_class_ids=[1])\nmetric.update_state([[0.0, 1.0]], [[0.25, 0.75]])\n"
        "metric.result()",
        "metrics: OneHotIoU",
    ),
    (
        "metric = {}(num_classes=2)\nmetric.update_state([[0.0, 1.0]], [[0.25, 0.75]])\nmetric.result()",
        "metrics: OneHotMeanIoU",
    ),
    ("{}([1], [[0.25, 0.75]], k=1)", "metrics: sparse_top_k_categorical_accuracy"),
    ("{}([[0.0, 1.0]], [[0.25, 0.75]], k=1)", "metrics: top_k_categorical_accuracy"),
    # --- objects by name ----------------------------------------------------------------------------------------------
    ('{}("mse")', "losses: get | metrics: get"),
    ('{}("adam")', "optim: get"),
    ('{}("l2")', "regularizers: get"),
    ('{}("max_norm")', "constraints: get"),
    ("{}(ab.layers.ReLU())['class_name']", "layers: serialize"),
    ("{}(ab.layers.serialize(ab.layers.ReLU(name='r')))", "layers: deserialize"),
    ("{}(ab.losses.Huber())['class_name']", "losses: serialize"),
    ("{}(ab.losses.serialize(ab.losses.Huber())).name", "losses: deserialize"),
    ("{}(ab.metrics.Mean())['class_name']", "metrics: serialize"),
    ("{}(ab.metrics.serialize(ab.metrics.Mean(name='m')))", "metrics: deserialize"),
    ("{}(ab.optim.SGD())['class_name']", "optim: serialize"),
    ("{}(ab.optim.serialize(ab.optim.SGD(name='sgd')))", "optim: deserialize"),
    ("{}(ab.initializers.Ones())['class_name']", "initializers: serialize"),
    ("{}(ab.initializers.serialize(ab.initializers.Ones()))((2,))", "initializers: deserialize"),
    ("{}(ab.regularizers.L2(0.1))['class_name']", "regularizers: serialize"),
    ("{}(ab.regularizers.serialize(ab.regularizers.L2(0.1)))([2.0])", "regularizers: deserialize"),
    ("{}(ab.constraints.NonNeg())['class_name']", "constraints: serialize"),
    ("{}(ab.constraints.serialize(ab.constraints.NonNeg()))([-1.0])", "constraints: deserialize"),
    ("{}(ab.activations.relu)", "activations: serialize"),
    ('{}("relu")([-1.0, 1.0])', "activations: deserialize"),
    # --- optimizers, initializers, regularizers, constraints ----------------------------------------------------------
    (
        "w = ab.Variable([1.0, 2.0])\noptimizer = {}(learning_rate=0.1)\noptimizer.apply([ab.ops.ones(2)], "
        "[w])\nw.numpy()",
        "optim: SGD Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion Momentum Nadam RMSprop",
    ),
    (
        "w = ab.Variable([[1.0, 2.0], [3.0, 5.0]])\noptimizer = {}(learning_rate=0.1)\n"
        "optimizer.apply([ab.ops.eye(2)], [w])\nw.numpy().shape",
        "optim: Muon",
    ),
    (
        "{}(seed=1)((2, 3))",
        "initializers: GlorotNormal GlorotUniform HeNormal HeUniform LecunNormal LecunUniform Orthogonal RandomNormal "
        "RandomUniform TruncatedNormal VarianceScaling",
    ),
    ("{}()((2, 2))", "initializers: Identity Ones Zeros"),
    ("{}(0.5)((2, 2))", "initializers: Constant"),
    (
        "class Halves({}):\n    def __call__(self, shape, dtype=None):\n        return ab.ops.full(shape, 0.5)\n"
        "ab.layers.Dense(2, kernel_initializer=Halves())([[1.0, 1.0]])",
        "initializers: Initializer",
    ),
    ("{}(0.1)([1.0, -2.0])", "regularizers: L1 L2"),
    ("{}(0.1)([[1.0, 0.0], [1.0, 1.0]])", "regularizers: OrthogonalRegularizer"),
    (
        "class Highest({}):\n    def __call__(self, x):\n        return 0.1 * ab.ops.max(x)\nHighest()([1.0, 2.0])",
        "regularizers: Regularizer",
    ),
    ("{}()([[3.0, 0.0], [4.0, -1.0]])", "constraints: MaxNorm MinMaxNorm NonNeg UnitNorm"),
    (
        "class Below({}):\n    def __call__(self, w):\n        return ab.ops.minimum(w, 1.0)\nBelow()([0.5, 2.0])",
        "constraints: Constraint",
    ),
    # --- random numbers -----------------------------------------------------------------------------------------------
    ("{}((2, 2), seed=1)", "random: bernoulli normal truncated_normal"),
    ("{}((2, 2), 0, 10, seed=1)", "random: randint"),
    ("{}((2,), 2.0, 3.0, seed=1)", "random: beta"),
    ("{}((1, 2), (3,))", "random: draw_normal draw_truncated_normal draw_uniform"),
    ("{}((1, 2), (3,), 0, 10)", "random: draw_integers"),
    ("{}([[0.0, 5.0]], 3, seed=1)", "random: categorical"),
    ("{}(ab.ops.ones(4), 0.5, seed=1)", "random: dropout"),
    ("{}([1, 2, 3, 4], seed=1)", "random: shuffle"),
    # --- layers -------------------------------------------------------------------------------------------------------
    (
        "{}()(ab.ops.convert_to_tensor([[-1.0, 2.0]]))",
        "layers: ELU Identity LeakyReLU PReLU ReLU Softmax LayerNormalization BatchNormalization",
    ),
    ('{}("tanh")(ab.ops.ones((1, 2)))', "layers: Activation"),
    (
        "{}()([ab.ops.ones((1, 2)), 2 * ab.ops.ones((1, 2))])",
        "layers: Add Average Concatenate Maximum Minimum Multiply Subtract",
    ),
    (
        "{}([ab.ops.ones((1, 2)), 2 * ab.ops.ones((1, 2))])",
        "layers: add average concatenate maximum minimum multiply subtract",
    ),
    ("{}(axes=1)([ab.ops.ones((1, 2)), 2 * ab.ops.ones((1, 2))])", "layers: Dot"),
    ("{}([ab.ops.ones((1, 2)), 2 * ab.ops.ones((1, 2))], axes=1)", "layers: dot"),
    ("{}(0.5, seed=1)(ab.ops.ones((1, 4)), training=True)", "layers: Dropout GaussianNoise"),
    ("{}(0.5, seed=1)(ab.ops.ones((1, 2, 3)), training=True)", "layers: SpatialDropout1D"),
    ("{}()(ab.ops.ones((2, 3, 4))).shape", "layers: Flatten"),
    ("{}((4, 3))(ab.ops.ones((2, 12))).shape", "layers: Reshape"),
    ("{}((2, 1))(ab.ops.ones((2, 3, 4))).shape", "layers: Permute"),
    ("{}(3)(ab.ops.ones((2, 4))).shape", "layers: RepeatVector"),
    ("{}(1 / 255)([[0.0, 255.0]])", "layers: Rescaling"),
    ("{}(lambda x: x * 2)(ab.ops.ones((1, 2)))", "layers: Lambda"),
    ("{}(4)(ab.ops.ones((2, 5, 3))).shape", "layers: GRU SimpleRNN"),
    (
        "output, states = {}(4)(ab.ops.ones((2, 3)), [ab.ops.zeros((2, 4))])\noutput.shape",
        "layers: GRUCell SimpleRNNCell",
    ),
    (
        "cell = {}(4)\noutput, states = cell(ab.ops.ones((2, 3)), [ab.ops.zeros((2, 4))] * 2)\noutput.shape",
        "layers: LSTMCell",
    ),
    (
        "cell = {}([ab.layers.GRUCell(4), ab.layers.LSTMCell(3)])\nab.layers.RNN(cell)(ab.ops.ones((2, 5, 6))).shape",
        "layers: StackedRNNCells",
    ),
    ("{}(ab.layers.GRU(4))(ab.ops.ones((2, 5, 3))).shape", "layers: Bidirectional"),
    ("{}(ab.layers.Dense(4))(ab.ops.ones((2, 5, 3))).shape", "layers: TimeDistributed"),
    ("{}()(ab.ops.convert_to_tensor([[[0.0, 0.0], [1.0, 2.0]]]))", "layers: Masking"),
    ("ab.Sequential([{}(shape=(3,)), ab.layers.Dense(2)]).output_shape", "layers: InputLayer"),
    ("{}(shape=(None, 3), dtype='float32')", "layers: InputSpec"),
    (
        "{}(0.5, seed=1)(255 * ab.ops.ones((1, 8, 8, 3)), training=True).shape",
        "layers: RandomColorDegeneration RandomContrast RandomSharpness RandomZoom RandomShear RandomErasing "
        "RandomGaussianBlur RandomPerspective",
    ),
    ("{}(4, 4)(ab.ops.ones((1, 8, 8, 3)), training=True).shape", "layers: RandomCrop"),
    # --- training, settings -------------------------------------------------------------------------------------------
    ("{}(monitor='val_loss', patience=3).patience", "callbacks: EarlyStopping ReduceLROnPlateau"),
    ("{}('training.csv').filename", "callbacks: CSVLogger"),
    ("callback = {}(lambda epoch, rate: rate * 0.9)\ncallback.schedule(0, 1.0)", "callbacks: LearningRateScheduler"),
    (
        "class Losses({}):\n    def on_epoch_end(self, epoch, logs=None):\n        print(epoch, sorted(logs))\n"
        "model = ab.Sequential([ab.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "history = model.fit(ab.ops.ones((4, 2)), ab.ops.ones((4, 1)), verbose=0, callbacks=[Losses()])",
        "callbacks: Callback",
    ),
    (
        "model = ab.Sequential([ab.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "history = model.fit(ab.ops.ones((4, 2)), ab.ops.ones((4, 1)), epochs=3, verbose=0)\n"
        "isinstance(history, {}), len(history.history['loss'])",
        "callbacks: History",
    ),
    (
        "{}()",
        "config: backend convolution_precision dtype_policy epsilon floatx image_data_format "
        "is_flash_attention_enabled is_nnx_enabled is_traceback_filtering_enabled max_epochs max_steps_per_epoch "
        "memory_budget | utils: is_interactive_logging_enabled",
    ),
    ("{}(7)", "utils: set_random_seed"),
    ("{}()", "utils: clear_session | saving: get_custom_objects"),
    ("{}(ab.ops.ones((4, 4, 3)).numpy()).size", "utils: array_to_img"),
    ("{}(lambda total, x: total + x, ab.ops.arange(4))", "ab: foldl foldr"),
    ("{}([(False, lambda: 1.0), (True, lambda: 2.0)], default=lambda: 3.0)", "ab: case"),
    ("{}() == ab.__version__", "ab: version"),
    ("{}('float32').name", "dtype_policies: get"),
    ("{}(ab.dtype_policies.DTypePolicy('mixed_float16'))['class_name']", "dtype_policies: serialize"),
    (
        "{}(ab.dtype_policies.serialize(ab.dtype_policies.DTypePolicy('mixed_float16'))).compute_dtype",
        "dtype_policies: deserialize",
    ),
    ("{}('mixed_float16')\nab.layers.Dense(2).compute_dtype\n{}('float32')", "config: set_dtype_policy"),
    ("{}('anabranch')", "config: set_backend"),
    (
        "{}()",
        "config: disable_flash_attention enable_flash_attention disable_traceback_filtering "
        "enable_traceback_filtering | debugging: check_numerics disable_check_numerics check_indices "
        "disable_check_indices",
    ),
    ("{}(1e-6)\nab.config.epsilon()\n{}(1e-7)", "config: set_epsilon"),
    ("{}('float64')\nab.config.floatx()\n{}('float32')", "config: set_floatx"),
    ("queue = {}(10, 'float32')\nqueue.enqueue(3.0)\nqueue.dequeue()", "queues: FIFOQueue"),
    (
        "queue = {}(10, min_after_dequeue=0, dtypes='float32', seed=1)\nqueue.enqueue(3.0)\nqueue.dequeue()",
        "queues: RandomShuffleQueue",
    ),
    ("{}(7)", "random: set_global_seed"),
    ("{}(ab.layers.Dense)", "saving: get_registered_name"),
    ("{}('Dense') is None", "saving: get_registered_object"),
    (
        "def twice(x):\n    return 2 * x\nwith {}({'twice': twice}):\n    layer = ab.layers.Activation('twice')\n"
        "layer([[1.0]])",
        "saving: CustomObjectScope",
    ),
    (
        '{}(weights=None, include_top=False, pooling="avg").output_shape',
        "applications: ConvNeXtSmall DenseNet169 DenseNet201 EfficientNetB1 EfficientNetV2B1 ResNet101 ResNet101V2 "
        "ResNet152 ResNet152V2",
    ),
    ("graph = ab.Graph()\nwith graph.as_default():\n    same = {}() is graph\nsame", "ab: get_default_graph"),
]


def examples() -> dict[str, str]:
    """Return the code of each example by the public name that it is for, without "ab."."""
    found: dict[str, str] = {}
    beside = (run_path(str(Path(__file__).with_name(f"examples_of_{kind}.py"))) for kind in ("methods", "tensorflow"))
    for code, kinds in itertools.chain(_EXAMPLES, *(each["EXAMPLES"] for each in beside)):
        for kind in kinds.split("|"):
            module, _, names = kind.strip().partition(": ")
            for name in names.split():
                public = name if module == "ab" else f"{module}.{name}"
                found[public] = code.replace("{}", f"ab.{public}")
    return found


def value_of(name: str) -> Any:
    """Return what is public by `name`, without "ab."."""
    return attrgetter(name)(anabranch)


def run(code: str) -> str:
    """Return the session that runs `code` in an interpreter: each statement behind ``>>>``, and what it prints."""
    names: dict[str, object] = {}
    lines: list[str] = []
    for statement in statements(f"import anabranch as ab\n{code}"):
        first, *others = statement.split("\n")
        lines += [f">>> {first}", *(f"... {line}" for line in others)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(f"{statement}\n", "<example>", "single"), names)
        lines += output.getvalue().splitlines()
    return "\n".join(lines)


def statements(code: str) -> list[str]:
    """Return the statements of `code`; indented lines belong to the one before them."""
    starts = [place for place, line in enumerate(code.split("\n")) if not line.startswith(" ")]
    lines = code.split("\n")
    return ["\n".join(lines[start:stop]) for start, stop in itertools.pairwise([*starts, len(lines)])]
