"""Whether an epoch that was begun goes on under its grid, or what is left of it is dealt to another one.

Decided once in the parent where a place is taken up; what is left, and in which order, is the plan's business.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from streamio.errors import StatusError
from streamio.loader.indexed import turn_of
from streamio.loader.spec import Start
from streamio.loader.state import cursor_from_json
from streamio.plan import START, Generation

if TYPE_CHECKING:
    from streamio.loader.spec import Spec
    from streamio.loader.state import State
    from streamio.plan import Cursor, Grid

logger = logging.getLogger(__name__)


def taken_up(state: State, spec: Spec, *, fixed: bool, refuse: bool) -> Start:
    """Where the epoch of a state goes on, under the running topology.

    Args:
        state: The state, of an indexed data set.
        spec: The data set; its grid is that of the running topology, or the one that the user has fixed.
        fixed: Whether the user has.
        refuse: Whether another order of what is left is not wanted.

    Raises:
        StatusError: It would have to be another order, and `refuse`.
    """
    start, grid = state.start, state.start.grid
    if grid is None:  # nothing of the epoch has been delivered
        return replace(start, k=0)
    misfit = _misfit(grid, state, spec, fixed=fixed)
    if not misfit:
        return start
    if refuse:
        raise StatusError(
            f"The saved place does not fit this loader: {misfit}. What is left of the epoch would come in another "
            f'order, and on_topology_change="raise" refuses that. Go on with {grid.rows} rows, {grid.columns} columns '
            f'and a global batch of {grid.batch}, or use on_topology_change="deal".'
        )
    first = replace(start, k=0)
    turn, k = turn_of(start.k, spec.steps(first), spec.steps(first, 1)) if spec.end == "cycle" else (0, start.k)
    ks = state.ks if len(set(state.ks)) > 1 else (k,)
    past = (() if turn else start.past) + ((Generation(grid, ks),) if any(ks) else ())
    goes_on = replace(start, k=0, grid=spec.grid, past=past, turn=start.turn + turn)
    plan = spec.indexed_plan(goes_on)
    _tell(
        spec,
        "%s: %d of %d slots of epoch %d are left and are dealt anew, to %d rows and %d columns in batches of %d. Each "
        "comes once, in another order than it would have.",
        misfit[0].upper() + misfit[1:],
        plan.left, plan.slots, start.epoch, spec.grid.rows, spec.grid.columns, spec.grid.batch,
    )  # fmt: skip
    return goes_on


def taken_up_streamed(state: State, spec: Spec, *, refuse: bool) -> Start:
    """The same for a streamed data set, whose lanes are one a rank and worker.

    Args:
        state: The state.
        spec: The data set.
        refuse: Whether another order of what is left is not wanted.

    Raises:
        StatusError: It would have to be another order, and `refuse`; or the state does not hold the lanes it takes.
    """
    start, grid, now = state.start, state.start.grid, spec.grid
    rows, columns = int(state.plan["rows"]), int(state.plan["columns"])
    same = rows == now.rows and columns == now.columns
    own = same or (grid is None and rows == now.rows)
    missing = [rank for rank in ([state.rank] if own else range(rows)) if str(rank) not in state.lanes]
    # One rank's state between epochs tells nothing of the others either: they may still be in the one before.
    if missing and (grid is not None or start.epoch or state.step):
        raise StatusError(
            f"The state holds the lanes of ranks {', '.join(state.lanes)} but not those of rank {missing[0]}. "
            f"A streamed data set needs each rank's own state, or `Checkpoints`, which gathers them."
        )
    if grid is None:
        return start
    if same:
        return replace(start, grid=now)
    if refuse:
        raise StatusError(
            f"The saved place does not fit this loader: it was saved by {grid.rows} ranks with {grid.columns} columns "
            f"of lanes each, and these are {now.rows} and {now.columns} now. What is left of the epoch would come in "
            'another order, and on_topology_change="raise" refuses that.'
        )
    cursors: dict[tuple[int, int], Cursor] = {}
    ended = set()
    for rank in range(grid.rows):
        lanes = state.lanes[str(rank)]
        for column in range(grid.columns):
            cursors[rank, column] = cursor_from_json(lanes["cursors"][column]) if lanes["cursors"] else START
        ended |= {(rank, int(column)) for column in lanes["ended"]}
    rest = spec.at(start).streamed_plan(start).left(cursors, ended)
    _tell(
        spec,
        "The run had %d ranks with %d columns of lanes each, and has %d and %d now: %d begun windows and %d of %d "
        "splits are left of epoch %d and are dealt anew. Each record comes once, in another order than it would have.",
        grid.rows, grid.columns, now.rows, now.columns,
        len(rest.windows), len(rest.entries), len(spec.splits), start.epoch,
    )  # fmt: skip
    return Start(start.epoch, grid=now, rest=rest)


def _tell(spec: Spec, message: str, *values: object) -> None:
    """A warning, of one rank for all."""
    logger.log(logging.DEBUG if spec.rank else logging.WARNING, message, *values)


def _misfit(grid: Grid, state: State, spec: Spec, *, fixed: bool) -> str:
    """Why an epoch can't go on under its grid; "" where it can."""
    if grid.batch != spec.grid.batch:
        return f"the global batch was {grid.batch} and is {spec.grid.batch} now"
    if fixed and (grid.rows, grid.columns) != (spec.grid.rows, spec.grid.columns):
        return f"the lanes were {grid.rows, grid.columns} and lanes={spec.grid.rows, spec.grid.columns} now"
    if grid.rows % spec.world_size:
        return f"the lanes have {grid.rows} rows, which {spec.world_size} ranks can't share"
    if len(set(state.ks)) > 1 and len(state.ks) != spec.world_size:
        return f"{len(state.ks)} ranks stood at different batches, and there are {spec.world_size} now"
    return ""
