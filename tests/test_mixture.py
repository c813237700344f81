"""Mixtures: the same global batches on every topology that fits, from any batch on, in the shares asked for."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import streamio
from streamio import status
from streamio.errors import FormatError, StatusError, TooManyDropsError, TopologyError
from streamio.loader.state import State
from streamio.topology import Topology
from tests.gloo import ranks
from tests.loader.data import write_lines, write_parquet
from tests.loader.simulated import SimulatedLoader

CASES = settings.default.max_examples if settings.default.max_examples > 100 else 30

NAMES = "abcd"


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None
    rows: int = 1
    columns: int = 1
    batch: int = 4
    """The global one."""
    stop: str = "first_exhausted"
    mandatory: tuple[str, ...] = ()
    bad: frozenset[tuple[str, int]] = frozenset()
    on_drop: str | None = None
    shuffle: bool = True

    @property
    def names(self) -> str:
        return NAMES[: len(self.sizes)]


@st.composite
def cases(draw: st.DrawFn, stops: tuple[str, ...] = ("first_exhausted", "all_exhausted")) -> Case:
    count = draw(st.integers(1, 4))
    rows, columns = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    share = draw(st.integers(1, 9))
    names = NAMES[:count]
    most = count if share >= count else share - 1
    sizes = tuple(draw(st.lists(st.integers(rows * columns, 60), min_size=count, max_size=count)))
    bad = st.frozensets(st.tuples(st.sampled_from(names), st.integers(0, 40)), max_size=20)
    weights = st.lists(st.floats(0.2, 5), min_size=count, max_size=count).map(tuple)
    return Case(
        sizes=sizes,
        weights=draw(st.none() | weights),
        rows=rows,
        columns=columns,
        batch=rows * share,
        stop=draw(st.sampled_from(stops)),
        mandatory=tuple(sorted(draw(st.sets(st.sampled_from(names), max_size=max(0, most))))),
        bad=draw(bad),
        on_drop=draw(st.sampled_from([None, "short"])),
        shuffle=draw(st.booleans()),
    )


@contextmanager
def folder_of(case: Case) -> Iterator[Path]:
    """A folder with the sources: parquet and Arrow files by turns."""
    path = Path(tempfile.mkdtemp())
    try:
        for number, (name, size) in enumerate(zip(case.names, case.sizes, strict=True)):
            write_source(path / name, name, size, "arrow" if number % 2 else "parquet")
        yield path
    finally:
        shutil.rmtree(path)


def write_source(folder: Path, name: str, size: int, kind: str = "parquet") -> None:
    folder.mkdir(parents=True)
    table = pa.table({"id": range(size), f"only_{name}": [f"{name}{i}" for i in range(size)]})
    if kind == "parquet":
        pq.write_table(table, folder / "p.parquet", row_group_size=7)
        return
    with pa.ipc.new_file(str(folder / "p.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def mixture_of(case: Case, folder: Path, rank: int = 0, world: int = 1, **options: Any) -> streamio.Mixture:
    def source(name: str) -> streamio.StreamingDataset:
        def leave_out(record: dict[str, Any]) -> dict[str, Any]:
            if (name, record["id"]) in case.bad:
                raise streamio.DropRecord("bad", "it is bad")
            return record

        return streamio.StreamingDataset(
            folder / name,
            shuffle=case.shuffle,
            window=6,
            on_drop=case.on_drop,  # type: ignore[arg-type]
            map=leave_out if case.bad else None,
            rank=rank,
            world_size=world,
        )

    given: dict[str, Any] = {
        "weights": case.weights and dict(zip(case.names, case.weights, strict=True)),
        "stop": case.stop,
        "mandatory": case.mandatory,
        "lanes": (case.rows, case.columns),
        "provenance": True,
        "seed": 5,
    }
    return streamio.Mixture({name: source(name) for name in case.names}, **given | options)


def loaders(case: Case, folder: Path, world: int, workers: int, **options: Any) -> list[SimulatedLoader]:
    """A loader for each rank. Only the first lists the folders: what comes of it is the same on all."""
    made: list[SimulatedLoader] = []
    for rank in range(world):
        mixture = mixture_of(case, folder, rank, world, **options)
        for name, source in mixture.sources.items() if rank else ():
            first = made[0].dataset
            assert isinstance(first, streamio.Mixture)
            source._settled = replace(first.sources[name].prepare(), topology=Topology(rank, world))
        made.append(SimulatedLoader(mixture, global_batch_size=case.batch, num_workers=workers))
    return made


def told(batch: Any) -> list[tuple[str, int]]:
    """Source and id of each record, which must be whole."""
    for record in batch:
        name = record["__source__"]
        assert set(record) == {"id", "__source__", f"only_{name}"}
        assert record[f"only_{name}"] == f"{name}{record['id']}"
    return [(record["__source__"], record["id"]) for record in batch]


class Run:
    """The ranks of one topology, step by step together."""

    def __init__(self, made: list[SimulatedLoader], value: dict[str, Any] | None = None) -> None:
        self.loaders = made
        for rank, loader in enumerate(made if value is not None else ()):
            loader.adopt(State.from_json(value or {}, rank))
        self._iterators = [iter(loader) for loader in made]

    def steps(self, most: int | None = None) -> list[list[list[tuple[str, int]]]]:
        """The next global batches, by rank."""
        found = []
        while most is None or len(found) < most:
            batches = [next(iterator, None) for iterator in self._iterators]
            if None in batches:
                assert all(batch is None for batch in batches)  # all ranks make as many steps
                break
            found.append([told(batch) for batch in batches])
        return found

    def close(self) -> dict[str, Any]:
        """The status of all ranks, as it would be written and read again."""
        states = [json.loads(json.dumps(loader.state().to_json())) for loader in self.loaders]
        for iterator in self._iterators:
            iterator.close()
        return json.loads(json.dumps(status.join(states, self.loaders[0].steps_of), sort_keys=True))


def flat(steps: list[list[list[tuple[str, int]]]]) -> list[list[tuple[str, int]]]:
    """Global batches, whoever had which part."""
    return [[record for batch in step for record in batch] for step in steps]


def dealable(case: Case, folder: Path) -> bool:
    """Whether there is one whole batch."""
    try:
        loaders(case, folder, 1, 0)[0]._run.settle()
    except TopologyError:
        return False
    return True


def has_good(case: Case) -> bool:
    """Whether each source has a good record, wherever its lanes lie."""
    return all(
        len({i for bad, i in case.bad if bad == name and i < size}) < size - size % case.rows
        for name, size in zip(case.names, case.sizes, strict=True)
    )


@settings(max_examples=CASES)
@given(cases(), st.data())
def test_global_batches_are_the_same_on_all_fitting_topologies_and_after_a_resume(
    case: Case, data: st.DataObject
) -> None:
    assume(has_good(case))
    with folder_of(case) as folder:
        assume(dealable(case, folder))
        worlds = [world for world in (1, 2, 4) if case.rows % world == 0]
        workers = [0, *(n for n in (1, 2, 3) if case.columns % n == 0)]
        first = Run(loaders(case, folder, data.draw(st.sampled_from(worlds)), data.draw(st.sampled_from(workers))))
        expected = flat(first.steps())
        assert len(expected) == len(first.loaders[0])
        other = Run(loaders(case, folder, data.draw(st.sampled_from(worlds)), data.draw(st.sampled_from(workers))))
        k = data.draw(st.integers(0, len(expected) - 1))
        begin = flat(other.steps(k))
        third = loaders(case, folder, data.draw(st.sampled_from(worlds)), data.draw(st.sampled_from(workers)))
        assert begin + flat(Run(third, other.close()).steps()) == expected


@settings(max_examples=CASES)
@given(cases())
def test_places_go_to_sources_by_weight_and_records_come_once_a_pass(case: Case) -> None:
    assume(has_good(case))
    with folder_of(case) as folder:
        assume(dealable(case, folder))
        run = Run(loaders(case, folder, case.rows, 0))
        steps = run.steps()
        spec = run.loaders[0]._run.settle()
        plan = spec.plan(run.loaders[0].state().start)  # type: ignore[union-attr]
        stats = sum((loader.stats() for loader in run.loaders), streamio.Stats())
        for k, step in enumerate(steps):
            for row, batch in enumerate(step):
                places, _ = plan_of_epoch_0(plan).batch(row, k)
                asked = Counter(case.names[source] for source in places.tolist())
                got = Counter(name for name, _ in batch)
                assert set(case.mandatory) <= set(got)
                if case.on_drop is None:
                    assert got == asked  # a bad record's place is its source's still
                else:
                    assert batch
                    assert got <= asked or len(batch) == 1
                assert not set(batch) & case.bad
        seen = Counter(record for step in steps for batch in step for record in batch)
        assert +Counter(stats.sources) == Counter(name for name, _ in seen.elements())
        assert stats.records == sum(seen.values())
        if not case.bad:
            assert stats.refilled == 0
            for number, name in enumerate(case.names):
                counts = [seen[name, i] for i in range(case.sizes[number])]
                if case.stop == "first_exhausted":
                    assert max(counts) <= 1
                else:
                    assert sum(count == 0 for count in counts) <= plan.left_out(number)


def plan_of_epoch_0(plan: Any) -> Any:
    return replace(plan, epoch=0)


@settings(max_examples=max(30, CASES // 2))
@given(cases(stops=("cycle",)), st.data())
def test_an_endless_mixture_goes_on_pass_after_pass(case: Case, data: st.DataObject) -> None:
    assume(has_good(case))
    with folder_of(case) as folder:
        assume(dealable(case, folder))
        steps = 2 * sum(case.sizes) // case.batch + 1
        first = Run(loaders(case, folder, case.rows, case.columns))
        expected = flat(first.steps(steps))
        first.close()
        k = data.draw(st.integers(0, steps))
        other = Run(loaders(case, folder, 1, 0))
        begin = flat(other.steps(k))
        third = Run(loaders(case, folder, 1, 1), other.close())
        assert begin + flat(third.steps(steps - k)) == expected
        third.close()
        if case.rows == case.columns == 1 and not case.bad:
            for name, size in zip(case.names, case.sizes, strict=True):
                ids = [i for batch in expected for source, i in batch if source == name]
                for start in range(0, len(ids) - size + 1, size):
                    assert sorted(ids[start : start + size]) == list(range(size))


def test_a_source_that_begins_again_comes_in_another_order(tmp_path: Path) -> None:
    case = Case((300, 20), (1, 1), batch=10, stop="all_exhausted")
    with folder_of(case) as folder:
        steps = flat(Run(loaders(case, folder, 1, 0)).steps())
    ids = [i for batch in steps for name, i in batch if name == "b"]
    passes = [ids[start : start + 20] for start in range(0, 300, 20)]
    assert all(sorted(each) == list(range(20)) for each in passes)
    assert len({tuple(each) for each in passes}) == 15


def test_delivered_shares_are_those_of_the_weights(tmp_path: Path) -> None:
    case = Case((3000, 3000, 3000), (0.7, 0.25, 0.05), rows=4, columns=2, batch=64, stop="cycle")
    with folder_of(case) as folder:
        run = Run(loaders(case, folder, 2, 2))
        run.steps(100)
        run.close()
        sources = sum((loader.stats() for loader in run.loaders), streamio.Stats()).sources
    # Two halvings, so two places in each of the eight lanes at most; and some of a begun block.
    assert [sources[name] / 6400 for name in "abc"] == pytest.approx([0.7, 0.25, 0.05], abs=(16 + 64) / 6400)


def test_a_source_that_is_all_bad_is_named(tmp_path: Path) -> None:
    case = Case((10, 10), None, bad=frozenset(("b", i) for i in range(10)))
    with (
        folder_of(case) as folder,
        pytest.raises(TooManyDropsError, match="Source 'b': Epoch 0 has not one good record"),
    ):
        Run(loaders(case, folder, 1, 0)).steps()


def test_lines_with_an_index_mix_with_parquet_and_without_one_are_refused(tmp_path: Path) -> None:
    for name in "pl":
        (tmp_path / name).mkdir()
    write_parquet(tmp_path / "p", [30])
    write_lines(tmp_path / "l", [40, 20], frozenset({7}))

    def loader() -> streamio.DataLoader:
        sources = {name: streamio.StreamingDataset(tmp_path / name, shuffle=True) for name in "pl"}
        mixture = streamio.Mixture(sources, weights={"p": 1, "l": 2}, provenance=True)
        return streamio.DataLoader(mixture, 6)

    with pytest.raises(FormatError, match=r"Source 'l' of the mixture: jsonl .*streamio index"):
        len(loader())
    streamio.build_index(str(tmp_path / "l"))
    mixed = loader()
    records = [record for batch in mixed for record in batch]
    assert len(records) == 90
    assert Counter(record["__source__"] for record in records) == mixed.stats().sources == {"p": 30, "l": 60}
    assert {record["id"] for record in records if record["__source__"] == "p"} == set(range(30))
    assert {record["id"] for record in records if record["__source__"] == "l"} == set(range(60)) - {7}
    assert mixed.stats().dropped == {"json": 1}
    assert mixed.stats().refilled == 1


@pytest.mark.parametrize("output", ["columns", "arrow", "torch"])
def test_columns_of_all_sources_come_in_one_batch_with_nulls(tmp_path: Path, output: str) -> None:
    case = Case((20, 20), (1, 1), batch=40)
    with folder_of(case) as folder:
        mixture = mixture_of(case, folder)
        (batch,) = streamio.DataLoader(mixture, 40, output=output)  # type: ignore[arg-type]
    columns = batch.to_pydict() if output == "arrow" else batch
    assert set(columns) == {"id", "only_a", "only_b", "__source__"}
    for number, name in enumerate(columns["__source__"]):
        assert columns[f"only_{name}"][number] == f"{name}{int(columns['id'][number])}"
        assert columns[f"only_{'ab'.replace(name, '')}"][number] is None


def test_a_stand_in_can_be_changed_alone(tmp_path: Path) -> None:
    case = Case((8, 8), (1, 1), batch=16, bad=frozenset(("a", i) for i in range(1, 8)))
    with folder_of(case) as folder:
        (batch,) = SimulatedLoader(mixture_of(case, folder), 16)
    assert len({id(record) for record in batch}) == 16


@pytest.mark.parametrize("workers", [0, 2])
def test_real_workers_read_a_mixture_from_a_bucket_and_a_checkpoint_goes_on(
    tmp_path: Path, s3: Any, workers: int
) -> None:
    case = Case((60, 90), (0.4, 0.6))
    with folder_of(case) as folder:
        for path in folder.rglob("p.*"):
            s3.put(f"{path.parent.name}/{path.name}", path.read_bytes())

    def loader() -> streamio.DataLoader:
        sources = {
            name: streamio.StreamingDataset(
                f"{s3.url}/{name}/", shuffle=True, window=9, storage_options=s3.storage_options
            )
            for name in "ab"
        }
        mixture = streamio.Mixture(sources, weights={"a": 2, "b": 3}, provenance=True, lanes=(1, 2))
        return streamio.DataLoader(mixture, 5, num_workers=workers)

    checkpoints = streamio.Checkpoints(tmp_path / "runs")
    first = loader()
    iterator = iter(first)
    begin = [told(batch) for batch in islice(iterator, 7)]
    assert checkpoints.resume(loader()) is None
    checkpoints.save(first)
    rest = [told(batch) for batch in iterator]
    records = [record for batch in begin + rest for record in batch]
    assert len(records) == len(set(records)) == 5 * len(first)
    assert len(first) >= 28
    second = loader()
    assert checkpoints.resume(second) == 7
    assert [told(batch) for batch in second] == rest
    assert second.epoch == 1
    assert second.stats().requests > 0


def test_ranks_of_a_group_settle_a_mixture_together(tmp_path: Path) -> None:
    for name in "ab":
        write_source(tmp_path / name, name, 40)
    found = ranks(
        tmp_path,
        2,
        f"""
