"""`Config`: named values, by attribute or by key, which can be frozen."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, MutableMapping
from typing import Any


class Config(MutableMapping[str, Any]):
    """Named values, by attribute as well as by key.

    Args:
        **kwargs: the first of them.

    Raises:
        ValueError: something is changed while it is frozen. AttributeError: there is no such name.

    >>> config = Config(learning_rate=0.5)
    >>> config.seed = 3
    >>> config["seed"], config.to_json()
    (3, '{"learning_rate": 0.5, "seed": 3}')
    >>> config.freeze()
    >>> config.seed = 4
    Traceback (most recent call last):
    ValueError: The config is frozen, so that 'seed' can't be changed. Call unfreeze() first.
    """

    _config: dict[str, Any]
    _frozen: bool

    def __init__(self, **kwargs: object) -> None:
        object.__setattr__(self, "_config", kwargs)
        object.__setattr__(self, "_frozen", False)

    @property
    def frozen(self) -> bool:
        """Test whether it can't be changed."""
        return self._frozen

    def freeze(self) -> None:
        """Refuse changes from now on."""
        object.__setattr__(self, "_frozen", True)

    def unfreeze(self) -> None:
        """Allow changes again."""
        object.__setattr__(self, "_frozen", False)

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a dict of its own."""
        return dict(self._config)

    def to_json(self) -> str:
        """Return the values as JSON."""
        return json.dumps(self._config)

    def _check_changeable(self, name: str) -> None:
        if self._frozen:
            raise ValueError(f"The config is frozen, so that {name!r} can't be changed. Call unfreeze() first.")

    def __getitem__(self, key: str) -> Any:
        return self._config[key]

    def __setitem__(self, key: str, item: Any) -> None:
        self._check_changeable(key)
        self._config[key] = item

    def __delitem__(self, key: str) -> None:
        self._check_changeable(key)
        del self._config[key]

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):  # a method or property: not a name for a value
            raise AttributeError(f"{name!r} is part of Config itself; set the value by key: config[{name!r}] = ...")
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._config:
            return self._config[name]
        close = difflib.get_close_matches(name, self._config.keys(), n=1, cutoff=0.7)
        raise AttributeError(f"Unknown attribute: {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))

    def __contains__(self, key: object) -> bool:
        return key in self._config

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._config))

    def __len__(self) -> int:
        return len(self._config)

    def __repr__(self) -> str:
        return f"<Config {self._config}>"
