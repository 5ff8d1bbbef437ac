"""Tries the installed packages as a stranger would: a notebook, the program of docs/ranks.md, one on simulated GPUs.

python publish/try_out.py    in an environment with ranks, simgpu, nbclient and ipykernel, in any folder
"""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.metadata import files
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "ranks.md"
ALL_REDUCE = "x = torch.tensor([rank], device=device)\ndist.all_reduce(x)\nx.cpu()"
NOTEBOOK = (
    ("%load_ext ranks", ""),
    (f"%%ranks -n 4\n{ALL_REDUCE}", "ranks 0–3: tensor([6])"),
    ("%%ranks\nif rank == 2: 1 / 0\ndist.barrier()", "rank 2 failed: ZeroDivisionError"),
    (f"%%ranks -n 2 --gpu H100\n{ALL_REDUCE}", "ranks 0, 1: tensor([1])"),
    ("%ranks timeline", "Timeline of 2 lanes"),
    ("import simgpu\nsimgpu.cluster(gpus_per_node=2, gpu='H100')", "H100 SXM"),
)
SIMULATED = """
import simgpu, torch
simgpu.cluster(gpus_per_node=4, gpu="H100", numbers=False)
with simgpu.profile() as prof:
    x = torch.ones(8192, 8192, device="simgpu:3")
    x @ x
print(f"{prof.peak_memory(3) / 2**20:.0f} MiB", "simulated" in str(prof.timeline()))
"""


def check_contents() -> None:
    """A package has what is called as it is, nothing else, and every module can be imported."""
    for name in ("ranks", "simgpu"):
        package = import_module(name)
        assert Path(package.__file__ or "").is_relative_to(sys.prefix), f"{name} is not the installed one"
        assert {path.parts[0].partition("-")[0] for path in files(name) or ()} == {name}
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    assert not {"utils", "course", "lessons", "checks"} & set(sys.modules)


def run_notebook(folder: str) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(source) for source, _ in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": folder}}).execute()
    for cell, (source, shows) in zip(notebook.cells, NOTEBOOK, strict=True):
        assert shows in str(cell.outputs), f"{source}\nshows {cell.outputs}"


def run_program(folder: str, program: str, prints: str) -> None:
    Path(folder, "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip() == prints.strip(), done.stdout + done.stderr


if __name__ == "__main__":
    found = re.search(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the page has no program any more"
    with tempfile.TemporaryDirectory() as folder:
        check_contents()
        run_notebook(folder)
        run_program(folder, SIMULATED, "512 MiB True")
        for start in ("fork", "spawn") if sys.platform == "linux" else ("spawn",):
            os.environ["RANKS_START"] = start
            run_program(folder, found[1], found[2])
    print("ranks and simgpu do what they promise")
