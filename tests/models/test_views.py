"""Views as strides and as indices: each names the elements that NumPy's view names."""

from __future__ import annotations

from itertools import chain
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ekc.ir import expr as ex
from ekc.models.elements import is_dense, list_views, map_index, merge_factors, split_factors, trace_view
from tests.models.drawn_graphs import list_factorings
from tests.models.sketch import Sketch

SIZES = st.sampled_from([1, 2, 6, 12, 24, 36, 64])


@given(SIZES, st.data())
def test_reshaped_index_names_the_same_element(size: int, data: st.DataObject) -> None:
    shape, source = (data.draw(st.sampled_from(list_factorings(size))) for _ in range(2))
    variables = tuple(ex.Var(f"i{d}") for d in range(len(shape)))
    grid = dict(zip((v.name for v in variables), np.indices(shape), strict=True))
    found = [ex.evaluate(ex.as_expr(i), grid, lambda _: 0) for i in map_index(variables, shape, source)]
    found = [np.broadcast_to(i, shape) for i in found]
    assert (np.ravel_multi_index(found, source) == np.arange(size).reshape(shape)).all()


@given(st.sampled_from([(4, 6), (2, 4, 6), (1, 6, 4)]), st.data())
def test_traced_strides_name_the_elements_of_a_view(shape: tuple[int, ...], data: st.DataObject) -> None:
    s = Sketch()
    x = name = s.input(*shape)
    array = np.arange(prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 4))):
        own = s.shape(name)
        match data.draw(st.sampled_from(("reshape", "permute", "expand"))):
            case "reshape":
                target = data.draw(st.sampled_from(list_factorings(prod(own))))
                name, array = s.reshape(name, *target), array.reshape(target)
            case "permute":
                order = data.draw(st.permutations(range(len(own))))
                name, array = s.permute(name, *order), array.transpose(order)
            case "expand" if len(own) < 4:
                name, array = s.expand(name, 2, *own), np.broadcast_to(array, (2, *own))
    graph = s.build(name)
    names = list_views(name, graph)
    assert names[-1] == x
    dims = trace_view(names, x, graph)
    if dims is None:
        return
    factors = list(chain.from_iterable(dims))
    strides = np.zeros((), int)
    for size, stride in factors:
        strides = np.add.outer(strides, np.arange(size) * stride)
    assert (strides.reshape(array.shape) == array).all()
    assert is_dense(factors, prod(shape)) == np.array_equal(array.ravel(), np.arange(prod(shape)))


def test_factors_are_cut_at_divisors_alone() -> None:
    assert split_factors([(6, 4), (4, 1)], (2, 3, 4)) == (((2, 12),), ((3, 4),), ((4, 1),))
    assert split_factors([(6, 1), (4, 6)], (4, 6)) is None
    assert merge_factors([(2, 12), (3, 4), (4, 1)]) == ((24, 1),)


def test_heads_that_share_keys_are_a_factor_of_stride_0() -> None:
    s = Sketch()
    k = s.input(1, 2, 5, 3)
    shared = s.reshape(s.expand(s.reshape(k, 1, 2, 1, 5, 3), 1, 2, 4, 5, 3), 1, 8, 5, 3)
    graph = s.build(shared)
    dims = trace_view(list_views(shared, graph), k, graph)
    assert dims == ((), ((2, 15), (4, 0)), ((5, 3),), ((3, 1),))
