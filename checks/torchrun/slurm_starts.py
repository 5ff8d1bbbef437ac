"""A line for torchrun, read as torchrun reads it; and typed: on two nodes, which are addresses of this machine."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import socket
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from checks.contracts import Broken, Case, Facts
from checks.contracts.events import not_the_answer
from lessons.launchers import torchrun

WORKERS = 2
SECONDS, STILL = 250, 15
_PROGRAM = """import json, os, sys
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump([*(os.environ[name] for name in names), *sys.argv[2:]], file)
"""


def read(words: Sequence[str]) -> Namespace:
    """A line as torchrun itself understands it.

    Raises:
        ValueError: it does not.
    """
    from torch.distributed import run

    start = _first_option(words)
    if not start:
        raise ValueError("the line begins with the word torchrun")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            options = _parser().parse_args(list(words[start:]))
            options.least, options.most = run.parse_min_max_nnodes(options.nnodes)
            options.conf = run._parse_rendezvous_config(options.rdzv_conf)
    except SystemExit:
        raise ValueError(said.getvalue().strip().rpartition("error: ")[2] or "it only asks for help") from None
    except Exception as error:
        raise ValueError(str(error)) from None
    options.endpoint = run.get_rdzv_endpoint(options)
    options.words = list(words)
    return options


def _first_option(words: Sequence[str]) -> int:
    """Its place: behind ``torchrun``, or ``python -m torch.distributed.run``, which may have options of its own."""
    if Path(words[0]).name == "torchrun":
        return 1
    return next((n + 2 for n in range(1, 4) if list(words[n : n + 2]) == ["-m", "torch.distributed.run"]), 0)


@functools.cache
def _parser() -> ArgumentParser:
    from torch.distributed import run

    return run.get_args_parser()


def started(case: Case, facts: Facts) -> Iterator[Broken]:
    """The lines of the first job whose port is free now, typed: what the workers of both nodes are told."""
    lines = next((one for one in facts["lines"] if _is_free(read(one[0][1]))), None)
    if lines is None:
        return
    nodes = len(case["names"])
    with not_the_answer(), tempfile.TemporaryDirectory(prefix="check-") as folder:
        program = Path(folder, "train.py")
        program.write_text(_PROGRAM, encoding="utf-8")
        typed = [_typed(read(words), case["program"], [str(program), folder]) for _, words in lines]
        kind = read(lines[0][1]).rdzv_backend
        with torchrun.agents(program, nodes=nodes, per_node=WORKERS, rendezvous=kind) as run:
            run.command = typed.__getitem__
            for node in range(nodes):
                run.start(node)
            try:
                run.wait(SECONDS, still=STILL)
            except torchrun.AgentsFailed as failure:
                yield Broken("value:9 started", f"typed on two nodes: {str(failure).splitlines()[0]}")
                return
        found = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(nodes * WORKERS)]
    world, given = str(nodes * WORKERS), case["program"][1:]
    expected = [
        [str(rank), str(rank % WORKERS), world, str(rank // WORKERS), *given] for rank in range(nodes * WORKERS)
    ]
    if found != expected:
        yield Broken("value:9 told", "typed on two nodes, the workers are not who they should be", str(found))


def _typed(options: Namespace, program: Sequence[str], instead: Sequence[str]) -> list[str]:
    words = options.words[: len(options.words) - len(program)]
    return ["torchrun", *words[_first_option(words) :], *instead, *program[1:]]


def _is_free(options: Namespace) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", int(options.endpoint.rpartition(":")[2])))
        except OSError:
            return False
    return True
