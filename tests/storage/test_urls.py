from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from streamio.errors import DataNotFoundError, EndpointError, SchemeError
from streamio.storage import objects
from streamio.storage.retry import Retry
from streamio.storage.urls import filesystem, full_url, name_of, normalise, options_for


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://bucket/a/b.jsonl", "s3://bucket/a/b.jsonl"),
        ("S3A://bucket/Key", "s3://bucket/Key"),
        ("gcs://bucket/x", "gs://bucket/x"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket///", "s3://bucket/"),
        ("s3://bucket/folder//", "s3://bucket/folder/"),
        ("s3://bucket/a b/%20+#?[1].jsonl", "s3://bucket/a b/%20+#?[1].jsonl"),
        ("memory:///a/b", "memory://a/b"),
        ("memory://", "memory://"),
        ("https://host/a//b/?x=1/", "https://host/a//b/?x=1/"),
        ("file:///a/../b/", "file:///b/"),
        ("/", "file:///"),
        ("/data/*.parquet", "file:///data/*.parquet"),
        ("zip://*.jsonl::/data/a.zip", "zip://*.jsonl::file:///data/a.zip"),
        ("simplecache::S3://bucket/x", "simplecache::s3://bucket/x"),
    ],
)
def test_a_url_is_written_in_full(given: str, expected: str) -> None:
    assert normalise(given) == expected
    assert normalise(expected) == expected


def test_relative_paths_home_and_path_objects_become_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    here = Path.cwd()
    assert normalise("data/x.jsonl") == f"file://{here}/data/x.jsonl"
    assert normalise("file://data/x.jsonl") == f"file://{here}/data/x.jsonl"
    assert normalise(Path("data")) == f"file://{here}/data"
    assert normalise("./data/") == f"file://{here}/data/"
    assert normalise("~/data/*.jsonl") == "file:///home/somebody/data/*.jsonl"


@pytest.mark.parametrize("wrong", [b"s3://x", 7, None, ["s3://x"]])
def test_what_is_no_url_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be a string or a path"):
        normalise(wrong)


def test_an_empty_url_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        normalise(" ")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b/a/x.jsonl.gz", "x.jsonl.gz"),
        ("s3://b/a/x.jsonl?1", "x.jsonl?1"),
        ("https://h/x.parquet?token=a/b.txt#c", "x.parquet"),
        ("zip://in/1.jsonl::s3://b/a.zip", "1.jsonl"),
        ("simplecache::s3://b/x.parquet", "x.parquet"),
        ("simplecache::zip://1.jsonl::s3://b/a.zip", "1.jsonl"),
    ],
)
def test_the_name_that_tells_the_format_is_the_files_own(url: str, name: str) -> None:
    assert name_of(url) == name


def test_options_go_by_scheme_and_else_to_the_store() -> None:
    flat = {"key": "k", "client_kwargs": {"region_name": "x"}}
    assert options_for("s3://b/x", flat) == {"s3": flat}
    assert options_for("s3://b/x", {"s3a": flat, "gcs": {"token": "t"}}) == {"s3": flat}
    assert options_for("gs://b/x", {"s3": flat, "gcs": {"token": "t"}}) == {"gs": {"token": "t"}}
    assert options_for("zip://x::s3://b/a.zip", {**flat, "zip": {"mode": "r"}}) == {
        "zip": {"mode": "r"},
        "s3": flat,
    }
    assert options_for("file:///x", None) == {"file": {}}


def test_a_host_or_user_outside_of_the_path_stays_in_the_full_url() -> None:
    from fsspec.implementations.ftp import FTPFileSystem

    assert full_url(FTPFileSystem, "/a/b.jsonl", "ftp://user@host/a/") == "ftp://user@host/a/b.jsonl"


def test_no_file_system_keeps_listings(s3: Any) -> None:
    s3.put("a/x.jsonl", b"")
    fs, path = filesystem(s3.url, s3.storage_options)
    assert len(fs.find(path)) == 1
    assert not fs.dircache
    s3.put("a/y.jsonl", b"")
    assert len(fs.find(path)) == 2
    assert len(objects.ls(f"{s3.url}/a", s3.storage_options)) == 2


def test_a_zip_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    for names in (["a"], ["a", "b"]):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name in names:
                archive.writestr(name, name)
        assert objects.ls(f"zip://::{tmp_path}/x.zip") == names


