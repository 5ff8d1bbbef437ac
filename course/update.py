"""``make update``: the course's newest version, without losing what a learner has written. Needs git and Python alone.

Files that only the course has changed become the new ones; those that only the learner has changed stay. Where both
have, a notebook is put together cell by cell: the learner's cells go on in the course's new notebook, under its new
name if the lecture has another number now. Outputs alone are no change. What cannot stay in its place is kept in
``mine/<date>/``, which git leaves alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from course.outline import FILE_NAME, ROOT, slug_of

MINE = "mine"
Notebook = dict[str, Any]


class Refused(Exception):
    """Nothing was changed; the sentence says why, and what to do."""


def update(root: Path = ROOT) -> list[str]:
    """Take what is new.

    Returns:
        What was done, a sentence each.
    Raises:
        Refused: if it cannot be done.
    """
    if not (root / ".git").exists():
        raise Refused("This copy did not come by `git clone`, so it cannot be updated: clone the course beside it.")
    return _Update(root).run()


class _Update:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.kept = root / MINE / time.strftime("%Y-%m-%d_%H-%M-%S")

    def git(self, *arguments: str, or_nothing: bool = False) -> bytes:
        """What git prints. ``or_nothing``: b"" if it has no answer."""
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = subprocess.run(["git", *arguments], cwd=self.root, env=environment, capture_output=True, check=False)
        if done.returncode and not or_nothing:
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise Refused(f"git {arguments[0]} failed: {said[0]}")
        return done.stdout if not done.returncode else b""

    def ask(self, *arguments: str) -> str:
        return self.git(*arguments, or_nothing=True).decode().strip()

    def names(self, *arguments: str) -> list[str]:
        """The paths that git lists."""
        return [name for name in self.git(*arguments, "-z").decode().split("\0") if name]

    def files(self, commit: str) -> dict[str, str]:
        """The blob of each file of a commit, by its path."""
        lines = (line.partition("\t") for line in self.names("ls-tree", "-r", commit))
        return {path: about.split()[2] for about, _, path in lines}

    def run(self) -> list[str]:
        folder = self.root / self.ask("rev-parse", "--git-dir")
        for name, what in (("MERGE_HEAD", "merge"), ("rebase-merge", "rebase"), ("rebase-apply", "rebase")):
            if (folder / name).exists():
                raise Refused(f"A {what} of git is half done: finish it or type `git {what} --abort`; then update.")
        tracked = self.fetch()
        head, new = self.ask("rev-parse", "HEAD"), self.ask("rev-parse", "FETCH_HEAD")
        if not (number := self.ask("rev-list", "--count", f"{head}..{new}").strip("0")):
            return ["The course is as new as can be: nothing was changed."]
        # Commits that the course does not know, neither as it is now nor as it was when it was fetched last.
        own = self.ask("rev-list", head, f"^{new}", *([f"^{tracked}"] if tracked else [])).split()
        base = self.ask("merge-base", head, new) if own else head
        if not base:
            raise Refused(
                "Your commits and the course have none in common, so nothing was changed: merge them with git."
            )
        committed = set(self.names("diff", "--name-only", "--no-renames", base, head))
        said, results, spare = self.put_together(base, new)
        self.git("reset", "--hard", "--quiet", new)
        for place, (_, content) in results.items():
            (self.root / place).parent.mkdir(parents=True, exist_ok=True)
            (self.root / place).write_bytes(content)
        if own:  # one more commit, of both parents: the course's files, and theirs where they had committed them
            if paths := [place for place, (path, _) in results.items() if path in committed]:
                self.git("add", "--force", "--", *paths)
            tree, message = self.ask("write-tree"), "Merge the course's update"
            merged = self.git("commit-tree", tree, "-p", head, "-p", new, "-m", message).decode().strip()
            self.git("reset", "--soft", merged)
            said.append(f"Your commits ({len(own)}) and the course's are merged in one more.")
        for copy in spare:
            copy.unlink()
            with contextlib.suppress(OSError):  # until a folder is not empty
                os.removedirs(copy.parent)
        if self.kept.exists():
            said.append(f"What you had is also in {self.kept.relative_to(self.root).as_posix()}/.")
        said.append("Reload the pages that JupyterLab shows now; `make lab` installs what the course needs anew.")
        return [f"The course is new (commits: {number}).", *said]

    def fetch(self) -> str:
        """Get the course's newest commit as FETCH_HEAD. Returns what was the newest one before, or ""."""
        remotes = self.ask("remote").split()
        remote = next((one for one in ("upstream", "origin", *remotes) if one in remotes), None)
        if remote is None:
            raise Refused("Git does not know where this course comes from: `git remote add origin ADDRESS` tells it.")
        default = self.ask("symbolic-ref", "--short", f"refs/remotes/{remote}/HEAD").removeprefix(f"{remote}/")
        branch = default or "main"
        before = self.ask("rev-parse", "--verify", "--quiet", f"refs/remotes/{remote}/{branch}")
        try:
            self.git("fetch", "--quiet", remote, branch)
        except Refused as reason:
            raise Refused(f"The course's home cannot be reached, so nothing was changed ({reason}).") from None
        return before

    def put_together(self, base: str, new: str) -> tuple[list[str], dict[str, tuple[str, bytes]], list[Path]]:
        """Copy all that the learner has changed to ``mine/``, and work out what stands where afterwards.

        Returns:
            Sentences; what to write on top of the course's new files (place → path until now, content); copies that
            nobody needs when that is done.
        """
        before, after = self.files(base), self.files(new)
        changed = self.names("diff", "--name-only", "--no-renames", base)
        said, results, spare = [], {}, []
        for path in changed + [path for path in after if path not in before and path not in changed]:
            file, place = self.root / path, _place(path, after)
            if file.is_symlink() or not file.is_file():
                continue  # the learner has deleted it: it comes back; or it is new
            mine, copy = file.read_bytes(), self.kept / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(mine)
            if place is None and path in before:
                said.append(f"{path} is no longer part of the course.")
            elif place is None or before.get(path) == after[place]:
                results[place or path] = path, mine
                spare.append(copy)
            elif mine == (theirs := self.git("show", f"{new}:{place}")):
                spare.append(copy)
            elif path not in before or not place.endswith(".ipynb"):
                said.append(f"{place} is the course's new one now.")
            else:
                try:
                    merged = merge(self.git("show", f"{base}:{path}"), mine, theirs)
                except (ValueError, KeyError, TypeError, AttributeError):
                    said.append(f"{place} is the course's new one now; yours could not be read as a notebook.")
                    continue
                if merged is None:
                    spare.append(copy)
                else:
                    results[place] = path, merged
                    said.append(f"{place} is new, and has what you had written in it.")
        return said, results, spare


