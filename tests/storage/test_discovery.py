from __future__ import annotations

import logging
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from streamio.errors import DataNotFoundError, FormatError
from streamio.storage import objects
from streamio.storage.discovery import discover
from streamio.storage.shards import ShardList

KNOWN = ".jsonl, .parquet"


def accepts(name: str) -> bool:
    return name.endswith((".jsonl", ".parquet"))


class Store:
    """A place to put files into, on one scheme."""

    def __init__(self, base: str, options: dict[str, Any] | None, put: Callable[[str, bytes], Any]) -> None:
        self.base = base
        self.options = options
        self._put = put

    def fill(self, keys: Iterable[str], data: bytes = b"{}\n") -> None:
        for key in keys:
            self._put(key, data)

    def list(self, *paths: str, **kwargs: Any) -> list[str]:
        """URLs below these paths, relative to the base."""
        found = discover(
            [self.base + path for path in paths],
            storage_options=self.options,
            **{"accepts": accepts, "known": KNOWN, **kwargs},
        )
        assert all(shard.url.startswith(f"{self.base}/") for shard in found)
        return [shard.url[len(self.base) :] for shard in found]


@pytest.fixture(params=["s3", "gcs", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in ("s3", "gcs"):
        bucket = request.getfixturevalue(request.param)
        return Store(bucket.url, bucket.storage_options, bucket.put)
    base = f"file://{tmp_path}" if request.param == "file" else f"memory://{uuid4().hex}"
    return Store(base, None, lambda key, data: objects.put(f"{base}/{key}", data))


TREE = ["x.jsonl", "a/x.jsonl", "a/y.parquet", "a/b/x.jsonl", "a/b/c/x.jsonl", "ab/x.jsonl"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", TREE),
        ("/", TREE),
        ("/a", ["a/x.jsonl", "a/y.parquet", "a/b/x.jsonl", "a/b/c/x.jsonl"]),
        ("/a/", ["a/x.jsonl", "a/y.parquet", "a/b/x.jsonl", "a/b/c/x.jsonl"]),
        ("/a/x.jsonl", ["a/x.jsonl"]),
        ("/a/x.jsonl/", ["a/x.jsonl"]),
        ("/*.jsonl", ["x.jsonl"]),
        ("/a/*", ["a/x.jsonl", "a/y.parquet"]),
        ("/a*/*.jsonl", ["a/x.jsonl", "ab/x.jsonl"]),
        ("/a?/x.jsonl", ["ab/x.jsonl"]),
        ("/[a-b]/x.jsonl", ["a/x.jsonl"]),
        ("/**", TREE),
        ("/**/x.jsonl", ["x.jsonl", "a/x.jsonl", "a/b/x.jsonl", "a/b/c/x.jsonl", "ab/x.jsonl"]),
        ("/a/**/x.jsonl", ["a/x.jsonl", "a/b/x.jsonl", "a/b/c/x.jsonl"]),
        ("/a/**/c/*", ["a/b/c/x.jsonl"]),
        ("/**/b/**/*.jsonl", ["a/b/x.jsonl", "a/b/c/x.jsonl"]),
        ("/a/*/", ["a/b/x.jsonl", "a/b/c/x.jsonl"]),
    ],
)
def test_files_folders_and_globs_are_listed(store: Store, path: str, expected: list[str]) -> None:
    store.fill(TREE)
    assert store.list(path) == sorted(f"/{key}" for key in expected)


STRANGE = [
    "d[1].jsonl",
    "w?t.jsonl",
    "sp ace.jsonl",
    "p%20q.jsonl",
    "p+q.jsonl",
    "ü日.jsonl",
    "h#1.jsonl",
    "a=1&b.jsonl",
]


def test_strange_names_are_listed_and_name_themselves(store: Store) -> None:
    store.fill([f"data/{name}" for name in [*STRANGE, "d1.jsonl", "wat.jsonl"]])
    assert len(store.list("/data")) == len(STRANGE) + 2
    assert len(store.list("/data/*.jsonl")) == len(STRANGE) + 2
    for name in STRANGE:
        assert store.list(f"/data/{name}") == [f"/data/{name}"]
    assert store.list("/data/[d]1.jsonl") == ["/data/d1.jsonl"]
    for url in store.list("/data"):  # what a listing gave can be given back
        assert objects.get(store.base + url, store.options) == b"{}\n"


def test_hidden_and_marker_files_are_left_out_and_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.fill(["d/year=2024/x.jsonl", "d/_year=2024/x.jsonl", "d/README.md", "d/empty.jsonl"])
    hidden = ["_SUCCESS", "_metadata", ".x.jsonl", "_temporary/0/x.jsonl", ".git/x.jsonl", ".x.crc", "x.crc"]
    store.fill([f"d/{key}" for key in [*hidden, "_delta_log/x.jsonl", "zero"]], b"")
    with caplog.at_level(logging.DEBUG, "streamio.storage"):
        assert store.list("/d") == ["/d/_year=2024/x.jsonl", "/d/empty.jsonl", "/d/year=2024/x.jsonl"]
    told = [record for record in caplog.records if record.name.endswith("selection")]
    assert [r.getMessage() for r in told if r.levelno == logging.INFO] == [
        f"{store.base}/d: 3 files taken; left out: 1 checksum files, 1 empty and of unknown format, 7 hidden, "
        "1 of unknown format"
    ]
    assert sum(record.levelno == logging.DEBUG for record in told) == 10
    assert store.list("/d/**/*.jsonl") == store.list("/d")


def test_zero_byte_shards_of_a_known_format_stay(store: Store) -> None:
    store.fill(["d/x.jsonl"], b"")
    assert store.list("/d") == store.list("/d/x.jsonl") == ["/d/x.jsonl"]


def test_what_the_user_wrote_is_never_hidden(store: Store) -> None:
    store.fill(["_raw/.v1/x.jsonl", "_raw/.v1/_tmp/x.jsonl", "_raw/_a.jsonl", "_raw/b.jsonl"])
    assert store.list("/_raw/.v1") == ["/_raw/.v1/x.jsonl"]
    assert store.list("/_raw/.v1/*.jsonl") == ["/_raw/.v1/x.jsonl"]
    assert store.list("/_raw/_a.jsonl") == ["/_raw/_a.jsonl"]
    assert store.list("/_raw/_*.jsonl") == ["/_raw/_a.jsonl"]
    assert store.list("/_raw/*.jsonl") == ["/_raw/b.jsonl"]
    assert store.list("/_*/b.jsonl") == ["/_raw/b.jsonl"]
    with pytest.raises(DataNotFoundError, match="only hidden"):
        store.list("/*/b.jsonl")


def test_folder_objects_are_no_shards(s3: Any, gcs: Any) -> None:
    for bucket in (s3, gcs):
        store = Store(bucket.url, bucket.storage_options, bucket.put)
        store.fill(["d/", "d/sub/", "d/old_$folder$"], b"")
        store.fill(["d/sub/x.jsonl"])
        assert store.list("/d") == ["/d/sub/x.jsonl"]
        assert store.list("/d", accepts=None) == ["/d/sub/x.jsonl"]


def test_a_key_that_is_also_a_folder(s3: Any, gcs: Any) -> None:
    for bucket in (s3, gcs):
        store = Store(bucket.url, bucket.storage_options, bucket.put)
        store.fill(["both.jsonl", "both.jsonl/in.jsonl", "notes", "notes/in.jsonl"])
        assert store.list("/both.jsonl") == ["/both.jsonl"]
        assert store.list("/both.jsonl/") == ["/both.jsonl/in.jsonl"]
        assert store.list("/notes") == ["/notes/in.jsonl"]  # as a file it is of unknown format


def test_without_a_format_every_file_is_taken(store: Store) -> None:
    store.fill(["d/x.bin", "d/README"])
    store.fill(["d/y.txt", "d/placeholder"], b"")
    assert store.list("/d", accepts=None) == ["/d/README", "/d/x.bin", "/d/y.txt"]
    assert store.list("/d/placeholder", accepts=None) == ["/d/placeholder"]


def test_duplicates_and_overlaps_give_each_shard_once(store: Store) -> None:
    store.fill(TREE)
    found = store.list("/a", "/a/", "/a/*.jsonl", "/a/x.jsonl", "/a/x.jsonl", "/**/b/*")
    assert found == ["/a/b/c/x.jsonl", "/a/b/x.jsonl", "/a/x.jsonl", "/a/y.parquet"]


def test_sizes_and_versions_are_those_of_the_store(store: Store, request: pytest.FixtureRequest) -> None:
    store.fill(["d/x.jsonl"], b"12345")
    named, listed, matched = (
        discover(store.base + path, storage_options=store.options)[0] for path in ("/d/x.jsonl", "/d", "/d/*")
    )
    assert named == listed == matched
    assert named.size == 5
    kind = request.node.callspec.params["store"]
    if kind in ("s3", "gcs"):
        assert named.version == request.getfixturevalue(kind).etag("d/x.jsonl").strip('"')
    elif kind == "file":
        assert named.version == str(Path(named.url[len("file://") :]).stat().st_mtime_ns)
    else:
        assert float(named.version or 0) > 1e9
    store.fill(["d/x.jsonl"], b"54321")
    assert discover(f"{store.base}/d", storage_options=store.options)[0].version != named.version


def test_obstore_reads_by_the_version_that_was_listed(gcs: Any) -> None:
    # In a process of its own: obstore must not be used where a test may fork later.
    import subprocess
    import sys

    gcs.put("x.jsonl", b"{}")
    version = discover(gcs.url, storage_options=gcs.storage_options)[0].version
    code = (
        "import obstore; from obstore.store import GCSStore\n"
        f"s = GCSStore({gcs.name!r}, base_url={gcs.storage_options['endpoint_url']!r}, bearer_token='x',"
        " client_options={'allow_http': True})\n"
        f"print(obstore.get(s, 'x.jsonl', options={{'version': {version!r}}}).bytes().to_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "b'{}'", done.stderr


def test_listings_of_several_pages_are_whole(s3: Any) -> None:
    keys = [f"many/{i % 3}/{i:05d}.jsonl" for i in range(2500)]
    fs = s3.fs()
    fs.pipe({f"{s3.name}/{key}": b"x" for key in keys}, batch_size=16)
    store = Store(s3.url, s3.storage_options, s3.put)
    assert store.list("/many") == sorted(f"/{key}" for key in keys)
    assert store.list("/**/*7.jsonl") == sorted(f"/{key}" for key in keys if key.endswith("7.jsonl"))
    assert len(store.list("/many/1/*.jsonl")) == 833


def test_a_listing_that_fails_on_a_later_page_goes_on_there(faulty: Any) -> None:
    from tests.servers.faults import Rule, status  # type: ignore[import-not-found]

    keys = [f"d/{i:05d}.jsonl" for i in range(1500)]
    fs = faulty.fs()
    fs.pipe({f"{faulty.name}/{key}": b"x" for key in keys}, batch_size=16)
    faulty.proxy.add(Rule(status(503), times=4, path="continuation-token"))
    found = discover(f"{faulty.url}/d/", storage_options=faulty.storage_options)
    assert [shard.url for shard in found] == [f"{faulty.url}/{key}" for key in keys]


def test_schemes_can_be_mixed(s3: Any, gcs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("x.jsonl", b"{}")
    gcs.put("x.jsonl", b"{}")
    name = uuid4().hex
    objects.put(f"memory://{name}/x.jsonl", b"{}")
    (tmp_path / "x.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    options = {"s3": s3.storage_options, "gcs": gcs.storage_options}
    found = discover([s3.url, gcs.url, f"memory://{name}", Path("x.jsonl")], storage_options=options)
    here = f"file://{Path.cwd()}/x.jsonl"
    expected = [here, f"{gcs.url}/x.jsonl", f"memory://{name}/x.jsonl", f"{s3.url}/x.jsonl"]
    assert [shard.url for shard in found] == sorted(expected)


def test_chained_urls_are_listed(s3: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("1.jsonl", "in/2.jsonl", "README.md"):
            archive.writestr(name, "{}")
    s3.put("z/a.zip", (tmp_path / "a.zip").read_bytes())
    s3.put("z/b.zip", (tmp_path / "a.zip").read_bytes())
    s3.put("l/x.jsonl", b"{}")

    def found(url: str) -> list[str]:
        return [s.url for s in discover(url, storage_options=s3.storage_options, accepts=accepts)]

    assert found(f"zip://*.jsonl::{s3.url}/z/a.zip") == [f"zip://1.jsonl::{s3.url}/z/a.zip"]
    both = [f"zip://{name}::{s3.url}/z/a.zip" for name in ("1.jsonl", "in/2.jsonl")]
    assert found(f"zip::{s3.url}/z/a.zip") == both
    assert found(f"zip://**/*.jsonl::{s3.url}/z/*.zip") == sorted(
        [*both, *(url.replace("a.zip", "b.zip") for url in both)]
    )
    assert found(f"zip://in/2.jsonl::{tmp_path}/a.zip") == [f"zip://in/2.jsonl::file://{tmp_path}/a.zip"]
    for url in (f"simplecache::{s3.url}/l/*.jsonl", f"simplecache::{s3.url}/l/x.jsonl"):
        assert found(url) == [f"simplecache::{s3.url}/l/x.jsonl"]
    for shard in discover(f"zip::{s3.url}/z/a.zip", storage_options=s3.storage_options):
        assert shard.version is not None
        assert shard.size == 2


def test_linked_files_and_folders_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "d" / "in").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    for name in ("d/x.jsonl", "out/y.jsonl"):
        (tmp_path / name).write_text("{}{}")
    (tmp_path / "d/link.jsonl").symlink_to(tmp_path / "out/y.jsonl")
    (tmp_path / "d/folder").symlink_to(tmp_path / "out")
    (tmp_path / "d/in/loop").symlink_to(tmp_path / "d")
    found = discover(tmp_path / "d", accepts=accepts)
    names = [shard.url.rpartition("/d/")[2] for shard in found]
    assert names == ["folder/y.jsonl", "link.jsonl", "x.jsonl"]
    assert set(found.sizes) == {4}
    (tmp_path / "out/y.jsonl").unlink()
    with pytest.raises(DataNotFoundError, match=r"link.jsonl: a link to a file that is not there"):
        discover(tmp_path / "d")


def test_a_list_is_the_same_shards_however_it_was_asked_for(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "é.jsonl", "Z.jsonl"):
        (tmp_path / name).write_text(name)
    one = discover(str(tmp_path))
    many = discover([tmp_path / "é.jsonl", f"{tmp_path}/*.jsonl", tmp_path])
    assert list(one) == list(many) == list(ShardList.of(reversed(list(one))))
    assert one.digest == many.digest


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_an_empty_list_is_refused(empty: Any) -> None:
    with pytest.raises(ValueError, match="list of URLs is empty"):
        discover(empty)


@pytest.mark.parametrize("wrong", [None, 7, b"x", {"a": 1}, ["x", None], [b"x"], [["x"]]])
def test_what_is_no_url_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be a string"):
        discover(wrong)


def test_a_file_of_unknown_format_next_to_others_is_no_error_but_alone_it_is(store: Store) -> None:
    store.fill(["d/x.jsonl", "d/README.md", "only/a.csv", "only/b.csv", "only/_SUCCESS"])
    assert store.list("/d") == ["/d/x.jsonl"]
    for path in ("/only", "/only/*", "/only/a.csv", "/d/README.md"):
        with pytest.raises(FormatError, match=r"of unknown format: .*\.(csv|md).*Known are \.jsonl, \.parquet"):
            store.list(path)


def test_nothing_there_is_told_with_the_nearest_folder(store: Store) -> None:
    store.fill(["train/x.jsonl", "train/y.jsonl"])
    for path in ("/train/*.parquet", "/train/z.jsonl", "/train/no/", "/train/no/**/*.jsonl"):
        with pytest.raises(DataNotFoundError) as caught:
            store.list(path)
        assert f"{store.base}{path}: nothing is there" in str(caught.value)
        assert f"nearest folder that exists is {store.base}/train, with 2 entries" in str(caught.value)


def test_one_empty_url_among_many_is_an_error(store: Store) -> None:
    store.fill(["a/x.jsonl"])
    with pytest.raises(DataNotFoundError, match="/b: nothing is there"):
        store.list("/a", "/b")


def test_only_hidden_files_are_told(store: Store) -> None:
    store.fill(["d/_SUCCESS", "d/_tmp/x.jsonl"])
    with pytest.raises(DataNotFoundError, match="only hidden or marker files are there"):
        store.list("/d")


def test_a_glob_that_matches_folders_only_says_what_to_write(store: Store) -> None:
    store.fill(["d/year=2024/x.jsonl", "d/year=2025/x.jsonl"])
    with pytest.raises(DataNotFoundError, match=r"only folders match, .*year=2024 .*Add a slash at the end"):
        store.list("/d/year=*")
    assert len(store.list("/d/year=*/")) == 2


def test_a_wrong_glob_is_told(store: Store) -> None:
    store.fill(["d/x.jsonl"])
    with pytest.raises(ValueError, match=r"\*\* must stand alone"):
        store.list("/d/a**/x.jsonl")


def test_names_with_two_colons_are_left_out_with_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.fill(["d/x.jsonl", "d/a.jsonl"])
    if store.base.startswith("file://"):
        (Path(store.base.removeprefix("file://")) / "d/a::b.jsonl").write_text("{}")
        (Path(store.base.removeprefix("file://")) / "only").mkdir()
        (Path(store.base.removeprefix("file://")) / "only/a::b.jsonl").write_text("{}")
    elif store.base.startswith("memory://"):
        files = fsspec.filesystem("memory")
        for folder in ("d", "only"):
            files.pipe_file(f"/{store.base.removeprefix('memory://')}/{folder}/a::b.jsonl", b"{}")
    else:
        store.fill(["d/a::b.jsonl", "only/a::b.jsonl"])
    for path in ("/d", "/d/*.jsonl"):
        caplog.clear()
        assert store.list(path) == ["/d/a.jsonl", "/d/x.jsonl"]
        (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "d/a::b.jsonl" in told
        assert "can't name it" in told
    with pytest.raises(DataNotFoundError, match=r"there are no others: .*Rename"):
        store.list("/only")


@pytest.mark.parametrize("name", ["é [x]", "a*b", "q?"])
def test_a_folder_of_exactly_the_name_goes_before_the_glob(store: Store, name: str) -> None:
    store.fill([f"{name}/in/1.jsonl", f"{name}/2.jsonl", f"{name}/_SUCCESS", "é x/3.jsonl", "acb/3.jsonl"])
    for path in (f"/{name}", f"/{name}/"):
        assert store.list(path) == [f"/{name}/2.jsonl", f"/{name}/in/1.jsonl"]
