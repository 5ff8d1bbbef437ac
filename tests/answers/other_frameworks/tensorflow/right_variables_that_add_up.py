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
