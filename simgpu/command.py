"""``python -m simgpu run --gpu H100 --nodes 8 train.py``: what would this program do on 64 H100?

The program is an ordinary one, written for torchrun and real GPUs (``redirect``). One rank of the world runs it alone,
with shapes only; or all do, as processes that torchrun's launcher starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import runpy
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from simgpu import hardware
from simgpu.ranks.cluster import RankCluster
from simgpu.ranks.joining import join, made
from simgpu.redirect import redirect
from simgpu.report.steps import Enough, Steps, report
from utils.hardware.links import ALL as LINKS
from utils.hardware.links import Link

MOST_PROCESSES = 64
OWN = str(Path(__file__).parent)


def main(words: list[str] | None = None) -> int:
    """The command; returns the process's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description="Simulated GPUs for PyTorch programs.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("gpus", help="list the GPUs and networks that --gpu and --network take")
    run = commands.add_parser(
        "run", help="simulate a program that was written for torchrun and real GPUs", allow_abbrev=False
    )
    add = run.add_argument
    add("--gpu", default="H100", help="kind of all GPUs (default: %(default)s)")
    add("--nodes", type=int, default=1, help="machines (default: %(default)s)")
    add("--gpus-per-node", type=int, default=8, help="GPUs in each, one for each rank (default: %(default)s)")
    add("--network", help='what connects the nodes, "InfiniBand NDR" (default: what the maker puts beside the GPU)')
    add("--steps", type=int, default=5, help="end after so many optimizer steps; 0: never (default: %(default)s)")
    add("--ranks", choices=("one", "all"), help="one rank alone (the default), or a process for each")
    add("--numbers", action="store_true", help="compute real numbers, on this CPU; runs all ranks")
    add("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev; into a FOLDER/, one as torch.profiler's")
    add("--rank-of-all", help=argparse.SUPPRESS)  # in one of several processes: the folder for what it finds
    add("script", type=Path)
    add("arguments", nargs=argparse.REMAINDER, help="the script's own")
    options = parser.parse_args(words)
    if options.command == "gpus":
        return _list()
    options.errors = sys.stderr
    options.words = sys.argv[1:] if words is None else words
    world = options.nodes * options.gpus_per_node
    options.ranks = options.ranks or ("all" if options.numbers and world > 1 else "one")
    try:
        hardware.gpu(options.gpu), hardware.link(options.network or LINKS[0])
        if not options.script.is_file():
            raise ValueError(f"there is no script {options.script}")
        if options.nodes < 1 or options.gpus_per_node < 1:
            raise ValueError("--nodes and --gpus-per-node must be at least 1")
        if options.numbers and options.ranks == "one" and world > 1:
            raise ValueError("one rank alone has no numbers of the others: with --numbers say --ranks all")
        if options.ranks == "all" and world > MOST_PROCESSES:
            raise ValueError(f"--ranks all starts a process for each of {world} ranks: {MOST_PROCESSES} at most")
    except ValueError as error:
        run.error(str(error))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nothing may reach a real one
    if options.rank_of_all:
        return _rank_of_all(options)
    return _all(options, world) if options.ranks == "all" else _alone(options, world)


def _list() -> int:
    for gpu in hardware.ALL:
        rate = gpu.peak_flops("bf16") / 1e12
        print(f"{gpu.name:<16} {gpu.memory_bytes / 2**30:>4.0f} GiB {rate:>6.0f} TFLOP/s bf16   {gpu.peer.name}")
    print("networks:", ", ".join(link.name for link in LINKS))
    return 0


def _say(*sentences: str) -> None:
    first, more = "simulated: ", "simulated:   "
    for one in sentences:
        print(textwrap.fill(one, 78, initial_indent=first, subsequent_indent=more, break_long_words=False), flush=True)


# --- One rank, or all of them -------------------------------------------------------------------------------


