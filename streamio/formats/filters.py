"""`filters=`: what the user may write, checked and made into pyarrow's expression, and evaluated on partition values.

On row groups and rows it is applied in `rowfilter.py`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamio.errors import FormatError
from streamio.formats.parquet_footer import first_line
from streamio.partitions import Partitions, folder_of, one_a_folder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray

    from streamio.storage.shards import ShardList

Term: TypeAlias = "tuple[str, str, Any]"
FiltersOption: TypeAlias = "Sequence[Term] | Sequence[Sequence[Term]] | pc.Expression | None"

_OPERATORS = ("==", "=", "!=", "<", ">", "<=", ">=", "in", "not in")


@dataclass(frozen=True)
class Filters:
    """A filter as the user gave it.

    Attributes:
        expression: What pyarrow makes of it.
        text: The same for a status: equal for equal filters, on every machine.
        groups: Terms that are joined by "and", in groups that are joined by "or"; empty for an expression.
    """

    expression: pc.Expression = field(compare=False)
    text: str
    groups: tuple[tuple[Term, ...], ...] = field(default=(), compare=False)

    def on_keys(self, partitions: Partitions | None) -> tuple[pc.Expression | None, bool]:
        """What it says of partition keys alone.

        Returns:
            A condition that all rows that match fulfil, None if there is none; and whether it is the whole filter.

        Raises:
            FormatError: It compares a key with a value of another type.
        """
        if partitions is None:
            return None, False
        if not self.groups:
            return (self.expression, True) if _binds(self.expression, partitions.schema) else (None, False)
        groups = [tuple(term for term in group if term[0] in partitions.keys) for group in self.groups]
        whole = sum(map(len, groups)) == sum(map(len, self.groups))
        if not all(groups):
            return None, False
        expression = _expression(groups)
        _binds(expression, partitions.schema)
        return expression, whole


def checked(option: Any) -> Filters | None:
    """A user's filter, checked by itself.

    Args:
        option: `[("lang", "==", "en"), ("score", ">", 0.5)]` (all of these), a list of such lists (one of these), or a
            `pyarrow.compute.Expression`. None for no filter.

    Raises:
        TypeError: It is none of these.
        ValueError: A term that can't be, named.
    """
    if option is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(option, pc.Expression):
        return Filters(option, _text(option))
    groups = _groups(option)
    text = " or ".join(
        f"({' and '.join(f'{name} {operator} {value!r}' for name, operator, value in group)})" for group in groups
    )
    try:
        return Filters(_expression(groups), text, groups)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"filters={option!r}: pyarrow can't take this: {first_line(error)}.") from error


def chosen(expression: pc.Expression, partitions: Partitions, shards: ShardList) -> NDArray[np.bool_]:
    """Of each shard, whether its partition values match."""
    import pyarrow as pa

    folders = one_a_folder(shard.url for shard in shards)
    matches = evaluated(pa.table(partitions.columns([*folders])), expression)
    number = {folder_of(url): at for url, at in folders.items()}
    return matches[[number[folder_of(shard.url)] for shard in shards]]


def evaluated(table: pa.Table, expression: pc.Expression) -> NDArray[np.bool_]:
    """Of each row, whether it matches; where that is null, it does not."""
    matches = projected(table, expression).fill_null(False)
    return np.asarray(matches.to_numpy(), dtype=bool)


def projected(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    """The values of an expression, in this thread."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    options = acero.ProjectNodeOptions([expression], ["matches"])
    return acero.Declaration("project", options, [source]).to_table(use_threads=False)["matches"]


def check_truth(kind: pa.DataType) -> None:
    """Raise FormatError where an expression's values are not true or false."""
    import pyarrow as pa

    if not pa.types.is_boolean(kind):
        raise FormatError(f"filters= gives values of type {kind}, and must be true or false for each row.")


def _groups(option: Any) -> tuple[tuple[Term, ...], ...]:
    shapes = '[("lang", "==", "en"), ("score", ">", 0.5)], a list of such lists, or a pyarrow.compute.Expression'
    if not isinstance(option, (list, tuple)):
        raise TypeError(f"filters={option!r} must be {shapes}.")
    if not option:
        raise ValueError("filters is empty: say None for no filter.")
    nested = [isinstance(entry, list) for entry in option]
    if any(nested) and not all(nested):
        raise ValueError(f"filters={option!r} mixes terms and lists of terms: use {shapes}.")
    groups = option if all(nested) else [option]
    for group in groups:
        if not group:
            raise ValueError(f"filters={option!r} has an empty list in it, which would take all rows: say None.")
        for term in group:
            _check_term(term)
    return tuple(tuple(_normal(*term) for term in group) for group in groups)


def _check_term(term: Any) -> None:
    import pyarrow.compute as pc

    if not isinstance(term, (tuple, list)) or len(term) != 3:
        raise ValueError(
            f'filters= has {term!r} for a term: use (column, operator, value), as in ("lang", "==", "en").'
        )
    name, operator, value = term
    if not isinstance(name, str):
        raise TypeError(f"filters= has {name!r} for a column in {term!r}: use its name.")
    if operator not in _OPERATORS:
        raise ValueError(f"filters= has {operator!r} for an operator in {term!r}: use one of {', '.join(_OPERATORS)}.")
    if isinstance(value, pc.Expression):
        raise TypeError(f"filters= compares columns in {term!r}: give all of it as a pyarrow.compute.Expression.")
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    if operator in ("in", "not in") and not several:
        raise ValueError(f"filters= has {value!r} for a list of values in {term!r}: {operator!r} takes a list.")
    if operator not in ("in", "not in") and (several or value is None):
        advice = "use 'in' or 'not in'" if several else f'use pyarrow.compute.field("{name}").is_null()'
        raise ValueError(f"filters= compares with {value!r} in {term!r}: {advice}.")


def _normal(name: str, operator: str, value: Any) -> Term:
    """A term in its one form: sets have no order of their own, and numpy's numbers are shown in several ways."""
    if operator in ("in", "not in"):
        values = value.to_pylist() if hasattr(value, "to_pylist") else [_plain(one) for one in value]
        return name, operator, sorted(values, key=repr) if isinstance(value, (set, frozenset)) else values
    return name, "==" if operator == "=" else operator, _plain(value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufUS" else value


def _expression(groups: Sequence[Sequence[Term]]) -> pc.Expression:
    import pyarrow.parquet as pq

    return pq.filters_to_expression([list(group) for group in groups])


def _text(expression: pc.Expression) -> str:
    """An expression as text; pyarrow leaves out the middle of long lists of values, for which a digest stands."""
    import pyarrow as pa

    try:
        whole = pickle.dumps(expression, protocol=5)
    except (pa.ArrowException, NotImplementedError):
        raise ValueError(f'filters={expression} must name its columns: pyarrow.compute.field("name").') from None
    text = str(expression)
    return text if "..." not in text else f"{text} sha256:{hashlib.sha256(whole).hexdigest()[:16]}"


def _binds(expression: pc.Expression, schema: pa.Schema) -> bool:
    """Whether an expression speaks of these columns only.

    Raises:
        FormatError: It does, but not with values of their types.
    """
    import pyarrow as pa

    try:
        kind = projected(schema.empty_table(), expression).type
    except pa.ArrowInvalid:  # a name that is not there
        return False
    except (pa.ArrowException, TypeError) as error:
        told = ", ".join(f"{each.name}: {each.type}" for each in schema)
        raise FormatError(
            f"filters= does not go with the partition keys ({told}): {first_line(error)}. Their values are strings, "
            "unless partitions= gives types by key."
        ) from error
    check_truth(kind)
    return True
