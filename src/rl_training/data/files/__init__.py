"""Files of datasets, one reader and writer per format."""

from __future__ import annotations

from rl_training.data.files.mapped import write_mapped

__all__ = ["write_mapped"]
