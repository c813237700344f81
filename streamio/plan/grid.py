"""The lane grid: R rows that ranks share out, G columns that workers share out, and the global batch B.

Global batch k takes `b = B / R` slots from each lane of column `k mod G`.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    @classmethod
    def of(cls, lanes: tuple[int, int] | None, batch: int, *, world_size: int, workers: int) -> Grid:
        """The grid that somebody chose, else a row a rank and a column a worker; errors as for `fixed`."""
        if lanes is None:
            return cls(world_size, workers, batch)
        return cls.fixed(*lanes, batch, world_size=world_size, workers=workers)

    @classmethod
    def fixed(cls, rows: int, columns: int, batch: int, *, world_size: int, workers: int) -> Grid:
        """A grid that somebody chose, checked against who is to serve it.

        Raises:
            TopologyError: The ranks can't share the rows, the rows not the batch, or the workers not the columns;
                with the nearest that fit.
        """
        if rows < 1 or columns < 1:
            raise TopologyError(f"lanes=({rows}, {columns}): give rows and columns of 1 or more.")
        if batch % world_size:
            raise TopologyError(
                f"A global batch of {batch} can't be shared by {world_size} ranks. The nearest that can: "
                f"{_near(batch, range(world_size, 2 * batch + world_size, world_size))}."
            )
        if rows % world_size or batch % rows:
            fitting = [each for each in range(world_size, batch + 1, world_size) if batch % each == 0]
            raise TopologyError(
                f"lanes=({rows}, {columns}): the rows have to be a multiple of the {world_size} ranks and to divide "
                f"the global batch of {batch}. The nearest that do: {_near(rows, fitting)}."
            )
        if columns % max(1, workers):
            raise TopologyError(
                f"lanes=({rows}, {columns}): {workers} workers can't share {columns} columns evenly. The nearest "
                f"columns that fit: {_near(columns, range(workers, columns + 2 * workers, workers))}; the nearest "
                f"workers: {_near(workers, [each for each in range(1, columns + 1) if columns % each == 0])}."
            )
        return cls(rows, columns, batch)

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


def _near(wanted: int, fitting: Sequence[int]) -> str:
    """The nearest numbers below and above."""
    below, above = [each for each in fitting if each <= wanted], [each for each in fitting if each > wanted]
    return " or ".join(str(each) for each in (below[-1:] + above[:1]))
