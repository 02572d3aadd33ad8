"""What is known of the log that the rows of a dataset were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.end_flags import EndConflict, end_conflict
from rl_training.data.fields import KNOWN


@dataclass(frozen=True, eq=False)
class Origin:
    """Facts about a log that its rows do not show any more; the audit asks for them."""

    end_conflict: EndConflict | None = None
    """Rows whose end flags contradicted each other."""
    ignored: tuple[str, ...] = ()
    """Names of arrays that no field was made of."""
    row_numbers: NDArray[np.int64] | None = None
    """Of a table: where each row that was read stands in it, counted from 1; rows that were dropped are among them."""

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Origin:
        """That of rows made of named arrays, which `read_fields` can read."""
        return cls(end_conflict(arrays), tuple(name for name in arrays if name not in KNOWN))


UNKNOWN = Origin()
"""That of rows that are not all of a log, or in another order."""
