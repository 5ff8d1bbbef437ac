"""The exercise of the lab on Ray Train: a training whose workers die. What is not here is in the official solution."""

import json
import tempfile
from pathlib import Path

from known_answers import right, wrong

FIT = '    return trainer.fit().metrics["loss"]'
LOOP, EPOCH = "        while done < epochs:\n", "            loss, state = epoch(state)\n"
FAILURES = "max_failures=accidents"
RANK_0 = "if train.get_context().get_world_rank() == 0 else"


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
        from ray.train.torch import TorchConfig, TorchTrainer

        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"epoch": epoch, "epochs": epochs},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
            torch_config=TorchConfig(backend="gloo"),
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


right("the loss in the checkpoint", {
    "json.dumps([done, state])": "json.dumps([done, state, loss])", "done, state = json.loads": "done, state, _ = json.loads",
    FIT: "    with trainer.fit().checkpoint.as_directory() as folder:\n"
    '        return json.loads(Path(folder, "state.json").read_text())[2]',
})  # fmt: skip
right("one finished epoch is lost", {
    "json.dumps([done, state])": "json.dumps(before)", EPOCH: "            before = [done, state]\n" + EPOCH
})  # fmt: skip
AGAIN, FEW = "epochs are trained again that had been finished", "1 of 2 workers came"
WRONG = {
    "rank 1 hands the folder over": (AGAIN, {RANK_0: RANK_0.replace("== 0", "== 1")}),
    "no name": ("called again with the same storage, epochs are trained again", {'            name="training",\n': ""}),
    "what is kept is not read": (AGAIN, {"train.get_checkpoint()": "None"}),
    "only the first epoch is kept": (AGAIN, {RANK_0: RANK_0.replace("== 0", "== 0 and done == 1")}),
    "all are forgiven": ("no error comes out", {FAILURES: "max_failures=-1"}),
    "one is always forgiven": ("no error comes out", {FAILURES: "max_failures=1"}),
    "none is ever forgiven": ("1 such accident is to be forgiven", {FAILURES: "max_failures=0"}),
    "the error is swallowed": (
        "no error comes out", {FIT: f"    try:\n    {FIT}\n    except Exception:\n        return None"}
    ),
    "Ray is shut down": (
        "leave it running", {FIT: f"    import ray\n\n    try:\n    {FIT}\n    finally:\n        ray.shutdown()"}
    ),
    "always two workers": ("there are more workers than the", {"num_workers=workers": "num_workers=2"}),
    "always one worker": (FEW, {"num_workers=workers": "num_workers=1"}),
    "rank 0 trains alone": (FEW, {LOOP: "        while done < epochs and train.get_context().get_world_rank() == 0:\n"}),
    "elsewhere": ("Ray Train's record of the run must be in storage", {"            storage_path=storage,\n": ""}),
    "an epoch too many": ("epochs that were asked for", {LOOP: "        while done <= epochs:\n"}),
    "all epochs after each start": ("epochs that were asked for", {LOOP: "        for _ in range(epochs):\n"}),
    "the state is dropped": ("hands in the state after epoch 0", {EPOCH: "            loss, _ = epoch(state)\n"}),
    "no Ray at all": ("runs in your function's own process", {
        FIT: "    state = None\n    for _ in range(epochs):\n        loss, state = epoch(state)\n    return loss"
    }),
    "a name that is not there": ("NameError: name 'stat' is not defined", {"epoch(state)": "epoch(stat)"}),
    "the lowest loss": ("is not the loss of the last epoch", {
        FIT: "    return min(metrics['loss'] for _, metrics in trainer.fit().best_checkpoints)"
    }),
}  # fmt: skip
for NAME, (SAYS, CHANGE) in WRONG.items():
    wrong(NAME, SAYS, CHANGE)
