"""Errors for keyword arguments that a function or a class does not have, with the name that was probably meant.

Python before 3.13 names the wrong argument alone. Functions are looked at after Python has refused a call, so that a
call that is right costs nothing more. Classes are looked at before `__init__` runs, and only where a call has keywords.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, get_overloads

_TAKES_ANY_KEYWORD = 0x08  # `inspect.CO_VARKEYWORDS`, without the import

# What other libraries, and older versions of Keras, call an argument. A name is suggested only where it exists.
_NAMES_ELSEWHERE = {
    "activation_fn": ("activation",),
    "alpha": ("negative_slope", "learning_rate"),
    "bias": ("use_bias",),
    "callback": ("callbacks",),
    "criterion": ("loss",),
    "dim": ("axis",),
    "dropout_rate": ("rate", "dropout"),
    "embedding_dim": ("output_dim",),
    "eps": ("epsilon",),
    "hidden_layer_sizes": ("units",),
    "hidden_size": ("units",),
    "keep_prob": ("rate",),
    "kernel_size": ("pool_size",),
    "lr": ("learning_rate",),
    "max_epochs": ("epochs",),
    "max_iter": ("epochs",),
    "nb_epoch": ("epochs",),
    "nesterov_momentum": ("nesterov",),
    "num_embeddings": ("input_dim",),
    "num_epochs": ("epochs",),
    "num_units": ("units",),
    "opt": ("optimizer",),
    "out_channels": ("filters",),
    "out_features": ("units",),
    "output_dim": ("units",),
    "p": ("rate",),
    "padding_idx": ("mask_zero",),
    "random_state": ("seed",),
    "requires_grad": ("trainable",),
    "size": ("shape",),
    "stride": ("strides",),
    "validation": ("validation_data",),
    "wd": ("weight_decay",),
}

_STATIC = "strings, bools and other objects of Python are part of a trace; numbers are fed"
_TRACES = "there is a trace for each kind of arguments; relax_shapes= says when one serves all shapes"
_WORKERS = "ab.utils.PyDataset(workers=, use_multiprocessing=, max_queue_size=) says how its batches are made"
_BY_INPUT = "the size comes from the input of the first call"
# What other libraries have arguments for, and no argument says here.
_LEFT_OUT = {
    "autograph": "write ab.cond and ab.while_loop, and loops over shapes and lists in Python",
    "batch_first": "inputs are (batch, steps, features), and with time_major=True (steps, batch, features)",
    "betas": "give beta_1 and beta_2, each a number",
    "bidirectional": "put the layer into layers.Bidirectional",
    "device": "`with ab.device(...)` names the device to compute on",
    "donate_argnums": "steps use memory again where they can",
    "in_axes": "the first axis is mapped: move another one there by ab.ops.moveaxis",
    "in_channels": _BY_INPUT,
    "in_features": _BY_INPUT,
    "inplace": "tensors never change, and steps use memory again where they can",
    "input_signature": _TRACES,
    "input_size": _BY_INPUT,
    "max_queue_size": _WORKERS,
    "normalized_shape": _BY_INPUT,
    "out_axes": "results have the first axis: move it by ab.ops.moveaxis",
    "num_features": _BY_INPUT,
    "num_layers": "put several layers in a row, or give layers.RNN a list of cells",
    "reduce_retracing": _TRACES,
    "static_argnames": _STATIC,
    "static_argnums": _STATIC,
    "params": "apply(gradients, variables) and minimize(loss, variables) take the variables",
    "use_multiprocessing": _WORKERS,
    "workers": _WORKERS,
}


def unexpected_keywords(name: str, unknown: Collection[str], known: Collection[str]) -> TypeError:
    """Make the error for keyword arguments that do not exist.

    Args:
        name: of the function or class that was called.
        unknown: the arguments that it does not have.
        known: those that it has.

    >>> print(unexpected_keywords("Dense", ["activaton"], ["units", "activation"]))
    Dense() got an unexpected keyword argument 'activaton'. Did you mean 'activation'?
    >>> print(unexpected_keywords("Adam", ["colour"], ["learning_rate"]))
    Adam() got an unexpected keyword argument 'colour'. Expected one of: learning_rate.
    >>> print(unexpected_keywords("LSTM", ["input_size"], ["units"]))
    LSTM() got an unexpected keyword argument 'input_size'. Leave out 'input_size': the size comes from the input of \
