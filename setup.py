"""What a wheel brings beside the packages: the files that a learner works with, as course/files/.

``pip install git+ADDRESS`` needs nothing else, and ``python -m course get FOLDER`` puts them into a folder. All that is
declared stands in pyproject.toml. An editable install has no use for copies: there the repository itself is at hand.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FILES = ("notebooks", "labs", "solutions", "scripts", "docs", "lessons/pictures/diagrams", "README.md", "LICENSE")


class WithFiles(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        here, there = Path(__file__).parent, Path(self.build_lib, "course", "files")
        shutil.rmtree(there, ignore_errors=True)
        for name in FILES:
            if (here / name).is_dir():
                shutil.copytree(here / name, there / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                there.mkdir(parents=True, exist_ok=True)
                shutil.copy(here / name, there / name)


setup(cmdclass={"build_py": WithFiles})
