"""What each input of a function has to do with the difference between two of its values.

Shapley's rule: the inputs change one after the other from those of A to those of B, and each is credited
with what the function does at its step, in the mean over orders. So the credits add up to the difference,
an input that does not differ has none, and B against A is the opposite of A against B. Inputs that move
together change together (Owen's rule): orders keep the members of a group side by side, and the
function is seldom asked about things that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ColumnFunction = Callable[[Mapping[str, Array]], Array]
"""Columns of inputs by name, [n] each -> [n, k]."""

ORDER_COUNT = 64
"""Drawn; each is walked there and back."""


def compute_shapley_values(
    function: ColumnFunction, a: Mapping[str, float], b: Mapping[str, float], groups: Sequence[Sequence[str]]
) -> dict[str, Array]:
    """For each input of `groups`, its part [k] of function(b) - function(a).

    `a` and `b` have the same names; those in no group must not matter to the function.
    """
    moving = [[name for name in group if a[name] != b[name]] for group in groups]
    players = [name for group in moving for name in group]
    width = function({name: np.array([a[name]]) for name in a}).shape[1]
    found = {name: np.zeros(width) for group in groups for name in group}
    if not players:
        return found
    orders = _sample_orders([len(group) for group in moving])
    place = np.argsort(orders, axis=1)
    # [order, step, player]: whether the player has changed by then.
    changed = (place[:, None, :] < np.arange(len(players) + 1)[None, :, None]).reshape(-1, len(players))
    columns = {name: np.full(len(changed), value) for name, value in a.items()}
    for i, name in enumerate(players):
        columns[name] = np.where(changed[:, i], b[name], a[name])
    values = function(columns).reshape(len(orders), len(players) + 1, width)
    credit = np.take_along_axis(np.diff(values, axis=1), place[:, :, None], axis=1).mean(axis=0)
    return found | dict(zip(players, credit, strict=True))


def _sample_orders(sizes: Sequence[int]) -> NDArray[np.int64]:
    """[2 x ORDERS, players]: who changes at each step. The same ones each time."""
    random = np.random.default_rng(0)
    ends = np.cumsum(sizes)
    members = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    drawn = np.stack(
        [
            np.concatenate([random.permutation(members[g]) for g in random.permutation(len(members))])
            for _ in range(ORDER_COUNT)
        ]
    )
    return np.concatenate([drawn, drawn[:, ::-1]])
