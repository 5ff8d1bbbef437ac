"""Under the checks: drawn logs name all their ranks, drawn flight recorders and stacks have the form of real ones."""

from __future__ import annotations

import pickle
import re

import utils
from checks.labs.failures_and_hangs import drawn_dumps, drawn_log, drawn_stacks, logs
from lessons.launchers.failures import diagnose


def test_each_log_names_every_rank():
    for number in range(40):
        ranks = sorted(map(int, re.findall(r"rank      : (\d+)", drawn_log(number))))
        assert ranks == list(range(len(ranks))) and len(ranks) > 2


def test_a_drawn_dump_has_the_form_of_a_real_one():
    def dump():
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import _dump_fr_trace

        dist.all_reduce(torch.ones(3))
        dist.barrier()
        return _dump_fr_trace(includeStackTraces=False)

    (found,) = utils.launch(dump, ranks=1, backend="gloo")
    real, made = pickle.loads(found), drawn_dumps(1)[0]
    assert set(real) == set(made)
    for entry in made["entries"]:
        like = real["entries"][-1 if entry["profiling_name"] == "gloo:barrier" else -2]
        assert {name: type(value) for name, value in entry.items()} == {name: type(like[name]) for name in like}
        assert (entry["process_group"] == like["process_group"]) == (entry["pg_id"] == 0)
        assert bool(entry["input_sizes"]) == bool(like["input_sizes"])


def _shape(stack: str) -> set[str]:
    """The forms of a stack's lines: numbers, folders and names of functions left out."""
    plain = re.sub(r'File ".*", line \d+ in .+', "File, line, name", re.sub(r"0x[0-9a-f]+", "0x", stack))
    return {line.strip() for line in plain.splitlines() if line.strip()}


def test_a_drawn_stack_has_the_form_of_a_real_one():
    stuck = diagnose.run(logs.FOLDER.parent / "stuck.py")
    real = _shape("\n".join(line for line in stuck[1].log if "thread 0x" in line.lower() or "File" in line))
    assert real <= _shape("\n".join(stack for number in range(40) for stack in drawn_stacks(number)))
