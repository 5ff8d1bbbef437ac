REJECTED_WITH = "averaged on top of it"


def train_with(strategy, task):
    import tensorflow as tf

    with strategy.scope():
        same = tf.VariableAggregation.ONLY_FIRST_REPLICA
        variables = [tf.Variable(array, aggregation=same) for array in task.weights()]

    def part_of_step(images, labels):
        weight, bias, weight_2, bias_2 = variables
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(images @ weight + bias) @ weight_2 + bias_2
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / task.batch
        gradients = tape.gradient(loss, variables)
        gradients = tf.distribute.get_replica_context().all_reduce("MEAN", gradients)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(task.lr * gradient)
        return loss

    @tf.function
    def train_step(images, labels):
        return strategy.reduce("SUM", strategy.run(part_of_step, args=(images, labels)), axis=None)

    for step in range(task.steps):

        def mine(context, step=step):
            return task.part(step, context.replica_id_in_sync_group, context.num_replicas_in_sync)

        images, labels = strategy.experimental_distribute_values_from_function(mine)
        task.log(step, train_step(images, labels))
    if strategy.extended.should_checkpoint:
        task.save(variables)
