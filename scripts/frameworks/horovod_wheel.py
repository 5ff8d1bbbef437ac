"""Builds Horovod against the torch that is installed, once, and keeps it.

``python scripts/frameworks/horovod_wheel.py FOLDER`` installs it; ``make frameworks`` does that.

Horovod's last release, 0.28.1 (2023), asks its compiler for C++14; the headers of torch 2.13 need C++17. Nothing else
has to change. It is built for torch alone, with gloo for its messages; MPI, TensorFlow and CUDA are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

VERSION = "0.28.1"
NEEDED_TO_BUILD = ("setuptools<82", "wheel", "cmake<4", "packaging", "pyyaml", "cffi", "cloudpickle", "psutil")
OPTIONS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "MAKEFLAGS": f"-j{os.cpu_count()}",
}
_STANDARD = re.compile(r"(CMAKE_CXX_STANDARD\s+|-std=(?:c|gnu)\+\+)1[14]\b")


class CannotBuild(Exception):
    """Why Horovod cannot be had on this machine, in one sentence."""


def wheel(folder: Path) -> Path:
    """The wheel for this Python and this torch, from ``folder`` if it was built before.

    Raises:
        CannotBuild: there is no C++ compiler, or the build failed (its last lines follow).
    """
    folder = folder / f"torch-{metadata.version('torch')}-cp{sys.version_info.major}{sys.version_info.minor}"
    if built := sorted(folder.glob("horovod-*.whl")):
        return built[-1]
    if not (shutil.which("c++") or shutil.which("g++")):
        raise CannotBuild("Horovod is built from its source, and there is no C++ compiler here (install g++).")
    before = f"setuptools=={metadata.version('setuptools')}"
    _pip("install", "--quiet", *NEEDED_TO_BUILD)
    with contextlib.ExitStack() as after, tempfile.TemporaryDirectory(prefix="horovod-") as work:
        after.callback(_pip, "install", "--quiet", before)  # the environment keeps what was tested
        source = _unpack(_download(Path(work)), Path(work))
        for path in (source / "CMakeLists.txt", source / "horovod" / "torch" / "CMakeLists.txt"):
            path.write_text(with_cpp17(path.read_text(encoding="utf-8")), encoding="utf-8")
        _pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", work, str(source), **OPTIONS)
        folder.mkdir(parents=True, exist_ok=True)
        (built_here,) = Path(work).glob("horovod-*.whl")
        return Path(shutil.move(built_here, folder / built_here.name))


def with_cpp17(cmake: str) -> str:
    """The text of a CMakeLists.txt that asks for C++17 where it asked for C++11 or C++14."""
    return _STANDARD.sub(r"\g<1>17", cmake)


def _download(folder: Path) -> Path:
    # Asking for the file's place only: `pip download` would already run Horovod's setup.
    _pip("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--dest", str(folder),
         f"horovod=={VERSION}")  # fmt: skip
    (archive,) = folder.glob("horovod-*.tar.gz")
    return archive


def _unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"horovod-{VERSION}"


def _pip(*arguments: str, **environment: str) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))  # cmake is there
    result = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env={**os.environ, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        raise CannotBuild(f"pip {arguments[0]} failed for Horovod:\n" + "\n".join(result.stdout.splitlines()[-15:]))


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        path = wheel(folder)
        _pip("install", "--quiet", "--no-deps", str(path))
        _pip("install", "--quiet", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
    except CannotBuild as reason:
        print(f"Horovod was left out, everything else works: {reason}")
        return
    print(f"Horovod {VERSION} is installed; its wheel is kept in {path.parent}")


if __name__ == "__main__":
    main()
