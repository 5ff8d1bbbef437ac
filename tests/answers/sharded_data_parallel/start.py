"""Exercise 6 of the lab on sharded data parallelism: the library's call. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@right("a policy by names, and apply")
def by_apply():
    def start(build):
        torch.set_default_device("meta")
        model = build()
        torch.set_default_device(None)
        how = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        for module in [*model, model]:
            module = fully_shard(module, **how)
        model = model.to_empty(device=torch.device("cpu"))
        return model.apply(lambda module: getattr(module, "reset_parameters", lambda: None)())

    return (start,)


@right("the blocks in one list, filled from the inside")
def from_the_inside():
    def start(build):
        def made():
            with torch.device("meta"):
                return build()

        def fill(module):
            for child in module.children():
                fill(child)
            if callable(getattr(module, "reset_parameters", None)):
                module.reset_parameters()

        model, policy = made(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in reversed(list(model)):
            fully_shard(block, mp_policy=policy, reshard_after_forward=True)
        fully_shard(model, mp_policy=policy)
        model.to_empty(device="cpu", recurse=True)
        with torch.no_grad():
            fill(model)
        return model

    return (start,)


@right("on a mesh of its own")
def on_a_mesh():
    def start(build):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.bfloat16
        )
        with torch.device("meta"):
            model = build()
        for block in model:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device="cpu")
        [part.reset_parameters() for part in model.modules() if "reset_parameters" in dir(part)]
        return model

    return (start,)


wrong("None", "the result is not the model", {"    return model": "    return None"})
wrong(
    "never on meta", "build() is called once, with meta as the device", {'torch.device("meta")': 'torch.device("cpu")'}
)
wrong("nothing is filled", "it is still on meta", {'    model.to_empty(device="cpu")\n': ""})
