"""Approximate functions of float32 (`ex2.approx`), and the exactly rounded ones (`div.rn`).

Each is computed in float64 and rounded once to float32, which errs by 0.5 ulp and a hair: closer than
the hardware, and always inside the error that the PTX ISA allows ("Floating-Point Instructions", bounds
as given below each function). What the ISA fixes exactly is kept: the results for zeros, infinities and
NaN, and `.ftz`, which flushes subnormal operands and results to zeros of their sign.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import Array, Double, canonicalize_nan, flush, flush_operand, narrow

Single = NDArray[np.float32]


def _apply_in_float64(function: Callable[..., Double], *operands: Array, ftz: bool = False) -> Single:
    """A float64 function of float32 operands, rounded to float32."""
    with np.errstate(all="ignore"):
        wide = [flush_operand(np.asarray(operand), ftz).astype(np.float64) for operand in operands]
        result = canonicalize_nan(np.asarray(function(*wide)).astype(np.float32))
    return flush(result) if ftz else result


def _divide_by_reciprocal(a: Double, b: Double) -> Double:
    """The quotient, by a reciprocal that is zero for large divisors."""
    return np.where(np.abs(b) > 2.0**126, a * np.copysign(0.0, b), a / b)


ex2_approx = partial(_apply_in_float64, np.exp2)
"""`ex2.approx.f32`: 2 to the power a; the ISA allows a relative error of 2**-22 (2 ulp)."""
lg2_approx = partial(_apply_in_float64, np.log2)
"""`lg2.approx.f32`: the ISA allows 2**-22 absolute in (0.5, 2), 2**-22 relative elsewhere.

Zeros of either sign give -inf, negative numbers NaN.
"""
rcp_approx = partial(_apply_in_float64, np.reciprocal)
"""`rcp.approx.f32`: 1 / a; the ISA allows 1 ulp (2**-23 relative). A zero gives inf of its sign."""
rsqrt_approx = partial(_apply_in_float64, lambda x: 1.0 / np.sqrt(x))
"""`rsqrt.approx.f32`: the ISA allows 2**-22.9 relative. -0 gives -inf, negative numbers NaN."""
sqrt_approx = partial(_apply_in_float64, np.sqrt)
"""`sqrt.approx.f32`: the ISA allows 2**-23 relative. -0 gives -0, negative numbers NaN."""
sin_approx = partial(_apply_in_float64, np.sin)
"""`sin.approx.f32`: the ISA allows 2**-20.5 absolute in [-2 pi, 2 pi]; infinities give NaN.

Outside that range the hardware's error grows with a; this one's does not.
"""
cos_approx = partial(_apply_in_float64, np.cos)
"""`cos.approx.f32`: the ISA allows 2**-20.5 absolute in [-2 pi, 2 pi]; infinities give NaN."""
tanh_approx = partial(_apply_in_float64, np.tanh)
"""`tanh.approx.f32`: the ISA allows 2**-11 relative; subnormal numbers are kept (PTX has no `.ftz` here)."""
div_full = partial(_apply_in_float64, np.divide)
"""`div.full.f32`: the ISA allows 2 ulp over the full range."""
div_approx = partial(_apply_in_float64, _divide_by_reciprocal)
"""`div.approx.f32`: a times the reciprocal of b; the ISA allows 2 ulp for |b| in [2**-126, 2**126].

For |b| in (2**126, 2**128) the reciprocal is zero: the result is 0, or NaN for an infinite a.
"""


def _apply_rounded(
    function: Callable[..., Double], *operands: Array, mode: str = "rn", ftz: bool = False
) -> Single:
    """A quotient or a root, rounded once.

    An inexact result differs from every float32 number by more than float64 errs (2**-48 relative). So
    float64 shows on which side of that number the result is."""
    singles = [flush_operand(np.asarray(operand, np.float32), ftz) for operand in operands]
    with np.errstate(all="ignore"):
        if mode == "rn":
            result = canonicalize_nan(np.asarray(function(*singles)))
        else:
            exact = np.asarray(function(*(single.astype(np.float64) for single in singles)))
            result = canonicalize_nan(narrow(exact, np.float32, mode))
    return flush(result) if ftz else result


rcp_ieee = partial(_apply_rounded, np.reciprocal)
"""`rcp{.rn,.rz,.rm,.rp}.f32`: 1 / a, IEEE 754."""
sqrt_ieee = partial(_apply_rounded, np.sqrt)
"""`sqrt{.rn,.rz,.rm,.rp}.f32`: IEEE 754."""
div_ieee = partial(_apply_rounded, np.divide)
"""`div{.rn,.rz,.rm,.rp}.f32`: a / b, IEEE 754."""
