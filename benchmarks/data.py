"""Makes the benchmarks' data with a fixed seed and uploads them, once: what a bucket holds already is not made again.

Images are incompressible bytes with a label, text is words from a vocabulary; each lies in the same shards in
every format. The formats of MosaicML and LitData are in data_peers.py, as their own writers are needed.
"""

from __future__ import annotations

import functools
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.place import DataSet, Place

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 42
REVISION = 3
"""Counted up where other data are made than before."""
SHARDS = 32
CONTENT_TYPE = "binary/octet-stream"
"""As S3 notes where nothing is said; SeaweedFS guesses, keeps text compressed and unpacks it for each range."""
ROWS = {"images": 20_000, "text": 500_000}
"""Records at scale 1."""
FORMATS = {
    "images": ("parquet", "tar", "mds", "lit"),
    "text": ("parquet", "jsonl", "jsonl.zst", "tar", "mds", "lit"),
}
OWN = ("parquet", "jsonl", "jsonl.zst", "tar")
"""Formats that need no peer."""
ROW_GROUP = 8192
VOCABULARY = 20_000
LANGUAGES = ("de", "en", "es", "fr", "it", "ja", "pt", "zh")


@dataclass(frozen=True)
class Part:
    """The records of one shard as columns; `id` counts over all shards."""

    kind: str
    number: int
    columns: dict[str, list[Any]]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict a record."""
        names = list(self.columns)
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def bucket_name(scale: float) -> str:
    """The bucket of a scale; scales and revisions have data of their own."""
    return f"bench-{REVISION}-{round(scale * 10_000):05d}"


def part(kind: str, scale: float, number: int) -> Part:
    """The records of shard `number`, the same at every call."""
    total = max(SHARDS, round(ROWS[kind] * scale))
    low, high = number * total // SHARDS, (number + 1) * total // SHARDS
    source = np.random.Generator(np.random.Philox(key=[SEED, number * 2 + (kind == "text")]))
    columns: dict[str, list[Any]] = {"id": list(range(low, high))}
    if kind == "images":
        columns["image"] = [source.bytes(int(size)) for size in source.integers(40_000, 60_000, high - low)]
        columns["label"] = source.integers(0, 1000, high - low).tolist()
    else:
        words, shares = vocabulary()
        texts = [np.searchsorted(shares, source.random(int(n))) for n in source.integers(40, 121, high - low)]
        columns["text"] = [" ".join(words[chosen]) for chosen in texts]
        columns["score"] = source.random(high - low).tolist()
        columns["lang"] = [LANGUAGES[i] for i in source.integers(0, len(LANGUAGES), high - low)]
    return Part(kind, number, columns)


@functools.lru_cache(1)
def vocabulary() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Words of 2 to 10 letters, and their frequencies summed up, which fall as those of a language do (Zipf).

    Snappy and zstd make of such texts about what they make of prose.
    """
    source = np.random.Generator(np.random.Philox(key=[SEED, 1 << 32]))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(letters[source.integers(0, 26, int(n))]) for n in source.integers(2, 11, VOCABULARY)]
    shares = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7))
    return np.array(words, object), shares / shares[-1]


def payload(content: Part) -> int:
    """Bytes of the values: images and texts as they are, numbers as eight bytes."""
    large = "image" if content.kind == "images" else "text"
    size = sum(len(value) for value in content.columns[large])  # texts are ASCII
    if content.kind == "text":
        size += sum(len(value) for value in content.columns["lang"])
    return size + 8 * 2 * len(content.columns["id"])


# One shard in one format


def table(content: Part) -> pa.Table:
    """As an Arrow table."""
    import pyarrow as pa

    types = {"id": pa.int64(), "image": pa.binary(), "label": pa.int64(), "score": pa.float64()}
    return pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in content.columns.items()})


def parquet(content: Part) -> bytes:
    """Snappy, in row groups of 8,192 rows."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table(content), sink, compression="snappy", row_group_size=ROW_GROUP)
    return sink.getvalue()


def jsonl(content: Part) -> bytes:
    """A line of JSON a record."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in content.rows())


def jsonl_zst(content: Part) -> bytes:
    """The same as one zstd frame."""
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress(jsonl(content))


