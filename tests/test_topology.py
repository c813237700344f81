from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamio.errors import GroupError, TopologyError
from streamio.group import Group
from streamio.topology import Topology, resolve_topology
from tests.gloo import ranks


@pytest.fixture(autouse=True)
def _no_ranks_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_alone_it_is_one_rank() -> None:
    assert resolve_topology() == Topology(0, 1, None)


def test_the_environment_is_asked_where_nothing_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_topology() == Topology(3, 8, None)


@pytest.mark.parametrize(("rank", "world_size"), [("3", None), (None, "8"), ("8", "8"), ("one", "8"), ("0", "")])
def test_an_environment_that_makes_no_sense_is_an_error(
    rank: str | None, world_size: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(TopologyError, match=f"RANK={rank} and WORLD_SIZE={world_size}"):
        resolve_topology()


def test_arguments_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_topology(rank=1, world_size=2) == Topology(1, 2, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "give both, or neither"),
        ({"world_size": 2}, "give both, or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2 is not a rank of world_size=2"),
        ({"rank": 0, "world_size": 2, "device_mesh": object()}, "give one"),
        ({"process_group": object(), "device_mesh": object()}, "give one"),
        ({"dp_dims": "dp"}, "give the mesh too"),
    ],
)
def test_arguments_that_do_not_go_together_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        resolve_topology(**options)


