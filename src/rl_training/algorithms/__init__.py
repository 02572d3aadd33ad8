"""Losses. Every module of this package that registers an algorithm is found by being here."""

from importlib import import_module
from pkgutil import iter_modules

from rl_training.algorithms.base import ALGORITHMS, Algorithm, Step, UpdateResult, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["ALGORITHMS", "Algorithm", "Step", "UpdateResult", "register"]