def tar(content: Part) -> bytes:
    """Samples as WebDataset has them: the key is the id; `jpg` and `cls`, or `json` with the whole record."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for row in content.rows():
            if content.kind == "images":
                members = {"jpg": row["image"], "cls": str(row["label"]).encode()}
            else:
                members = {"json": json.dumps(row).encode()}
            for extension, value in members.items():
                info = tarfile.TarInfo(f"{row['id']:09d}.{extension}")
                info.size = len(value)
                archive.addfile(info, io.BytesIO(value))
    return sink.getvalue()


WRITERS: dict[str, Callable[[Part], bytes]] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "jsonl.zst": jsonl_zst,
    "tar": tar,
}


# All of it


def make(
    place: Place, scale: float, wanted: dict[str, tuple[str, ...]] = FORMATS, say: Callable[[str], None] = print
) -> None:
    """Upload what the bucket does not hold yet.

    Args:
        place: The bucket.
        scale: 1 for 1.0 GB of images and 286 MB of text.
        wanted: Formats by kind.
        say: Told what is being done.
    """
    for kind, formats in wanted.items():
        own = [form for form in formats if form in OWN and not _known(place, kind, form)]
        if own:
            say(f"making {kind} as {', '.join(own)}")
            _make_own(place, kind, scale, own)
        for form in formats:
            if form in OWN or _known(place, kind, form):
                continue
            from benchmarks import data_peers

            say(f"making {kind} as {form}")
            with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
                data_peers.WRITERS[form](kind, scale, Path(folder))
                files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
                keys = [(str(path.relative_to(folder)), path.read_bytes) for path in files]
                _finish(place, kind, form, scale, [_put(place, kind, form, name, read()) for name, read in keys])
        if "parquet" in formats and "lit" in formats and not _known(place, kind, "parquet+index"):
            from benchmarks import data_peers

            say(f"making LitData's index of {kind} as parquet")
            data_peers.index_parquet(place, f"{kind}/parquet/")
            _finish(place, kind, "parquet+index", scale, list(dataset(place, kind, "parquet").keys))


def dataset(place: Place, kind: str, form: str) -> DataSet:
    """What `make` noted of a set.

    Raises:
        FileNotFoundError: It has not been made.
    """
    path = _manifest(kind, form)
    try:
        return DataSet.from_json(json.loads(place.files().cat_file(place.url(path))))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{place.url(path)} is not there: make the data with `python -m benchmarks data` first"
        ) from None


def _make_own(place: Place, kind: str, scale: float, formats: list[str]) -> None:
    keys: dict[str, list[tuple[str, int]]] = {form: [] for form in formats}
    for number in range(SHARDS):
        content = part(kind, scale, number)
        for form in formats:
            keys[form].append(_put(place, kind, form, f"{number:05d}.{form}", WRITERS[form](content)))
    for form in formats:
        _finish(place, kind, form, scale, keys[form])


def _put(place: Place, kind: str, form: str, name: str, data: bytes) -> tuple[str, int]:
    key = f"{kind}/{form}/{name}"
    place.files().pipe_file(place.url(key), data, ContentType=CONTENT_TYPE)
    return key, len(data)


def _finish(place: Place, kind: str, form: str, scale: float, keys: list[tuple[str, int]]) -> None:
    """Note a set that is whole: what is not noted is made again."""
    records = max(SHARDS, round(ROWS[kind] * scale))
    size = _payload_of_all(kind, scale)
    if sum(length for _, length in keys) < size // 8:
        raise RuntimeError(f"{kind} as {form} came out far too small: its writer failed without saying so")
    made = DataSet(kind, form, f"{kind}/{form}/", tuple(keys), records, records * (records - 1) // 2, size)
    place.files().pipe_file(place.url(_manifest(kind, form)), json.dumps(asdict(made)).encode())


@functools.lru_cache
def _payload_of_all(kind: str, scale: float) -> int:
    return sum(payload(part(kind, scale, number)) for number in range(SHARDS))


def _manifest(kind: str, form: str) -> str:
    return f"manifests/{kind}-{form}.json"


def _known(place: Place, kind: str, form: str) -> bool:
    try:
        dataset(place, kind, form)
    except FileNotFoundError:
        return False
    return True
