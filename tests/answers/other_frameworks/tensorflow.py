"""Exercise 3 of the lab on other frameworks: one training for several strategies of TensorFlow."""

from known_answers import right, wrong

SCOPE = """    with strategy.scope():
        same = tf.VariableAggregation.ONLY_FIRST_REPLICA
        variables = [tf.Variable(array, aggregation=same) for array in task.weights()]
"""
SAVE = "    if strategy.extended.should_checkpoint:\n        task.save(variables)"
SUMS = '        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)\n'
TOTAL = 'strategy.reduce("SUM", strategy'
LOSS = "tf.reduce_sum(losses) / task.batch"
PART = "task.part(step, context.replica_id_in_sync_group, context.num_replicas_in_sync)"
MAKE = "        variables = [tf.Variable(array, aggregation=same) for array in task.weights()]\n"


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
    LOSS: "tf.reduce_mean(losses)", 'all_reduce("SUM"': 'all_reduce("MEAN"', TOTAL: 'strategy.reduce("MEAN", strategy',
})  # fmt: skip
right("an optimizer of Keras' kind by hand, scaled by the replicas", {
    LOSS: "tf.reduce_mean(losses) / strategy.num_replicas_in_sync",
    "            variable.assign_sub(task.lr * gradient)\n": "            variable.assign(variable - task.lr * gradient)\n",
})  # fmt: skip
right("nothing is traced", {"    @tf.function\n": ""})


wrong("all save", "only worker 0 saves", {SAVE: "    task.save(variables)"})
wrong("nobody saves", "nobody saves", {SAVE: ""})
wrong("averaged on top", "averaged on top of it", {'all_reduce("SUM"': 'all_reduce("MEAN"'})
wrong("gradients never meet", "never meet", {SUMS: ""})
wrong("the loss of a part", "not the mean over the whole batch", {TOTAL: 'strategy.reduce("MEAN", strategy'})
wrong("the mean of a part", "divides the sum of its losses by the samples of the whole batch", {
    LOSS: "tf.reduce_mean(losses)"
})  # fmt: skip
wrong("the whole batch for each", "each replica takes the whole batch", {PART: "task.part(step, 0, 1)"})
wrong("the first part for each", "each part of each of the", {
    PART: "task.part(step, 0, context.num_replicas_in_sync)"
})  # fmt: skip
wrong("always three parts", "the batch is shared among all replicas", {
    "context.num_replicas_in_sync)": "3)", "context.replica_id_in_sync_group, ": "context.replica_id_in_sync_group % 3, "
})  # fmt: skip
wrong("another rate", "not those of one process", {"task.lr * gradient": "0.45 * gradient"})
wrong("one step too few", "each part of each of the", {"range(task.steps)": "range(task.steps - 1)"})
wrong("saves too early", "times: once, at the end, is asked for", {
    SAVE: "", "        images, labels =": "        if strategy.extended.should_checkpoint:\n"
    "            task.save(variables)\n        images, labels ="
})  # fmt: skip


wrong("outside the scope", "made in strategy.scope()", {
    SCOPE: "    variables = [tf.Variable(array) for array in task.weights()]\n"
})  # fmt: skip
wrong("a loop without end", "in a loop without end", {MAKE: MAKE + "    while variables: pass\n"})
LOG = "        task.log(step, train_step(images, labels))\n"
wrong("worker 0 takes all parts", "a worker takes the parts of all replicas", {
    LOG: LOG + "        if strategy.extended.should_checkpoint:\n"
    "            [task.part(step, index, strategy.num_replicas_in_sync) for index in range(strategy.num_replicas_in_sync)]\n"
})  # fmt: skip
wrong("worker 0 alone logs", "worker 1 logs no loss", {
    LOG: "        loss = train_step(images, labels)\n        if strategy.extended.should_checkpoint:\n"
    "            task.log(step, loss)\n"
})  # fmt: skip
