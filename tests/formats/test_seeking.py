from __future__ import annotations

import io
import json
import pickle
import random
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamio.formats import seeking as seeking_module
from streamio.formats.base import Bad, CorruptError, HintedFormat, IndexedFormat, PiecewiseFormat
from streamio.formats.csv import Csv
from streamio.formats.files import Files
from streamio.formats.lines import Lines
from streamio.formats.seeking import Points, Seeking
from streamio.formats.tar import Tar
from streamio.formats.text import Text
from streamio.index import scan
from streamio.iterators import end
from tests.formats.memory_source import MemorySource
from tests.index.shards import PACK, entry_of, indexed, packed, seeking, streamed

SUFFIXES = list(PACK)
LINES = st.sampled_from(
    [b'{"a": 1}', b'{"a": [1, {"b": "' + b"x" * 40 + b'"}]}', b"", b"  ", b'{"a": 1,,}', b"[1]", b"\xff"]
)


@pytest.fixture(autouse=True)
def _small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPLIT_BYTES", 700)


def archive(members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@given(
    lines=st.lists(LINES, max_size=30),
    ended=st.booleans(),
    suffix=st.sampled_from(SUFFIXES),
    cuts=st.lists(st.integers(0, 800), max_size=8),
    text=st.booleans(),
    lost=st.one_of(st.none(), st.integers(1, 200)),
)
def test_lines_come_as_the_streamed_format_gives_them(
    lines: list[bytes], ended: bool, suffix: str, cuts: list[int], text: bool, lost: int | None
) -> None:
    data = packed(b"\n".join(lines) + (b"\n" if ended else b""), suffix, cuts)
    data = data[: -lost or None] if lost else data
    form: Any = Text() if text else Lines()
    source = MemorySource(data, f"s3://b/x.{'txt' if text else 'jsonl'}{suffix}", chunk=50)
    entry = entry_of(form, source)
    assert indexed(seeking(form, entry), source, entry) == streamed(form, source)


@given(
    sizes=st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=3), max_size=10),
    suffix=st.sampled_from(SUFFIXES),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    pax=st.booleans(),
    lost=st.one_of(st.none(), st.integers(1, 12_000)),
    twice=st.booleans(),
)
def test_samples_of_a_tar_come_as_the_streamed_format_gives_them(
    sizes: list[list[int]], suffix: str, cuts: list[int], pax: bool, lost: int | None, twice: bool
) -> None:
    members = [
        (f"{'é' * 60 if pax else ''}{sample:03}.{part}", bytes([65 + part]) * size)
        for sample, parts in enumerate(sizes)
        for part, size in enumerate(parts)
    ]
    plain = archive(members, tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT)
    data = packed(plain * (2 if twice else 1), suffix, cuts)
    data = data[: -lost or None] if lost else data
    source = MemorySource(data, f"s3://b/x.tar{suffix}", chunk=700)
    entry = entry_of(Tar(), source)
    assert indexed(seeking(Tar(), entry), source, entry) == streamed(Tar(), source)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_shard_in_several_units_has_splits_that_begin_at_them(suffix: str) -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(300))
    source = MemorySource(packed(text, suffix, range(0, len(text), 500)), f"s3://b/x.jsonl{suffix}")
    entry = entry_of(Lines(), source)
    assert len(entry.splits["split_records"]) > 5
    assert sum(entry.splits["split_wire"]) == source.size
    assert entry.records == 300
    if suffix:  # the last line of a unit mostly goes on in the next one
        assert 0 < max(entry.splits["split_skip"]) < 20


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_a_shard_in_one_unit_is_one_split(suffix: str) -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(300))
    entry = entry_of(Lines(), MemorySource(packed(text, suffix), f"s3://b/x.jsonl{suffix}"))
    assert entry.splits["split_records"] == [300]