the first call.
    """
    wrong = sorted(unknown)
    plural = "unexpected keyword arguments" if len(wrong) > 1 else "an unexpected keyword argument"
    near = {each: meant for each in wrong if each not in _LEFT_OUT and (meant := _meant(each, known))}
    hints = [f"Leave out {each!r}: {_LEFT_OUT[each]}." for each in wrong if each in _LEFT_OUT]
    if near and len(wrong) == 1:
        hints.append(f"Did you mean {near[wrong[0]]!r}?")
    elif near:
        hints.append(f"Did you mean {', '.join(f'{meant!r} for {each!r}' for each, meant in near.items())}?")
    if not hints:
        hints.append(f"Expected one of: {', '.join(known)}." if known else "Expected none.")
    return TypeError(f"{name}() got {plural} {', '.join(map(repr, wrong))}. {' '.join(hints)}")


def nearest_name(wrong: str, known: Iterable[str], like: float = 0.6) -> str | None:
    """Return the known name that is nearest to an unknown one; None if none is near.

    Args:
        wrong: the unknown name.
        known: the names to choose from.
        like: how much of two names has to be the same, from 0 to 1.

    >>> nearest_name("momentun", ["momentum", "nesterov"])
    'momentum'
    """
    import difflib  # only errors need it

    return next(iter(difflib.get_close_matches(wrong, list(known), 1, like)), None)


def _meant(wrong: str, known: Collection[str]) -> str | None:
    for name in _NAMES_ELSEWHERE.get(wrong, ()):
        if name in known:
            return name
    return nearest_name(wrong, known)


def check_keywords(cls: type[Any], keywords: Collection[str], positional: int = 0) -> None:
    """Check that a class's `__init__` has these keyword arguments, or takes any.

    Args:
        cls: the class.
        keywords: the names of the keyword arguments.
        positional: the number of arguments that are given without names.

    Raises:
        TypeError: it would refuse one of them.
    """
    code = getattr(cls.__init__, "__code__", None)
    if code is None:
        return
    if code.co_flags & _TAKES_ANY_KEYWORD:
        # It checks them itself, but Python calls it only if no argument without a default is missing.
        defaults = cls.__init__.__defaults__ or ()
        needed = code.co_varnames[1 + positional : code.co_argcount - len(defaults)]
        if any(name not in keywords for name in needed):
            _check_names_elsewhere(cls, keywords)
        return
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    unknown = [name for name in keywords if name not in known]
    if unknown:
        raise unexpected_keywords(cls.__name__, unknown, known[1:])


def _check_names_elsewhere(cls: type[Any], keywords: Collection[str]) -> None:
    """Check that no keyword argument is one that only other libraries have."""
    known = keywords_of(cls)
    unknown = [each for each in keywords if each not in known and (each in _NAMES_ELSEWHERE or each in _LEFT_OUT)]
    if unknown:
        raise unexpected_keywords(cls.__name__, unknown, known)


def keywords_of(cls: type[Any]) -> list[str]:
    """Return the keyword arguments of a class: those of its `__init__`, and of those that it hands others to."""
    found: list[str] = []
    for each in cls.__mro__:
        init = vars(each).get("__init__")
        if init is None or each is object:
            continue
        for form in (init, *get_overloads(init)):
            found += _keywords_of_function(form)
        if not init.__code__.co_flags & _TAKES_ANY_KEYWORD:
            break
    return [name for name in dict.fromkeys(found) if name != "self"]


def _keywords_of_function(function: Callable[..., Any]) -> list[str]:
    import inspect  # only errors need it

    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]


def given_in_a_row(name: str) -> TypeError:
    """Make the error for parts that were given one by one to a class that takes a list of them."""
    return TypeError(
        f"{name} takes its parts in one list, and was given them one by one. Pass a list: {name}([a, b]) instead of "
        f"{name}(a, b)."
    )


class ChecksKeywords:
    """The base of classes that users make objects of: refuses keyword arguments that `__init__` does not have."""

    if not TYPE_CHECKING:  # type checkers and editors look at `__init__`

        def __new__(cls, *args, **kwargs):
            if kwargs:
                check_keywords(cls, kwargs, len(args))
            return super().__new__(cls)


def explain_keywords(error: TypeError, function: Callable[..., Any]) -> None:
    """Name the argument that was probably meant, if `error` is Python's refusal of a keyword argument of `function`."""
    name = function.__qualname__
    match = re.fullmatch(r"(.+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if match is None or match[1] != name:
        return
    known = [each for each in _keywords_of_function(function) if each != "self"]
    error.args = (str(unexpected_keywords(name, [match[2]], known)),)


__all__ = [
    "ChecksKeywords",
    "check_keywords",
    "explain_keywords",
    "given_in_a_row",
    "keywords_of",
    "nearest_name",
    "unexpected_keywords",
]
