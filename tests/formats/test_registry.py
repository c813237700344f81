"""Choosing a format by suffix or name, its options, and formats of third parties."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamio.errors import FormatError
from streamio.formats import Bad, IndexedFormat, StreamedFormat, registry
from streamio.formats.arrow import Arrow
from streamio.formats.lines import Lines
from streamio.formats.parquet import Parquet
from streamio.formats.tar import Tar
from streamio.formats.text import Text
from tests.formats.blocks import rows_of
from tests.formats.memory_source import MemorySource


@pytest.fixture(autouse=True)
def fresh_registry():
    registry._registry.cache_clear()
    yield
    registry._registry.cache_clear()


@dataclass(frozen=True)
class Lab:
    """A stand-in with the attributes and methods of a streamed format."""

    delimiter: str = ","

    name = "lab"
    suffixes = (".lab", ".lab.gz")

    def cuttable(self, url):
        return False

    def blocks(self, source, start, stop, first=0, begin=None):
        yield from ()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://bucket/a.parquet", Parquet),
        ("s3://bucket/a.PARQUET", Parquet),
        ("gs://bucket/part-0.snappy.parquet", Parquet),
        ("/data/a.pq", Parquet),
        ("a.jsonl", Lines),
        ("s3://bucket/v1.2/a.json.gz", Lines),
        ("s3://bucket/a.ndjson.zst", Lines),
        ("memory://a.tar", Tar),
        ("s3://bucket/a.tgz", Tar),
        ("s3://bucket/a.v2.tar.zst", Tar),
        ("s3://bucket/a.jsonl.bz2", Lines),
        ("s3://bucket/a.json.xz", Lines),
        ("s3://bucket/a.tar.bz2", Tar),
        ("s3://bucket/a.tbz2", Tar),
        ("s3://bucket/a.tar.xz", Tar),
        ("s3://bucket/A.TXZ", Tar),
        ("s3://bucket/a.txt", Text),
        ("s3://bucket/a.txt.zst", Text),
        ("s3://bucket/a.txt.xz", Text),
        ("https://host/a.jsonl.gz?signature=a/b.parquet#c", Lines),
        ("s3://bucket/what?.jsonl", Lines),
        ("zip://inner.jsonl::s3://bucket/outer.zip", Lines),
        ("simplecache::s3://bucket/a.parquet", Parquet),
        ("filecache::https://host/a.tar?x=.jsonl", Tar),
    ],
)
def test_the_suffix_tells_the_format(url, kind):
    assert registry.accepts(url)
    assert isinstance(registry.for_url(url), kind)
    assert registry.name_for(url) == kind.name


@pytest.mark.parametrize(
    "url", ["s3://bucket/a.gz", "s3://bucket/a.parquet.bak", "s3://bucket/a.jsonl/part-0", "a", "a.text", ""]
)
def test_an_unknown_suffix_is_an_error_that_names_the_known_ones(url):
    assert not registry.accepts(url)
    with pytest.raises(FormatError, match=r"\.jsonl\.gz .*\.parquet.*format=") as caught:
        registry.for_url(url)
    assert url in str(caught.value)


def test_a_named_format_reads_any_name_and_the_suffix_tells_the_compression():
    lines = registry.for_url("s3://bucket/part-0.gz", format="jsonl")
    assert isinstance(lines, Lines)
    assert not lines.cuttable("s3://bucket/part-0.gz")
    assert lines.cuttable("s3://bucket/part-1")
    with pytest.raises(FormatError, match=r"no format 'jsonlines': known are .*files, jsonl, parquet, tar, text"):
        registry.for_url("a.jsonl", format="jsonlines")


def test_options_reach_the_format_and_none_is_no_option():
    options = {"columns": ["a", "b", "a"], "decode": None}
    assert registry.for_url("a.parquet", options=options) == Parquet(columns=("a", "b"))
    assert registry.for_url("a.jsonl", options=options) == Lines(columns=("a", "b"))
    assert registry.for_url("a.tar", options={"decode": {"json": json.loads}}) == Tar({"json": json.loads})


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("a.tar", {"columns": ["a"]}, "columns= does not apply to the format 'tar' of a.tar: it takes decode="),
        ("a.parquet", {"decode": {"a": int}}, "decode= does not apply to the format 'parquet'"),
        ("a.jsonl", {"decode": {"a": int}}, "it takes columns="),
        ("a.txt", {"columns": ["text"]}, "columns= does not apply to the format 'text' of a.txt: it takes no options"),
        ("a.parquet", {"columns": "text"}, "a list of at least one name, not 'text'"),
        ("a.parquet", {"columns": []}, "at least one name"),
        ("a.parquet", {"columns": [1]}, "list of at least one name"),
        ("a.parquet", {"columns": 3}, "list of at least one name"),
        ("a.tar", {"decode": {"json": "loads"}}, "a dict of functions by extension"),
        ("a.tar", {"decode": json.loads}, "a dict of functions by extension"),
    ],
)
def test_an_option_that_does_not_apply_is_an_error_that_names_it(url, options, message):
    with pytest.raises(FormatError, match=message):
        registry.for_url(url, options=options)


def test_the_shards_of_a_data_set_have_one_format():
    assert isinstance(registry.for_urls(["a.jsonl", "b.jsonl.gz", "c.json"]), Lines)
    with pytest.raises(FormatError, match=r"a\.jsonl is 'jsonl' and b\.tar is 'tar'"):
        registry.for_urls(["a.jsonl", "b.tar"])
    with pytest.raises(FormatError, match="no shards"):
        registry.for_urls([])
    assert isinstance(registry.for_urls(["a", "b.gz"], format="tar"), Tar)


def test_indexed_and_streamed_formats_are_told_apart_by_their_protocols():
    kinds = {suffix: registry.for_url("a" + suffix) for suffix in registry.known()}
    for suffix, made in kinds.items():
        indexed = suffix in (*Parquet.suffixes, *Arrow.suffixes)
        assert isinstance(made, IndexedFormat) == indexed
        assert isinstance(made, StreamedFormat) != indexed


def test_the_format_of_the_docs_is_read():
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    program = page.split("## A format of your own")[1].split("```python\n")[1].split("```")[0]
    names = {"__name__": "example"}
    exec(compile(program, "docs/formats.md", "exec", dont_inherit=True), names)
    registry.register(names["Fixed"])
    made = registry.for_url("s3://bucket/a.fixed", options={"length": 10})
    assert isinstance(made, StreamedFormat)
    source = MemorySource(bytes(range(25)), "s3://bucket/a.fixed")
    rows = list(rows_of(made.blocks(source, 0, source.size)))
    assert [row.value for row in rows[:2]] == [{"data": bytes(range(10))}, {"data": bytes(range(10, 20))}]
    assert isinstance(rows[2].value, Bad)
    assert [(row.index, row.nbytes) for row in rows] == [(0, 10), (1, 10), (2, 5)]


def test_a_registered_format_is_found_and_takes_its_own_options():
    registry.register(Lab)
    assert registry.for_url("s3://bucket/a.lab.gz", options={"delimiter": ";"}) == Lab(";")
    assert ".lab" in registry.known()
    with pytest.raises(FormatError, match="columns= does not apply"):
        registry.for_url("a.lab", options={"columns": ["a"]})


def test_a_registered_format_replaces_a_built_in_one():
    class MyLines(Lines):
        pass

    registry.register(MyLines)
    assert type(registry.for_url("a.jsonl")) is MyLines


def test_a_factory_registers_as_a_class_does():
    registry.register(lambda delimiter=";": Lab(delimiter))
    assert registry.for_url("a.lab") == Lab(";")


@pytest.mark.parametrize("suffix", ["lab", ".LAB", 3])
def test_a_format_with_a_wrong_suffix_is_refused(suffix):
    class Wrong(Lab):
        suffixes = (suffix,)

    with pytest.raises(FormatError, match="lower case and begin with a dot"):
        registry.register(Wrong)


PLUGIN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Lab:
    name = "lab"
    suffixes = (".lab", ".parquet")
    def cuttable(self, url): return False
    def blocks(self, source, start, stop, first=0, begin=None): yield from ()
"""


