"""A training with Ray Train whose workers die. What is not here is in the official solution."""

import json
import tempfile
from pathlib import Path

from known_answers import right, wrong


@right("torch.save, one checkpoint kept, arguments in a dict, each worker hands its folder over")
def with_torch():
    def train_worker(config):
        import torch
        from ray import train

        kept, seen = train.get_checkpoint(), []
        if kept is not None:
            seen = torch.load(Path(kept.to_directory(), "seen.pt"))
        for _ in range(len(seen), config["epochs"]):
            loss, state = config["epoch"](seen[-1] if seen else None)
            seen.append(state)
            folder = tempfile.mkdtemp()
            torch.save(seen, Path(folder, "seen.pt"))
            train.report({"epoch loss": loss}, checkpoint=train.Checkpoint(folder))

    def ray_train(epoch, workers, epochs, accidents, storage):
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"epoch": epoch, "epochs": epochs},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
            run_config=RunConfig(
                storage_path=Path(storage).as_uri(),
                name=f"run of {epochs} epochs",
                failure_config=FailureConfig(accidents),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        )
        return float(trainer.fit().metrics["epoch loss"])

    return (ray_train,)


@right("a file of one's own in the storage")
def own_file():
    def ray_train(epoch, workers, epochs, accidents, storage):
        import os

        from ray import train
        from ray.train.torch import TorchTrainer

        file = Path(storage, "state.json")

        def worker():
            done, state, loss = json.loads(file.read_text()) if file.exists() else (0, None, None)
            for number in range(done, epochs):
                loss, state = epoch(state)
                if train.get_context().get_world_rank() == 0:
                    Path(storage, "new.json").write_text(json.dumps([number + 1, state, loss]))
                    os.replace(Path(storage, "new.json"), file)
                train.report({})

        run = train.RunConfig(storage_path=storage, failure_config=train.FailureConfig(max_failures=accidents))
        TorchTrainer(worker, scaling_config=train.ScalingConfig(num_workers=workers), run_config=run).fit()
        return json.loads(file.read_text())[2]

    return (ray_train,)


EPOCH = "            loss, state = epoch(state)\n"
right("one finished epoch is lost", {
    "json.dumps([done, state])": "json.dumps(before)", EPOCH: "            before = [done, state]\n" + EPOCH
})  # fmt: skip

AGAIN, FAILURES = "epochs are trained again that had been finished", "max_failures=accidents"
wrong("what is kept is not read", AGAIN, {"train.get_checkpoint()": "None"})
wrong("no name", "called again with the same storage, epochs are trained again", {'            name="training",\n': ""})
wrong("all are forgiven", "no error comes out", {FAILURES: "max_failures=-1"})
wrong("none is ever forgiven", "1 accident is to be forgiven", {FAILURES: "max_failures=0"})
wrong("rank 0 trains alone", "1 of 2 workers came", {
    "        while done < epochs:\n": "        while done < epochs and train.get_context().get_world_rank() == 0:\n"
})  # fmt: skip
