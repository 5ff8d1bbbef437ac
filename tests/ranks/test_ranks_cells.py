"""Cells and functions on ranks: what they compute, what they show, and in which order."""

from __future__ import annotations

import pytest
from ranks_support import Recorder

import utils
from utils.ranks import BadRequest, World


@pytest.fixture(scope="module", params=["fork", "spawn"])
def world(request):
    with World(4, start=request.param) as world:
        yield world


def shown(world, source, **options):
    view = Recorder()
    world.run_cell(source, view=view, **options)
    return view


def test_an_all_reduce_over_ranks_equals_the_sum_in_one_process(world):
    values = world.run_cell("x = torch.arange(5.0) * (rank + 1)\ndist.all_reduce(x)\nx.tolist()")
    expected = str([float(i * (1 + 2 + 3 + 4)) for i in range(5)])
    assert values == dict.fromkeys(range(4), expected)


def test_variables_live_on_to_the_next_cell(world):
    world.run_cell("kept = rank * 10")
    assert world.run_cell("kept") == {0: "0", 1: "10", 2: "20", 3: "30"}


def test_a_function_of_one_cell_uses_a_variable_of_another(world):
    world.run_cell("def scaled():\n    return factor * rank")
    world.run_cell("factor = 7")
    assert world.run_cell("scaled()")[3] == "21"


def test_only_some_ranks_run_a_cell(world):
    world.run_cell("mark = 0")
    assert world.run_cell("mark = 1; mark", only=[1, 3]) == {1: "1", 3: "1"}
    assert world.run_cell("mark") == {0: "0", 1: "1", 2: "0", 3: "1"}


def test_a_semicolon_keeps_the_value_quiet(world):
    assert world.run_cell("rank;") == {}


def test_output_is_in_rank_order_whoever_prints_first(world):
    view = shown(world, "import time; time.sleep(0.1 * (3 - rank)); print('I am', rank); print('again', rank)")
    assert view.text() == "".join(f"rank {r}: I am {r}\nrank {r}: again {r}\n" for r in range(4))


def test_identical_output_is_folded(world):
    assert shown(world, "print('same')").text() == "ranks 0–3: same\n"
    assert shown(world, "print('even' if rank % 2 == 0 else 'odd')").text() == "ranks 0, 2: even\nranks 1, 3: odd\n"


def test_text_of_child_processes_keeps_its_place_among_printed_text(world):
    view = shown(world, "import os\nprint('before'); os.system('echo from below'); print('after')", only=[2])
    assert view.text() == "rank 2: before\nrank 2: from below\nrank 2: after\n"


def test_text_of_c_code_is_shown(world):
    source = "import ctypes\nctypes.CDLL(None).puts(b'from C')\nNone"
    assert shown(world, source, only=[0]).text() == "rank 0: from C\n"


def test_standard_error_is_kept_apart(world):
    view = shown(world, "import sys\nprint('a warning', file=sys.stderr)", only=[0])
    assert view.text("stderr") == "rank 0: a warning\n"
    assert view.text("stdout") == ""


def test_a_progress_bar_leaves_its_last_state_only(world):
    source = "import sys\nfor i in range(5):\n    print(f'\\r{i * 25}%', end='', file=sys.stderr, flush=True)"
    assert shown(world, source).text() == "ranks 0–3: 100%\n"


def test_tqdm_leaves_one_line(world):
    text = shown(world, "from tqdm.auto import tqdm\nfor _ in tqdm(range(50)): pass", only=[0]).text()
    assert text.count("\n") == 1
    assert "50/50" in text


def test_a_widget_becomes_a_sentence_and_does_not_break_the_page(world):
    view = shown(
        world, "import ipywidgets\nfrom IPython.display import display\ndisplay(ipywidgets.IntSlider())", only=[0]
    )
    assert [list(data) for data in view.shown()] == [["text/plain"]]
    assert "cannot leave its rank" in view.shown()[0]["text/plain"]


def test_a_figure_is_shown_with_its_rank(world):
    source = "import matplotlib.pyplot as plt\nplt.plot([rank, 1])\nplt.show()\nprint('then text')"
    view = shown(world, source, only=[1])
    assert "image/png" in view.shown()[0]
    assert view.text() == "rank 1:\nrank 1: then text\n"


