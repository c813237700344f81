"""Trains a small language model on texts that lie in a bucket, and goes on by itself where it was killed.

    torchrun --standalone --nproc-per-node 2 examples/train.py s3://corpus/train --checkpoints s3://runs/first

Records are `{"id": ..., "text": ...}` (parquet, JSON lines) or samples NAME.json (`{"id": ...}`) and NAME.txt
(tar). Credentials and endpoint come from the environment (AWS_ENDPOINT_URL and the like), or from
`--storage-option`. Start the same command again after any crash.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import streamio

LENGTH = 64  # bytes of a text that are learnt
PAD = 0  # stands behind the end of a text, and is not learnt

Batch = tuple[list[Any], Tensor]


class NextByte(nn.Module):
    """Tells the next byte: tokens of shape (batch, length) to logits of shape (batch, length, 256)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))
        logits: Tensor = self.head(states)
        return logits


def to_text(record: dict[str, Any]) -> dict[str, Any]:
    """The same two fields, whatever the format. Runs in the workers."""
    if "__key__" in record:  # a tar sample: bytes by extension
        return {"id": json.loads(record["json"])["id"], "text": record["txt"].decode()}
    return {"id": record["id"], "text": record["text"]}


def to_batch(records: list[dict[str, Any]]) -> Batch:
    """Ids, and bytes as a tensor of shape (batch, LENGTH + 1). Runs in the workers."""
    tokens = torch.full((len(records), LENGTH + 1), PAD)
    for row, record in enumerate(records):
        data = record["text"].encode()[: LENGTH + 1]
        tokens[row, : len(data)] = torch.tensor(list(data))
    return [record["id"] for record in records], tokens


def epoch_steps(loader: streamio.DataLoader) -> Iterator[tuple[Batch, bool]]:
    """The batches of an epoch, and whether every rank still has one.

    With `end="exact"` some ranks end before others. They go on with empty batches until all have ended, as each
    step needs every rank: nobody hangs, and no record is made up or left out.
    """
    nothing: Batch = ([], torch.full((1, LENGTH + 1), PAD))
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        active = torch.tensor(0 if batch is None else 1)
        dist.all_reduce(active)
        if not active:
            return
        yield batch or nothing, bool(active == dist.get_world_size())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    """One step of all ranks together; returns the mean loss of the global batch in nats a byte."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    learnt = (targets != PAD).sum()
    dist.all_reduce(learnt)  # a mean over all bytes of all ranks, however many each of them has
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
    loss = loss / learnt.clamp(min=1)
    optimizer.zero_grad()
    torch.autograd.backward(loss * dist.get_world_size())  # DDP averages gradients over the ranks
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item()


def model_url(checkpoints: str, step: int) -> str:
    """The model lies beside the status of the same step."""
    return f"{checkpoints.rstrip('/')}/step-{step:08d}/model.pt"


class IdLog:
    """What a rank has trained on, a line a step, in `<folder>/rank<N>.jsonl`: evidence beside the loader's own."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / f"rank{rank}.jsonl").open("ab", buffering=0)
            self.file.write(b"\n")  # the kill may have cut the last line short

    def write(self, **line: Any) -> None:
        """Append a line; it is the system's at once, so that a SIGKILL can't take it back."""
        if self.file is not None:
            self.file.write(f"{json.dumps(line)}\n".encode())


def train(arguments: argparse.Namespace) -> None:
    rank, options = dist.get_rank(), dict(arguments.storage_option)
    dataset = streamio.StreamingDataset(
        arguments.url,
        shuffle=True,
        seed=arguments.seed,
        map=to_text,
        end=arguments.end,
        lanes=arguments.lanes,
        format=arguments.format,
        storage_options=options,
    )
    loader = streamio.DataLoader(
        dataset,
        batch_size=1 if arguments.global_batch_size else arguments.batch_size,
        global_batch_size=arguments.global_batch_size,
        num_workers=arguments.workers,
        collate_fn=to_batch,
    )
    checkpoints = streamio.Checkpoints(arguments.checkpoints, storage_options=options)

    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(NextByte())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    step = saved = checkpoints.resume(loader) or 0
    if step:
        with fsspec.open(model_url(arguments.checkpoints, step), "rb", **options) as file:
            state = torch.load(file, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save() -> None:
        # The model first: where a status lies, the model of its step lies too.
        if rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            with fsspec.open(model_url(arguments.checkpoints, step), "wb", **options) as file:
                torch.save(state, file)
        checkpoints.save(loader, step=step)  # by all ranks: it waits for rank 0

    started = torch.tensor(time.time(), dtype=torch.float64)
    dist.broadcast(started, 0)
    log = IdLog(arguments.id_log, rank)
    log.write(resumed_at=step, started=started.item())
    with progress_bar(disable=rank != 0) as progress:
        total = steps_of(loader, arguments.epochs)
        bar = progress.add_task("", total=total, completed=step, epoch=loader.epoch, loss="-")
        for epoch in range(loader.epoch, arguments.epochs):
            loader.set_epoch(epoch)
            for (ids, tokens), all_here in epoch_steps(loader):
                loss = train_step(model, optimizer, tokens)
                step += 1
                log.write(epoch=epoch, step=step, ids=ids)
                progress.update(bar, completed=step, epoch=epoch, loss=f"{loss:.3f}")
                # A status speaks of one epoch: none is written while some ranks have ended theirs.
                if step % arguments.save_every == 0 and all_here:
                    save()
                    saved = step
        progress.update(bar, total=step)
    if step > saved:
        save()
    stats = loader.stats(all_ranks=True)
    if rank == 0:
        print(
            f"Trained to step {step}. Since this start: {stats.records} records, {stats.padded} of them padding, "
            f"{sum(stats.dropped.values())} dropped, {stats.bytes_read / 1e6:.1f} MB, {stats.retries} retries."
        )


def progress_bar(*, disable: bool) -> Progress:
    return Progress(
        TextColumn("epoch {task.fields[epoch]}, step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        disable=disable,
    )


def steps_of(loader: streamio.DataLoader, epochs: int) -> int | None:
    """Steps of the whole run; None where the data do not tell beforehand."""
    try:
        return epochs * len(loader)
    except TypeError:
        return None


def key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("url", help="the data: a URL, glob or folder")
    add("--checkpoints", required=True, metavar="URL", help="folder for models and statuses")
    add("--epochs", type=int, default=1)
    add("--batch-size", type=int, default=32, help="records per rank and step (default: 32)")
    add("--global-batch-size", type=int, help="records per step over all ranks, in place of --batch-size")
    add("--lanes", type=int, nargs=2, metavar=("R", "G"), help="lane grid: the same run on every topology that fits")
    add("--workers", type=int, default=2, help="worker processes per rank (default: 2)")
    add("--save-every", type=int, default=100, metavar="STEPS")
    add("--end", choices=("even", "exact"), help="exact: every record once, for formats without counts")
    add("--format", help="where suffixes do not tell it: parquet, jsonl or tar")
    add("--seed", type=int, default=0)
    add("--storage-option", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    add("--id-log", type=Path, metavar="DIR", help="write the ids of each step into DIR/rank<N>.jsonl")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
