"""One training for several strategies of TensorFlow. What is not here is in the official solution."""

from known_answers import right, wrong

LOSS, MAKE = "tf.reduce_sum(losses) / task.batch", "for array in task.weights()]\n"


@right("variables that add up")
def variables_that_add_up():
    def train_with(strategy, task):
        import tensorflow as tf

        with strategy.scope():
            variables = [tf.Variable(array, aggregation=tf.VariableAggregation.SUM) for array in task.weights()]

        @tf.function
        def train_step(batch):
            return strategy.reduce("MEAN", strategy.run(part_of_step, args=batch), axis=None)

        def part_of_step(images, labels):
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(tf.matmul(images, variables[0]) + variables[1])
                logits = tf.matmul(hidden, variables[2]) + variables[3]
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            rate = task.lr / strategy.num_replicas_in_sync
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(rate * gradient)  # the changes of all replicas are added up
            return loss

        for step in range(task.steps):

            def part(context, step=step):
                return task.part(step, context.replica_id_in_sync_group, context.num_replicas_in_sync)

            task.log(step, train_step(strategy.experimental_distribute_values_from_function(part)))
        if strategy.extended.should_checkpoint:
            task.save(variables)

    return (train_with,)


right("means of the parts, averaged", {
    LOSS: "tf.reduce_mean(losses)", 'all_reduce("SUM"': 'all_reduce("MEAN"',
    'strategy.reduce("SUM"': 'strategy.reduce("MEAN"',
})  # fmt: skip
right("nothing is traced", {"    @tf.function\n": ""})

wrong("another rate", "the weights in the checkpoint", {"task.lr * gradient": "0.45 * gradient"})
wrong("one step too few", "the parts of batches", {"range(task.steps)": "range(task.steps - 1)"})
wrong("always three parts", "the parts of batches", {
    "context.num_replicas_in_sync)": "3)", "context.replica_id_in_sync_group, ": "context.replica_id_in_sync_group % 3, "
})  # fmt: skip
wrong("a loop without end", "does each loop end", {MAKE: MAKE + "    while variables: pass\n"})
wrong("nobody saves", "how often the checkpoint is saved", {"if strategy.extended.should_checkpoint": "if False"})