import streamio
folder = {str(tmp_path)!r}
sources = {{name: streamio.StreamingDataset(f"{{folder}}/{{name}}/", group_timeout=30) for name in "ab"}}
loader = streamio.DataLoader(streamio.Mixture(sources, provenance=True), 4, num_workers=1)
tell([(record["__source__"], record["id"]) for batch in loader for record in batch])
tell(loader.stats(all_ranks=True).sources)
tell(len(loader))
tell(streamio.Checkpoints(f"{{folder}}/runs").save(loader))
""",
    )
    assert len({*found[0][0], *found[1][0]}) == 80
    assert found[0][1:] == found[1][1:]
    assert found[0][1:3] == [{"a": 40, "b": 40}, 10]


# What is refused


def test_a_place_under_another_grid_is_refused_by_name(tmp_path: Path) -> None:
    case = Case((60, 60), (1, 2), rows=2, columns=2, batch=8)
    with folder_of(case) as folder:
        run = Run(loaders(case, folder, 2, 2))
        run.steps(3)
        value = run.close()

        def resumed(world: int, batch: int, lanes: tuple[int, int] | None) -> None:
            loader = loaders(replace(case, batch=batch), folder, world, 0, lanes=lanes)[0]
            loader.adopt(State.from_json(value, 0))
            iter(loader).close()

        resumed(1, 8, None)  # one rank serves both rows
        for other in ((4, 8, None), (1, 16, None), (1, 8, (4, 1))):
            with pytest.raises(StatusError, match=r"lanes=\(2, 2\), global_batch_size=8 and a number of ranks"):
                resumed(*other)


def test_between_epochs_any_topology_goes_on(tmp_path: Path) -> None:
    case = Case((60, 60), (1, 2), rows=2, columns=2, batch=8)
    with folder_of(case) as folder:
        run = Run(loaders(case, folder, 2, 2))
        run.steps()
        other = Run(loaders(replace(case, rows=3, columns=1, batch=9), folder, 3, 0), run.close())
        assert other.loaders[0].epoch == 1
        assert len(other.steps()) == len(other.loaders[0])


def test_a_place_of_another_mixture_is_refused_by_name(tmp_path: Path) -> None:
    case = Case((60, 60), (1, 2))
    with folder_of(case) as folder:
        run = Run(loaders(case, folder, 1, 0))
        run.steps(2)
        value = run.close()

        def resumed(mixture: Any, *allow: str) -> None:
            loader = SimulatedLoader(mixture, 4)
            loader.adopt(State.from_json(value, 0), allow)
            iter(loader).close()

        resumed(mixture_of(case, folder))
        for name, options in {
            "mixture": {"weights": {"a": 1, "b": 3}},
            "end": {"stop": "cycle"},
            "seed": {"seed": 6},
        }.items():
            with pytest.raises(StatusError, match=f"{name} was"):
                resumed(mixture_of(case, folder, **options))
        with pytest.raises(StatusError, match=r"between epochs only.*set_epoch\(1\)"):
            resumed(mixture_of(case, folder, weights={"a": 1, "b": 3}), "mixture")
        with pytest.raises(StatusError, match="a mixture's place and a single data set's"):
            resumed(streamio.StreamingDataset(folder / "a"))
        swapped = mixture_of(case, folder)
        swapped.sources["a"], swapped.sources["b"] = swapped.sources["b"], swapped.sources["a"]
        with pytest.raises(StatusError, match="the data are not the same"):
            resumed(swapped)
        explicit = mixture_of(case, folder)
        explicit.sources["a"].window = 30
        with pytest.raises(StatusError, match="window was"):
            resumed(explicit)


def test_sources_too_small_for_the_lanes_or_the_batch_are_named(tmp_path: Path) -> None:
    case = Case((5, 60), None)
    with folder_of(case) as folder:
        with pytest.raises(TopologyError, match=r"source 'a' has 5 records for 2 x 3 lanes"):
            len(loaders(replace(case, rows=2, columns=3), folder, 2, 3)[0])
        with pytest.raises(
            TopologyError, match=r"a source comes to its end before .*\{'a': 5, 'b': 60\}.*all_exhausted"
        ):
            len(loaders(replace(case, batch=50, weights=(1, 1)), folder, 1, 0)[0])
        with pytest.raises(
            TopologyError, match="mandatory names 2 of 2 sources, and each row of lanes gives 1 records"
        ):
            len(loaders(replace(case, batch=1, mandatory=("a", "b")), folder, 1, 0)[0])


def test_a_mandatory_source_of_small_weight_is_raised_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case((30, 300), (0.01, 0.99), batch=10, mandatory=("a",))
    with folder_of(case) as folder, caplog.at_level(logging.WARNING):
        run = Run(loaders(case, folder, 1, 0))
        steps = run.steps()
    assert "source 'a' is mandatory" in caplog.text
    assert "0.1 in place of 0.01" in caplog.text
    assert len(steps) == 30
    assert all([name for name, _ in batch].count("a") == 1 for (batch,) in steps)


def test_options_that_can_not_be_are_named(tmp_path: Path) -> None:
    a, b = streamio.StreamingDataset(tmp_path / "a"), streamio.StreamingDataset(tmp_path / "b")
    sources = {"a": a, "b": b}
    for error, match, make in (
        (ValueError, "sources must be", lambda: streamio.Mixture({})),
        (TypeError, "Source 'c' is a list", lambda: streamio.Mixture({"c": []})),  # type: ignore[dict-item]
        (ValueError, "weights are of", lambda: streamio.Mixture(sources, weights={"a": 1})),
        (ValueError, r"weights\['b'\]=0", lambda: streamio.Mixture(sources, weights={"a": 1, "b": 0})),
        (ValueError, "stop='never'", lambda: streamio.Mixture(sources, stop="never")),  # type: ignore[arg-type]
        (ValueError, r"mandatory names \['c'\]", lambda: streamio.Mixture(sources, mandatory=["c"])),
        (TypeError, "mandatory='a'", lambda: streamio.Mixture(sources, mandatory="a")),
        (TypeError, "seed='x'", lambda: streamio.Mixture(sources, seed="x")),  # type: ignore[arg-type]
        (ValueError, "max_drops=-1", lambda: streamio.Mixture(sources, max_drops=-1)),
        (TypeError, "lanes=2", lambda: streamio.Mixture(sources, lanes=2)),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=match):
            make()
    for option in ({"end": "cycle"}, {"lanes": (1, 1)}, {"max_drops": 3}, {"on_change": "next_epoch"}):
        with pytest.raises(ValueError, match=f"Source 'a' has {next(iter(option))}="):
            streamio.Mixture({"a": streamio.StreamingDataset(tmp_path / "a", **option)})  # type: ignore[arg-type]


def test_sources_of_different_ranks_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_source(tmp_path / name, name, 5)
    sources = {
        name: streamio.StreamingDataset(tmp_path / name, rank=rank, world_size=2) for rank, name in enumerate("ab")
    }
    with pytest.raises(TopologyError, match="Source 'b' of the mixture is read by rank 1 of 2"):
        streamio.Mixture(sources).prepare()


def test_torchs_own_loader_is_told_where_a_mixture_goes(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"goes into streamio\.DataLoader"):
        iter(streamio.Mixture({"a": streamio.StreamingDataset(tmp_path / "a")}))


def test_an_endless_mixture_has_no_length(tmp_path: Path) -> None:
    case = Case((10,), None, stop="cycle")
    with folder_of(case) as folder, pytest.raises(TypeError, match="no len"):
        len(loaders(case, folder, 1, 0)[0])


def test_drops_are_counted_over_all_sources_and_can_stop_the_run(tmp_path: Path) -> None:
    case = Case((40, 40), (1, 1), bad=frozenset(("a", i) for i in range(30)))
    with folder_of(case) as folder, pytest.raises(TooManyDropsError, match="max_drops=5"):
        Run(loaders(case, folder, 1, 0, max_drops=5)).steps()


def test_a_cycle_goes_on_with_sources_smaller_than_a_batch(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 6)):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name, (count,))
    mixture = streamio.Mixture(
        {name: streamio.StreamingDataset(tmp_path / name) for name in "ab"}, stop="cycle", provenance=True
    )
    batches = iter(streamio.DataLoader(mixture, 16))
    seen = [record for _ in range(7) for record in next(batches)]
    taken = Counter((record["__source__"], record["id"]) for record in seen)
    assert len(taken) == 7
    assert abs(taken["a", 0] - 16) <= 1  # a seventh of 112 places
    others = [taken["b", number] for number in range(6)]
    assert max(others) - min(others) <= 1