def test_own_timeouts_win_over_ours(s3: Any) -> None:
    given = {**s3.storage_options, "config_kwargs": {"connect_timeout": 77}}
    fs, _ = filesystem(s3.url, given)
    assert fs.config_kwargs["connect_timeout"] == 77
    assert fs.config_kwargs["retries"]["max_attempts"] == 2
    assert given["config_kwargs"] == {"connect_timeout": 77}


@pytest.mark.parametrize("store", ["s3", "gcs", "local", "memory"])
def test_small_objects_are_put_read_listed_and_removed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = None
    if store in ("s3", "gcs"):
        bucket = request.getfixturevalue(store)
        base, options = bucket.url, bucket.storage_options
    else:
        base = str(tmp_path) if store == "local" else f"memory://{tmp_path.name}"
    url = f"{base}/runs/step-1/status 1%20+#.json"
    assert objects.get(url, options) is None
    assert not objects.exists(url, options)
    assert objects.ls(f"{base}/runs", options) == []
    objects.remove(url, options)
    objects.put(url, b"one", options)
    objects.put(url, b"two", options)
    assert objects.get(url, options) == b"two"
    assert objects.exists(url, options)
    assert objects.exists(f"{base}/runs", options)
    assert objects.ls(f"{base}/runs/", options) == ["step-1"]
    assert objects.ls(f"{base}/runs/step-1", options) == ["status 1%20+#.json"]
    assert objects.get(f"{base}/runs/step-1", options) is None
    objects.remove(url, options)
    assert objects.get(url, options) is None


def test_a_local_object_is_replaced_at_one_stroke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects.put(str(tmp_path / "x.json"), b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        objects.put(str(tmp_path / "x.json"), b"new")
    assert objects.get(str(tmp_path / "x.json")) == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_missing_bucket_is_told_and_not_taken_for_a_missing_object(localstack_s3: Any, gcs: Any) -> None:
    for bucket, url in ((localstack_s3, "s3://no-such-bucket-here"), (gcs, "gs://no-such-bucket-here")):
        with pytest.raises(DataNotFoundError, match="no-such-bucket-here"):
            objects.ls(f"{url}/runs", bucket.storage_options)
        with pytest.raises(DataNotFoundError, match="no-such-bucket-here"):
            objects.put(f"{url}/x", b"", bucket.storage_options)
    with pytest.raises(DataNotFoundError, match="no-such-bucket-here"):
        objects.get("s3://no-such-bucket-here/x", localstack_s3.storage_options)


def test_an_unknown_scheme_and_a_missing_package_are_told() -> None:
    with pytest.raises(SchemeError, match="no scheme 'foo'"):
        filesystem("foo://x/y")
    with pytest.raises(SchemeError, match="pip install adlfs"):
        filesystem("abfs://x/y")


@pytest.mark.parametrize("options", [{"fo0": 1}, {"client_kwargs": {"fo0": 1}}, {"config_kwargs": {"fo0": 1}}])
def test_an_unknown_option_is_told_by_name(s3: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="does not know the option 'fo0'"):
        objects.get(f"{s3.url}/x", {**s3.storage_options, **options})


def test_an_endpoint_without_scheme_is_told(s3: Any) -> None:
    with pytest.raises(EndpointError, match="must begin with http"):
        objects.get(f"{s3.url}/x", {**s3.storage_options, "endpoint_url": "127.0.0.1:1"})


def test_passwords_in_urls_stay_out_of_messages() -> None:
    with pytest.raises(EndpointError) as caught:
        objects.exists("http://me:geheim@127.0.0.1:1/x.jsonl?token=verborgen", retry=Retry(deadline=0))
    assert "127.0.0.1:1/x.jsonl" in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert "verborgen" not in str(caught.value)


def test_the_emulators_of_gcs_are_not_asked_over_grpc() -> None:
    # In a process of its own: gcsfs reads the variable when it is imported.
    code = (
        "import os; from streamio.storage.urls import filesystem\n"
        "filesystem('gs://b/x', {'endpoint_url': 'http://127.0.0.1:1', 'token': 'anon'})\n"
        "print(os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'])"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("GCSFS")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "false", done.stderr


def test_importing_it_loads_no_client() -> None:
    code = (
        "import sys, streamio.storage.discovery\n"
        "print({'s3fs', 'gcsfs', 'pyarrow', 'obstore', 'aiohttp', 'botocore'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
