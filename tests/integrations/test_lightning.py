"""Lightning: its checkpoints hold the place, for any number of ranks; the page's recipe makes up for look-ahead."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import streamio
from tests.integrations.launch import launched
from tests.loader.data import write_lines, write_parquet

PAGE = (Path(__file__).parents[2] / "docs" / "checkpointers.md").read_text()
RECIPE = re.search(r"(class Placed:.*?)\n\n\nclass Model", PAGE, re.DOTALL)

MODEL = """
import json
import pytorch_lightning as pl
import torch
import torch.distributed as dist
import streamio

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen = []
        self.epochs = []
    def training_step(self, batch, number):
        self.seen.append(batch["id"].tolist())
        return self.linear(batch["id"].float()[:, None]).mean()
    def on_train_epoch_end(self):
        self.epochs.append(len(self.seen))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

def trainer_of(*callbacks, **options):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return pl.Trainer(accelerator="cpu", callbacks=list(callbacks), **quiet, **options)
"""


@pytest.fixture(scope="module")
def lightning() -> dict[str, Any]:
    """The names of `MODEL` and of the page's recipe, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names: dict[str, Any] = {}
        assert RECIPE is not None
        exec(MODEL + RECIPE[1].replace("dist.all_gather_object(places, self.place)", "places = [self.place]"), names)
    return names