def test_a_figure_left_open_is_shown_at_the_end_of_the_cell_once(world):
    assert len(shown(world, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);", only=[0]).shown()) == 1
    assert shown(world, "1", only=[0]).shown() == []


def test_html_shows_as_html(world):
    view = shown(world, "from IPython.display import HTML\nHTML('<b>bold</b>')")
    assert [data["text/html"] for data in view.shown()] == ["<b>bold</b>"]
    assert view.text() == "ranks 0–3:\n"


def test_a_display_can_be_updated_and_cleared(world):
    source = (
        "from IPython.display import clear_output, display\nprint('gone')\nclear_output()\n"
        "handle = display('first', display_id=True)\nhandle.update('second')\nNone"
    )
    view = shown(world, source, only=[0])
    assert [data["text/plain"] for data in view.shown()] == ["'second'"]
    assert "gone" not in view.text()


def test_input_is_refused_with_a_sentence(world):
    from utils.ranks import RankError

    with pytest.raises(RankError, match=r"here nobody can be asked.*%ranks push NAME"):
        world.run_cell("input('name? ')")
    assert set(world.run_cell("rank")) == {0, 1, 2, 3}


def test_a_data_loader_with_workers_runs_on_ranks(world):
    source = (
        "from torch.utils.data import DataLoader\n"
        "loader = DataLoader(list(range(rank, 40, 4)), batch_size=5, num_workers=2)\n"
        "total = sum(batch.sum().item() for batch in loader)\n"
        "total"
    )
    assert world.run_cell(source) == {rank: str(sum(range(rank, 40, 4))) for rank in range(4)}


def test_pull_and_push(world):
    world.push("given", {"a": [1, 2]})
    assert world.run_cell("given['a'][1] + rank") == {0: "2", 1: "3", 2: "4", 3: "5"}
    world.run_cell("class Thing:\n    def __init__(self): self.rank = rank\nthing = Thing()\nt = torch.ones(2) * rank")
    assert [thing.rank for thing in world.pull("thing")] == [0, 1, 2, 3]
    assert [t.tolist() for t in world.pull("t")] == [[r, r] for r in range(4)]
    assert world.pull("t.sum().item()", only=[3]) == [6.0]


def test_a_program_written_for_torchrun_runs_unchanged(world):
    source = (
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([int(os.environ['RANK'])]); dist.all_reduce(x)\n"
        "dist.destroy_process_group()\n"
        "x.item()"
    )
    assert world.run_cell(source) == dict.fromkeys(range(4), "6")
    # The group that the program destroyed is there again for the next cell.
    assert world.run_cell("x = torch.ones(1); dist.all_reduce(x); x.item()") == dict.fromkeys(range(4), "4.0")


def test_a_model_under_ddp_may_outlive_its_group(world):
    # Without a second owner of the group this hangs in every second or third round (torch 2.13).
    source = (
        "for number in range(8):\n"
        "    dist.init_process_group('gloo')\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        "    dist.destroy_process_group()\n"
        "    del model\n"
        "number"
    )
    assert world.run_cell(source) == dict.fromkeys(range(4), "7")


def test_what_the_reader_has_in_the_namespace(world):
    assert world.run_cell("(rank, world_size, local_rank, str(device), dist.get_rank())")[2] == "(2, 4, 2, 'cpu', 2)"


def test_names_and_attributes_on_ranks_can_be_completed(world):
    world.run_cell("my_model = torch.nn.Linear(2, 2)")
    assert "my_model" in world.complete("my_mo")
    assert "my_model.weight" in world.complete("my_model.wei")
    assert world.complete("nothing_like_this") == []


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (4, 2), (6, 3)])
def test_ranks_are_presented_as_nodes(size, nodes):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
    with World(size, nodes) as world:
        values = world.run_cell(f"import os\n[int(os.environ[name]) for name in '{names}'.split()]")
    per_node = size // nodes
    for rank in range(size):
        assert values[rank] == str([rank, size, rank % per_node, per_node, rank // per_node, nodes])


def test_launch_returns_what_each_rank_returned():
    def work(base, power=1):
        import torch
        import torch.distributed as dist

        x = torch.tensor([float(base + dist.get_rank())]) ** power
        dist.all_reduce(x)
        return dist.get_rank(), x.item()

    assert utils.launch(work, 1, ranks=3, power=2) == [(0, 14.0), (1, 14.0), (2, 14.0)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 0}, "1 to 128 ranks, not 0"),
        ({"size": 4, "nodes": 3}, "cannot be shared equally among 3 nodes.*1, 2, 4"),
        ({"size": 2, "backend": "mpi"}, "auto, gloo or nccl, not 'mpi'"),
        ({"size": 2, "backend": "nccl"}, "NCCL.*GPU.*--backend gloo"),
    ],
)
def test_worlds_that_cannot_be_are_refused_in_one_sentence(options, sentence):
    import torch

    if options.get("backend") == "nccl" and torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs")
    with pytest.raises(BadRequest, match=sentence):
        World(**options)


@pytest.mark.nightly
def test_a_million_lines_neither_hang_nor_fill_memory(world):
    view = shown(world, "for i in range(1_000_000): print('line', i)", only=[0], timeout=600)
    text = view.text()
    assert "lines left out" in text
    assert text.startswith("rank 0: line 0\n")
    assert text.endswith("rank 0: line 999999\n")
    assert len(text) < 100_000


def test_one_endless_line_is_folded_too(world):
    text = shown(world, "for i in range(3000): print('x' * 1000, end='')", only=[0]).text()
    assert len(text) < 30_000
    assert "left out" in text
