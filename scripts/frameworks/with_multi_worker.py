"""The lecture's training with tf.distribute.MultiWorkerMirroredStrategy: one process for each worker.

    export TF_CONFIG='{"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 0}}'
    python with_multi_worker.py FOLDER [PAUSE]

Worker 0 is the chief: it works like the others, and writes what is to be kept. PAUSE: seconds after each step.
"""

import shutil
import sys
import time
from pathlib import Path

import tensorflow as tf

from utils.training.same_training import BATCH, LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG, starts a server, waits for the others
me, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
batches = Batches(me, workers)

with strategy.scope():  # made everywhere with the values of worker 0
    same = tf.VariableAggregation.ONLY_FIRST_REPLICA
    variables = [tf.Variable(array, aggregation=same) for array in weights(seed=me)]


def part_of_step(images, labels):
    """This worker's work, with its part of the batch."""
    weight, bias, weight_2, bias_2 = variables
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(images @ weight + bias) @ weight_2 + bias_2
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(losses) / BATCH  # the batch of all workers, for their gradients will be added up
    gradients = tape.gradient(loss, variables)
    gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)
    return loss


@tf.function
def train(images, labels):
    return strategy.reduce("SUM", strategy.run(part_of_step, args=(images, labels)), axis=None)


losses = []
for step in range(STEPS):
    losses.append(float(train(*batches[step])))
    print(f"step {step + 1}")
    time.sleep(pause)
place = folder if me == 0 else folder / f"thrown-away-{me}"  # all must call save, and only the chief's is kept
tf.train.Checkpoint(variables=variables).save(place / "model")
if me == 0:
    write(folder / "multi_worker.json", losses, [variable.numpy() for variable in variables], workers=workers)
else:
    shutil.rmtree(place)