@pytest.mark.parametrize(
    ("url", "suffix"),
    [("s3://b/x.tgz", ".gz"), ("s3://b/x.txz", ".xz"), ("s3://b/x.tbz2", ".bz2"), ("s3://b/X.TAR.GZ", ".gz")],
)
def test_short_suffixes_of_tars_are_known(url: str, suffix: str) -> None:
    plain = archive([(f"{sample:03}.txt", b"x" * 400) for sample in range(40)])
    source = MemorySource(packed(plain, suffix, range(0, len(plain), 1000)), url)
    entry = entry_of(Tar(), source)
    assert len(entry.splits["split_records"]) > 5
    assert indexed(seeking(Tar(), entry), source, entry) == streamed(Tar(), source)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_of_csv_come_as_one_split(suffix: str) -> None:
    text = "id,text\n" + "".join(f'{number},"a\nb"\n' for number in range(200)) + "1,2,3\n201,x\n"
    source = MemorySource(packed(text.encode(), suffix, [100, 1000]), f"s3://b/x.csv{suffix}")
    form = Csv(types={"id": "int64"})
    entry = entry_of(form, source)
    assert entry.splits["split_records"] == [202]
    found = indexed(seeking(form, entry), source, entry)
    assert found == streamed(form, source)
    assert isinstance(found[200][1], Bad)


def test_a_whole_file_is_one_record() -> None:
    source = MemorySource(packed(b"abc", ".gz"), "s3://b/x.gz")
    entry = entry_of(Files(), source)
    assert indexed(seeking(Files(), entry), source, entry) == streamed(Files(), source)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pieces_are_the_split(suffix: str) -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(150_000))
    source = MemorySource(packed(text, suffix), f"s3://b/x.jsonl{suffix}")
    form = seeking(Lines(), entry_of(Lines(), source)) if suffix else whole(source)
    pieces = list(form.pieces(source, 0))
    assert len(pieces) > 1
    assert [record["id"] for piece in pieces for record in piece.take(slice(0, len(piece)))] == [*range(150_000)]


def whole(source: MemorySource) -> Seeking:
    columns = {"records": [150_000], "nbytes": [1], "wire": [source.size], "begin": [0], "skip": [0], "start": [0]}
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    return Seeking(Lines(), Points.of([source.url], np.array([1]), **arrays))


def test_pieces_that_are_left_early_end_their_reads() -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(200_000))
    source = MemorySource(packed(text, ".zst"), "s3://b/x.jsonl.zst")
    pieces = seeking(Lines(), entry_of(Lines(), source)).pieces(source, 0)
    next(pieces)
    assert source.open_streams == 1
    end(pieces)
    assert source.open_streams == 0


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_another_number_of_records_than_the_index_says_is_damage(suffix: str, more: int) -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(40))
    source = MemorySource(packed(text, suffix, range(0, len(text), 60)), f"s3://b/x.jsonl{suffix}")
    entry = entry_of(Lines(), source)
    counts = list(entry.splits["split_records"])
    counts[1] += more
    entry.splits = {**entry.splits, "split_records": counts}
    form = seeking(Lines(), entry)
    assert len(form.load(source, 0)) == counts[0]
    with pytest.raises(CorruptError, match=rf"where the index says {counts[1]}.*streamio index"):
        form.load(source, 1)
    with pytest.raises(CorruptError, match="where the index says"):
        list(form.pieces(source, 1))


