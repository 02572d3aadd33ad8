"""Probabilities and quantiles of the normal and of Student's distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

NORMAL = NormalDist()
SMALLEST = 1e-300  # stands for zero in the continued fraction, which divides by its terms


def student_cdf(x: float, df: float) -> float:
    """Probability that a Student variable with `df` degrees of freedom is at most x."""
    _check_degrees(df)
    if math.isnan(x):
        return math.nan
    if math.isinf(x):
        return float(x > 0)
    if math.isinf(df):
        return NORMAL.cdf(x)
    outside = x * x / (df + x * x)
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + x * x), outside)
    return tail if x < 0 else 1 - tail


def student_quantile(p: float, df: float) -> float:
    """The x below which a Student variable with `df` degrees of freedom falls with probability p."""
    _check_degrees(df)
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, got {p}")
    if p == 0.5:
        return 0.0
    if p > 0.5:
        return -student_quantile(1 - p, df)
    low, high = -1.0, 0.0
    while student_cdf(low, df) > p:
        low, high = 2 * low, low
    # Bisection to the last bit: it cannot fail in the heavy tails of one or two degrees of freedom.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_cdf(middle, df) < p else (low, middle)
    return high


def _check_degrees(df: float) -> None:
    if not df > 0:
        raise ValueError(f"degrees of freedom must be above 0, got {df}")


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Regularised incomplete beta function at x; `rest` is 1 - x, given apart since the difference loses digits."""
    if x == 0 or rest == 0:
        return float(rest == 0)
    # The continued fraction converges fast below this point; above it, so does that of the mirrored function.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, rest, x)
    factor = math.exp(a * _log(x, rest) + b * _log(rest, x) - _log_beta(a, b))
    return factor * _beta_fraction(a, b, x) / a


def _log(x: float, rest: float) -> float:
    """Logarithm of x, from whichever of x and 1 - x is small and so has all its digits."""
    return math.log1p(-rest) if rest < 0.5 else math.log(x)


def _log_beta(a: float, b: float) -> float:
    """Logarithm of the beta function, where one of the arguments is 1/2."""
    large = max(a, b)
    if large < 20:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    # log gamma(large + 1/2) - log gamma(large) by its series: the difference of two large numbers loses digits.
    ratio = (
        0.5 * math.log(large) - 1 / (8 * large) + 1 / (192 * large**3) - 1 / (640 * large**5) + 17 / 14336 / large**7
    )
    return math.lgamma(0.5) - ratio


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by the modified method of Lentz."""
    numerator, denominator = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = denominator
    for k in range(1, 1000):
        even = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        for term in (even, odd):
            denominator = 1 / _nonzero(1 + term * denominator)
            numerator = _nonzero(1 + term / numerator)
            value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > SMALLEST else SMALLEST
