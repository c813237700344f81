"""A bucket on a server of localstack/serve.py, as a test wants it: put, get, delete, its URL and its options.

It speaks plain HTTP, so that the test's process has used no read client before the code under test does.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote


def _load_serve() -> ModuleType:
    # By path: LocalStack's own package has the name of the folder.
    path = Path(__file__).resolve().parents[2] / "localstack" / "serve.py"
    spec = importlib.util.spec_from_file_location("serve", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


serve: Any = sys.modules.get("serve") or _load_serve()


class Bucket:
    """A bucket of its own, with a name that nobody else has.

    Attributes:
        url: `s3://NAME` or `gs://NAME`.
        storage_options: For fsspec; the endpoint may be another than the server's own (a proxy's).
        env: The same as environment variables, for a child process.
    """

    def __init__(self, server: Any, *, endpoint: str | None = None) -> None:
        self.server = server
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.url = server.make_bucket(self.name)
        self.storage_options: dict[str, Any] = dict(server.storage_options)
        self.env: dict[str, str] = dict(server.env)
        if endpoint is not None:
            self.storage_options["endpoint_url"] = endpoint
            self.env["AWS_ENDPOINT_URL" if server.scheme == "s3" else "STORAGE_EMULATOR_HOST"] = endpoint

    def put(self, key: str, data: bytes) -> str:
        """Write an object, straight to the server (no proxy), and return its URL."""
        if self.server.scheme == "s3":
            answer = self.server.request("PUT", self._path(key), data)
        else:
            query = {"uploadType": "media", "name": key}
            answer = self.server.request("POST", f"/upload/storage/v1/b/{self.name}/o", data, query=query)
        assert answer.status == 200, (key, answer)
        return f"{self.url}/{key}"

    def get(self, key: str) -> bytes:
        """Read an object; FileNotFoundError where there is none."""
        query = {"alt": "media"} if self.server.scheme == "gs" else None
        answer = self.server.request("GET", self._path(key), query=query)
        if answer.status == 404:
            raise FileNotFoundError(f"{self.url}/{key}")
        assert answer.status == 200, (key, answer)
        return bytes(answer.body)

    def delete(self, key: str) -> None:
        """Remove an object."""
        answer = self.server.request("DELETE", self._path(key))
        assert answer.status in (200, 204), (key, answer)

    def etag(self, key: str) -> str:
        """The ETag (S3, in its quotes) or generation (GCS) that an object has now."""
        if self.server.scheme == "s3":
            return str(self.server.request("HEAD", self._path(key)).headers["etag"])
        return str(json.loads(self.server.request("GET", self._path(key)).body)["generation"])

    def fs(self) -> Any:
        """A new fsspec file system with this bucket's options and no listing cache."""
        import fsspec

        options = {**self.storage_options, "use_listings_cache": False, "skip_instance_cache": True}
        return fsspec.filesystem(self.server.scheme, **options)

    def drop(self) -> None:
        """Remove the bucket with all that is in it, where the server does that at one stroke (SeaweedFS)."""
        if self.server.kind == "seaweedfs":
            self.server.request("DELETE", f"/{self.name}")

    def _path(self, key: str) -> str:
        if self.server.scheme == "s3":
            return f"/{self.name}/{quote(key, safe='/~-._')}"
        return f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}"