def test_damage_behind_a_split_is_not_seen_in_it() -> None:
    text = b"".join(b'{"id": %d}\n' % number for number in range(300))
    data = packed(text, ".zst", range(0, len(text), 500))
    good = MemorySource(data, "s3://b/x.jsonl.zst")
    entry = entry_of(Lines(), good)
    torn = MemorySource(data[: len(data) * 3 // 4], "s3://b/x.jsonl.zst")
    form = seeking(Lines(), entry)
    last = len(entry.splits["split_records"]) - 1
    assert form.load(torn, 1).take(slice(0, 2)) == form.load(good, 1).take(slice(0, 2))
    with pytest.raises((CorruptError, AssertionError)):  # the source refuses what lies behind its end
        form.load(torn, last)


class Counting(MemorySource):
    """Counts the bytes that it hands out."""

    given = 0

    def read(self, start: int, stop: int) -> Any:
        self.given += stop - start
        return super().read(start, stop)

    def stream(self, start: int = 0, stop: int | None = None) -> Any:
        for chunk in super().stream(start, stop):
            self.given += len(chunk)
            yield chunk


@pytest.mark.parametrize("suffix", ["", ".zst", ".gz"])
def test_a_split_in_the_middle_reads_little_but_its_own_bytes(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SPLIT_BYTES", 1 << 18)
    pick = random.Random(1)
    text = b"".join(json.dumps({"id": i, "x": pick.randbytes(200).hex()}).encode() + b"\n" for i in range(30_000))
    data = packed(text, suffix, range(0, len(text), 1 << 17))
    source = Counting(data, f"s3://b/x.jsonl{suffix}")
    entry = entry_of(Lines(), source)
    form = seeking(Lines(), entry)
    middle = len(entry.splits["split_records"]) // 2
    source.given = 0
    rows = form.load(source, middle)
    assert rows.take(slice(0, 1))[0]["id"] == sum(entry.splits["split_records"][:middle])
    assert source.given < source.size / 20
    assert source.given <= entry.splits["split_wire"][middle] + (1 << 17)


@pytest.mark.parametrize("url", ["s3://b/x.jsonl", "s3://b/x.jsonl.zst", "s3://b/x.tar", "s3://b/x.csv"])
def test_what_is_hinted_is_what_is_read_first(url: str) -> None:
    if ".tar" in url:
        plain, form = archive([(f"{sample:03}.txt", b"x" * 400) for sample in range(40)]), Tar()
    else:
        plain, form = b"".join(b'{"id": %d}\n' % number for number in range(300)), Csv() if ".csv" in url else Lines()

    class Streams(MemorySource):
        asked: tuple[int, int | None] | None = None

        def stream(self, start: int = 0, stop: int | None = None) -> Any:
            self.asked = self.asked or (start, self.size if stop is None else stop)
            return super().stream(start, stop)

    source = Streams(packed(plain, ".zst", range(0, len(plain), 500)) if ".zst" in url else plain, url)
    entry = entry_of(form, source)
    seeker = seeking(form, entry)
    for split in range(len(entry.splits["split_records"])):
        source.asked = None
        seeker.load(source, split)
        assert [source.asked] == seeker.ranges(source, split)


def test_records_are_the_callers_own() -> None:
    source = MemorySource(b'{"a": 1}\n', "s3://b/x.jsonl")
    rows = seeking(Lines(), entry_of(Lines(), source)).load(source, 0)
    rows.take(slice(0, 1))[0]["b"] = 2
    assert rows.take(slice(0, 1)) == [{"a": 1}]


def test_it_is_an_indexed_format_that_travels() -> None:
    sources = [MemorySource(b'{"a": %d}\n' % number * (number + 1), f"s3://b/{number}.jsonl") for number in range(50)]
    form: Any = seeking(Lines(), *(entry_of(Lines(), source) for source in sources))
    assert isinstance(form, IndexedFormat)
    assert isinstance(form, PiecewiseFormat)
    assert isinstance(form, HintedFormat)
    there = pickle.loads(pickle.dumps(form))
    for number, source in enumerate(sources):
        assert sum(there.count(source).records) == number + 1
        assert there.load(source, 0).take(slice(0, 1)) == [{"a": number}]
    with pytest.raises(KeyError):
        there.count(MemorySource(b"", "s3://b/other.jsonl"))


def test_urls_with_one_key_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    real = seeking_module._keys
    monkeypatch.setattr(
        seeking_module, "_keys", lambda urls, salt: real(urls, salt) % np.uint64(2 if salt < 2 else 1 << 40)
    )
    source = MemorySource(b'{"a": 1}\n', "s3://b/2.jsonl")
    others = [MemorySource(b"\n", f"s3://b/{number}.jsonl") for number in (0, 1)]
    form = seeking(Lines(), *(entry_of(Lines(), each) for each in (*others, source)))
    assert form.load(source, 0).take(slice(0, 1)) == [{"a": 1}]
