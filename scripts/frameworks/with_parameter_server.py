"""The lecture's training with tf.distribute.ParameterServerStrategy: the same program in each role.

    export TF_CONFIG='{"cluster": {...}, "task": {"type": "chief", "index": 0}}'
    python with_parameter_server.py FOLDER [PAUSE]

ps keeps the variables, worker computes what it is sent, chief sends it, evaluator measures what the chief has saved.
PAUSE: seconds that the chief waits after each step.
"""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

from utils.training.same_training import BATCH, LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
config = json.loads(os.environ["TF_CONFIG"])
role, workers = config["task"]["type"], len(config["cluster"]["worker"])


def serve():
    """Worker and ps: a server that does what the chief asks, until somebody ends the process."""
    cluster = tf.train.ClusterSpec(config["cluster"])
    tf.distribute.Server(cluster, job_name=role, task_index=config["task"]["index"]).join()


def evaluate():
    """The evaluator: test accuracy of each checkpoint as it appears."""
    variables = [tf.Variable(array) for array in weights()]
    weight, bias, weight_2, bias_2 = variables
    images, labels = Batches().test_images, Batches().test_labels
    for path in tf.train.checkpoints_iterator(folder, min_interval_secs=0, timeout=60):
        step = tf.Variable(0)
        tf.train.Checkpoint(variables=variables, step=step).restore(path).expect_partial()
        logits = tf.nn.relu(images @ weight + bias) @ weight_2 + bias_2
        accuracy = tf.reduce_mean(tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32))
        print(f"after step {int(step)}: test accuracy {float(accuracy):.3f}")
        if step == STEPS:
            return


def chief():
    """Makes the variables on the ps, deals out the steps to the workers, saves."""
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(array) for array in weights()]
    devices = sorted({variable.device for variable in variables})

    @tf.function
    def update(images, labels):
        """One part of a batch, on a worker: weights from the ps, gradients to it, without waiting for the others."""
        weight, bias, weight_2, bias_2 = variables
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(images @ weight + bias) @ weight_2 + bias_2
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) / BATCH
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        return tf.distribute.coordinator.experimental_get_current_worker_index(), loss

    parts = [Batches(part, workers) for part in range(workers)]
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(variables=variables, step=step), folder, max_to_keep=None)
    found = []
    for number in range(1, STEPS + 1):
        found.append([coordinator.schedule(update, args=list(map(tf.constant, part[number - 1]))) for part in parts])
        time.sleep(pause)
        if number % 10 == 0:
            coordinator.join()  # wait for all that was sent
            step.assign(number)
            manager.save()
            print(f"step {number}")
    found = coordinator.fetch(found)
    losses = [sum(float(loss) for _, loss in step) for step in found]
    done = [sum(int(who) == worker for step in found for who, _ in step) for worker in range(workers)]
    final = [variable.numpy() for variable in variables]
    write(folder / "parameter_server.json", losses, final, workers=workers, updates=done, devices=devices)


{"chief": chief, "evaluator": evaluate}.get(role, serve)()
