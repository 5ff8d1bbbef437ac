from checks.labs import other_frameworks as check


def average(world, parameters):
    import torch
    from mpi4py import MPI

    ### BEGIN SOLUTION
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    world.Allreduce(MPI.IN_PLACE, flat)
    flat /= world.Get_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def single_process(task):
    import torch
    from torch.nn import functional

    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    for step in range(task.steps):
        images, labels = task.read(range(step * task.batch, (step + 1) * task.batch))
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        task.log(step, loss.item())
    task.save(model)


def train(task):
    import horovod.torch as hvd
    import torch
    from torch.nn import functional

    ### BEGIN SOLUTION
    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr * workers)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    whole = task.batch * workers
    for step in range(task.steps):
        numbers = range(step * whole, (step + 1) * whole)
        images, labels = task.read(numbers[rank::workers])
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = hvd.allreduce(loss.detach())
        if rank == 0:
            task.log(step, mean)
    if rank == 0:
        task.save(model)


def train_with(strategy, task):
    import tensorflow as tf

    ### BEGIN SOLUTION
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
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
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


def train_on(devices, task):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    ### BEGIN SOLUTION
    mesh = Mesh(devices, ("data",))
    divided, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    weights = [jax.device_put(array, whole) for array in task.weights()]

    @jax.jit
    def train_step(weights, images, labels):
        loss, gradients = jax.value_and_grad(task.loss)(weights, images, labels)
        return loss, [weight - task.lr * gradient for weight, gradient in zip(weights, gradients, strict=True)]

    losses = []
    for step in range(task.steps):
        images, labels = (jax.device_put(array, divided) for array in task.batch(step))
        loss, weights = train_step(weights, images, labels)
        losses.append(float(loss))
    return losses, weights
