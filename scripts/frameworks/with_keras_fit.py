"""The lecture's training with Keras' own loop, ``fit``, under the strategy that TF_CONFIG asks for.

    export TF_CONFIG='{"cluster": {...}, "task": {"type": "worker", "index": 0}}'
    python with_keras_fit.py

Without TF_CONFIG: MirroredStrategy, and fit trains. With Keras 3 it ends with an error under the two others.
"""

import json
import os

import keras
import tensorflow as tf

from utils.training.same_training import BATCH, CLASSES, HIDDEN, LEARNING_RATE, Batches

config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {}, "task": {"type": "all"}}'))
cluster, role = config["cluster"], config["task"]["type"]
if role in ("worker", "ps") and "ps" in cluster:
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=role, task_index=config["task"]["index"]).join()
if "ps" in cluster:
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
elif cluster:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    cpu = tf.config.list_physical_devices("CPU")[0]  # two parts of the CPU, in place of two GPUs
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
data = tf.data.Dataset.from_tensor_slices((Batches().images, Batches().labels)).batch(BATCH)
model.fit(data.repeat(), steps_per_epoch=5, epochs=1, verbose=0)
print("fit has done 5 steps")
