"""``python -m lessons.launchers.torchrun …`` is ``torchrun …``, but it ends with its starter, and keeps all logs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from lessons.launchers.torchrun import results
from lessons.launchers.torchrun.agent_group import MARK
from utils.ranks.lifetimes import end_with


def main() -> None:
    starter = os.environ.get(MARK, "").partition("-")[0]
    end_with(int(starter) if starter else os.getppid())
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

    class KeepAll(DefaultLogsSpecs):
        """A log folder for each start of the workers, and in it what each was told.

        torchrun names the folder after the number of failures. When workers start anew because a node has come or gone,
        that number stays, and torchrun removes the folder and begins it again.
        """

        starts = 0

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            numbered = {local: env | {"TORCHELASTIC_RESTART_COUNT": str(self.starts)} for local, env in envs.items()}
            self.starts += 1
            destinations = super().reify(numbered)
            for local, error_file in destinations.error_files.items():
                envs[local]["TORCHELASTIC_ERROR_FILE"] = error_file
                if error_file != os.devnull:
                    Path(error_file).with_name(results.ENVIRONMENT).write_text(json.dumps(envs[local]))
            return destinations

    run.DefaultLogsSpecs = KeepAll
    run.main()


if __name__ == "__main__":
    main()