def test_an_installed_package_adds_formats_and_a_broken_one_is_told(tmp_path: Path):
    """A package with entry points on the path, as pip lays it out, in an interpreter of its own."""
    (tmp_path / "labformat.py").write_text(PLUGIN)
    info = tmp_path / "labformat-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: labformat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[streamio.formats]\nlab = labformat:Lab\nbroken = labformat_missing:Format\n"
    )
    program = (
        "import logging; logging.basicConfig()\n"
        "from streamio.formats import for_url\n"
        "print(type(for_url('a.lab')).__name__, type(for_url('a.parquet')).__name__,"
        " type(for_url('a', format='lab')).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["Lab", "Parquet", "Lab"]
    assert "broken (labformat_missing:Format) can't be used" in done.stderr


def test_formats_import_without_pyarrow():
    program = "import sys, streamio.formats as f; f.for_url('a.parquet'); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_errors_show_no_signatures_of_urls():
    signed, other = "https://h/a.jsonl?sig=verborgen", "https://h/b.parquet?sig=geheim"
    calls = [
        lambda: registry.for_url("https://h/a.bin?sig=verborgen"),
        lambda: registry.for_url(signed, options={"nope": 1}),
        lambda: registry.for_urls([signed, other]),
    ]
    for call in calls:
        with pytest.raises(FormatError, match=r"https://h/a\.") as caught:
            call()
        assert "verborgen" not in str(caught.value)
        assert "geheim" not in str(caught.value)
