"""A module of the reader's own that has the name of this package."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def hidden_module(folder: Path | None = None) -> str:
    """One sentence where this folder's own ``utils`` cannot be imported on ranks; "" where there is none.

    Args:
        folder: where the notebook runs.
    """
    folder = folder or Path(os.getcwd())
    for own in (folder / f"{_PACKAGE.name}.py", folder / _PACKAGE.name / "__init__.py"):
        if own.exists() and own.parent.resolve() != _PACKAGE:
            what = own.relative_to(folder) if own.name != "__init__.py" else f"{own.parent.name}/"
            return (
                f"On ranks `import {_PACKAGE.name}` gives the package that makes them, not the {what} of this folder: "
                "give yours another name."
            )
    return ""
