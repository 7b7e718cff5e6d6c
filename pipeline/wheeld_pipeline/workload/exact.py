"""Logarithm, exponential and the normal quantile, bit for bit the same on every machine.

`numpy.log` and `numpy.exp` differ in the last bit between processors (they have one version per
instruction set) and between libraries. The functions here consist of additions, multiplications,
divisions and square roots only, each of which IEEE 754 defines to the bit, and of exact scaling by
powers of two. So workers on different machines of one cluster make the same requests.

Sources: fdlibm's e_log.c and e_exp.c (error below one unit in the last place); Wichura's algorithm
AS 241, PPND16 (relative error about 1e-16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LN2_HIGH: Final = 6.93147180369123816490e-01
_LN2_LOW: Final = 1.90821492927058770002e-10
_SQRT_HALF: Final = 0.7071067811865476
_LOG: Final = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_EXP: Final = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_MIDDLE: Final = (
    (
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
_TAIL: Final = (
    (
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL: Final = (
    (
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)


def log(x: npt.ArrayLike) -> Any:
    part, power = np.frexp(np.asarray(x, np.float64))
    small = part < _SQRT_HALF
    part = np.where(small, part * 2.0, part)
    k = (power - small).astype(np.float64)
    f = part - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * _horner(_LOG[1::2], w)
    odd = z * _horner(_LOG[0::2], w)
    half = 0.5 * f * f
    return k * _LN2_HIGH - ((half - (s * (half + (odd + even)) + k * _LN2_LOW)) - f)


def exp(x: npt.ArrayLike) -> Any:
    x = np.asarray(x, np.float64)
    k = np.rint(x * 1.44269504088896338700)
    high, low = x - k * _LN2_HIGH, k * _LN2_LOW
    r = high - low
    t = r * r
    c = r - t * _horner(_EXP, t)
    y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    return np.ldexp(y, k.astype(np.int32))


def normal_quantile(p: Floats) -> Floats:
    """The standard normal deviate with a share `p` below it, 0 < p < 1, shape (n,)."""
    q = p - 0.5
    found = q * _ratio(_MIDDLE, 0.180625 - q * q)
    outside = np.flatnonzero(np.abs(q) > 0.425)
    q = q[outside]
    p = p[outside]
    r = np.sqrt(-log(np.where(q < 0, p, 1.0 - p)))
    tail = np.where(r <= 5.0, _ratio(_TAIL, r - 1.6), _ratio(_FAR_TAIL, r - 5.0))
    found[outside] = np.where(q < 0, -tail, tail)
    return found


def _ratio(coefficients: tuple[Sequence[float], Sequence[float]], x: Floats) -> Floats:
    above, below = coefficients
    return _horner(above, x) / _horner(below, x)


def _horner(coefficients: Sequence[float], x: Floats) -> Floats:
    """The polynomial with these coefficients, the lowest first."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total
