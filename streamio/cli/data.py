"""From a command's options to the data: the listing, or the whole data set settled as one rank alone would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamio.formats.filters import FiltersOption
    from streamio.partitions import PartitionsOption
    from streamio.settle import Settled
    from streamio.storage.shards import ShardList


def listed(urls: Sequence[str], storage_options: Mapping[str, Any], format: str | None) -> ShardList:  # noqa: A002
    """The shards that a data set of these URLs has.

    Raises:
        StreamioError: Nothing found, no access, an unknown format and the like.
    """
    from streamio.formats import registry
    from streamio.storage.discovery import discover

    return discover(
        urls,
        storage_options=storage_options,
        accepts=None if format else registry.accepts,
        known=" ".join(registry.known()),
    )


def settled(
    urls: Sequence[str],
    storage_options: Mapping[str, Any],
    format: str | None,  # noqa: A002
    columns: Sequence[str] | None = None,
    filters: FiltersOption = None,
    index: str | None = "auto",
    partitions: PartitionsOption = None,
) -> Settled:
    """The shards with their splits and, where the format or an index knows them, counts; reads footers, no data.

    Args:
        urls: The data.
        storage_options: Options for fsspec.
        format: Name of the format, None to go by suffix.
        columns: Columns to read, None for all.
        filters: Which records to read; what they rule out beforehand has no splits.
        index: URL of the index, `"auto"` for the one beside the data if there is one, None for none.
        partitions: `"hive"` where folders become columns.

    Raises:
        StreamioError: As `listed`, and shards of several formats, a missing column, an index that is not there or
            does not fit, or not one record.
    """
    from streamio.dataset import StreamingDataset

    # A rank alone, whatever the environment says: a command may be started beside a training process.
    return StreamingDataset(
        list(urls),
        storage_options=storage_options,
        format=format,
        columns=columns,
        filters=filters,
        index=index,
        partitions=partitions,
        rank=0,
        world_size=1,
    ).prepare()
