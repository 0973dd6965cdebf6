"""Load what is above models where their methods reach it: at the first look-up of its name."""

from __future__ import annotations

from ..engine.common.operator_table import define_operators


def load(name: str) -> None:
    """Load what defines an entry of the table of operators; `framework` lists the entries."""
    if name in ("summary_html", "summary_text"):
        from .models.summary import summary_html, summary_text

        define_operators({"summary_html": summary_html, "summary_text": summary_text})
    elif name == "check_saveable":
        from .saving.saveable import check_saveable

        define_operators({name: check_saveable})
    else:
        from .saving.api import load_weights, reduce_model, save_model, save_weights

        define_operators(
            {
                "load_weights": load_weights,
                "reduce_model": reduce_model,
                "save_model": save_model,
                "save_weights": save_weights,
            }
        )