def _alone(options: argparse.Namespace, world: int) -> int:
    environment = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), 0)
    environment |= {"WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "LOCAL_WORLD_SIZE": options.gpus_per_node}
    environment |= {"GROUP_WORLD_SIZE": options.nodes, "MASTER_PORT": 29500}
    os.environ.update({"MASTER_ADDR": "localhost", **{name: str(value) for name, value in environment.items()}})
    store = dist.HashStore()
    place = options.gpu, options.nodes, 0, world, options.network
    with (cluster := made(*place, world, store, numbers=options.numbers)):
        figures, code = _run(options, cluster)
        alone = f"rank 0 of {world} alone: exact where all ranks do the same, else try --ranks all"
        if cluster.store is store:
            alone = "one GPU alone, as the script makes no process group"
        _say(f"{cluster.description}; {alone}", *figures["notes"], *report(figures, [sum(figures["memory"].values())]))
    return code


def _all(options: argparse.Namespace, world: int) -> int:
    """Starts a process for each rank, and says what rank 0 has found."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.disable(logging.CRITICAL)  # torch's own account of processes that fail
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(1, 1, world, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
        try:
            module = [*["-P"] * sys.flags.safe_path, "-m", "simgpu", "run"]
            elastic_launch(config, sys.executable)(*module, "--rank-of-all", folder, *options.words[1:])
        except ChildFailedError:
            code = 1
        except SignalException:
            return 130
        found = [json.loads(file.read_text("utf-8")) for file in sorted(Path(folder).glob("rank *.json"))]
    if found:
        notes = dict.fromkeys(note for one in found for note in one["notes"])
        peaks = [sum(one["memory"].values()) for one in found]
        _say(f"{found[0]['cluster']}; {world} ranks, of which rank 0:", *notes, *report(found[0], peaks))
    return code


def _rank_of_all(options: argparse.Namespace) -> int:
    folder, rank = Path(options.rank_of_all), int(os.environ["RANK"])
    cluster = join(options.gpu, options.nodes, numbers=options.numbers, network=options.network)
    options.errors = os.fdopen(os.dup(sys.stderr.fileno()), "w")
    if rank:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    figures, code = _run(options, cluster)
    figures["cluster"] = cluster.description
    (folder / f"rank {rank:03}.json").write_text(json.dumps(figures), "utf-8")
    return code


# --- The script ---------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, cluster: RankCluster) -> tuple[dict[str, Any], int]:
    """Run the script on this rank's GPU. Returns what was found, and the exit code."""
    folder, code = options.script.resolve().parent, 1
    notes: dict[str, None] = {}
    cluster.way_to_numbers = "give --numbers"
    redirect(cluster, lambda sentence: notes.setdefault(sentence))
    sys.argv = [str(options.script), *options.arguments]
    sys.path[: not sys.flags.safe_path] = [str(folder)]  # in place of the current one, which python -P leaves out
    beside = Link.__module__.partition(".")[0]  # a package that simgpu needs, of a common name in the course
    if beside != __package__ and ((folder / beside).is_dir() or (folder / f"{beside}.py").exists()):
        for name in [name for name in sys.modules if name.partition(".")[0] == beside]:
            del sys.modules[name]  # the script means its own
    with Steps(options.steps) as steps:
        try:
            runpy.run_path(str(options.script), run_name="__main__")
            code = 0
        except Enough:
            notes[f"ended after {options.steps} optimizer steps (--steps 0: the script goes to its end)"] = None
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except KeyboardInterrupt:
            code = 130
        except Exception as error:
            _show(error, options)
            how = "ran out of memory" if isinstance(error, torch.OutOfMemoryError) else "failed"
            notes[f"rank {cluster.rank} {how}, after {len(steps.ends)} optimizer steps: what follows is until then"] = (
                None
            )
    if options.trace and (cluster.rank == 0 or "{rank}" in options.trace or options.trace.endswith("/")):
        steps.export_trace(options.trace)
        where = "for tools that read torch.profiler's" if options.trace.endswith("/") else "for https://ui.perfetto.dev"
        notes[f"trace in {options.trace}, {where}"] = None
    if dist.is_initialized() and code == 0:
        dist.destroy_process_group()
    return {"notes": list(notes), **steps.figures()}, code


def _show(error: BaseException, options: argparse.Namespace) -> None:
    """The script's traceback, without what stands between it and torch; of several ranks, that of the first."""
    told: traceback.TracebackException | None = (first := traceback.TracebackException.from_exception(error))
    while told is not None:
        ours = (OWN, "<frozen runpy")
        told.stack = traceback.StackSummary.from_list([one for one in told.stack if not one.filename.startswith(ours)])
        told = told.__cause__ or told.__context__
    with contextlib.suppress(FileExistsError):
        if options.rank_of_all:
            (Path(options.rank_of_all) / "failed").touch(exist_ok=False)
        print(*first.format(), sep="", end="", file=options.errors, flush=True)
