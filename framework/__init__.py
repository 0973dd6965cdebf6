"""The names that a training script imports: models, training, callbacks, losses, metrics, data, saving.

Nothing is imported here, so that ``import anabranch`` stays quick; see `models`, `callbacks`, `losses`, `metrics`,
`saving`, `utils` and `config`.
"""

from ..engine.common.operator_table import load_operators_by

_METHODS = (  # of models, whose functions are above them
    *("check_saveable", "load_weights", "reduce_model", "save_model", "save_weights"),
    *("summary_html", "summary_text"),
)


def _load_method(name: str) -> None:
    from .methods import load

    load(name)


load_operators_by(_load_method, _METHODS)
