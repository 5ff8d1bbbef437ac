"""Raw logs of launches that failed, put together from lines that torch has printed.

What ranks say under gloo and what torchrun adds was printed by torch 2.13. NCCL's watchdog was not run here: its lines
have the form of reports from 2025.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

PACKAGES = "/course/.venv/lib/python3.11/site-packages/torch"
ELASTIC = "torch/distributed/elastic/multiprocessing/api.py"


def frame(file: str, line: int, function: str, code: str) -> list[str]:
    return [f'  File "{file}", line {line}, in {function}', f"    {code}"]


TOP = frame("/course/train.py", 51, "<module>", "main()")
MAIN = frame("/course/train.py", 43, "main", "train()")
LOAD = frame("/course/train.py", 32, "train", "gradient = load(batch)")
SAVE = [
    *frame("/course/train.py", 46, "main", 'torch.save({"stopped": True}, "/checkpoints/emergency.pt")'),
    *frame(f"{PACKAGES}/serialization.py", 1002, "save", "with _open_zipfile_writer(f) as opened_zipfile:"),
    *frame(f"{PACKAGES}/serialization.py", 828, "__init__", "torch._C.PyTorchFileWriter("),
]
ALL_REDUCE = [
    *frame("/course/train.py", 33, "train", "dist.all_reduce(gradient)"),
    *frame(f"{PACKAGES}/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)"),
    *frame(f"{PACKAGES}/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()"),
]
COMPARING = frame(
    f"{PACKAGES}/distributed/distributed_c10d.py", 3245, "all_reduce", "work = group.allreduce([tensor], opts)"
)
HANDLING = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
NOT_SAVED = "RuntimeError: Parent directory /checkpoints does not exist."
GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
TIMED_OUT = [f"{GLOO}/unbound_buffer.cc:{line}] Timed out waiting {{ms}}ms for {what} operation to complete"
             for line, what in ((78, "recv"), (129, "send"))]  # fmt: skip
_GLHF = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
CLOSED = [
    f"{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:{{port}}. "
    f"This is typically caused by a remote worker crashing. {_GLHF}",
    f"{GLOO}/pair.cc:537] Read error [127.0.0.1]:{{port}}: Connection reset by peer. "
    f"This is typically caused by a remote worker hanging or bugs in the application. {_GLHF}",
]
OWN = {  # what a rank raises by itself, and the line that does
    "KeyError: 'labels'": 'return {"inputs": torch.ones(1000)}["labels"]',
    "ValueError: 3 labels for 4 images": 'raise ValueError(f"{len(labels)} labels for {len(images)} images")',
    "IndexError: list index out of range": "sample = samples[index]",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7.pt'": 'with open(path, "rb") as file:',
    "AssertionError": "assert loss.isfinite()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "hidden = self.up(hidden)",
    "RuntimeError: The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 0": (
        "loss = (outputs - targets).square().mean()"
    ),
    "ZeroDivisionError: division by zero": "mean = total / seen",
    "StopIteration": "batch = next(batches)",
    "queue.Empty": "batch = self.ready.get_nowait()",
    "ValueError: I/O operation on closed file.": "header = file.read(8)",
    "RuntimeError: time step 3 is missing": "series = self.series(index)",
}
_OPTIONS = (
    "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt))"
)


def traceback(frames: Sequence[str], error: str) -> list[str]:
    return ["Traceback (most recent call last):", *frames, error]


def waited(error: str, saves: bool = False) -> list[str]:
    """A rank that was in an all-reduce; one that then ``saves`` fails once more."""
    if not saves:
        return traceback([*TOP, *MAIN, *ALL_REDUCE], error)
    return [*traceback([*MAIN, *ALL_REDUCE], error), "", HANDLING, "", *traceback([*TOP, *SAVE], NOT_SAVED)]


def raised(error: str, wrapped: bool = False) -> list[str]:
    """A rank with an exception of its own; ``wrapped``: another one is raised from it."""
    frames = frame("/course/train.py", 19, "load", OWN[error])
    if not wrapped:
        return traceback([*TOP, *MAIN, *LOAD, *frames], error)
    outer = frame("/course/train.py", 21, "load", 'raise DataError("batch 3 cannot be used") from error')
    return [*traceback(frames, error), "", CAUSE, "",
            *traceback([*TOP, *MAIN, *LOAD, *outer], "DataError: batch 3 cannot be used")]  # fmt: skip


def mismatch(rank: int, other: int, prints: Sequence[tuple[str, str]], number: int) -> list[str]:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL raises; ``prints``: operation and shape of each rank."""
    said = [
        f"Rank {one} is running collective: CollectiveFingerPrint(SequenceNumber={number}, OpType={prints[one][0]}, "
        f"TensorShape=[{prints[one][1]}], TensorDtypes=Float, TensorDeviceTypes={_OPTIONS})"
        for one in (rank, other)
    ]
    kind = prints[rank][0] == prints[other][0]
    aspect = f"{'Tensor Tensor shapes' if kind else 'Op type'}: {prints[rank][kind]}vs {prints[other][kind]}"
    text = f"{said[0]}, but {said[1]}.Collectives differ in the following aspects:   {aspect}"
    error = f"RuntimeError: Detected mismatch between collectives on ranks. {text}"
    return traceback([*TOP, *MAIN, *ALL_REDUCE[:4], *COMPARING], error)


