"""The lane grid: R rows that ranks share out, G columns that workers share out, and the global batch B.

Global batch k takes `b = B / R` slots from each lane of column `k mod G`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamio.errors import TopologyError


@dataclass(frozen=True, slots=True)
class Grid:
    """A lane grid.

    Attributes:
        rows: R, lanes that a global batch is made of.
        columns: G, lanes that consecutive global batches go through.
        batch: B, slots of a global batch over all rows.

    Raises:
        TopologyError: A number below 1, or rows that do not divide the batch.
    """

    rows: int
    columns: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "batch"):
            if getattr(self, name) < 1:
                raise TopologyError(f"A lane grid needs {name} of 1 or more, not {getattr(self, name)}.")
        if self.batch % self.rows:
            below = self.batch - self.batch % self.rows
            near = " or ".join(str(n) for n in (below, below + self.rows) if n)
            raise TopologyError(
                f"A global batch of {self.batch} can't be cut evenly into {self.rows} rows (one a rank). "
                f"The nearest that can: {near}."
            )

    @property
    def share(self) -> int:
        """b, slots that each row gives to a global batch."""
        return self.batch // self.rows

    def rows_of(self, rank: int, world_size: int) -> range:
        """The neighbouring rows that a rank serves.

        Raises:
            TopologyError: The world size does not divide the rows.
        """
        if self.rows % world_size:
            raise TopologyError(
                f"{world_size} ranks can't share {self.rows} rows of lanes evenly; the rows have to be a multiple "
                "of the ranks."
            )
        each = self.rows // world_size
        return range(rank * each, (rank + 1) * each)

    def workers(self, wanted: int) -> int:
        """How many of `wanted` workers (0 counts as one) can share the columns: the largest divisor of G up to it."""
        return max(w for w in range(1, max(1, min(wanted, self.columns)) + 1) if self.columns % w == 0)
