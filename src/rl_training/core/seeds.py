"""Seeds and other whole numbers, as users write them."""

from __future__ import annotations

from rl_training.core.errors import ConfigError

MOST_DIGITS = 20
"""Digits of a number in an option; more than any seed has."""
MOST_SEEDS = 10_000
"""Seeds of one sweep."""


def parse_seeds(text: str, *, name: str = "--seeds") -> list[int]:
    """Seeds from '0-4', '0,3,7' or a mixture of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise ConfigError(f"{name} expects numbers and ranges such as 0-4 or 0,3,7, got {text!r}")
        if int(last or first) - int(first) >= MOST_SEEDS:
            raise ConfigError(f"{name} {text!r} names more than {MOST_SEEDS} seeds")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise ConfigError(f"{name} {text!r} names no seed: a range goes from the smaller to the larger")
    return seeds


def is_number(text: str) -> bool:
    """Whether a text is a whole number in plain digits; Unicode has others, such as superscripts."""
    return text.isascii() and text.isdigit() and len(text) < MOST_DIGITS
