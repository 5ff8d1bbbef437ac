"""Cells on ranks with simulated GPUs: %%ranks --gpu, pictures of all ranks, traces."""

import json

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from utils.draw import Picture
from utils.ranks import RankError, magics

STEP = """
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to(device)
ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.3)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    ddp(torch.ones(64 * (1 + 7 * (rank == 3)), 256, device=device)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def ranks():
    """The magic, as a notebook calls it: ranks(line, cell)."""
    shell = InteractiveShell()
    shell.user_ns["In"] = ["", "cell"]
    loaded = magics.RanksMagics(shell)
    yield loaded.ranks
    loaded.close()


def test_a_cell_on_simulated_gpus_then_its_timeline_and_memory_of_all_ranks(ranks, tmp_path):
    ranks("-n 4 --gpu H100", STEP)
    timeline, memory = ranks("timeline"), ranks("memory")
    assert isinstance(timeline, Picture) and isinstance(memory, Picture)
    assert "rank 3" in timeline.alt and "rank 3" in memory.alt
    drawn = timeline.data.decode()
    for word in ("rank 0", "rank 3", "forward", "backward", "communication", "simulated: 4 × H100 SXM"):
        assert word in drawn
    ranks("", "rank + 1")
    with pytest.raises(UsageError, match="nothing to draw"):
        ranks("timeline")
    assert ranks("", "str(device), dist.get_backend(), type(net[0].weight).__name__")[3] == (
        "('simgpu:3', 'simccl', 'SimTensor')"
    )


def test_a_cell_begins_on_all_ranks_at_the_same_time_and_the_picture_is_the_same_each_time(ranks):
    pictures = []
    for _ in range(2):
        ranks("-n 4 --gpu H100", "x = torch.ones(512, 512, device=device)\nif rank == 2:\n    x @ x @ x")
        ranks("", "x @ x\ndist.all_reduce(x)")
        pictures.append(ranks("timeline").data)
        ranks("stop")
    assert pictures[0] == pictures[1]


def test_nodes_networks_and_shapes_only(ranks):
    ranks('-n 4 --nodes 2 --gpu A100 --network "Ethernet 25" --shapes', "y = torch.ones(1 << 20, device=device)")
    values = ranks("", "dist.all_reduce(y)\nimport simgpu; simgpu.current().description")
    assert values[1] == "'2 nodes × 2 A100 SXM 80GB, NVLink 3 (A100), Ethernet 25 Gbit/s'"
    assert ranks("", "str(device), y")[3].startswith("('simgpu:1', tensor(..., size=(1048576,)")
    with pytest.raises(RankError, match="leave it out, or leave --shapes out"):
        ranks("", "y.sum().item()")
    sentence = repr(ranks("")).splitlines()[0]
    assert sentence.endswith("backend simccl, NVLink 3 (A100) inside a node, Ethernet 25 Gbit/s between nodes.")


def test_what_does_not_fit_is_said_in_a_sentence(ranks):
    for line, sentence in {
        "-n 2 --gpu H1000": "Did you mean 'H100",
        "-n 2 --gpu H100 --backend gloo": "leave --backend out",
        "-n 2 --shapes": "--shapes belong to simulated GPUs",
        "-n 2 --gpu H100 --network Ehternet": "Did you mean 'Ethernet",
        "-n 2 --gpu H100 --network InfiniBand": "InfiniBand HDR 200 Gbit/s, InfiniBand NDR 400 Gbit/s: say which",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            ranks(line, "1")
    ranks("-n 2", "1")
    with pytest.raises(UsageError, match="begins with %%ranks -n 4 --gpu H100"):
        ranks("timeline")
    ranks("-n 2 --gpu H100", "1")
    with pytest.raises(RankError, match="write 'simccl'"):
        ranks("", "dist.init_process_group('nccl')")


def test_a_trace_has_a_row_for_each_stream_and_host_thread(ranks, tmp_path):
    ranks("-n 2 --gpu H100", STEP)
    ranks("", "import simgpu\nwith simgpu.profile() as prof:\n" + STEP.replace("\n", "\n    "))
    ranks("", f"prof.export_trace(r'{tmp_path}/%d.json' % rank)\nlen(prof.events), prof.elapsed")
    traces = [json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"] for rank in (0, 1)]
    numbers = [{event["pid"] for event in trace} for trace in traces]
    assert not numbers[0] & numbers[1]
    for rank, trace in enumerate(traces):
        named = {kind: [event for event in trace if event["name"] == kind] for kind in ("thread_name", "process_name")}
        rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in named["thread_name"]}
        assert {e["args"]["name"] for e in named["process_name"]} == {f"rank {rank}, GPU {rank}", f"rank {rank}, host"}
        assert {"stream 7: the default stream", "host", f"backward, GPU {rank}"} <= set(rows.values())
        spans = [event for event in trace if event["ph"] == "X"]
        assert {(e["pid"], e["tid"]) for e in spans} <= set(rows)
        assert all(event["dur"] >= 0 for event in spans)
        reduced = [e for e in spans if e["name"].startswith("ncclDevKernel_AllReduce")]
        assert reduced and all(e["args"]["how"].startswith("ring") for e in reduced)
