"""Examples of public names whose docstrings have none; the reference shows them with what they print when it is built.

Names of one kind share an example. Where `{}` is in it, it stands for the name as users write it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from operator import attrgetter
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
    ("{}('channels_last')", "config: set_image_data_format"),
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
    # --- names of TensorFlow ------------------------------------------------------------------------------------------
    (
        "{}([0.25, 0.5])",
        "tf: acos asin asinh atan atanh cos cosh exp identity ones_like rank sin sinh size stop_gradient sqrt tan tanh "
        "zeros_like convert_to_tensor | tf.math: erf erfc erfinv expm1 log log1p reciprocal rsqrt | tf.nn: l2_loss",
    ),
    (
        "{}([-1.5, 0.75])",
        "tf: abs ceil floor negative round sigmoid sign square | tf.math: log_sigmoid softplus softsign | "
        "tf.nn: elu gelu leaky_relu relu relu6 selu silu",
    ),
    ("{}([1.5, 2.0])", "tf: acosh"),
    ("{}([1.0 + 2.0j])", "tf.math: angle conj imag real"),
    ("{}([1.0, float('nan'), float('inf')])", "tf.math: is_finite is_inf is_nan"),
    (
        "{}([4.0, 2.0], [2.0, 3.0])",
        "tf: add atan2 divide equal greater greater_equal less less_equal maximum minimum multiply not_equal pow "
        "subtract meshgrid | tf.math: divide_no_nan floordiv floormod squared_difference",
    ),
    ("{}([True, True, False], [True, False, False])", "tf: logical_and logical_or | tf.math: logical_xor"),
    ("{}([True, False])", "tf: logical_not"),
    ("{}([[1.0, 2.0], [3.0, 4.0]])", "tf: add_n shape transpose unstack"),
    (
        "{}([[1.0, 2.0], [3.0, 5.0]], axis=1)",
        "tf: argmax argmin argsort reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_std "
        "reduce_sum reduce_variance cumsum sort norm | tf.math: count_nonzero cumprod l2_normalize "
        "reduce_euclidean_norm | tf.nn: softmax log_softmax",
    ),
    ("{}([[True, False], [True, True]], axis=1)", "tf: reduce_all reduce_any"),
    ("{}([10, 20, 30], [True, False, True])", "tf: boolean_mask"),
    ("{}([1, 2], (2, 2))", "tf: broadcast_to"),
    ("{}([1.5, 2.0], 'int32')", "tf: cast"),
    ("clipped, norm = {}([[3.0], [4.0]], 1.0)\nnorm", "tf: clip_by_global_norm"),
    ("{}([3.0, 4.0], 1.0)", "tf: clip_by_norm"),
    ("{}([-1.0, 0.5, 2.0], 0.0, 1.0)", "tf: clip_by_value"),
    ("{}([[1, 2], [3]], axis=0)", "tf: concat"),
    ("{}([[1, 2], [3, 4]], axis=1)", "tf: stack"),
    ("{}('ij,jk->ik', [[1.0, 2.0]], [[3.0], [4.0]])", "tf: einsum"),
    ("{}([[1.0, 2.0]], [[3.0], [4.0]])", "tf: matmul"),
    ("{}([[1.0, 2.0]], [[3.0], [4.0]], 1)", "tf: tensordot"),
    ("{}([1, 2], 1)", "tf: expand_dims"),
    ("{}([[1], [2]], 1)", "tf: squeeze"),
    ("{}(2)", "tf: eye"),
    ("{}((2, 2), 7)", "tf: fill"),
    ("{}((2, 2))", "tf: ones zeros TensorShape"),
    ("{}((None, 3), 'float32')", "tf: TensorSpec"),
    ("{}([10, 20, 30], [2, 0])", "tf: gather"),
    ("{}([[1, 2], [3, 4]], [[0, 1], [1, 0]])", "tf: gather_nd"),
    ("{}([[1.0], [2.0]])", "tf: identity_n"),
    ("{}(0.0, 1.0, 3)", "tf: linspace"),
    ("{}([1, 0], 3)", "tf: one_hot"),
    ("{}([1, 2], [[1, 2]])", "tf: pad"),
    ("{}(1, 7, 2)", "tf: range"),
    ("{}([1, 2], 2)", "tf: repeat"),
    ("{}([1, 2], [2])", "tf: tile"),
    ("{}([1, 2, 3, 4], (2, 2))", "tf: reshape"),
    ("{}([[1, 2], [3, 4]], axis=[0])", "tf: reverse"),
    ("{}([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1)", "tf: reverse_sequence"),
    ("{}([1, 2, 3], shift=1, axis=0)", "tf: roll"),
    ("{}([[0], [2]], [10, 20], (4,))", "tf: scatter_nd"),
    ("{}([1, 2, 3], [[0], [2]], [5, 1])", "tf: tensor_scatter_nd_add tensor_scatter_nd_update"),
    ("{}([1.0, 2.0, 3.0], [0.5, 2.0])", "tf: searchsorted"),
    ("{}([1, 3], 4)", "tf: sequence_mask"),
    ("{}([1, 2, 3, 4], [1], [2])", "tf: slice"),
    ("{}([1, 2, 3, 4], 2)", "tf: split"),
    ("{}([3, 1, 3])", "tf: unique"),
    ("{}([True, False], 1, 0)", "tf: where"),
    ("{}(True, lambda: 1.0, lambda: 2.0)", "tf: cond"),
    ("{}([(False, lambda: 1.0), (True, lambda: 2.0)], default=lambda: 3.0)", "tf: case"),
    ("{}(1, [lambda: 1.0, lambda: 2.0])", "tf: switch_case"),
    ("{}(lambda i: i < 5, lambda i: (i + 2,), (0,))", "tf: while_loop"),
    ("{}(lambda x: x * x, ab.ops.arange(4))", "tf: map_fn vectorized_map"),
    ("{}(lambda total, x: total + x, ab.ops.arange(4))", "tf: foldl foldr scan"),
    ("{}([1, 2, 3], [0, 1, 0], 2)", "tf: dynamic_partition"),
    ("{}([[0, 2], [1]], [[1, 3], [2]])", "tf: dynamic_stitch"),
    ("{}([[1.0, 2.0]], (None, 2))", "tf: ensure_shape"),
    ("{}()", "tf: executing_eagerly"),
    ("with {}('cpu:0'):\n    total = ab.tf.add(1.0, 2.0)\ntotal", "tf: device"),
    ("with {}():\n    total = ab.tf.add(1.0, 2.0)\ntotal", "tf: init_scope"),
    ("square = {}(lambda x: x * x)\nsquare(3.0)", "tf: function"),
    (
        "def slope(x):\n    return {}(x * x, [x])[0]\nab.tf.function(slope)(3.0)",
        "tf: gradients",
    ),
    ("{}(lambda x: x + 1, [[1.0, 2.0]], 'float32')", "tf: numpy_function py_function"),
    ("{}(True)", "tf: Assert"),
    ("{}([1, 1, 3])", "tf.math: bincount"),
    ("{}([0, 1, 1], [0, 1, 0])", "tf.math: confusion_matrix"),
    ("{}([1, 0], [[0.1, 0.9], [0.2, 0.8]], k=1)", "tf.math: in_top_k"),
    ("{}([1.0, 3.0, 2.0], k=2)", "tf.math: top_k"),
    ("{}([0.0, 1.0])", "tf.math: zero_fraction"),
    (
        "{}([3.0, 1.0, 2.0], [0, 0, 1])",
        "tf.math: segment_max segment_mean segment_min segment_prod segment_sum",
    ),
    (
        "{}([3.0, 1.0, 2.0], [1, 0, 1], 2)",
        "tf.math: unsorted_segment_max unsorted_segment_mean unsorted_segment_min unsorted_segment_prod "
        "unsorted_segment_sum",
    ),
    ("{}(ab.ops.ones((1, 4, 3)), 2, 2, 'VALID').shape", "tf.nn: avg_pool1d max_pool1d"),
    ("{}(ab.ops.ones((1, 4, 4, 3)), 2, 2, 'VALID').shape", "tf.nn: avg_pool max_pool"),
    ("{}(ab.ops.ones((1, 4, 4, 4, 3)), 2, 2, 'VALID').shape", "tf.nn: avg_pool3d max_pool3d"),
    ("{}([[1.0], [3.0]], 2.0, 1.0, None, None, 1e-3)", "tf.nn: batch_normalization"),
    ("{}([[1.0, 2.0]], [10.0, 20.0])", "tf.nn: bias_add"),
    ("{}(ab.ops.ones((1, 4, 3)), ab.ops.ones((2, 3, 5)), 1, 'SAME').shape", "tf.nn: conv1d"),
    ("{}(ab.ops.ones((1, 4, 4, 3)), ab.ops.ones((2, 2, 3, 5)), 1, 'SAME').shape", "tf.nn: conv2d"),
    ("{}(ab.ops.ones((1, 4, 4, 4, 3)), ab.ops.ones((2, 2, 2, 3, 5)), 1, 'SAME').shape", "tf.nn: conv3d"),
    (
        "{}(ab.ops.ones((1, 2, 2, 5)), ab.ops.ones((2, 2, 3, 5)), (1, 4, 4, 3), 2).shape",
        "tf.nn: conv2d_transpose",
    ),
    ("{}(ab.ops.ones((1, 4, 4, 3)), ab.ops.ones((2, 2, 3, 1)), [1, 1, 1, 1], 'SAME').shape", "tf.nn: depthwise_conv2d"),
    (
        "depthwise, pointwise = ab.ops.ones((2, 2, 3, 1)), ab.ops.ones((1, 1, 3, 5))\n"
        "{}(ab.ops.ones((1, 4, 4, 3)), depthwise, pointwise, [1, 1, 1, 1], 'SAME').shape",
        "tf.nn: separable_conv2d",
    ),
    ("{}(ab.ops.ones(4), 0.5, seed=1)", "tf.nn: dropout"),
    ("{}(ab.ops.eye(3), [2, 0])", "tf.nn: embedding_lookup"),
    ("{}([[1.0, 2.0], [3.0, 5.0]], axes=[0])", "tf.nn: moments"),
    (
        "weights, biases = ab.ops.zeros((10, 4)), ab.ops.zeros((10,))\n"
        "{}(weights, biases, [[3]], ab.ops.ones((1, 4)), num_sampled=4, num_classes=10).shape",
        "tf.nn: nce_loss sampled_softmax_loss",
    ),
    (
        "{}(labels=[[0.0, 1.0]], logits=[[0.0, 2.0]])",
        "tf.nn: sigmoid_cross_entropy_with_logits softmax_cross_entropy_with_logits",
    ),
    ("{}(labels=[1], logits=[[0.0, 2.0]])", "tf.nn: sparse_softmax_cross_entropy_with_logits"),
    ("{}([[0.0, 1.0]], [[0.0, 2.0]], pos_weight=2.0)", "tf.nn: weighted_cross_entropy_with_logits"),
    (
        "{}([[4.0, 2.0], [2.0, 3.0]])",
        "tf.linalg: adjoint cholesky det diag_part eigh eigvalsh inv logdet matrix_transpose pinv qr slogdet svd trace",
    ),
    ("{}([[4.0, 2.0], [2.0, 3.0]], 0, 1)", "tf.linalg: band_part"),
    ("{}([[2.0, 0.0], [1.0, 1.0]], [[1.0], [2.0]])", "tf.linalg: cholesky_solve solve triangular_solve"),
    ("{}([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])", "tf.linalg: cross"),
    ("{}([1.0, 2.0])", "tf.linalg: diag"),
    ("{}([[3.0], [4.0]])", "tf.linalg: global_norm"),
    ("{}([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])", "tf.linalg: matvec"),
    ("{}([[[0.25, 0.5, 0.75]]], 0.25)", "tf.image: adjust_brightness adjust_contrast adjust_hue adjust_saturation"),
    ("{}([[[0.25, 0.5, 0.75]]], 0.25, seed=1).shape", "tf.image: random_brightness random_hue"),
    ("{}([[[0.25, 0.5, 0.75]]], 0.5, 1.5, seed=1).shape", "tf.image: random_contrast random_saturation"),
    ("{}([[[0.25, 0.5, 0.75]]])", "tf.image: hsv_to_rgb rgb_to_grayscale rgb_to_hsv per_image_standardization"),
    ("{}([[[0.25]]])", "tf.image: grayscale_to_rgb"),
    ("{}([[[0.25, 0.5, 0.75]]], 'uint8')", "tf.image: convert_image_dtype"),
    ("{}(ab.ops.ones((4, 4, 3)), 0.5).shape", "tf.image: central_crop"),
    ("{}(ab.ops.ones((4, 4, 3)), 1, 1, 2, 3).shape", "tf.image: crop_to_bounding_box"),
    ("{}(ab.ops.ones((4, 4, 3)), 1, 1, 6, 6).shape", "tf.image: pad_to_bounding_box"),
    ("{}(ab.ops.ones((4, 4, 3)), 6, 2).shape", "tf.image: resize_with_crop_or_pad"),
    ("{}(ab.ops.ones((4, 4, 3)), (2, 2)).shape", "tf.image: resize"),
    ("{}(ab.ops.ones((4, 4, 3)), (2, 2, 3), seed=1).shape", "tf.image: random_crop"),
    (
        "{}([[[1], [2]], [[3], [4]]])[:, :, 0]",
        "tf.image: flip_left_right flip_up_down rot90 transpose",
    ),
    ("{}([[[1], [2]], [[3], [4]]], seed=1)[:, :, 0]", "tf.image: random_flip_left_right random_flip_up_down"),
    (
        "{}(ab.ops.ones((1, 4, 4, 3)), [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], 'VALID').shape",
        "tf.image: extract_patches",
    ),
    (
        "import io, numpy as np\nfile = io.BytesIO()\nab.utils.array_to_img(np.zeros((4, 4, 3))).save(file, 'PNG')\n"
        "{}(np.frombuffer(file.getvalue(), 'uint8')).shape",
        "tf.image: decode_image decode_jpeg decode_png",
    ),
    ("{}((2, 2), seed=1)", "tf.random: normal truncated_normal uniform"),
    ("{}((2,), 2.0, seed=1)", "tf.random: gamma"),
    ("{}([[0.0, 5.0]], 3, seed=1)", "tf.random: categorical"),
    ("{}([1, 2, 3, 4], seed=1)", "tf.random: shuffle"),
    ("{}(7)", "tf.random: set_seed"),
    ('{}(["a word", "one"])', "tf.strings: split"),
    ('{}("word", "UTF-8")', "tf.strings: unicode_split"),
    ('{}(" A word ")', "tf.strings: lower strip upper"),
    ('{}(["ab12", "12"], "[a-z]+[0-9]+")', "tf.strings: regex_full_match"),
    ("next({}(ab.__file__).as_numpy_iterator())", "tf.data: TextLineDataset"),
    ("{}([1.0], [1.0])", "tf.debugging: assert_equal assert_greater_equal assert_less_equal"),
    ("{}([3.0], [2.0])", "tf.debugging: assert_greater"),
    ("{}([1.0], [2.0])", "tf.debugging: assert_less"),
    ("{}([1.0, 2.0])", "tf.debugging: assert_non_negative assert_positive"),
    ("{}([1.0, 2.0], 'of the activations')", "tf.debugging: assert_all_finite check_numerics"),
    ("{}([[1.0, 2.0]], 2)", "tf.debugging: assert_rank"),
    ("{}(1.0)", "tf.debugging: assert_scalar"),
    ("{}([1.0, 2.0], 'float32')", "tf.debugging: assert_type"),
    ("{}(ab.ops.ones(2))", "tf.debugging: is_numeric_tensor"),
    ("{}(ab.__file__)[:4]", "tf.io: read_file"),
    ('{}("CPU")', "tf.config: list_physical_devices"),
    ('{}("/physical_device:CPU:0", "CPU").device_type', "tf.config: PhysicalDevice"),
]


def examples() -> dict[str, str]:
    """Return the code of each example by the public name that it is for, without "ab."."""
    found: dict[str, str] = {}
    for code, kinds in _EXAMPLES:
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
