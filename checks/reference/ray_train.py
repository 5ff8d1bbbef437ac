import json


import tempfile


from pathlib import Path


from checks.labs import ray_train as check


def ray_train(epoch, workers, epochs, accidents, storage):
    ### BEGIN SOLUTION
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
