"""How ranks are named in sentences, and how rows become a table of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def label(ranks: Iterable[int]) -> str:
    """``rank 0``, ``ranks 0, 2``, ``ranks 0–3``."""
    ranks = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


def said_alike(said: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """What ranks have said, each text once and with all ranks that said it: ``[("boom", "ranks 0, 1"), …]``."""
    by_text: dict[str, list[int]] = {}
    for rank, text in said:
        if text:
            by_text.setdefault(text, []).append(rank)
    return [(text, label(ranks)) for text, ranks in by_text.items()]


def text_table(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """The lines of a table, its columns as wide as they need; the cells of a column end together if ``right``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
