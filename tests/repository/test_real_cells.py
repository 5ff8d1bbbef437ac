"""The core lectures' cells on simulated GPUs, run on real ones: the rules everywhere, the cells where GPUs are."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from real_cells import for_real_gpus, run, with_what_they_need
from real_gpus import GPUS, needs_gpus

from course import outline

FOLDER = Path(__file__).parents[2] / "notebooks"
LECTURES = ("buckets_and_overlap", "sharded_checkpoints", "sharded_data_parallel", "pipeline_schedules")
"""Those of which this was seen on the CPU. Others ask the simulation for nearly all that they show."""


def _left(*sources: str, gpus: int = 8) -> list[tuple[str, str]]:
    return [(cell.source, cell.why_not) for cell in for_real_gpus(map(new_code_cell, sources), gpus)]


def test_options_of_ranks_are_left_out() -> None:
    head = '%%ranks -n 4 --gpu H100 --network "InfiniBand NDR" --shapes --nodes 2'
    assert _left(f"{head}\nx = 1") == [("%%ranks -n 4 --nodes 2\nx = 1", "")]
    assert _left("%%ranks -n 4 --gpu H100\nx = 1", gpus=2)[0][1] == "needs 4 GPUs"
    assert _left("%%ranks -n 4\nx = 1", gpus=2)[0][1] == "", "that one runs on the CPU"


def test_devices_are_real_ones_and_clusters_go() -> None:
    (cell,) = _left("import simgpu, torch\nsimgpu.cluster(gpus_per_node=2)\nx = torch.ones(2).to('simgpu:1')")
    assert cell == ("import torch\nx = torch.ones(2).to('cuda:1')", "")
    assert _left("simgpu.cluster(gpus_per_node=2)\ny = 1", gpus=1)[0][1] == "needs 2 GPUs"


def test_what_was_profiled_stays_and_what_asks_the_profile_goes() -> None:
    first, second = _left(
        "with simgpu.profile() as prof:\n    y = f(1)\nprint(prof.elapsed, y)\nt = prof.elapsed\nprint(y)",
        "print(t)",
    )
    assert first == ("y = f(1)\nprint(y)", "") and second[1] == "is about simulation"
    whole, part = "def f(x):\n    with simgpu.profile() as prof:\n        g(x)\n    return {}", "    print(prof)\n"
    assert _left(whole.format("prof"), "f(1)")[1][1] == "is about simulation"
    assert _left(whole.format("x").replace("    return", f"{part}    return"), "f(1)") == [
        ("def f(x):\n    g(x)\n    return x", ""),
        ("f(1)", ""),
    ]


def test_cells_are_run_with_what_they_need() -> None:
    sources = ["%load_ext utils", "a = 1", "b = 2", "simgpu.cluster(gpus_per_node=1)\nprint(a)"]
    cells = with_what_they_need(for_real_gpus(map(new_code_cell, sources), 1))
    assert [cell.number for cell in cells] == [0, 1, 3]


def _failures(slug: str, gpus: int, device: str = "cuda") -> list[str]:
    cells = for_real_gpus(nbformat.read(outline.notebook(slug), as_version=4).cells, gpus, device)
    chosen = with_what_they_need(cells)
    if not any(cell.changed for cell in chosen):
        pytest.skip(f"on {gpus} GPUs none of its cells on simulated GPUs is left")
    return list(run(chosen, str(FOLDER)))


@pytest.mark.extras
@pytest.mark.skipif(GPUS > 0, reason="for machines without a GPU")
@pytest.mark.parametrize("slug", LECTURES[:3])
def test_the_mechanism_runs_three_lectures_on_the_cpu(slug: str) -> None:
    assert _failures(slug, 8, "cpu") == []


@needs_gpus(1)
@pytest.mark.parametrize("slug", LECTURES)
def test_cells_on_simulated_gpus_run_on_one_real_gpu(slug: str) -> None:
    assert _failures(slug, 1) == []


@needs_gpus(2)
@pytest.mark.parametrize("slug", LECTURES)
def test_cells_on_simulated_gpus_run_on_all_real_gpus(slug: str) -> None:
    assert _failures(slug, GPUS) == []
