"""Windows of shuffled lines, which wait as text: each record keeps its place, whatever is damaged beside it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

import streamio

ODD = (b"\n", b"  \n", b"nope\n", b"[1]\n", b"\xff\n", b"{}{}\n", b'{"n": NaN}\r\n')


def write_odd_lines(folder: Path) -> dict[tuple[str, int], str]:
    """Shards of lines among which are damaged ones, one of them cut short; tells which text begins where."""
    rng, places = random.Random(3), dict[tuple[str, int], str]()
    for number in range(4):
        data, name = bytearray(), f"{number}.jsonl.gz"
        for line in range(300):
            if rng.random() < 0.1:
                data += rng.choice(ODD)
            places[name, len(data)] = text = f"{number} {line} {'x' * rng.randrange(50)}"
            data += json.dumps({"text": text}).encode() + rng.choice((b"\n", b"\r\n") if number % 2 else (b"\n",))
        packed = gzip.compress(bytes(data))
        (folder / name).write_bytes(packed[: len(packed) // 2] if number == 2 else packed)
    return places


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 7, 500])
def test_a_record_keeps_its_place_beside_damaged_ones(tmp_path: Path, batch: int, workers: int) -> None:
    places = write_odd_lines(tmp_path)
    dataset = streamio.StreamingDataset(tmp_path, shuffle=True, window=200, provenance=True)
    loader = streamio.DataLoader(dataset, batch, num_workers=workers)
    records = [record for batch in loader for record in batch if "text" in record]
    found = {(record["__shard__"].rpartition("/")[2], record["__index__"]): record["text"] for record in records}
    assert len(found) == len(records) > 900
    assert found.items() <= places.items()
    dropped = loader.stats().dropped
    assert dropped["corrupt"] == 1
    assert dropped["json"] > 50
    assert {place for place in places if place[0] != "2.jsonl.gz"} <= found.keys()
