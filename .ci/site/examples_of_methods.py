"""Examples of methods of the classes that are used most, in the form of `examples.py`, which reads them."""

from __future__ import annotations

_MODEL = "import numpy as np\nx, y = np.ones((4, 2)), np.ones((4, 1))\nmodel = ab.Sequential([ab.layers.Dense(1)])\n"
_COMPILED = f"{_MODEL}model.compile('sgd', 'mse', metrics=['mae'])\n"
_FILE = "import pathlib, tempfile\nfolder = tempfile.TemporaryDirectory()\n"

# `{}` would be the method of the class, which no example calls by that name.
EXAMPLES: list[tuple[str, str]] = [
    # --- models -------------------------------------------------------------------------------------------------------
    (f"{_COMPILED}model.optimizer.name, model.loss", "ab: Model.compile"),
    (
        f"{_COMPILED}history = model.fit(x, y, batch_size=2, epochs=3, verbose=0)\nlen(history.history['loss'])",
        "ab: Model.fit",
    ),
    (f"{_COMPILED}loss, error = model.evaluate(x, y, verbose=0)\nloss >= 0", "ab: Model.evaluate"),
    (f"{_MODEL}model.predict(x, verbose=0).shape", "ab: Model.predict"),
    (f"{_MODEL}model.predict_on_batch(x).shape", "ab: Model.predict_on_batch"),
    (f"{_COMPILED}sorted(model.train_on_batch(x, y, return_dict=True))", "ab: Model.train_on_batch"),
    (f"{_COMPILED}sorted(model.test_on_batch(x, y, return_dict=True))", "ab: Model.test_on_batch"),
    (f"{_COMPILED}sorted(model.get_compile_config())[:3]", "ab: Model.get_compile_config"),
    (
        f"{_COMPILED}copy = ab.models.clone_model(model)\n"
        "copy.compile_from_config(model.get_compile_config())\ncopy.loss",
        "ab: Model.compile_from_config",
    ),
    (f"{_COMPILED}history = model.fit(x, y, verbose=0)\nmodel.reset_metrics()", "ab: Model.reset_metrics"),
    (
        f"{_COMPILED}history = model.fit(x, y, verbose=0)\nsorted(model.get_metrics_result())",
        "ab: Model.get_metrics_result",
    ),
    (
        "class Doubled(ab.Model):\n"
        "    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):\n"
        "        return 2 * super().compute_loss(x, y, y_pred, sample_weight, training)\n"
        "inputs = ab.Input((2,))\nmodel = Doubled(inputs, ab.layers.Dense(1)(inputs))\nmodel.compile('sgd', 'mse')\n"
        "model.train_on_batch(ab.ops.ones((4, 2)), ab.ops.ones((4, 1))) >= 0",
        "ab: Model.compute_loss",
    ),
    (
        "class Twice(ab.Model):\n    def call(self, inputs):\n        return 2 * inputs\nTwice()([[1.0, 2.0]])",
        "ab: Model.call",
    ),
    (f"{_MODEL}model.build((None, 2))\nmodel.get_layer(index=0).units", "ab: Model.get_layer"),
    (f"{_MODEL}model.build((None, 2))\nmodel.count_params()", "ab: Model.build"),
    (f"{_MODEL}model.build((None, 2))\nmodel.summary()", "ab: Model.summary"),
    (
        f"{_FILE}{_MODEL}model.build((None, 2))\npath = pathlib.Path(folder.name, 'model.keras')\nmodel.save(path)\n"
        "same = ab.models.load_model(path)\nbool(np.all(same(x) == model(x)))\nfolder.cleanup()",
        "ab: Model.save",
    ),
    (
        f"{_FILE}{_MODEL}model.build((None, 2))\npath = pathlib.Path(folder.name, 'model.weights.h5')\n"
        "model.save_weights(path)\nmodel.load_weights(path)\nfolder.cleanup()",
        "ab: Model.save_weights Model.load_weights",
    ),
    (
        f"{_FILE}{_MODEL}model.build((None, 2))\nversion = model.export(folder.name, verbose=0)\n"
        "served = ab.serving.load(folder.name)\nserved(x).shape\nfolder.cleanup()",
        "ab: Model.export",
    ),
    (
        "inputs = ab.Input((2,))\nmodel = ab.Model(inputs, ab.layers.Dense(1)(inputs))\n"
        "ab.models.model_from_json(model.to_json()).count_params()",
        "ab: Model.to_json",
    ),
    (
        "inputs = ab.Input((2,))\nmodel = ab.Model(inputs, ab.layers.Dense(1)(inputs))\n"
        "ab.Model.from_config(model.get_config()).count_params()",
        "ab: Model.get_config Model.from_config",
    ),
    (f"{_MODEL}model.build((None, 2))\nmodel.get_build_config()", "ab: Model.get_build_config Layer.get_build_config"),
    (
        "class Halved(ab.Model):\n    def call(self, x):\n        return 2 * x\n    def predict_step(self, data):\n"
        "        return super().predict_step(data) / 4\nHalved().predict(ab.ops.ones((1, 2)), verbose=0)",
        "ab: Model.predict_step",
    ),
    (
        "class Noted(ab.Model):\n    def test_step(self, data):\n        logs = super().test_step(data)\n"
        "        return {**logs, 'rows': ab.ops.shape(data[0])[0]}\ninputs = ab.Input((2,))\n"
        "model = Noted(inputs, ab.layers.Dense(1)(inputs))\nmodel.compile('sgd', 'mse')\n"
        "sorted(model.test_on_batch(ab.ops.ones((4, 2)), ab.ops.ones((4, 1)), return_dict=True))",
        "ab: Model.test_step",
    ),
    (
        "class Noted(ab.Model):\n    def compute_metrics(self, x, y, y_pred, sample_weight=None):\n"
        "        logs = super().compute_metrics(x, y, y_pred, sample_weight)\n"
        "        return {**logs, 'largest': ab.ops.max(y_pred)}\ninputs = ab.Input((2,))\n"
        "model = Noted(inputs, ab.layers.Dense(1)(inputs))\nmodel.compile('sgd', 'mse')\n"
        "sorted(model.train_on_batch(ab.ops.ones((4, 2)), ab.ops.ones((4, 1)), return_dict=True))",
        "ab: Model.compute_metrics",
    ),
    (
        f"{_COMPILED}bool(model.compiled_loss(ab.ops.ones((4, 1)), model(x)) >= 0)",
        "ab: Model.compiled_loss",
    ),
    (
        f"{_COMPILED}first = model.train_on_batch(x, y)\ntree = model.get_state_tree()\n"
        "second = model.train_on_batch(x, y)\nmodel.set_state_tree(tree)\nsorted(tree)",
        "ab: Model.set_state_tree",
    ),
    (f"{_COMPILED}model.build((None, 2))\nsorted(model.checkpoint_items())[:2]", "ab: Model.checkpoint_items"),
    (f"{_MODEL}model.build((None, 2))\nmodel.check_saveable()", "ab: Model.check_saveable"),
    # --- layers -------------------------------------------------------------------------------------------------------
    (
        "class Scale(ab.layers.Layer):\n    def build(self, input_shape):\n"
        "        self.scale = self.add_weight((input_shape[-1],), 'ones')\n"
        "    def call(self, x):\n        return x * self.scale\n"
        "layer = Scale()\nlayer([[1.0, 2.0]])\nlayer.count_params()",
        "layers: Layer.build Layer.call Layer.add_weight Layer.count_params",
    ),
    (
        "class Busy(ab.layers.Layer):\n    def call(self, x):\n"
        "        self.add_loss(0.1 * ab.ops.sum(ab.ops.square(x)))\n        return x\n"
        "layer = Busy()\nlayer([[1.0, 2.0]])\nlayer.losses",
        "layers: Layer.add_loss",
    ),
    ("ab.layers.Dense(4).compute_output_shape((None, 3))", "layers: Layer.compute_output_shape"),
    (
        "layer = ab.layers.Dense(4, activation='relu')\nab.layers.Dense.from_config(layer.get_config()).units",
        "layers: Layer.get_config Layer.from_config",
    ),
    (
        "layer = ab.layers.Dense(1)\nlayer.build((None, 2))\nlayer.set_weights([[[1.0], [2.0]], [3.0]])\n"
        "[weight.shape for weight in layer.get_weights()]\nlayer([[1.0, 1.0]])",
        "layers: Layer.set_weights Layer.get_weights",
    ),
    (
        "layer = ab.layers.Dense(4)\nlayer.build((None, 8))\nlayer.quantize('int8')\nlayer.kernel.dtype",
        "layers: Layer.quantize",
    ),
    ("ab.layers.Embedding(5, 2, mask_zero=True).compute_mask([[1, 0]])", "layers: Layer.compute_mask"),
    (
        "layer = ab.layers.Dense(3)\nlayer.compute_output_spec(ab.Input((2,))).shape",
        "ab: Layer.compute_output_spec",
    ),
    (
        "class Scale(ab.layers.Layer):\n    def build(self, input_shape):\n"
        "        self.scale = self.add_variable((input_shape[-1],), 'ones', name='scale')\n"
        "    def call(self, x):\n        return self.scale * x\nScale()([[1.0, 2.0]])",
        "ab: Layer.add_variable",
    ),
    (
        "layer, copy = ab.layers.Dense(3), ab.layers.Dense(3)\nlayer.build((None, 2))\n"
        "copy.build_from_config(layer.get_build_config())\ncopy.kernel.shape",
        "ab: Layer.build_from_config",
    ),
    (
        "layer = ab.layers.Dense(3)\n[(spec.name, spec.shape) for spec in layer.weight_specs((None, 2))]\n"
        "layer.build_weights(layer.weight_specs((None, 2)))\nlayer.kernel.shape",
        "ab: Layer.weight_specs Layer.build_weights",
    ),
    (
        "layer, copy = ab.layers.Dense(3), ab.layers.Dense(3)\nlayer.build((None, 2))\ncopy.build((None, 2))\n"
        "store = dict()\nlayer.save_own_variables(store)\nsorted(store)\ncopy.load_own_variables(store)\n"
        "bool(ab.ops.all(copy.kernel == layer.kernel))",
        "ab: Layer.save_own_variables Layer.load_own_variables",
    ),
    (
        f"{_FILE}words = ab.layers.StringLookup()\nwords.adapt(['a', 'b', 'a'])\nwords.save_assets(folder.name)\n"
        "again = ab.layers.StringLookup()\nagain.load_assets(folder.name)\nagain.get_vocabulary()\nfolder.cleanup()",
        "ab: Layer.save_assets Layer.load_assets",
    ),
    # --- optimizers, metrics ------------------------------------------------------------------------------------------
    (
        "w = ab.Variable([1.0, 2.0])\noptimizer = ab.optim.SGD(0.1)\noptimizer.apply([ab.ops.ones(2)], [w])\nw.numpy()",
        "optim: Optimizer.apply",
    ),
    (
        "w = ab.Variable([1.0, 2.0])\noptimizer = ab.optim.SGD(0.1)\n"
        "optimizer.apply_gradients([(ab.ops.ones(2), w)])\nw.numpy()",
        "optim: Optimizer.apply_gradients",
    ),
    (
        "class Descent(ab.optim.Optimizer):\n    def update_step(self, gradient, variable, learning_rate):\n"
        "        self.assign_sub(variable, learning_rate * gradient)\n"
        "w = ab.Variable([1.0, 2.0])\nDescent(0.1).apply([ab.ops.ones(2)], [w])\nw.numpy()",
        "optim: Optimizer.update_step Optimizer.assign_sub",
    ),
    (
        "w = ab.Variable([1.0, 2.0])\noptimizer = ab.optim.Adam()\noptimizer.build([w])\nlen(optimizer.variables)",
        "optim: Optimizer.build",
    ),
    (
        "ab.optim.SGD.from_config(ab.optim.SGD(0.5, momentum=0.9).get_config()).momentum",
        "optim: Optimizer.get_config Optimizer.from_config",
    ),
    (
        "class Largest(ab.metrics.Metric):\n    def __init__(self, **options):\n        super().__init__(**options)\n"
        "        self.largest = self.add_variable((), 'zeros', name='largest')\n"
        "    def update_state(self, y_true, y_pred, sample_weight=None):\n"
        "        self.largest.assign(ab.ops.maximum(self.largest, ab.ops.max(ab.ops.abs(y_true - y_pred))))\n"
        "    def result(self):\n        return self.largest.value\n"
        "metric = Largest()\nmetric.update_state(ab.ops.ones(2), [1.0, 3.5])\nmetric.result()",
        "metrics: Metric.add_variable Metric.update_state Metric.result",
    ),
    (
        "metric = ab.metrics.Mean()\nmetric.update_state([1.0, 3.0])\nmetric.reset_state()\nmetric.result()",
        "metrics: Metric.reset_state",
    ),
    (
        "class Ball(ab.optim.Optimizer):\n    def build(self, variables):\n        super().build(variables)\n"
        "        self.speeds = self.add_optimizer_variables(variables, 'speed')\n"
        "    def update_step(self, gradient, variable, learning_rate):\n"
        "        speed = self.slot_for(variable, self.speeds)\n"
        "        self.assign(speed, 0.9 * speed - learning_rate * gradient)\n"
        "        self.assign_add(variable, speed)\n"
        "v = ab.Variable(3.0)\nBall(learning_rate=0.5).apply([ab.ops.ones(())], [v])\nfloat(v)",
        "ab: Optimizer.add_optimizer_variables Optimizer.slot_for Optimizer.assign Optimizer.assign_add",
    ),
    (
        "optimizer = ab.optim.SGD()\noptimizer.add_variable((2,), name='sum').shape\n"
        "optimizer.add_variable_from_reference(ab.Variable([1.0, 2.0, 3.0]), 'speed').shape",
        "ab: Optimizer.add_variable Optimizer.add_variable_from_reference",
    ),
    (
        "class Cosine(ab.optim.Optimizer):\n    def begin_step(self, learning_rate):\n"
        "        return learning_rate * ab.ops.cos(ab.ops.cast(self.iterations, 'float32'))\n"
        "    def update_step(self, gradient, variable, learning_rate):\n"
        "        variable.assign(variable - learning_rate * gradient)\n"
        "v = ab.Variable(3.0)\nCosine(learning_rate=0.5).apply([ab.ops.ones(())], [v])\nfloat(v)",
        "ab: Optimizer.begin_step",
    ),
    ("ab.optim.SGD(loss_scale_factor=8.0).scale_loss(ab.ops.ones(()))", "ab: Optimizer.scale_loss"),
    (
        "w, bias = ab.Variable([1.0], name='w'), ab.Variable([1.0], name='bias')\n"
        "optimizer = ab.optim.SGD(0.5, weight_decay=0.1)\noptimizer.exclude_from_weight_decay(var_names=['bias'])\n"
        "optimizer.apply([ab.ops.zeros((1,)), ab.ops.zeros((1,))], [w, bias])\nw.numpy(), bias.numpy()",
        "ab: Optimizer.exclude_from_weight_decay",
    ),
    (
        "v = ab.Variable(4.0)\noptimizer = ab.optim.SGD(1.0, use_ema=True, ema_momentum=0.5)\n"
        "for _ in range(2):\n    optimizer.apply([ab.ops.ones(())], [v])\n"
        "float(v)\noptimizer.finalize_variable_values([v])\nfloat(v)",
        "ab: Optimizer.finalize_variable_values",
    ),
    (
        "v = ab.Variable(3.0)\noptimizer, copy = ab.optim.SGD(0.1, momentum=0.9), ab.optim.SGD(0.1, momentum=0.9)\n"
        "optimizer.apply([ab.ops.ones(())], [v])\ncopy.build([v])\n"
        "copy.set_weights([each.numpy() for each in optimizer.variables])\nint(copy.iterations)\n"
        "store = dict()\noptimizer.save_own_variables(store)\ncopy.load_own_variables(store)\nsorted(store)",
        "ab: Optimizer.set_weights Optimizer.save_own_variables Optimizer.load_own_variables",
    ),
    (
        "metric = ab.metrics.Mean(name='size')\nstate = metric.stateless_reset_state()\n"
        "state = metric.stateless_update_state(state, [2.0, 4.0])\nmetric.stateless_result(state)",
        "ab: Metric.stateless_reset_state Metric.stateless_result",
    ),
    (
        "metric = ab.metrics.BinaryAccuracy(name='right', threshold=0.7)\nconfig = metric.get_config()\n"
        "config['threshold']\nab.metrics.BinaryAccuracy.from_config(config).name",
        "ab: Metric.get_config Metric.from_config",
    ),
    # --- graphs, gradients --------------------------------------------------------------------------------------------
    (
        "with ab.Graph().as_default():\n    x = ab.placeholder((None,))\n    total = ab.ops.sum(x)\n"
        "    found = ab.Session().run(total, {x: [1.0, 2.0]})\nfound",
        "ab: Session.run",
    ),
    (
        "with ab.Graph().as_default():\n    x = ab.placeholder((None,))\n"
        "    total = ab.Session().make_callable(ab.ops.sum(x), [x])\ntotal([1.0, 2.0])",
        "ab: Session.make_callable",
    ),
    (
        "x = ab.ops.convert_to_tensor([1.0, 2.0])\nwith ab.GradientTape() as tape:\n    tape.watch(x)\n    y = x * x\n"
        "tape.gradient(y, x)",
        "ab: GradientTape.watch GradientTape.gradient",
    ),
    (
        "x = ab.ops.convert_to_tensor([1.0, 2.0])\nwith ab.GradientTape() as tape:\n    tape.watch(x)\n    y = x * x\n"
        "tape.jacobian(y, x)",
        "ab: GradientTape.jacobian",
    ),
    (
        "x = ab.ops.convert_to_tensor([[1.0, 2.0]])\nwith ab.GradientTape() as tape:\n"
        "    tape.watch(x)\n    y = x * x\ntape.batch_jacobian(y, x)",
        "ab: GradientTape.batch_jacobian",
    ),
    (
        "v = ab.Variable(3.0)\nwith ab.GradientTape() as tape:\n    y = v * v\n    with tape.stop_recording():\n"
        "        z = v * y\nlen(tape.watched_variables())",
        "ab: GradientTape.stop_recording GradientTape.watched_variables",
    ),
    (
        "array = ab.TensorArray('float32', size=2).write(0, 1.0).write(1, 2.0)\narray.read(1)\narray.stack()",
        "ab: TensorArray.write TensorArray.read TensorArray.stack",
    ),
    (
        "array = ab.TensorArray('float32', size=3).unstack([1.0, 2.0, 3.0])\narray.gather([2, 0])\narray.size()",
        "ab: TensorArray.unstack TensorArray.gather TensorArray.size",
    ),
    (
        "ab.TensorArray('float32', size=3).scatter([2, 0, 1], [1.0, 2.0, 3.0]).stack()",
        "ab: TensorArray.scatter",
    ),
    (
        "array = ab.TensorArray('float32', size=2).split([1.0, 2.0, 3.0], [1, 2])\narray.read(1)\narray.concat()",
        "ab: TensorArray.split TensorArray.concat",
    ),
    (
        "with ab.Graph().as_default():\n    x, y = ab.placeholder(()), ab.placeholder(())\n"
        "    double, total = 2 * x, 2 * x + y\n    session = ab.Session()\n"
        "    handle = session.partial_run_setup([double, total], [x, y])\n"
        "first = session.partial_run(handle, double, {x: 3.0})\nsession.partial_run(handle, total, {y: first})",
        "ab: Session.partial_run",
    ),
    (
        "with ab.Graph().as_default():\n    x = ab.placeholder((None,))\n    session = ab.Session()\n"
        "    program = session.program(ab.ops.sum(x), [x])\nprogram(ab.ops.array([1.0, 2.0]).numpy())",
        "ab: Session.program",
    ),
    (
        "with ab.Graph().as_default():\n    x = ab.placeholder(())\n    session = ab.Session()\n"
        "    found = session.run(2 * x, {x: 3.0})\nsession.statistics().runs",
        "ab: Session.statistics",
    ),
    (
        "v = ab.Variable(3.0)\nwith ab.GradientTape() as tape:\n    y = v * v\n    tape.reset()\n    z = v * y\n"
        "tape.gradient(z, v)",
        "ab: GradientTape.reset",
    ),
    (
        "array = ab.TensorArray('float32', size=2).write(0, 1.0)\nsame = array.identity()\n"
        "again = same.with_flow(array.flow)\nab.TensorArray.from_flow(again.flow).read(0)",
        "ab: TensorArray.identity TensorArray.with_flow TensorArray.from_flow",
    ),
    # --- values -------------------------------------------------------------------------------------------------------
    ("ab.ops.arange(6).reshape(2, 3)", "ab: Tensor.reshape"),
    ("ab.ops.arange(6).reshape(2, 3).transpose()", "ab: Tensor.transpose"),
    ("ab.ops.ones((2, 3, 4)).swapaxes(0, 2).shape", "ab: Tensor.swapaxes"),
    ("ab.ops.ones((2, 1, 3)).squeeze(1).shape", "ab: Tensor.squeeze"),
    ("ab.ops.eye(2).ravel()", "ab: Tensor.ravel"),
    ("ab.Input((3,)).get_shape().as_list()", "ab: Tensor.get_shape"),
    ("ab.ops.eye(2).flatten()", "ab: Tensor.flatten"),
    ("ab.ops.arange(3).astype('float32')", "ab: Tensor.astype"),
    ("x = ab.ops.arange(3)\nx.copy() is x", "ab: Tensor.copy"),
    *(
        (f"x = ab.ops.convert_to_tensor([[1.0, 2.0], [3.0, 5.0]])\nx.{name}(axis=1)", f"ab: Tensor.{name}")
        for name in ("sum", "prod", "mean", "max", "min", "any", "all", "var", "std", "argmax", "argmin", "cumsum")
    ),
    ("ab.ops.arange(4).clip(1, 2)", "ab: Tensor.clip"),
    ("ab.ops.convert_to_tensor([1.25, 2.5]).round()", "ab: Tensor.round"),
    ("ab.ops.arange(3).dot(ab.ops.arange(3))", "ab: Tensor.dot"),
    ("v = ab.Variable([1.0, 2.0])\nv.assign([3.0, 4.0])\nv.numpy()", "ab: Variable.assign Variable.numpy"),
    ("v = ab.Variable([1.0, 2.0])\nv.assign_add([3.0, 4.0])\nv.tolist()", "ab: Variable.assign_add Variable.tolist"),
    ("v = ab.Variable(1.0)\nv.assign_sub(3.0)\nv.item()", "ab: Variable.assign_sub Variable.item"),
    (
        "v = ab.Variable([1.0, 2.0])\nv.scatter_add(ab.IndexedSlices([10.0], [1], (2,)))\nv.read_value()",
        "ab: Variable.scatter_add Variable.read_value",
    ),
    (
        "v = ab.Variable([1.0, 2.0])\nv.scatter_sub(ab.IndexedSlices([10.0], [1], (2,)))\nv.numpy()",
        "ab: Variable.scatter_sub",
    ),
]
