"""A batch over several devices of JAX. What is not here is in the official solution."""

from known_answers import right, wrong

PUT = "        images, labels = (jax.device_put(array, divided) for array in task.batch(step))\n"

right("nothing compiled, losses as they are", {"    @jax.jit\n": "", "float(loss)": "loss"})
right(
    "a mesh that JAX makes", {'Mesh(devices, ("data",))': 'jax.make_mesh((len(devices),), ("data",), devices=devices)'}
)
right("the divisions are told to jit", {
    "@jax.jit": "@functools.partial(jax.jit, in_shardings=(whole, divided, divided), out_shardings=whole)",
    "    mesh = Mesh": "    import functools\n\n    mesh = Mesh", PUT: "        images, labels = task.batch(step)\n",
})  # fmt: skip


@right("each device's part by itself, and the mean by hand")
def by_shard_map():
    def train_on(devices, task):
        import jax
        from jax.sharding import PartitionSpec as P

        mesh = jax.sharding.Mesh(devices, ("data",))

        def part_of_step(weights, images, labels):
            loss, gradients = jax.value_and_grad(task.loss)(weights, images, labels)
            loss, gradients = jax.lax.pmean((loss, gradients), "data")
            return loss, jax.tree.map(lambda weight, gradient: weight - task.lr * gradient, weights, gradients)

        how = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "check_vma": False}
        train_step = jax.jit(jax.shard_map(part_of_step, mesh=mesh, **how))
        weights, losses = task.weights(), []
        for step in range(task.steps):
            loss, weights = train_step(weights, *task.batch(step))
            losses.append(loss.item())
        return losses, weights

    return (train_on,)


wrong("numpy's arrays as they come", "one device does everything", {
    PUT: "        images, labels = task.batch(step)\n", "jax.device_put(array, whole)": "jax.numpy.asarray(array)"
})  # fmt: skip
wrong("only the weights are returned", "two things are returned", {"return losses, weights": "return weights"})
wrong("the rate is scaled", "not what the exercise says", {"task.lr *": "task.lr * len(devices) *"})
