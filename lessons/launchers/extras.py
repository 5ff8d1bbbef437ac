"""Notebooks that need more than the course's core, opened without it.

Some lectures run MPI, Horovod, TensorFlow or Ray, which `make frameworks` installs. Their first cell calls
``need``. Where something is missing, it says so in one line, and from then on every cell of the notebook shows the
output that is stored in the file instead of running. What is stored came from running it with all of them installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from course import outline

NAMES = {
    "horovod": "Horovod",
    "mpi4py": "MPI (mpi4py)",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "ray": "Ray",
    "optuna": "Optuna",
    "hpbandster": "HpBandSter",
}
HOW = "run `make frameworks` in a terminal, then restart the kernel"


def missing(*modules: str) -> list[str]:
    """Those of the modules that are not installed here. Nothing is imported."""
    return [module for module in modules if find_spec(module) is None]


def sentence(modules: list[str]) -> str:
    """What is missing, and what to do about it."""
    names = [NAMES.get(module, module) for module in modules]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{listed} {'is' if len(names) == 1 else 'are'} not installed here: {HOW}."


def need(notebook: str, *modules: str) -> None:
    """For the first cell of a lecture: if a module is missing, say so and show what is stored from here on.

    Args:
        notebook: the slug of the lecture, "ray_and_tuning".
        modules: what the lecture imports.
    """
    if not (lacking := missing(*modules)):
        return
    import nbformat
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise ImportError(sentence(lacking))
    print(f"{sentence(lacking)} Until then nothing below runs: each cell shows its stored output.")
    _stored.clear()
    cells = nbformat.read(outline.notebook(notebook), as_version=4).cells
    _stored.update({cell.source.strip(): cell.outputs for cell in cells if cell.cell_type == "code"})
    if _instead not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.insert(0, _instead)


_stored: dict[str, list[Any]] = {}
"""Of the notebook that lacks something: each cell's source and its outputs."""


def _instead(lines: list[str]) -> list[str]:
    """IPython hands each cell through here before it runs. One that is not the notebook's own runs as it is."""
    source = "".join(lines).strip()
    if source not in _stored:
        return lines
    return [f"__import__('lessons.launchers.extras').launchers.extras.show({list(_stored).index(source)})\n"]


def show(place: int) -> None:
    """Show the stored outputs of the cell with this number, as they were."""
    from IPython.display import publish_display_data

    for output in list(_stored.values())[place]:
        if output.output_type == "stream":
            print(output.text, end="", file=sys.stderr if output.name == "stderr" else sys.stdout)
        elif output.output_type == "error":
            print("\n".join(output.traceback))
        else:
            publish_display_data(dict(output.data), dict(output.metadata))
