"""Exercise 5 of the lab on Ray and tuning: a training on workers that may die."""

import json
import tempfile
from pathlib import Path

from known_answers import right, wrong


def ray_train(epoch, workers, epochs, accidents, storage):
    from ray import train
    from ray.train.torch import TorchTrainer

    def worker():
        done, state, checkpoint = 0, None, train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                done, state = json.loads(Path(folder, "state.json").read_text())
        while done < epochs:
            loss, state = epoch(state)
            done += 1
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state.json").write_text(json.dumps([done, state]))
                saved = train.Checkpoint.from_directory(folder) if train.get_context().get_world_rank() == 0 else None
                train.report({"loss": loss}, checkpoint=saved)

    trainer = TorchTrainer(
        worker,
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name="training",
            storage_path=storage,
            failure_config=train.FailureConfig(max_failures=accidents),
        ),
    )
    return trainer.fit().metrics["loss"]


EQUAL = {
    "10: ray_train with `torch.manual_seed(0)`": "seeds may be set",
    "10: ray_train with `dist.barrier()`": "it is alone in its group",
    "14: worker with `torch.manual_seed(0)`": "it ends there, and its process is Ray's",
    "14: worker with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "it ends there, and its process is Ray's",
    "14: worker with `dist.barrier()`": "all workers come to it, at their end",
    "14: worker with `torch.set_default_dtype(torch.float64)`": "it ends there, and its process is Ray's",
    "14: worker with `open('left_behind', 'w').close()`": "a worker's folder is Ray's",
    "24: always `train.get_context().get_world_rank() == 0`": "all workers may hand their folders over",
}
FIT = '    return trainer.fit().metrics["loss"]'
LOOP = "        while done < epochs:\n"
NAME = '            name="training",\n'
STORAGE = "            storage_path=storage,\n"
RANK_0 = "if train.get_context().get_world_rank() == 0 else"


# --- right, and written differently


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

        config = RunConfig(
            storage_path=Path(storage).as_uri(),
            name=f"run of {epochs} epochs",
            failure_config=FailureConfig(accidents),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        )
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"epoch": epoch, "epochs": epochs},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
            torch_config=TorchConfig(backend="gloo"),
            run_config=config,
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
    "json.dumps([done, state])": "json.dumps([done, state, loss])",
    "done, state = json.loads": "done, state, _ = json.loads",
    FIT: "    with trainer.fit().checkpoint.as_directory() as folder:\n"
    '        return json.loads(Path(folder, "state.json").read_text())[2]',
})  # fmt: skip


# --- wrong

wrong("rank 1 hands the folder over, where there is one", "epochs are trained again that had been finished", {
    RANK_0: RANK_0.replace("== 0", "== 1")
})  # fmt: skip
wrong("no name", "called again with the same storage, epochs are trained again", {NAME: ""})
wrong("what is kept is not read", "epochs are trained again", {"train.get_checkpoint()": "None"})
wrong("nothing is kept", "epochs are trained again", {RANK_0: "if False else"})
wrong("kept every second epoch, and the wrong one", "epochs are trained again", {
    RANK_0: "if train.get_context().get_world_rank() == 0 and done == 1 else"
})  # fmt: skip
wrong("one is always forgiven", "no error comes out", {"max_failures=accidents": "max_failures=1"})
wrong("none is ever forgiven", "1 such accident is to be forgiven", {"max_failures=accidents": "max_failures=0"})
wrong("if one is forgiven, all are", "2 workers are killed, 1 such accident is to be forgiven, and no error", {
    "max_failures=accidents": "max_failures=-1 if accidents else 0"
})  # fmt: skip
wrong("kept outside the storage", "called with another storage, a training begins anew", {
    "    def worker():\n": "    import os\n\n    own = Path(storage).parent / f'own {os.getpid()}.json'\n\n    def worker():\n",
    "train.get_checkpoint()": "own.exists()",
    "            with checkpoint.as_directory() as folder:\n    ": "",
    'Path(folder, "state.json").read_text()': "own.read_text()",
    RANK_0: RANK_0.replace("if", "if own.write_text(json.dumps([done, state])) and"),
})  # fmt: skip
right("one finished epoch is lost", {
    "json.dumps([done, state])": "json.dumps(before)",
    "            loss, state = epoch(state)\n": "            before = [done, state]\n            loss, state = epoch(state)\n",
})  # fmt: skip
wrong("Ray is shut down", "leave it running", {
    FIT: f"    import ray\n\n    try:\n    {FIT}\n    finally:\n        ray.shutdown()"
})  # fmt: skip
wrong("the error is swallowed", "no error comes out", {
    FIT: "    try:\n        return trainer.fit().metrics['loss']\n    except Exception:\n        return None"
})  # fmt: skip
wrong("always two workers", "there are more workers than the", {"num_workers=workers": "num_workers=2"})
wrong("always one worker", "1 of 2 workers came", {"num_workers=workers": "num_workers=1"})
wrong("rank 0 trains alone", "1 of 2 workers came", {
    LOOP: "        while done < epochs and train.get_context().get_world_rank() == 0:\n"
})  # fmt: skip
wrong("elsewhere", "Ray Train's record of the run must be in storage", {STORAGE: ""})
wrong("an epoch too many", "epochs that were asked for", {LOOP: "        while done <= epochs:\n"})
wrong("all epochs after each start", "epochs that were asked for", {LOOP: "        for _ in range(epochs):\n"})
wrong("no Ray at all", "runs in your function's own process", {
    FIT: "    state = None\n    for _ in range(epochs):\n        loss, state = epoch(state)\n    return loss"
})  # fmt: skip
wrong("a name that is not there", "NameError: name 'stat' is not defined", {"epoch(state)": "epoch(stat)"})
wrong("the lowest loss", "is not the loss of the last epoch", {
    '{"loss": loss}': '{"loss": loss, "lowest": loss}',
    FIT: "    return min(metrics['loss'] for _, metrics in trainer.fit().best_checkpoints)",
})  # fmt: skip
wrong("the highest loss", "is not the loss of the last epoch", {
    FIT: "    return max(metrics['loss'] for _, metrics in trainer.fit().best_checkpoints)",
})  # fmt: skip
wrong("the course's own code", "the course's own code is no answer", {
    LOOP: "        from checks.ray_and_tuning.office import ask\n\n        ask(epoch.path, {})\n" + LOOP
})  # fmt: skip
