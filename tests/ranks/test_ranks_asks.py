"""Ranks that ask the reader: input(), breakpoint(), and %ranks debug, in a real kernel and in a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from kernel_support import Kernel, as_text
from nbclient import NotebookClient
from ranks_support import Recorder
from test_ranks_notebook import _read_until

from utils.ranks import RankError, World


@pytest.fixture(scope="module", params=["fork", "spawn"])
def kernel(request):
    with Kernel(RANKS_LIVE="0", RANKS_START=request.param) as kernel:
        kernel.run("%load_ext utils")
        yield kernel


def test_each_rank_may_ask_and_the_prompt_says_which(kernel):
    prompts, outputs = kernel.dialogue("%%ranks -n 3\nname = input('Name? ')\nprint(rank, name)", "Ann", "Bob", "Cem")
    assert prompts == [f"rank {rank} asks: Name? " for rank in range(3)]
    assert as_text(outputs) == "".join(
        f"rank {rank}: Name? {name}\nrank {rank}: {rank} {name}\n" for rank, name in enumerate(("Ann", "Bob", "Cem"))
    )


def test_ranks_with_many_questions_take_turns(kernel):
    code = "%%ranks -n 2\n" + "x = input('a'); dist.barrier()\n" * 2
    prompts, _ = kernel.dialogue(code, *"1234")
    assert prompts == [f"rank {rank} asks: a" for rank in (0, 1, 0, 1)]


def test_what_the_others_do_is_said_while_one_asks(kernel):
    request = kernel.start("%%ranks -n 3\nif rank == 1:\n    input()\nif rank < 2:\n    dist.barrier()", can_ask=True)
    assert kernel.question() == "rank 1 asks: "
    said = []
    while "meanwhile" not in "".join(said):
        message = kernel.client.get_iopub_msg(timeout=30)
        said.append(message["content"].get("text", ""))
    assert "(meanwhile: rank 0 is waiting in barrier, line 5; rank 2 is done)" in "".join(said)
    kernel.interrupt()
    assert kernel.finish(request)[-1]["ename"] == "RanksInterrupted"


def test_the_time_out_stands_still_while_a_rank_asks(kernel):
    request = kernel.start("%%ranks -n 2 --timeout 5\nif rank == 0: x = input()\ndist.barrier()\nrank", can_ask=True)
    kernel.question()
    time.sleep(7)
    kernel.client.input("late")
    assert as_text(kernel.finish(request)) == "rank 0: late\nrank 0: 0\nrank 1: 1\n"
    assert "did not end within 2 s" in kernel.text("%%ranks --timeout 2\nimport time; time.sleep(100)")


@pytest.mark.parametrize("question", ["input()", "breakpoint()\n    pass"])
def test_an_interrupted_prompt_ends_the_cell_as_the_stop_button_does(kernel, question):
    kernel.run("%%ranks -n 2\nkept = rank")
    request = kernel.start(f"%%ranks\nif rank == 0:\n    {question}\ndist.barrier()", can_ask=True)
    kernel.question()
    os.kill(kernel.pid, signal.SIGINT)
    outputs = kernel.finish(request)
    assert (outputs[-1]["ename"], outputs[-1]["evalue"]) == ("RanksInterrupted", "the cell was interrupted")
    assert "rank 1 waits in barrier for rank 0" in as_text(outputs)
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_breakpoint_opens_the_debugger_at_the_readers_line(kernel):
    cell = (
        "%%ranks -n 2\ndef double(a):\n    if rank == 1:\n        breakpoint()\n    b = 2 * a\n    return b\n"
        "print(double(4))\ndist.barrier()"
    )
    commands = ["p a", "n", "p b", "w", "u", "d", "l", "!b = 7", "c"]
    if sys.version_info >= (3, 13):
        commands.insert(0, "n")  # it stops in the line of breakpoint() itself
    prompts, outputs = kernel.dialogue(cell, *commands)
    assert prompts == ["rank 1 asks: (Pdb) "] * len(commands)
    text = as_text(outputs)
    assert text.startswith("rank 0: 8\nrank 1: > <cell ")
    for line in ("-> b = 2 * a", "(Pdb) p a\nrank 1: 4", "(Pdb) p b\nrank 1: 8", "-> print(double(4))"):
        assert f"rank 1: {line}" in text
    assert text.endswith("rank 1: (Pdb) c\nrank 1: 7\n")
    assert "utils" not in text and "bdb" not in text and "<string>" not in text


def test_stepping_past_the_end_of_the_cell_ends_the_debugger(kernel):
    steps = 3 + (sys.version_info >= (3, 13))
    _, outputs = kernel.dialogue("%%ranks -n 1\nbreakpoint()\nx = [1]\ny = 2", *["n"] * steps)
    assert as_text(outputs).endswith("rank 0: -> y = 2\nrank 0: (Pdb) n\n")
    assert kernel.text("%%ranks\nx") == "rank 0: [1]\n"


def test_who_quits_the_debugger_ends_the_cell_with_a_sentence(kernel):
    kernel.run("%%ranks -n 2\nkept = rank")
    _, outputs = kernel.dialogue("%%ranks\nif rank == 1:\n    breakpoint()\n    x = 1\ndist.barrier()", "q")
    assert (outputs[-1]["ename"], outputs[-1]["evalue"]) == (
        "RankError",
        "rank 1 left the debugger, which ends the cell",
    )
    assert "Bdb" not in as_text(outputs) and "Traceback" not in as_text(outputs)
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_a_rank_in_the_debugger_is_not_cut_off_when_another_fails(kernel):
    cell = "%%ranks -n 2\nif rank == 1: raise ValueError('boom')\nbreakpoint()\nx = 1"
    request = kernel.start(cell, can_ask=True)
    for command in ("n", "p rank + 40", "c"):
        kernel.question()
        time.sleep(1)
        kernel.client.input(command)
    outputs = kernel.finish(request)
    assert outputs[-1]["evalue"] == "rank 1 failed: ValueError: boom"
    assert "rank 0: 40" in as_text(outputs)


def test_ranks_debug_looks_back_at_the_failure(kernel):
    cell = "%%ranks -n 2\ndef divide(a):\n    half = a / 2\n    return torch.ones(2) @ torch.ones(3 - rank)\ndivide(3)"
    assert "rank 0 failed" in kernel.text(cell)
    prompts, outputs = kernel.dialogue("%ranks debug 0", "p half", "u", "q")
    assert prompts == ["rank 0 asks: (Pdb) "] * 3
    text = as_text(outputs)
    assert "-> return torch.ones(2) @" in text and "rank 0: 1.5\n" in text and "-> divide(3)" in text
    assert "utils" not in text
    assert "rank 1 has not failed in the last cell: there is nothing to debug" in kernel.text("%ranks debug 1")
    assert "there is no rank 2" in kernel.text("%ranks debug 2")
    assert "takes the number of one rank" in kernel.text("%ranks debug")
    kernel.run("%%ranks\n1")
    assert "rank 0 has not failed in the last cell" in kernel.text("%ranks debug 0")


@pytest.mark.parametrize("question", ["input()", "breakpoint()\n1", "import pdb; pdb.set_trace()\n1"])
def test_where_nobody_can_be_asked_a_sentence_comes_at_once(question):
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext utils", f"%%ranks -n 2\n{question}")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=50, kernel_name="python3", allow_errors=True).execute()
    error = notebook.cells[1].outputs[-1]
    assert error.ename == "RankError" and "here nobody can be asked" in error.evalue
    with World(1) as world, pytest.raises(RankError, match="here nobody can be asked"):
        world.run_cell(question, view=Recorder())


def test_a_thread_of_the_reader_cannot_ask():
    source = (
        "import threading\nsaid = []\n"
        "def ask():\n    try: input()\n    except RuntimeError as error: said.append(error)\n"
        "t = threading.Thread(target=ask)\nt.start(); t.join()\nstr(*said)"
    )
    with World(1) as world:
        assert "in the cell's own process and thread only" in world.run_cell(source)[0]


def test_a_terminal_asks_too():
    script = "%load_ext utils\n%%ranks -n 2\nif rank == 1: print('hello', input('Name? '))\n\n\n"
    main, child = pty.openpty()
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"]
    terminal = {"stdin": child, "stdout": child, "stderr": child}
    process = subprocess.Popen(command, **terminal, start_new_session=True, env={**os.environ, "TERM": "dumb"})
    os.close(child)
    try:
        os.write(main, script.encode())
        assert "rank 1 asks: Name? " in _read_until(main, r"rank 1 asks: Name\? $")
        os.write(main, b"Ann\n")
        assert "rank 1: hello Ann" in _read_until(main, "hello Ann")
    finally:
        os.close(main)
        process.kill()
        process.wait()
