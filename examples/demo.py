"""Shows that a killed training goes on where it was: `make demo`, or `make demo DEMO="--server localstack"`.

Starts an object store on this machine, writes data, trains with `torchrun`, kills every process of the training
with SIGKILL, starts it again, and judges from the ranks' own logs whether each record was trained on once.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evidence
import fsspec
import make_data
from processes import MARK, kill_all, living
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "localstack"))  # no package: LocalStack's own is called so

import serve  # noqa: E402

LAYOUT = (2, 2)  # ranks, and workers of each
GLOBAL_BATCH = 64
GRACE = 10.0  # seconds for the processes of a training that has ended to be gone

console = Console(highlight=False)


class DemoError(Exception):
    """The demo could not show what it is to show."""


class Training:
    """The same command, started as often as needed, by as many ranks as there are then, and all processes of it."""

    def __init__(self, arguments: argparse.Namespace, server: Any, scratch: Path) -> None:
        bucket = server.make_bucket(f"demo-{uuid.uuid4().hex[:8]}")
        self.data, self.run, self.logs = f"{bucket}/data", f"{bucket}/run", scratch / "logs"
        self.layouts = arguments.layouts
        self.options = [
            f"--checkpoints={self.run}", f"--id-log={self.logs}", f"--global-batch-size={arguments.global_batch}",
            f"--epochs={arguments.epochs}", f"--save-every={arguments.save_every}",
        ]  # fmt: skip
        if arguments.lanes:
            self.options += ["--lanes", *map(str, arguments.lanes)]
        if arguments.data != "parquet" or (len(set(self.layouts)) > 1 and not arguments.lanes):
            self.options.append("--end=exact")  # counts are not known, or what is left may be no whole batches
        own = {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch), MARK: uuid.uuid4().hex}
        self.environment = {**os.environ, **own}
        self.mark = own[MARK]
        self.deadline = arguments.timeout
        self.lives_before: list[int] = []  # what each rank had logged when the life at hand began

    def command(self, life: int) -> list[str]:
        """What starts a life; there are layouts for the first ones, and the last of them holds on."""
        ranks, workers = self.layouts[min(life, len(self.layouts) - 1)]
        return [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            str(HERE / "train.py"), self.data, f"--workers={workers}", *self.options,
        ]  # fmt: skip

    def start(self, life: int) -> subprocess.Popen[bytes]:
        self.lives_before = [len(lives) for lives in self.ranks()]
        return subprocess.Popen(self.command(life), env=self.environment, stdin=subprocess.DEVNULL)

    def ranks(self) -> list[list[evidence.Life]]:
        """What the ranks have logged so far."""
        most = max(ranks for ranks, _ in self.layouts)
        return [evidence.read(self.logs / f"rank{rank}.jsonl") for rank in range(most)]

    def this_life(self) -> list[evidence.Life]:
        """The life at hand, of the ranks that came so far as to log it."""
        logged = zip(self.ranks(), self.lives_before, strict=True)
        return [lives[-1] for lives, before in logged if len(lives) > before]

    def wait_for(self, process: subprocess.Popen[bytes], moment: float, step: int | None) -> None:
        """Return when the training has made `step` in this life and `moment` seconds have passed after that."""
        end = time.monotonic() + self.deadline
        while step is not None and not any(life.last >= step for life in self.this_life()):
            self.still_runs(process)
            if time.monotonic() > end:
                raise DemoError(f"the training did not come to step {step} within {self.deadline:.0f} s")
            time.sleep(0.01)
        time.sleep(moment)
        self.still_runs(process)

    @staticmethod
    def still_runs(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            raise DemoError(f"the training ended by itself (exit code {process.returncode}) before it was killed")

    def kill(self, process: subprocess.Popen[bytes]) -> int:
        """End every process by SIGKILL; returns how many there were."""
        killed = kill_all(self.mark)
        process.wait(GRACE)
        console.show_cursor()  # the progress bar had no time to do so
        return killed

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the training has ended well, with nothing left behind."""
        try:
            code = process.wait(self.deadline)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the training did not end within {self.deadline:.0f} s") from None
        if code:
            raise DemoError(f"the training ended with exit code {code}")
        end = time.monotonic() + GRACE
        while left := living(self.mark):
            if time.monotonic() > end:
                told = ", ".join(f"{process.pid} ({' '.join(process.cmdline()[:4])} ...)" for process in left)
                raise DemoError(f"the training left processes behind: {told}")
            time.sleep(0.05)

    def statuses(self) -> list[int]:
        """Steps of the complete checkpoints in the bucket."""
        fs, path = fsspec.url_to_fs(self.run, use_listings_cache=False)
        return sorted(int(name.split("/")[-2][len("step-") :]) for name in fs.glob(f"{path}/step-*/streamio.json"))


