"""What each contestant's notebook holds: the cells that a reader of its documentation would write.

All do the same work. The first cells bring up RANKS ranks with torch.distributed over gloo, all-reduce a small tensor,
and print each rank's sum; the next cell all-reduces again. Cells are plain text in which RANKS stands for the number
of ranks. All cells of ``first`` are sent at once, as "run all cells" does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Contestant:
    """One way to run a cell on several ranks.

    Attributes:
        package: what has to be installed for it; also gives its version.
        first: cells from a fresh kernel to the first result.
        next: a cell after that.
        repeats: how often the next cell is run; the median counts.
        bare: a cell on the ranks that does nothing: what of the next cell's time is not the all-reduce's.
        idle: a cell that holds idle ranks while their memory is measured, for a tool whose ranks end with the cell;
            it makes one file ``idle-<rank>`` per rank in FOLDER and ends when a file ``go`` is there.
        large: a cell that makes a tensor of 100 MB on each rank; ``pull`` brings all of them to the notebook, ``push``
            brings one to every rank. None: its ranks end with their cell.
    """

    name: str
    package: str
    how: str
    first: tuple[str, ...]
    next: str
    repeats: int = 9
    bare: str | None = None
    idle: str | None = None
    large: str | None = None
    pull: str = ""
    push: str = ""


def fill(cells: Iterable[str], ranks: int) -> list[str]:
    """The cells with the number of ranks put in."""
    return [cell.replace("RANKS", str(ranks)) for cell in cells]


ALL_REDUCE = """\
sums = torch.full([1000], float(rank))
dist.all_reduce(sums)
print(f"rank {rank} has the sum {sums[0]:g}.")"""

OURS = Contestant(
    name="%%ranks",
    package="torch",
    how="ranks are forked from a process that imports torch from %load_ext on, and live on",
    first=(
        "%load_ext utils",
        "%%ranks -n RANKS\n" + ALL_REDUCE,
    ),
    next="%%ranks\n" + ALL_REDUCE,
    bare="%%ranks\npass",
    large="%%ranks\nlarge = torch.ones(25_000_000)",
    pull="%ranks pull large",
    push="import torch\nback = torch.ones(25_000_000)\n%ranks push back",
)

# The cluster starts as its documentation shows; every engine then joins the process group through a file, which is
# both the quickest rendezvous on one machine and free of ports.
IPYPARALLEL = Contestant(
    name="ipyparallel %%px",
    package="ipyparallel",
    how="ipyparallel.Cluster starts a controller and engines, which import torch and live on",
    first=(
        """\
import tempfile
import ipyparallel
client = ipyparallel.Cluster(n=RANKS).start_and_connect_sync(activate=True)
client[:].scatter("rank", client.ids, flatten=True)
client[:]["store"] = tempfile.mkdtemp() + "/store\"""",
        """\
%%px
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
"""
        + ALL_REDUCE,
    ),
    next="%%px\n" + ALL_REDUCE,
    bare="%%px\npass",
    large="%%px\nlarge = torch.ones(25_000_000)",
    pull='pulled = client[:].pull("large", block=True)',
    push='import torch\nback = torch.ones(25_000_000)\nclient[:].push({"back": back}, block=True);',
)

# Its ranks are forked from the kernel, which imports torch, and end with the cell: the next cell is a new launch.
# Now and then a launch hangs for good, the more often the more ranks (torch 2.13, accelerate 1.15: a rank is forked
# while a thread of the kernel, the store's, holds the lock of libc's getnameinfo). Hence few repeats; a run that hangs
# is ended, repeated and noted.
NOTEBOOK_LAUNCHER = Contestant(
    name="notebook_launcher",
    package="accelerate",
    how="the kernel imports torch and forks ranks, which end with the cell: the next cell launches anew",
    first=(
        """\
import pathlib
import socket
import time
import torch
import torch.distributed as dist
from accelerate import notebook_launcher

def all_reduce(folder=None):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sums = torch.full([1000], float(rank))
    dist.all_reduce(sums)
    print(f"rank {rank} has the sum {sums[0]:g}.", flush=True)
    if folder is not None:
        pathlib.Path(folder, f"idle-{rank}").touch()
        while not pathlib.Path(folder, "go").exists():
            time.sleep(0.05)
    dist.destroy_process_group()

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])

notebook_launcher(all_reduce, num_processes=RANKS, use_port=free_port())""",
    ),
    repeats=3,
    next="notebook_launcher(all_reduce, num_processes=RANKS, use_port=free_port())",
    idle="notebook_launcher(all_reduce, ('FOLDER',), num_processes=RANKS, use_port=free_port())",
)
