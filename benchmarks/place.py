"""Where the data lie: an endpoint, a bucket and its keys, and what is known of each set beforehand.

Plain values that travel to the processes of the cases as JSON; nothing is read or written here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DataSet:
    """One set of records in one format.

    Attributes:
        kind: `images` or `text`.
        format: `parquet`, `jsonl`, `jsonl.zst`, `tar`, `mds` or `lit`.
        prefix: Keys begin with it; ends with a slash.
        keys: Keys and sizes in bytes of its objects, in order.
        records: Number of records.
        id_sum: Sum of the records' ids.
        payload_bytes: Bytes of the records' values, the same in every format.
    """

    kind: str
    format: str
    prefix: str
    keys: tuple[tuple[str, int], ...]
    records: int
    id_sum: int
    payload_bytes: int

    @property
    def object_bytes(self) -> int:
        """Bytes of its objects: what is to be moved over the wire."""
        return sum(size for _, size in self.keys)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DataSet:
        """The set that `asdict` gave."""
        return cls(**{**value, "keys": tuple((key, size) for key, size in value["keys"])})


@dataclass(frozen=True)
class Place:
    """A bucket on an S3 server, and how to reach it.

    Attributes:
        endpoint: `http://127.0.0.1:PORT`, of the server or of the shaper before it.
        bucket: Name of the bucket.
        access: Access key, of a server on this machine.
        secret: Its secret.
        region: Its region.
        control: Port on which the shaper tells its counters; None where there is none.
    """

    endpoint: str
    bucket: str
    access: str
    secret: str
    region: str = "us-east-1"
    control: int | None = None

    @property
    def storage_options(self) -> dict[str, str]:
        """Options for fsspec, and so for streamio and datasets."""
        return {"endpoint_url": self.endpoint, "key": self.access, "secret": self.secret}

    @property
    def env(self) -> dict[str, str]:
        """Environment of a case's process: what the clients that take no options read."""
        return {
            "AWS_ACCESS_KEY_ID": self.access,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "S3_ENDPOINT_URL": self.endpoint,  # MosaicML's name for it
        }

    def url(self, key: str = "") -> str:
        """`s3://BUCKET/KEY`."""
        return f"s3://{self.bucket}/{key}"

    def files(self) -> Any:
        """An fsspec filesystem of the server: what makes the data is clean of the client that is measured."""
        import fsspec

        return fsspec.filesystem("s3", **self.storage_options)

    def store(self) -> Any:
        """An obstore store of the bucket."""
        from obstore.store import S3Store

        return S3Store(
            self.bucket,
            config={
                "endpoint": self.endpoint,
                "access_key_id": self.access,
                "secret_access_key": self.secret,
                "region": self.region,
            },
            client_options={"allow_http": True},
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)
