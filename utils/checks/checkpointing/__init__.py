"""The exercises of this lab: a save that survives a kill, exact resumes on one and two ranks, resharding."""

from __future__ import annotations

from typing import Any

from utils.checks import exercise, run
from utils.checks.checkpointing import resharding, resuming, saves

SECONDS = 180  # for one launch, in which dozens of processes are ended


@exercise(title="A save that survives", difficulty=1, minutes=20, timeout=SECONDS)
def saving(save: Any) -> dict[str, Any]:
    """Judge ``save(state, path)``, killed at every step with files and at many bytes, and on full disks."""
    return saves.judge_saving(run(saves.saving, save, timeout=SECONDS))


def _watched_lives(train: Any, ranks: int) -> dict[str, Any]:
    from utils.checks.checkpointing import watched  # imports torch, which the notebook's kernel need not wait for

    return watched.lives(train, ranks)


@exercise(title="Killed twenty times", difficulty=2, minutes=30, timeout=SECONDS)
def resumed(train: Any) -> dict[str, Any]:
    """Judge ``train(task, folder)`` in one process, killed and started again until it is done."""
    return resuming.judge_lives(run(_watched_lives, train, 1, timeout=SECONDS), 1)


@exercise(title="The newest good one, on two ranks", difficulty=3, minutes=40, timeout=SECONDS)
def on_ranks(train_on_ranks: Any) -> dict[str, Any]:
    """Judge ``train_on_ranks(task, folder)`` on two ranks, with kills and damaged checkpoints."""
    return resuming.judge_lives(run(_watched_lives, train_on_ranks, 2, timeout=SECONDS), 2)


@exercise(title="A resharding loader", difficulty=3, minutes=35)
def reshard(load: Any) -> dict[str, Any]:
    """Judge ``load(store, rank, world_size)``: right rows, and no byte too many."""
    found = run(resharding.reshards, load, resharding.CASES)
    totals = [resharding.judge_reshard(case, per_rank) for case, per_rank in zip(resharding.CASES, found, strict=True)]
    return {
        "numbers of ranks": f"{len(found)} pairs, such as 4 → 2, 2 → 3, 2 → 9",
        "bytes read": f"{totals[0]['bytes']:,} by all ranks, each byte once",
        "reads": f"{totals[0]['reads']} for {resharding.CASES[0]}",
    }