def watchdog(rank: int, operation: str, numel: int, number: int, enqueued: int, ms: int) -> list[str]:
    """NCCL: a rank whose collective has not ended in ten minutes."""
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    work = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, "
        f"NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for {600_000 + ms} milliseconds before timing out."
    )
    return [
        f"ProcessGroupNCCL.cpp:632] {work}",
        f"ProcessGroupNCCL.cpp:2271] {group}  failure detected by watchdog at work sequence id: {number} PG status: "
        f"last enqueued work: {enqueued}, last completed work: {number - 1}",
        f"ProcessGroupNCCL.cpp:684] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        f"ProcessGroupNCCL.cpp:698] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
    ]


def told(rank: int, by: int, enqueued: int) -> list[str]:
    """NCCL: a rank in which no collective has timed out hears of one that has."""
    return [
        f"ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        f"collective timeout from  rank {by} and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{enqueued}, last completed NCCL work: {enqueued}."
    ]


def put_together(
    rng: random.Random, said: Sequence[Sequence[str]], ends: Sequence[int], first: int, batches: int, nccl: bool = False
) -> str:
    """The whole log.

    Args:
        said: the lines of each rank, without its name in front.
        ends: the exit code of each rank.
        first: the rank that torchrun saw failing first.
        batches: so many were done before.
        nccl: the lines are NCCL's, which have the time in front.
    """
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    pids = [rng.randint(10_000, 60_000)]
    while len(pids) <= len(said):
        pids.append(pids[-1] + rng.randint(1, 3))
    names = [f"[rank{rank}]:" + (f"[E1123 {clock}.{rng.randint(10**8, 10**9 - 1)} " if nccl else " ")
             for rank in range(len(said))]  # fmt: skip
    queues = [[names[rank] + line if line else line for line in lines] for rank, lines in enumerate(said)]
    lines = [f"batch {batch}" for batch in range(batches)]
    mixed = rng.random() < 0.4
    while waiting := [queue for queue in queues if queue]:
        queue = rng.choice(waiting)
        taken = rng.randint(1, 4) if mixed else len(queue)
        lines += queue[:taken]
        del queue[:taken]
    return "\n".join([*lines, *_torchrun(rng, clock, pids, ends, first)]) + "\n"


def _torchrun(rng: random.Random, clock: str, pids: Sequence[int], ends: Sequence[int], first: int) -> list[str]:
    opening, milliseconds = f"1123 {clock}", rng.randint(100, 899)
    others = [rank for rank in range(len(ends)) if rank != first]
    lines = [
        f"W{opening}.{milliseconds}000 {pids[0]} {ELASTIC}:1028] Sending process {pid} closing signal SIGTERM"
        for pid in (pids[1 + rank] for rank in others)
    ]
    lines += [
        f"E{opening}.{milliseconds + 40}000 {pids[0]} {ELASTIC}:1002] failed (exitcode: {ends[first]}) local_rank: "
        f"{first} (pid: {pids[1 + first]}) of binary: /course/.venv/bin/python",
        "Traceback (most recent call last):",
        *frame("/course/.venv/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        *frame(f"{PACKAGES}/distributed/run.py", 1028, "main", "run(args)"),
        *frame(f"{PACKAGES}/distributed/launcher/api.py", 383, "launch_agent", "raise ChildFailedError("),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]
    rng.shuffle(others)
    reports = {rank: _report(rank, ends[rank], pids[1 + rank], clock) for rank in [*others, first]}
    width = min(60, max(len(line) for report in reports.values() for line in report))
    lines += ["=" * width, "train.py FAILED", "-" * width, "Failures:"]
    for place, rank in enumerate(others, start=1):
        lines += [f"[{place}]:", *reports[rank]]
    return [*lines, "-" * width, "Root Cause (first observed failure):", "[0]:", *reports[first], "=" * width]


def _report(rank: int, end: int, pid: int, clock: str) -> list[str]:
    name = signal.Signals(-end).name if end < 0 else ""
    see = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    return [
        f"  time      : 2026-11-23_{clock}",
        "  host      : localhost",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {end} (pid: {pid}) " + (f" ({name})" if name else ""),
        "  error_file: <N/A>",
        f"  traceback : {f'Signal {-end} ({name}) received by PID {pid}' if name else see}",
    ]