def save_at(pl: Any, folder: Path, steps: range) -> Any:
    """A callback that saves behind some steps, where a ModelCheckpoint would."""

    class Save(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step in steps:
                trainer.save_checkpoint(folder / f"{trainer.global_step}.ckpt")

    return Save()


def loader_of(folder: Path, **options: Any) -> streamio.DataLoader:
    dataset = streamio.StreamingDataset(folder, shuffle=True, seed=1, window=9, **options)
    return streamio.DataLoader(dataset, batch_size=5, output="torch")


def test_with_a_length_a_resume_at_any_step_goes_on_exactly(tmp_path: Path, lightning: dict[str, Any]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_parquet(data, (17, 1, 6))  # 5 steps an epoch
    whole = lightning["Model"]()
    save = save_at(lightning["pl"], tmp_path, range(1, 12))
    lightning["trainer_of"](save, max_epochs=3).fit(whole, loader_of(data))
    assert len(whole.seen) == 15
    assert whole.epochs == [5, 10, 15]
    assert all(sorted({i for batch in whole.seen[at : at + 5] for i in batch}) == list(range(24)) for at in (0, 5, 10))
    for step in range(1, 12):
        model = lightning["Model"]()
        lightning["trainer_of"](max_epochs=3).fit(model, loader_of(data), ckpt_path=tmp_path / f"{step}.ckpt")
        assert model.seen == whole.seen[step:], step


@pytest.mark.parametrize("end", ["exact", "cycle"])
def test_without_a_length_the_pages_recipe_goes_on_exactly_and_the_bare_loader_would_not(
    tmp_path: Path, lightning: dict[str, Any], end: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data, (17, 1, 6))
    fit: dict[str, Any] = {"max_epochs": 2} if end == "exact" else {"max_steps": 12}
    whole = lightning["Model"]()
    save = save_at(lightning["pl"], tmp_path, range(1, 9))
    recipe = lightning["Data"](loader_of(data, end=end))
    lightning["trainer_of"](save, **fit).fit(whole, datamodule=recipe)
    for step in range(1, 9):
        model = lightning["Model"]()
        recipe = lightning["Data"](loader_of(data, end=end))
        lightning["trainer_of"](**fit).fit(model, datamodule=recipe, ckpt_path=tmp_path / f"{step}.ckpt")
        assert model.seen == whole.seen[step:], step
    lightning["trainer_of"](save, **fit).fit(lightning["Model"](), loader_of(data, end=end))
    saved = torch.load(tmp_path / "3.ckpt", weights_only=True)["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert json.loads(saved[0]["streamio"])["step"] == 4  # what the page warns of


def test_epochs_that_are_cut_short_differ_with_the_pages_callback(tmp_path: Path, lightning: dict[str, Any]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_parquet(data, (17, 1, 6))
    loader, model = loader_of(data), lightning["Model"]()

    class NextEpoch(lightning["pl"].Callback):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            loader.set_epoch(trainer.current_epoch)

    lightning["trainer_of"](NextEpoch(), max_epochs=3, limit_train_batches=2).fit(model, loader)
    expected = []
    for epoch in range(3):
        other = loader_of(data)
        other.set_epoch(epoch)
        expected += [batch["id"].tolist() for _, batch in zip(range(2), other, strict=False)]
    assert model.seen == expected


def test_loaders_for_validation_and_prediction_leave_the_training_state_alone(
    tmp_path: Path, lightning: dict[str, Any]
) -> None:
    for name in ("data", "valid"):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name, (17, 1, 6))

    class Model(lightning["Model"]):  # type: ignore[misc]
        def validation_step(self, batch: Any, number: int) -> None:
            self.validated = getattr(self, "validated", []) + batch["id"].tolist()

        def predict_step(self, batch: Any, number: int) -> Any:
            return batch["id"].tolist()

    whole, model = lightning["Model"](), Model()
    lightning["trainer_of"](max_epochs=2).fit(whole, loader_of(tmp_path / "data"))
    valid = loader_of(tmp_path / "valid", end="exact")
    trainer = lightning["trainer_of"](max_epochs=2, num_sanity_val_steps=0, val_check_interval=2)
    trainer.fit(model, loader_of(tmp_path / "data"), valid)
    assert model.seen == whole.seen
    assert sorted(set(model.validated)) == list(range(24))
    assert len(model.validated) == 24 * 4
    predicted = trainer.predict(model, iter(loader_of(tmp_path / "valid", end="exact")))
    assert sorted(i for batch in predicted for i in batch) == list(range(24))


@pytest.mark.parametrize("world", [1, 4])
def test_what_two_ranks_saved_is_taken_up_by_any_number_each_id_once(tmp_path: Path, world: int) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data", (40, 13, 11))
    program = """
class Save(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 3:
            trainer.save_checkpoint("last.ckpt")
def fit(world, steps, checkpoint=None):
    dataset = streamio.StreamingDataset("data", shuffle=True, seed=1, window=9)
    loader = streamio.DataLoader(dataset, global_batch_size=8, output="torch")
    strategy = "ddp" if world > 1 else "auto"
    trainer = trainer_of(Save(), devices=world, strategy=strategy, max_epochs=1, max_steps=steps)
    model = Model()
    trainer.fit(model, loader, ckpt_path=checkpoint)
    print(json.dumps([trainer.global_step, sum(model.seen, [])]))
"""
    first = launched(MODEL + program + "fit(2, 3)", 2, tmp_path)
    second = launched(MODEL + program + f'fit({world}, -1, "last.ckpt")', world, tmp_path)
    assert {json.loads(told)[0] for told in second} == {8}
    assert sorted(i for told in first + second for i in json.loads(told)[1]) == list(range(64))


def test_one_ranks_place_in_a_streamed_set_is_refused_by_the_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data", (40, 13, 11))
    program = """
from streamio.errors import StatusError
def fit(steps, checkpoint=None):
    dataset = streamio.StreamingDataset("data", end="cycle")
    loader = streamio.DataLoader(dataset, batch_size=4, output="torch")
    dataset.prepare() if dist.is_initialized() else None
    trainer = trainer_of(devices=2, strategy="ddp", max_steps=steps)
    trainer.fit(Model(), loader, ckpt_path=checkpoint)
    trainer.save_checkpoint("last.ckpt")
fit(3)
try:
    fit(4, "last.ckpt")
except StatusError as error:
    print(error)
except RuntimeError:
    print("the other one has gone")
"""
    told = launched(MODEL + program, 2, tmp_path)
    assert "each rank's own state, or `Checkpoints`" in told[1]
