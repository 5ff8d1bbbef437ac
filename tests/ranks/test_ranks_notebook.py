"""Cells on ranks as the reader meets them: in a real kernel, under nbclient, in plain IPython."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from kernel_support import Kernel, as_text
from nbclient import NotebookClient
from ranks_support import descendants, eventually, gone

from utils.ranks.options import parsed, torch_modules


@pytest.fixture(scope="module")
def kernel():
    with Kernel(RANKS_LIVE="0") as kernel:
        kernel.run("%load_ext utils\nimport utils")
        yield kernel


def test_the_first_cell_on_four_ranks(kernel):
    kernel.run("%ranks stop")  # those of other tests
    text = kernel.text("%%ranks -n 4\nx = torch.tensor([float(rank)])\ndist.all_reduce(x)\nprint('rank', rank)\nx")
    assert text == "".join(f"rank {r}: rank {r}\n" for r in range(4)) + "ranks 0–3: tensor([6.])\n"


def test_the_last_value_is_the_cells_result_and_keeps_its_shape(kernel):
    kernel.run("%ranks stop")  # those of other tests
    outputs = kernel.run("%%ranks -n 4\ntorch.full((2, 2), rank % 2)")
    assert [output["output_type"] for output in outputs] == ["execute_result"]
    even, odd = "ranks 0, 2: tensor([[0, 0],", "ranks 1, 3: tensor([[1, 1],"
    lines = outputs[0]["data"]["text/plain"].split("\n")
    assert [lines[0], lines[2]] == [even, odd]
    assert lines[1].index("[0, 0]") == even.index("[0, 0]")


def test_parts_of_torch_that_the_first_cell_imports_are_imported_once_and_not_by_each_rank(kernel):
    there = "'torch.utils.mobile_optimizer' in sys.modules"
    cell = f"%%ranks -n 3\nimport sys\nthere = {there}\nimport torch.utils.mobile_optimizer\nthere"
    assert kernel.text(cell).splitlines()[-1] == "ranks 0–2: True"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch, json, torch.fx", ["torch.fx"]),
        ("def f():\n    from torch.distributed.fsdp import fully_shard", ["fsdp", "fsdp.fully_shard"]),
        ("from .torch import x\nfrom torchy import y\noptimum = 3", []),
        ("o = torch.optim.SGD(p, lr=1)", ["torch._dynamo"]),
        ("DDP = torch.nn.parallel.DistributedDataParallel", ["torch._dynamo"]),
    ],
)
def test_which_parts_of_torch_a_cell_will_import_is_read_in_its_source(source, modules):
    assert torch_modules(source, parsed(source)) == [
        re.sub("^fsdp", "torch.distributed.fsdp", module) for module in modules
    ]


def test_a_failing_cell_fails_the_kernel_and_the_next_one_works(kernel):
    kernel.run("%%ranks -n 4\nkept = rank")
    outputs = kernel.run("%%ranks\nif rank == 1:\n    raise ValueError('boom')\ndist.barrier()")
    assert outputs[-1]["output_type"] == "error"
    assert (outputs[-1]["ename"], outputs[-1]["evalue"]) == ("RankError", "rank 1 failed: ValueError: boom")
    traceback = "\n".join(outputs[-1]["traceback"])
    assert "raise ValueError('boom')" in traceback
    assert "utils/ranks" not in traceback
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\nrank 2: 2\nrank 3: 3\n"


def test_a_traceback_names_the_cell_and_the_line_as_the_notebook_does(kernel):
    outputs = kernel.run("%%ranks -n 2\n\nfine = 1\n1 / 0")
    traceback = "\n".join(outputs[-1]["traceback"])
    number = int(kernel.text("len(In) - 1")) - 1
    assert f'File "<cell {number} on ranks>", line 4' in traceback
    assert traceback.startswith("ranks 0, 1:\n")


def test_status_pull_push_stop_restart(kernel):
    kernel.run("%%ranks -n 2\nhere = rank + 10")
    assert "2 ranks, backend gloo" in kernel.text("%ranks")
    assert kernel.text("%ranks pull here") == "[10, 11]\n"
    assert kernel.text("sum(here)") == "21\n"
    kernel.run("given, more = {'a': 1}, 2")
    kernel.run("%ranks push given more")
    assert kernel.text("%%ranks\ngiven, more") == "ranks 0, 1: ({'a': 1}, 2)\n"
    kernel.run("%ranks restart")
    assert "NameError" in kernel.text("%%ranks\ngiven")
    kernel.run("%ranks stop")
    assert "There are no ranks now" in kernel.text("%ranks")
    assert kernel.text("%%ranks\nworld_size") == "ranks 0, 1: 2\n"


def test_another_number_of_ranks_says_that_variables_begin_anew(kernel):
    kernel.run("%%ranks -n 2\n1")
    text = kernel.text("%%ranks -n 3\nworld_size")
    assert "New ranks (3 ranks) in place of the former (2 ranks): variables begin anew." in text
    assert "ranks 0–2: 3" in text


def test_the_former_ranks_are_gone_before_the_new_ones_start(kernel):
    kernel.run("%%ranks -n 2\nimport os; mine = os.getpid()")
    kernel.run("%ranks pull mine")
    watch = (
        "import psutil\nfrom utils.ranks import magics\nworld = magics.World\n"
        "def watched(*shape, **options):\n    print('alive:', [pid for pid in mine if psutil.pid_exists(pid)])\n"
        "    return world(*shape, **options)\nmagics.World = watched"
    )
    kernel.run(watch)
    assert "alive: []" in kernel.text("%%ranks -n 1\n1")
    kernel.run("magics.World = world")


def test_loading_the_extension_again_adds_nothing(kernel):
    matchers = "len(get_ipython().Completer.custom_matchers)"
    before = kernel.text(matchers)
    kernel.run("%reload_ext utils")
    kernel.run("%reload_ext utils")
    assert kernel.text(matchers) == before


def test_a_rank_killed_between_cells_is_named_and_replaced(kernel):
    kernel.run("%%ranks -n 2\nimport os\nmine = os.getpid()")
    pid = int(kernel.text("%ranks pull mine").strip("[]\n").split(",")[1])
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: gone([pid]))
    time.sleep(0.2)
    text = kernel.text("%%ranks\nrank")
    assert "Since the last cell rank 1 was killed by SIGKILL" in text
    assert "rank 1: 1" in text


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("%%ranks --timeot 3\n1", "has no option --timeot. Did you mean --timeout?"),
        ("%%ranks --n 3\n1", "has no option --n."),
        ("%%ranks --ranks 3\n1", "has no option --ranks. Did you mean -n?"),
        ("%%ranks --nproc_per_node=3\n1", "has no option --nproc_per_node. Did you mean -n?"),
        ("%%ranks --nnodes 2\n1", "has no option --nnodes. Did you mean --nodes?"),
        ("%%ranks -n four\n1", "invalid int value: 'four'"),
        ("%%ranks -n 0\n1", "1 to 128 ranks, not 0"),
        ("%%ranks -n 4 --nodes 3\n1", "--nodes can be 1, 2, 4"),
        ("%%ranks -n 2 --only 2\n1", "ranks 0 to 1; there is no rank 2"),
        ("%%ranks --only first\n1", "--only takes ranks such as 0,2 or 1-3"),
        ("%%ranks --timeout -1\n1", "--timeout takes seconds"),
        ("%%ranks -n 100 --backend nccl\n1", "NCCL"),
        ("%%ranks 4\n1", "takes options only, not '4'"),
        ("%%ranks\n%time 1", "is a command of the notebook, and ranks run Python only"),
        ("%%ranks\n!ls", "is a command of the notebook, and ranks run Python only"),
        ("%%ranks\nlen?", "Line 2 ('len?') is a command of the notebook"),
        ("%%ranks\n?len", "is a command of the notebook"),
        ("%%ranks\nfiles = !ls", "is a command of the notebook"),
        ("%%ranks\nwait = asyncio.sleep(0)\nawait wait", "Line 3 ('await wait') waits outside of a function"),
        ("%%ranks\nasync with lock: pass", "write async def main(): … and call asyncio.run(main())"),
        ("%ranks stp", "Did you mean stop?"),
        ("%ranks -n 4", "belong to a cell that begins with %%ranks"),
        ("%ranks pull", "takes a name"),
        ("%ranks push nothing_here", "no variable 'nothing_here'"),
        ("%ranks push socket_of_mine", "cannot be sent to the ranks"),
    ],
)
def test_mistakes_get_one_sentence_and_lose_nothing(kernel, code, sentence):
    kernel.run("import socket; socket_of_mine = socket.socket()")
    kernel.run("%%ranks -n 2\nprecious = 1")
    outputs = kernel.run(code)
    text = as_text(outputs)
    assert sentence in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1
    assert kernel.text("%%ranks\nprecious") == "ranks 0, 1: 1\n"


def test_a_syntax_error_is_shown_before_any_rank_runs(kernel):
    text = kernel.text("%%ranks -n 2\nprint('ran')\nif True\n    pass")
    assert "SyntaxError" in text and "if True" in text
    assert "ran\n" not in text.replace("print('ran')", "")
    assert "utils/ranks" not in text


@pytest.mark.parametrize("wrong", ["return 1", "break", "yield 1"])
def test_what_belongs_into_a_function_or_loop_is_one_error_before_any_rank_runs(kernel, wrong):
    text = kernel.text(f"%%ranks -n 2\nprint('ran')\n{wrong}")
    assert text.rstrip().endswith("outside loop" if wrong == "break" else "outside function")
    assert wrong in text and "line 3" in text and "ran\n" not in text and "rank" not in text.replace("on ranks", "")


def test_names_that_a_cell_overwrites_are_said_and_have_their_meaning_again_in_the_next(kernel):
    kernel.run("%%ranks -n 2\n1")
    said = "This cell has given `rank` and `dist` another meaning. The next cell on ranks has the usual one again"
    text = kernel.text("%%ranks\nfor rank in range(world_size): pass\nfrom math import *\nworld_size, local_rank")
    assert said in text and text.count("\n") == 3
    assert kernel.text("%%ranks\nrank, dist.get_rank()") == "rank 0: (0, 0)\nrank 1: (1, 1)\n"
    assert "`torch` and" not in kernel.text("%%ranks\nimport torch, torch.distributed as dist\nrank = dist.get_rank()")
    assert "'rank' has a meaning of its own" in kernel.text("rank = 7\n%ranks push rank")


def test_a_device_that_a_cell_chooses_stays_chosen_and_anything_else_of_that_name_does_not(kernel):
    kernel.run("%%ranks -n 2\n1")
    assert kernel.text("%%ranks\ndevice = torch.device('meta')") == ""
    assert kernel.text("%%ranks\ndevice") == "ranks 0, 1: device(type='meta')\n"
    assert "`device` another meaning" in kernel.text("%%ranks\nfor device in range(3): pass")
    assert kernel.text("%%ranks\ndevice") == "ranks 0, 1: device(type='cpu')\n"


def test_ranks_that_have_ended_are_said_to_have_ended(kernel):
    kernel.run("%ranks stop")
    assert "There are no ranks now" in kernel.text("%ranks pull x")
    text = kernel.text("%%ranks -n 3\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert "ranks 1, 2 were killed by SIGKILL" in text
    assert "These ranks have ended" in kernel.text("%ranks pull x")
    assert "yet" not in kernel.text("%ranks debug 1")


def test_help_and_completion(kernel):
    reply = kernel.client.inspect("%%ranks", 7, reply=True, timeout=110)
    assert "four ranks" in reply["content"]["data"]["text/plain"]

    def completions(code):
        reply = kernel.client.complete(code, len(code), reply=True, timeout=110)
        return reply["content"]["matches"]

    kernel.run("%%ranks -n 2\nlong_name_of_mine = torch.ones(1)")
    assert "--timeout" in completions("%%ranks --ti")
    assert "restart" in completions("%ranks res")
    assert "long_name_of_mine" in completions("%%ranks\nlong_na")
    assert "long_name_of_mine.requires_grad" in completions("%%ranks\nlong_name_of_mine.requires_gr")


def test_a_cell_in_the_background_leaves_the_prompt_free(kernel, tmp_path):
    kernel.run("%%ranks -n 2\nkept = rank")
    wait = f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
    text = kernel.text(f"%%ranks --bg\nprint('begun', rank)\n{wait}rank + 5")
    assert "runs in the background" in text and "begun" not in text
    assert kernel.text("6 * 7") == "42\n"
    assert "still runs in the background" in kernel.text("%%ranks\n1")
    assert "still runs in the background" in kernel.text("%%ranks -n 3\n1")
    assert "busy with another cell" in kernel.text("%ranks pull kept")
    assert eventually(lambda: kernel.text("%ranks log") == "rank 0: begun 0\nrank 1: begun 1\n")
    (tmp_path / "go").touch()
    assert kernel.text("%ranks wait") == "rank 0: begun 0\nrank 1: begun 1\nrank 0: 5\nrank 1: 6\n"
    assert "No cell runs in the background" in kernel.text("%ranks wait")
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_an_error_in_the_background_is_raised_by_the_wait_and_logged(kernel):
    kernel.run("%%ranks -n 2\n1")
    assert "No cell of these ranks has failed" in kernel.text("%ranks restart\n%ranks log")
    kernel.run("%%ranks --bg\nprint('before')\nif rank == 1: raise ValueError('boom')")
    outputs = kernel.run("%ranks wait")
    assert (outputs[-1]["ename"], outputs[-1]["evalue"]) == ("RankError", "rank 1 failed: ValueError: boom")
    for _ in range(2):
        log = kernel.text("%ranks log")
        assert "ranks 0, 1: before" in log and "raise ValueError('boom')" in log
        kernel.run("%%ranks\n1")


def test_the_stop_button_ends_a_cell_that_is_waited_for(kernel):
    kernel.run("%%ranks -n 2\nkept = rank")
    kernel.run("%%ranks --bg --timeout 0\nimport time; time.sleep(1000)")
    request = kernel.start("%ranks wait")
    time.sleep(1)
    os.kill(kernel.pid, signal.SIGINT)
    assert kernel.finish(request, 30)[-1]["ename"] == "RanksInterrupted"
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_stop_ends_a_cell_in_the_background(kernel):
    kernel.run("%%ranks -n 2 --bg --timeout 0\nimport time; time.sleep(1000)")
    kernel.run("%ranks stop")
    assert kernel.text("%%ranks\nrank") == "rank 0: 0\nrank 1: 1\n"


@pytest.mark.parametrize("flavour", ["auto", "notebook"])
def test_a_progress_bar_is_live_and_leaves_one_line(flavour):
    with Kernel(RANKS_LIVE="1") as kernel:
        kernel.run("%load_ext utils")
        loop = f"import time\nfrom tqdm.{flavour} import tqdm\nfor _ in tqdm(range(10)): time.sleep(0.15)"
        request = kernel.start(f"%%ranks -n 2\n{loop}")
        seen = []
        while not seen or "10/10" not in seen[-1]:
            message = kernel.client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "stream":
                seen.append(message["content"]["text"])
        assert any(re.search(r"rank 1: .* [1-9]/10 ", text) for text in seen), "live"
        text = as_text(kernel.finish(request, 30))
        assert len(re.findall("10/10", text)) == text.count("\n") <= 2


@pytest.mark.parametrize("to_group", [False, True], ids=["to the kernel alone", "to its process group"])
def test_the_stop_button_ends_with_the_table_and_keeps_variables(kernel, to_group, tmp_path):
    kernel.run("%%ranks -n 2\nkept = rank")
    there = f"open(f'{tmp_path}/{{rank}}', 'w').close()"
    request = kernel.start(f"%%ranks\n{there}\nif rank == 0: dist.barrier()\nelse:\n    import time; time.sleep(50)")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2, 60)
    time.sleep(0.5)
    if to_group:
        os.killpg(os.getpgid(kernel.pid), signal.SIGINT)
    else:
        os.kill(kernel.pid, signal.SIGINT)
    outputs = kernel.finish(request, 20)
    assert outputs[-1]["ename"] == "RanksInterrupted"
    assert "waiting in barrier" in "\n".join(outputs[-1]["traceback"])
    assert kernel.text("%%ranks\nkept") == "rank 0: 0\nrank 1: 1\n"


def test_output_is_live_and_what_is_stored_is_in_rank_order():
    with Kernel(RANKS_LIVE="1") as kernel:
        kernel.run("%load_ext utils\n")
        request = kernel.start("%%ranks -n 2\nimport time\nfor i in range(3):\n    time.sleep(0.6)\n    print(rank, i)")
        seen_while_running = []
        while True:
            message = kernel.client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "stream":
                seen_while_running.append(message["content"]["text"])
                break
        assert "0 2" not in seen_while_running[0]
        text = as_text(kernel.finish(request, 30))
        assert text == "".join(f"rank {r}: {r} {i}\n" for r in range(2) for i in range(3))


@pytest.mark.parametrize("live", ["0", "1"])
def test_nbclient_stores_the_same_with_and_without_live_output(live, monkeypatch):
    monkeypatch.setenv("RANKS_LIVE", live)
    slow = "%%ranks -n 2\nimport time\nfor i in range(2):\n    time.sleep(0.5)\n    print(rank, i)\nrank"
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext utils", slow)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    assert [output.output_type for output in outputs] == ["stream", "execute_result"]
    assert outputs[0].text == "rank 0: 0 0\nrank 0: 0 1\nrank 1: 1 0\nrank 1: 1 1\n"
    assert outputs[1].data["text/plain"] == "rank 0: 0\nrank 1: 1"


def test_launch_in_a_cell_shows_output_in_rank_order_and_keeps_earlier_output(kernel):
    work = "def work(a):\n    print('hello', rank)\n    return a + rank"
    code = f"import utils\nprint('mine')\n{work}\nutils.launch(work, 5, ranks=2)"
    assert kernel.text(code) == "mine\nrank 0: hello 0\nrank 1: hello 1\n[5, 6]\n"


def test_a_variable_of_the_notebook_does_not_hide_the_rank_in_launch(kernel):
    loop = "import utils\nfor rank in range(4): pass\nworld_size, kept = 7, 5\n"
    text = kernel.text(f"{loop}def work():\n    return rank, world_size, kept\nutils.launch(work, ranks=2)")
    assert text == "[(0, 2, 5), (1, 2, 5)]\n"
    assert kernel.text("rank") == "3\n"


def test_an_error_in_launch_shows_the_line_of_the_cell(kernel):
    text = kernel.text("def work():\n    return 1 / (rank - 1)\nutils.launch(work, ranks=2)")
    assert "return 1 / (rank - 1)" in text
    assert "rank 1 failed: ZeroDivisionError" in text
    assert "utils/ranks" not in text


def test_plain_ipython_runs_cells_on_ranks_and_leaves_nothing():
    script = "%load_ext utils\n%%ranks -n 2\nprint('hello from', rank)\n\n\nimport os; print('me', os.getpid())\n"
    main, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(child)
    seen = ""
    try:
        os.write(main, script.encode())
        seen = _read_until(main, r"me \d+")
        ranks = descendants(process.pid)
        assert "rank 0: hello from 0" in seen
        assert "rank 1: hello from 1" in seen
        assert len(ranks) == 3  # the zygote and two ranks
        os.write(main, b"exit\n")
        process.wait(20)
        assert eventually(lambda: gone(ranks))
    finally:
        os.close(main)
        process.kill()
        process.wait()


def _read_until(fd: int, pattern: str, seconds: float = 40) -> str:
    seen, end = "", time.monotonic() + seconds
    while not re.search(pattern, seen) and time.monotonic() < end:
        if select.select([fd], [], [], 0.5)[0]:
            seen += os.read(fd, 65536).decode(errors="replace")
    return seen