def test_torch_distributed_goes_before_the_environment(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
os.environ.update(RANK="5", WORLD_SIZE="9")
tell(numbers(resolve_topology()))
tell(list(resolve_topology(rank=rank, world_size=2).peers))
tell(resolve_topology(rank=0, world_size=1).peers)  # evaluation on one rank: nobody to wait for
""",
    )
    assert told == [[[rank, 2, [0, 1]], [0, 1], None] for rank in (0, 1)]


def test_ranks_of_a_mesh_that_share_a_data_parallel_position_share_a_rank(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        4,
        """
tell(numbers(resolve_topology(device_mesh=mesh((2, 2), ("dp", "tp")))))
tell(numbers(resolve_topology(device_mesh=mesh((2, 2), ("pp", "dp_shard")))))
both = mesh((2, 2), ("dp_replicate", "dp_shard"))
tell(numbers(resolve_topology(device_mesh=both)))
tell(numbers(resolve_topology(device_mesh=both, dp_dims=["dp_shard", "dp_replicate"])))
tell(numbers(resolve_topology(device_mesh=both["dp_shard"])))
own = mesh((2, 2), ("rows", "columns"))
tell(numbers(resolve_topology(device_mesh=own, dp_dims="columns")))
error(TopologyError, resolve_topology, device_mesh=own)
error(TopologyError, resolve_topology, device_mesh=own, dp_dims=["dp"])
error(TopologyError, resolve_topology, device_mesh=DeviceMesh("cpu", [0, 1, 2, 3]))
""",
    )
    everyone = [0, 1, 2, 3]
    for rank, (first, second, both, turned, slice_, own, *errors) in enumerate(told):
        assert first == [rank // 2, 2, everyone]
        assert second == [rank % 2, 2, everyone]
        assert both == turned == [rank, 4, everyone]
        assert slice_ == [rank % 2, 2, [rank // 2 * 2, rank // 2 * 2 + 1]]
        assert own == [rank % 2, 2, everyone]
        assert "rows, columns" in errors[0]
        assert "dp_dims=" in errors[0]
        assert "the mesh's dimensions are rows, columns" in errors[1]
        assert "mesh_dim_names=" in errors[2]


def test_a_process_group_of_some_ranks_is_a_topology_of_its_own(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        3,
        """
some = dist.new_group([0, 2])
if rank == 1:
    error(TopologyError, resolve_topology, process_group=some)
else:
    topology = resolve_topology(process_group=some)
    tell(numbers(topology))
    tell([data.decode() for data in Group(topology).gather(f"from {rank}".encode())])
dist.barrier()
""",
    )
    assert told[0] == [[0, 2, [0, 2]], ["from 0", "from 2"]]
    assert told[2] == [[1, 2, [0, 2]], ["from 0", "from 2"]]
    assert "global rank 1) is not in process_group" in told[1][0]


def test_a_group_of_one_gives_back_its_own_data() -> None:
    for topology in (Topology(), Topology(1, 4, None), Topology(0, 1, (0,))):
        group = Group(topology)
        assert group.alone
        assert group.leads
        assert group.broadcast(b"data") == b"data"
        assert group.gather(b"data") == [b"data"]
        group.barrier("test")
        with pytest.raises(GroupError, match="listing: this rank failed"):
            group.broadcast(None, what="listing")


def test_bytes_of_any_length_reach_all_ranks(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        3,
        """
import hashlib
group = Group(resolve_topology())
tell([group.alone, group.leads])
for length in (0, 1, 3_000_000):
    got = group.broadcast(bytes(range(256)) * (length // 256 + 1) if group.leads else None)
    tell([len(got), hashlib.sha256(got).hexdigest()])
tell(group.broadcast(b"last" if rank == 2 else None, 2).decode())
tell(group.broadcast(b"").decode())
tell([len(data) for data in group.gather(b"x" * (rank * 1000))])
tell([data.decode() for data in group.gather(b"")])
group.barrier("end")
error(GroupError, group.broadcast, b"", 7)
""",
    )
    assert [told[rank][0] for rank in range(3)] == [[False, True], [False, False], [False, False]]
    assert told[0][1:] == told[1][1:] == told[2][1:]
    assert [length for length, _ in told[0][1:4]] == [256, 256, 3_000_064]
    assert told[0][4:8] == ["last", "", [0, 1000, 2000], ["", "", ""]]
    assert "rank 7 is none of the ranks 0, 1, 2" in told[0][8]


def test_gather_gives_one_entry_for_each_data_parallel_rank_in_their_order(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        4,
        """
topology = resolve_topology(device_mesh=mesh((2, 2), ("tp", "dp")))
tell([data.decode() for data in Group(topology).gather(f"{rank}".encode())])
""",
    )
    assert told == [[["0", "1"]]] * 4


def test_a_source_that_failed_frees_the_others_at_once(tmp_path: Path) -> None:
    told = ranks(tmp_path, 2, 'error(GroupError, Group(resolve_topology()).broadcast, None, what="listing")')
    assert "listing: rank 0 failed" in told[0][0]
    assert "listing: rank 0 failed" in told[1][0]


@pytest.mark.parametrize("before", ["", 'group.barrier("warm")'])
def test_every_rank_is_told_who_did_not_come(tmp_path: Path, before: str) -> None:
    # with and without a call before: the first call is the one that connects
    told = ranks(
        tmp_path,
        3,
        f"""
group = Group(resolve_topology(), timeout=2)
{before.replace("group.barrier", "Group(resolve_topology(), timeout=30).barrier")}
dist.barrier()
if rank == 1:
    time.sleep(3)
    error(GroupError, group.barrier, "save")
else:
    error(GroupError, group.barrier, "save")
dist.barrier()
""",
    )
    for rank in range(3):  # the late one as well
        assert "save: rank 1 did not come within 2 s (ranks 0, 1, 2 are needed)" in told[rank][0], told


def test_ranks_that_do_different_things_are_told_so(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
group = Group(resolve_topology(), timeout=20)
error(GroupError, group.gather, b"", what="resume" if rank else "save")
dist.barrier()
""",
    )
    assert "rank 0 'save', rank 1 'resume'" in told[0][0]
    assert "rank 1 'resume', rank 0 'save'" in told[1][0]


def test_ranks_that_count_differently_are_told_so(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
error(GroupError, Group(Topology(rank, 2 + rank, (0, 1))).barrier, "start")
dist.barrier()
""",
    )
    assert "rank 1 counts 3 data-parallel ranks, and rank 0 2" in told[0][0]
    assert "rank 0 counts 2 data-parallel ranks, and rank 1 3" in told[1][0]


def test_a_rank_that_dies_is_noticed(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
group = Group(resolve_topology(), timeout=2)
Group(resolve_topology(), timeout=30).barrier("warm")
if rank == 1:
    os._exit(0)
error(GroupError, group.barrier, "save")
os._exit(0)
""",
    )
    assert "save: rank 1 did not come within 2 s (ranks 0, 1 are needed)" in told[0][0]


def test_a_group_works_again_after_torch_distributed_was_initialised_anew(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
group = Group(resolve_topology(), timeout=30)
tell(len(group.gather(b"")))
dist.barrier()
dist.destroy_process_group()
error(GroupError, group.barrier, "save")
dist.init_process_group("gloo", init_method=f"file://{file}2", rank=rank, world_size=world)
tell(len(group.gather(b"")))
dist.barrier()
""",
    )
    for rank in range(2):
        assert told[rank][0] == told[rank][2] == 2
        assert "save: torch.distributed has been shut down" in told[rank][1]


def test_many_calls_leave_no_more_keys_in_the_store_than_few(tmp_path: Path) -> None:
    told = ranks(
        tmp_path,
        2,
        """
from pathlib import Path
dist.destroy_process_group()
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    open(file + ".tmp", "w").write(str(store.port))
    os.rename(file + ".tmp", file + ".port")
else:
    end = time.monotonic() + 30
    while not Path(file + ".port").exists() and time.monotonic() < end:
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int(open(file + ".port").read()), None, False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
group = Group(resolve_topology(), timeout=30)
for calls in (5, 100):
    for _ in range(calls):
        group.barrier("count")
    dist.barrier()
    tell(store.num_keys())
    dist.barrier()
""",
    )
    assert told[0][1] <= told[0][0] + 4, told