def kill_times(arguments: argparse.Namespace) -> list[tuple[float, int | None]]:
    """When to kill each life: seconds after a step, or after the start where there is no step.

    Either spread over the run, each half-way between two checkpoints; or at random, start-up included.
    """
    steps, every = arguments.records * arguments.epochs // arguments.global_batch, arguments.save_every
    if arguments.random is None:
        parts = [steps * (kill + 1) // (arguments.kills + 1) for kill in range(arguments.kills)]
        return [(0.0, max(part // every, 1) * every + every // 2) for part in parts]
    source = random.Random(arguments.random)
    chosen = sorted(source.uniform(-0.15, 0.75) for _ in range(arguments.kills))
    return [
        (source.uniform(0.0, 0.1), 1 + int(part * steps)) if part > 0 else (source.uniform(0.5, 4.0), None)
        for part in chosen
    ]


def demonstrate(arguments: argparse.Namespace) -> bool:
    """Run the demo; tells whether every record was trained on exactly once."""
    with serve.start(arguments.server) as server, tempfile.TemporaryDirectory(prefix="streamio-demo-") as scratch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # an account of the user's own is not meant here
        os.environ.update(server.env, AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
        training = Training(arguments, server, Path(scratch))
        make_data.write(training.data, arguments.data, arguments.records)
        console.print(
            f"{arguments.server} answers at {server.endpoint}; {training.data} holds {arguments.records:,} records "
            f"as {arguments.data} in {make_data.SHARDS} shards.\n[dim]{shlex.join(training.command(0))}[/dim]",
            soft_wrap=True,
        )
        table = Table("life", "layout", "from step", "to step (by rank)", "newest status", "ended by")
        try:
            for life, (moment, step) in enumerate(kill_times(arguments)):
                process = training.start(life)
                training.wait_for(process, moment, step)
                killed = training.kill(process)
                console.print(f"[bold red]SIGKILL[/] to all {killed} processes of the training; the same again.")
                add_row(table, training, life, f"SIGKILL to {killed}")
            training.finish(training.start(arguments.kills))
            add_row(table, training, arguments.kills, "itself")
        finally:
            kill_all(training.mark)
        console.print(table)
        ids = [record["id"] for record in make_data.records(arguments.records)]
        return tell(evidence.judge(training.ranks(), ids, arguments.epochs), arguments)


def add_row(table: Table, training: Training, life: int, ended: str) -> None:
    """A row for the life that has just ended; one that was killed in its start-up has logged nothing."""
    lives = training.this_life()
    resumed = str(max(life.resumed_at for life in lives)) if lives else "-"
    made = " / ".join(str(life.last) for life in lives) if lives else "-"
    newest = max(training.statuses(), default=None)
    layout = "{} x {}".format(*training.layouts[min(life, len(training.layouts) - 1)])
    table.add_row(str(life + 1), layout, resumed, made, "none" if newest is None else str(newest), ended)


def tell(verdict: evidence.Verdict, arguments: argparse.Namespace) -> bool:
    """Print the verdict."""
    epochs = "one epoch" if arguments.epochs == 1 else f"each of {arguments.epochs} epochs"
    kills = "one kill" if arguments.kills == 1 else f"{arguments.kills} kills"
    console.print(
        f"Judged by the logs of all ranks over {kills}: {verdict.dead:,} records were trained on in steps "
        "that died with a kill, and again after it.",
        soft_wrap=True,
    )
    if verdict.good:
        console.print(
            f"[bold green]{arguments.records:,} records, each trained on exactly once along the surviving line of "
            f"steps[/] (in {epochs}). [dim]Digest of the global batches: {verdict.batches}[/]",
            soft_wrap=True,
        )
        return True
    for what in ("lost", "repeated", "foreign"):
        for epoch, ids in getattr(verdict, what).items():
            console.print(f"[bold red]{len(ids)} {what}[/] in epoch {epoch}: {listed(ids)}", soft_wrap=True)
    return False


def listed(ids: Sequence[Any], most: int = 50) -> str:
    shown = ", ".join(map(str, ids[:most]))
    return shown if len(ids) <= most else f"{shown} and {len(ids) - most} more"


def layouts(text: str) -> list[tuple[int, int]]:
    """`4x2,2x3` as pairs of ranks and workers."""
    pairs = [tuple(map(int, each.split("x"))) for each in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(text)
    return pairs  # type: ignore[return-value]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--server", choices=list(serve.KINDS), default="seaweedfs", help="default: seaweedfs; gcs is gs://")
    add("--data", choices=make_data.FORMATS, default="parquet", help="format of the data (default: parquet)")
    add("--records", type=int, default=6400)
    add("--epochs", type=int, default=2)
    add("--save-every", type=int, default=15, metavar="STEPS")
    add("--kills", type=int, default=1, help="how often everything is killed (default: 1)")
    add("--layouts", type=layouts, default=[LAYOUT], metavar="4x2,2x3,...", help="ranks x workers of each life")
    add(
        "--global-batch",
        type=int,
        default=GLOBAL_BATCH,
        help=f"records a step over all ranks (default: {GLOBAL_BATCH})",
    )
    add("--lanes", type=int, nargs=2, metavar=("R", "G"), help="lane grid: the same batches on each layout that fits")
    add("--random", type=int, metavar="SEED", help="kill at random moments, not between two checkpoints")
    add("--timeout", type=float, default=300, metavar="SECONDS", help="for each life of the training")
    arguments = parser.parse_args()
    if arguments.records < arguments.global_batch or arguments.records % arguments.global_batch:
        parser.error(
            f"--records must be a multiple of the global batch, {arguments.global_batch}: else batches are padded"
        )
    if arguments.kills < 0 or arguments.epochs < 1 or arguments.save_every < 1:
        parser.error("--kills must be 0 or more, --epochs and --save-every 1 or more")
    times = [step for _, step in kill_times(arguments) if step is not None]
    if max(times, default=0) >= arguments.records * arguments.epochs // arguments.global_batch:
        parser.error("--save-every leaves no room for --kills: ask for more records or epochs")
    return arguments


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the training and the server end with it
    begun = time.monotonic()
    try:
        good = demonstrate(arguments)
    except (DemoError, serve.ServerError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(f"[dim]{time.monotonic() - begun:.0f} s[/dim]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
