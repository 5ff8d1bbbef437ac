"""What a wheel brings beside the packages: the files that a learner works with, as course/files/.

``pip install git+ADDRESS`` needs nothing else, and ``python -m course get FOLDER`` puts them into a folder. Setuptools
finds this by pyproject.toml. An editable install has no use for copies: there the repository itself is at hand.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[1]
FILES = ("notebooks", "labs", "solutions", "scripts", "docs", "lessons/pictures/diagrams", "README.md", "LICENSE")


class WithFiles(build_py):
    """Copies the packages, then these files beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        there = Path(self.build_lib, "course", "files")
        shutil.rmtree(there, ignore_errors=True)
        for name in FILES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                there.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, there / name)
