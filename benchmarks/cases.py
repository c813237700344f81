"""The cases of the main table: floors, streamio and its peers, over both kinds of data."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.data import FORMATS

BATCH = {"images": 32, "text": 256}
CONNECTIONS = {"loopback": (2, 4, 8, 16), "cloud": (4, 8, 16, 32, 64)}
RANGES_MB = (4, 8)
WORKERS = (0, 2)
READERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("images", "parquet"): ("ours", "hf", "lit", "s3torch"),
    ("images", "tar"): ("ours", "wds", "s3torch"),
    ("images", "mds"): ("mosaic",),
    ("images", "lit"): ("lit",),
    ("text", "parquet"): ("ours", "hf", "lit", "s3torch"),
    ("text", "jsonl"): ("ours", "hf", "s3torch"),
    ("text", "jsonl.zst"): ("ours", "hf"),
    ("text", "tar"): ("ours", "wds", "s3torch"),
    ("text", "mds"): ("mosaic",),
    ("text", "lit"): ("lit",),
}
NAMES = {
    "ours": "streamio",
    "hf": "datasets",
    "lit": "litdata",
    "s3torch": "s3torchconnector",
    "wds": "webdataset",
    "mosaic": "mosaicml",
}
OUTPUTS = ("columns", "arrow", "torch")
DECODERS = {
    ("images", "parquet"): ("arrow", "arrow-threads", "to_pylist"),
    ("text", "parquet"): ("arrow", "arrow-threads", "to_pylist"),
    ("text", "jsonl"): ("orjson",),
    ("text", "jsonl.zst"): ("zstd+orjson",),
}


def all_cases(profile: str) -> list[Case]:
    """Every case of a profile, floors first."""
    return [*wire_floors(profile), *decode_floors(), *readers()]


def wire_floors(profile: str) -> list[Case]:
    """Byte ranges by obstore over the objects of each set that streamio reads."""
    return [
        Case(
            f"{kind}/{form}/floor-wire/{megabytes}MBx{connections}",
            "floors",
            "wire",
            kind,
            form,
            extra={"range_mb": megabytes, "connections": connections},
        )
        for kind, form in sorted(READERS)
        if "ours" in READERS[kind, form]
        for megabytes in RANGES_MB
        for connections in CONNECTIONS[profile]
    ]


def decode_floors() -> list[Case]:
    """Decoding from memory."""
    return [
        Case(f"{kind}/{form}/floor-decode/{decoder}", "floors", decoder, kind, form, batch=BATCH[kind])
        for (kind, form), decoders in DECODERS.items()
        for decoder in decoders
    ]


def readers() -> list[Case]:
    """All readers with 0 and 2 workers."""
    assert all(form in FORMATS[kind] for kind, form in READERS)
    cases = []
    for (kind, form), names in READERS.items():
        for workers in WORKERS:
            cases += [reader(name, kind, form, workers) for name in names]
            if form == "parquet":
                cases += [reader("ours", kind, form, workers, output) for output in OUTPUTS]
        if form == "parquet":
            cases.append(reader("hf", kind, form, 0, "arrow"))
    return cases


def reader(name: str, kind: str, form: str, workers: int, output: str = "records", **extra: object) -> Case:
    """One reader of one set; `extra` shows in the case's name."""
    label = "-".join([NAMES[name], *([output] if output != "records" else []), *map(str, extra.values())])
    return Case(
        f"{kind}/{form}/{label}/w{workers}",
        "throughput",
        name,
        kind,
        form,
        workers,
        output,
        BATCH[kind],
        dict(extra),
    )
