"""The lecture's training with tf.distribute.MirroredStrategy: one process, one replica on each of its devices.

    python with_mirrored.py FOLDER REPLICAS

A device here is a part of the CPU, as TensorFlow can cut it; on a machine with GPUs leave both lines about CPUs out.
"""

import sys
from pathlib import Path

import tensorflow as tf

from utils.training.same_training import BATCH, LEARNING_RATE, STEPS, Batches, weights, write

folder, replicas = Path(sys.argv[1]), int(sys.argv[2])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
batches = [Batches(replica, replicas) for replica in range(replicas)]

with strategy.scope():  # a copy of each variable on each device
    same = tf.VariableAggregation.ONLY_FIRST_REPLICA
    variables = [tf.Variable(array, aggregation=same) for array in weights()]


def part_of_step(images, labels):
    """One replica's work, with its part of the batch."""
    weight, bias, weight_2, bias_2 = variables
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(images @ weight + bias) @ weight_2 + bias_2
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(losses) / BATCH  # the batch of all replicas, for their gradients will be added up
    gradients = tape.gradient(loss, variables)
    gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)
    return loss


@tf.function
def train(images, labels):
    return strategy.reduce("SUM", strategy.run(part_of_step, args=(images, labels)), axis=None)


def values(step, which):
    """Each replica's own images (0) or labels (1) of a step."""

    def mine(context):
        return tf.constant(batches[context.replica_id_in_sync_group][step][which])

    return strategy.experimental_distribute_values_from_function(mine)


losses = [float(train(values(step, 0), values(step, 1))) for step in range(STEPS)]
copies = [strategy.experimental_local_results(variable) for variable in variables]
spread = max(abs(copy.numpy() - own[0].numpy()).max() for own in copies for copy in own)
write(folder / "mirrored.json", losses, [own[0].numpy() for own in copies], replicas=replicas, spread=float(spread))
