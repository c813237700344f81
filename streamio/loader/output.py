"""What a batch is to the user: records, a dict of columns, an Arrow batch, or tensors.

Called where the batch is delivered for columns, and where it is made for records that a map gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
import torch.utils.dlpack

from streamio.errors import FormatError
from streamio.formats.parquet_footer import first_line
from streamio.formats.rows import to_records

if TYPE_CHECKING:
    import pyarrow as pa

    from streamio.loader.chunk import Values

Output: TypeAlias = Literal["records", "columns", "arrow", "torch"]


def to_batch(values: Values, output: Output) -> Any:
    """Values of slots as the user wants them.

    Args:
        values: Records (after a map: anything, for `output="records"`), or columns.
        output: `"records"`: a list of dicts. `"arrow"`: a `pyarrow.RecordBatch`. `"columns"`: a dict of columns, see
            `_column`. `"torch"`: the same with tensors in place of arrays.

    Raises:
        TypeError: Columns are wanted of records that are not dicts.
    """
    if output == "records":
        return values if isinstance(values, list) else to_records(values)
    if isinstance(values, list):
        return _of_records(values, output)
    if output == "arrow":
        return values
    leaf = _array if output == "columns" else _tensor
    return {name: _column(array, leaf) for name, array in zip(values.schema.names, values.columns, strict=True)}


def _column(array: pa.Array, leaf: Callable[[pa.Array], Any]) -> Any:
    """A column as arrays (or tensors), or as a list.

    Numbers, truth values and times are an array, without a copy where there are no nulls (of floats a null is NaN;
    other columns with nulls are lists with None). Lists of one fixed size are an array of one more dimension, lists of
    varying lengths a list of arrays. All else (text, bytes, structs) is a list of Python values.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        return _column(array.dictionary_decode(), leaf)
    if isinstance(array, pa.FixedShapeTensorArray):
        return _tensors(array, leaf)
    if isinstance(array, pa.ExtensionArray):
        is_bool = kind.extension_name == "arrow.bool8"
        return _column(array.storage.cast(pa.bool_()) if is_bool else array.storage, leaf)
    if _is_plain(kind) and (array.null_count == 0 or pa.types.is_floating(kind)):
        return leaf(array)
    if pa.types.is_fixed_size_list(kind) and array.null_count == 0:
        inner = _column(array.flatten(), leaf)
        if not isinstance(inner, list):
            return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and array.null_count == 0:
        inner = _column(array.flatten(), leaf)
        if not isinstance(inner, list):
            offsets = (array.offsets.to_numpy() - array.offsets[0].as_py()).tolist()
            return [inner[low:high] for low, high in pairwise(offsets)]
    values: list[Any] = array.to_pylist()
    return values


def _tensors(array: pa.FixedShapeTensorArray, leaf: Callable[[pa.Array], Any]) -> Any:
    """A column of tensors of one shape as one array with their dimensions; the flat lists where there are nulls."""
    values = _column(array.storage, leaf)
    if isinstance(values, list):
        return values
    shaped = values.reshape(len(array), *array.type.shape)
    order = (0, *(axis + 1 for axis in array.type.permutation or range(len(array.type.shape))))
    return shaped.permute(order) if isinstance(shaped, torch.Tensor) else shaped.transpose(order)


def _array(array: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _tensor(array: pa.Array) -> Any:
    """A tensor on the array's own memory where torch has the type, else what numpy has."""
    import pyarrow as pa

    if (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)) and array.null_count == 0:
        return torch.utils.dlpack.from_dlpack(array)
    plain = _array(array)
    return torch.from_numpy(plain if plain.flags.writeable else plain.copy()) if plain.dtype.kind in "biuf" else plain


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
    )


def _of_records(records: Sequence[Any], output: Output) -> Any:
    """Columns of records, with None where a record lacks a key of another."""
    wrong = next((record for record in records if not isinstance(record, dict)), None)
    if wrong is not None:
        raise TypeError(
            f'output="{output}" makes columns of dicts, and map returned a {type(wrong).__name__}: return a dict, '
            'or use output="records".'
        )
    names = dict.fromkeys(name for record in records for name in record)
    lists = {name: [record.get(name) for record in records] for name in names}
    if output == "arrow":
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([_arrow(name, values) for name, values in lists.items()], names=list(lists))
    columns = {name: _stacked(values) for name, values in lists.items()}
    return columns if output == "columns" else {name: _as_tensor(value) for name, value in columns.items()}


def _arrow(name: Any, values: list[Any]) -> pa.Array:
    """Values of one key as an Arrow array.

    Raises:
        FormatError: They have no Arrow type in common.
    """
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f'output="arrow" can\'t make one column of what the records of a batch have as {name!r}: '
            f'{first_line(error)}. Give them one type by map=, or use output="records" or "columns".'
        ) from error


def _stacked(values: list[Any]) -> Any:
    """Numbers and arrays of one shape as one array, tensors of one shape as one tensor; else the list."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.stack(values) if alike else values
    if isinstance(first, np.ndarray):
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return np.stack(values) if alike else values
    if isinstance(first, (bool, int, float, np.generic)) and all(type(v) is type(first) for v in values):
        array = np.array(values)
        rounded = isinstance(first, int) and array.dtype.kind == "f"  # some need 64 bits and no sign, others have one
        return values if rounded or array.dtype == object else array
    return values


def _as_tensor(value: Any) -> Any:
    """An array that torch has a type for as a tensor; the rest as it is."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value