def _place(path: str, after: dict[str, str]) -> str | None:
    """Where a file of the course is now: a notebook is known by its slug."""
    folder, _, name = path.rpartition("/")
    if path in after or not FILE_NAME.fullmatch(name):
        return path if path in after else None
    slug = slug_of(Path(name).stem)
    found = (one for one in after if FILE_NAME.fullmatch(Path(one).name) and slug_of(Path(one).stem) == slug)
    return next((one for one in found if one.rpartition("/")[0] == folder), None)


def merge(before: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """A notebook that the course and the learner have changed: the new one with the learner's cells.

    A cell of the learner's takes the place of the course's. Where the course has changed that cell too, its new code
    stands below, as a text; of a text that both have changed, both stay. A cell that only the learner has stays behind
    the one that it followed.

    Args:
        before, mine, theirs: the files: as both have known it, the learner's, the course's new one.
    Returns:
        None if the learner has written nothing in it: outputs do not count.
    Raises:
        ValueError, KeyError, TypeError or AttributeError: if one of them is no notebook.
    """
    old, own, notebook = (json.loads(text) for text in (before, mine, theirs))
    was = {cell["id"]: _source(cell) for cell in old["cells"]}
    written = [cell for cell in own["cells"] if was.get(cell["id"]) != _source(cell)]
    if not [cell for cell in written if cell["id"] in was or _source(cell).strip()]:
        return None
    cells: list[Notebook] = notebook["cells"]
    behind = 0  # where a cell goes that the course does not have
    for cell in own["cells"]:
        here = next((place for place, one in enumerate(cells) if one["id"] == cell["id"]), None)
        if here is None:
            if cell in written:
                cells.insert(behind, cell)
                behind += 1
            continue
        behind = here + 1
        if cell not in written or _source(cell) == _source(cells[here]):
            continue
        course, cells[here] = cells[here], cell
        if _source(course) != was.get(cell["id"]):
            cells.insert(behind, _quoted(course))
            behind += 1
    return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode()


def _source(cell: Notebook) -> str:
    return "".join(cell["source"])


def _quoted(cell: Notebook) -> Notebook:
    """The course's new version of a cell, to be read below the learner's."""
    text = _source(cell)
    if cell["cell_type"] == "code":
        text = f"The course's new version of the cell above:\n\n```python\n{text}\n```"
    return {"cell_type": "markdown", "id": f"new-{cell['id']}"[:64], "metadata": {}, "source": text.splitlines(True)}


if __name__ == "__main__":
    try:
        print(*update(), sep="\n")
    except Refused as reason:
        sys.exit(str(reason))
