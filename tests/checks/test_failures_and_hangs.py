"""Under the checks: drawn logs and flight recorders have the form of real ones, and one rank is to blame."""

from __future__ import annotations

import pickle
import random
import re

import pytest

import utils
from checks.failures_and_hangs import (
    drawn_dumps,
    drawn_log,
    drawn_logs,
    drawn_recorders,
    drawn_stacks,
    drawn_standstills,
    log_texts,
)
from lessons.launchers.failures import diagnose

NEW = {*log_texts.OWN, *log_texts.OWN.values(), "DataError: batch 3 cannot be used"}
"""What the stored logs do not have: exceptions of a rank's own, and the lines that raise them."""


def _forms(text: str) -> set[str]:
    """The lines without numbers, and without the signs beneath a line that say where in it Python was."""
    lines = [re.sub(r"^\[rank\d+\]: *", "", line) for line in text.splitlines()]
    return {re.sub(r"\d+(\.\d+)?", "N", line) for line in lines if line.strip(" ^~")}


def test_drawn_logs_of_gloo_consist_of_lines_that_torch_has_printed():
    real = {form for log in drawn_logs.stored() if log["name"] != "log e" for form in _forms(log["text"])}
    strange = {
        form
        for log in drawn_logs.drawn(random.Random(0))
        if not log["kind"].endswith("NCCL")
        for form in _forms(log["text"]) - real - {re.sub(r"\d+(\.\d+)?", "N", text.strip()) for text in NEW}
    }
    others = (r"raise DataError\(", f"^{log_texts.CAUSE}", r"\(SIG[A-Z]+\)", "OpType=BROADCAST", "^=+$|^-+$")
    assert [form for form in strange if not any(re.search(pattern, form) for pattern in others)] == []


@pytest.mark.parametrize("seed", range(5))
def test_each_drawn_log_names_every_rank_and_blames_one_that_is_there(seed):
    logs = drawn_logs.drawn(random.Random(seed))
    assert {log["kind"] for log in logs} == set(drawn_logs.KINDS)
    for log in logs:
        ranks = sorted(map(int, re.findall(r"rank      : (\d+)", log["text"])))
        assert ranks == list(range(len(ranks))) and log["rank"] in ranks
    assert any(log["first"] != log["rank"] for log in logs)


def test_what_is_shown_is_what_is_judged():
    assert drawn_log(1).startswith("batch 0")
    assert len(drawn_dumps(1)) >= 3
    assert "Current thread" in drawn_stacks(1)[0]


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


def test_the_first_difference_of_recorders_that_reach_back_to_different_numbers():
    sum_, mean, barrier = ("all_reduce", (3,), "Float"), ("all_reduce", (1,), "Float"), drawn_recorders.BARRIER
    usual = {4: sum_, 5: barrier, 6: mean}
    others = {
        ("missing", 6): {4: sum_, 5: barrier},
        ("order", 5): {5: mean, 6: barrier},
        ("operation", 5): {3: barrier, 4: sum_, 5: mean, 6: mean},
        ("size", 4): usual | {4: mean},
        ("type", 6): {6: ("all_reduce", (1,), "Half")},
    }
    for (what, number), other in others.items():
        assert drawn_recorders.difference([usual, other, usual]) == [number, what, [1]]
    assert drawn_recorders.difference([usual, {5: barrier, 6: mean}, usual]) is None
    assert drawn_recorders.difference([usual, usual | {7: sum_}, usual]) == [7, "missing", [0, 2]]


def _shape(stack: str) -> set[str]:
    """The forms of a stack's lines: numbers, folders and names of functions left out."""
    plain = re.sub(r'File ".*", line \d+ in .+', "File, line, name", re.sub(r"0x[0-9a-f]+", "0x", stack))
    return {line.strip() for line in plain.splitlines() if line.strip()}


def test_a_drawn_stack_has_the_form_of_a_real_one():
    stuck = diagnose.run(drawn_logs.FOLDER.parent / "stuck.py")
    real = _shape("\n".join(line for line in stuck[1].log if "thread 0x" in line.lower() or "File" in line))
    launches = drawn_standstills.drawn(random.Random(0))
    assert real <= _shape("\n".join(stack for launch in launches for stack in launch["stacks"]))


@pytest.mark.parametrize("seed", range(5))
def test_in_each_drawn_standstill_one_rank_or_none_is_elsewhere(seed):
    for launch in drawn_standstills.drawn(random.Random(seed)):
        mains = [stack.partition("Current thread")[2] for stack in launch["stacks"]]
        places = [int(re.search(r'train\.py", line (\d+)', main)[1]) for main in mains]
        if launch["right"] is None:
            assert len(set(places)) == 1
            continue
        rank, line = launch["right"]
        assert places[rank] == line and len({*places} - {line}) == 1 and places.count(line) == 1
        busy = "distributed_c10d.py" not in mains[rank]
        assert busy == launch["kind"].startswith("busy") and (busy or len(places) > 2)
