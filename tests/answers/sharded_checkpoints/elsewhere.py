"""Exercise 3 of the lab on sharded checkpoints: torch's own, from N ranks to M."""

# ruff: noqa: F401 (modules that changed answers use)
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from known_answers import right, wrong
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)


def save(model, optimizer, folder):
    parameters, adam = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": adam}, checkpoint_id=folder)


def load(model, optimizer, folder):
    parameters, adam = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": adam}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=adam)


EQUAL = {
    "24: save with `dist.barrier()`": "every rank is there anyway",
    "29: load with `dist.barrier()`": "every rank is there anyway",
    "24: save with `[setattr(p, 'data', p.data.clone()) for p in model.parameters()]`": "a DTensor keeps its shard",
    "29: load with `[setattr(p, 'data', p.data.clone()) for p in model.parameters()]`": "a DTensor keeps its shard",
}
SAVE = '    dcp.save({"model": parameters, "optimizer": adam}, checkpoint_id=folder)\n'
LOAD = '    dcp.load({"model": parameters, "optimizer": adam}, checkpoint_id=folder)\n'
SET = "    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=adam)\n"
FULL = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
GOT = "    parameters, adam = get_state_dict(model, optimizer)\n    dcp.save"


@right("a Stateful object, which DCP asks itself")
def stateful():
    class Both(dcp.stateful.Stateful):
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer

        def state_dict(self):
            model, optimizer = get_state_dict(self.model, self.optimizer)
            return {"m": model, "o": optimizer}

        def load_state_dict(self, state):
            set_state_dict(self.model, self.optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])

    def save(model, optimizer, folder):
        dcp.save({"all": Both(model, optimizer)}, storage_writer=dcp.FileSystemWriter(folder))

    def load(model, optimizer, folder):
        dcp.load({"all": Both(model, optimizer)}, storage_reader=dcp.FileSystemReader(folder))

    return save, load


@right("asynchronously, and waited for; two checkpoints in two folders")
def two_folders():
    def save(model, optimizer, folder):
        first = dcp.async_save(get_model_state_dict(model), checkpoint_id=os.path.join(folder, "model"))
        first.result()
        dcp.async_save(get_optimizer_state_dict(model, optimizer), checkpoint_id=os.path.join(folder, "adam")).result()

    def load(model, optimizer, folder):
        state = get_model_state_dict(model)
        dcp.load(state, checkpoint_id=os.path.join(folder, "model"))
        set_model_state_dict(model, state)
        state = get_optimizer_state_dict(model, optimizer)
        dcp.load(state, checkpoint_id=os.path.join(folder, "adam"))
        set_optimizer_state_dict(model, optimizer, state)

    return save, load


@right("the model's own state_dict, one file for each tensor")
def own_state_dict():
    def save(model, optimizer, folder):
        writer = dcp.FileSystemWriter(folder, single_file_per_rank=False)
        dcp.save(model.state_dict() | {"adam": get_optimizer_state_dict(model, optimizer)}, storage_writer=writer)

    def load(model, optimizer, folder):
        adam = get_optimizer_state_dict(model, optimizer)
        state = model.state_dict() | {"adam": adam}
        dcp.load(state, checkpoint_id=folder)
        set_optimizer_state_dict(model, optimizer, state.pop("adam"))
        model.load_state_dict(state)

    return save, load


# --- wrong

wrong("a file for each rank", "raised", {
    SAVE: "    os.makedirs(folder, exist_ok=True)\n"
    "    torch.save([parameters, adam], f'{folder}/{dist.get_rank()}.pt')\n",
    LOAD: "    parameters, adam = torch.load(f'{folder}/{dist.get_rank()}.pt', weights_only=False)\n",
})  # fmt: skip
wrong("rank 0 collects", "save brings a rank what the others have", {
    GOT: f"    parameters, adam = get_state_dict(model, optimizer, {FULL})\n    dcp.save"
})  # fmt: skip
wrong("whole on every rank", "save brings a rank what the others have", {
    GOT: "    parameters, adam = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))\n    dcp.save"
})  # fmt: skip
wrong("the optimizer is forgotten", "Adam", {
    SAVE: '    dcp.save({"model": parameters}, checkpoint_id=folder)\n',
    LOAD: '    dcp.load({"model": parameters}, checkpoint_id=folder)\n',
})  # fmt: skip
wrong("loaded, and not put back", "the learning rate", {SET: ""})
wrong("the model alone is put back", "the learning rate", {SET: "    set_model_state_dict(model, parameters)\n"})
wrong("each rank a checkpoint of its own", "all ranks write one checkpoint together", {
    SAVE: SAVE.replace("folder)", 'f"{folder}/{dist.get_rank()}", no_dist=True)'),
    LOAD: LOAD.replace("folder)", 'f"{folder}/{dist.get_rank()}", no_dist=True)'),
})  # fmt: skip
wrong("only rank 0 saves", "never ends", {SAVE: "    if dist.get_rank() == 0:\n    " + SAVE})
wrong("in bfloat16", "are not those that were saved", {
    SAVE: "    parameters = {name: one.bfloat16() for name, one in parameters.items()}\n" + SAVE
})  # fmt: skip
wrong("saved twice", "the files hold more than the state", {SAVE: SAVE + SAVE.replace("folder)", 'folder + "/again")')})
wrong("the learning rate is not saved", "the learning rate", {
    SAVE: '    adam = {"state": adam["state"]}\n' + SAVE,
    LOAD: '    part = {"state": adam["state"]}\n    dcp.load({"model": parameters, "optimizer": part}, checkpoint_id=folder)\n',
})  # fmt: skip
wrong("buffers are left out", "model seen", {
    SAVE: "    del parameters['seen']\n" + SAVE, LOAD: "    del parameters['seen']\n" + LOAD,
    SET: SET.replace(")\n", ", options=StateDictOptions(strict=False))\n"),
})  # fmt: skip
wrong(
    "the model is left in eval mode",
    "may change nothing else: not the mode of a module",
    {SAVE: "    model.eval()\n" + SAVE},
)
wrong("one step more", "save changes what it saves", {
    SAVE: SAVE + "    with torch.no_grad():\n        for one in model.parameters():\n            one.mul_(0.9)\n"
})  # fmt: skip
wrong("nothing is saved", "no file in the folder", {SAVE: "    pass\n", LOAD: "", SET: ""})

wrong(
    "load leaves the model in eval mode",
    "and nothing else: not the mode of a module",
    {SET: SET + "    model.eval()\n"},
)
wrong("load seeds anew", "and nothing else: not torch's random numbers", {SET: SET + "    torch.manual_seed(0)\n"})
wrong("a note is left beside the folder", "not the files beside", {SAVE: SAVE + "    open('note', 'w').close()\n"})
wrong(
    "gradients stay off", "may change nothing else: not grad mode", {SAVE: SAVE + "    torch.set_grad_enabled(False)\n"}
)
wrong("save throws the gradients away", "and may change nothing else: not the gradients", {
    SAVE: "    optimizer.zero_grad()\n" + SAVE
})  # fmt: skip
wrong("settings of Adam stay as they were", "Adam's betas of group 0", {
    SET: "    before = [{**g, 'lr': 0} for g in optimizer.param_groups]\n" + SET
    + "    for g, old in zip(optimizer.param_groups, before):\n        g.update(old, lr=g['lr'], params=g['params'])\n"
})  # fmt: skip
wrong("the rate of the first group only", "the learning rate of group 1", {
    SET: "    rate = optimizer.param_groups[1]['lr']\n" + SET + "    optimizer.param_groups[1]['lr'] = rate\n"
})  # fmt: skip
wrong("frozen parameters are left out", "model 4.bias", {
    "get_state_dict(model, optimizer)": "get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=True))",
    SET: SET.replace(")\n", ", options=StateDictOptions(ignore_frozen_params=True, strict=False))\n"),
})  # fmt: skip
wrong("load throws the gradients away", "nothing else: not the gradients", {SET: SET + "    optimizer.zero_grad()\n"})
wrong("load puts the whole model in train mode", "the mode of a module", {SET: SET + "    model.train()\n"})
wrong("each rank reads everything", "load fills a tensor with all rows of a parameter", {
    LOAD: "    all_rows = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in parameters.items()}\n"
    + LOAD.replace('"model": parameters', '"model": all_rows')
    + "    for name, one in parameters.items():\n"
    "        if hasattr(one, 'to_local'):\n"
    "            mine = all_rows[name].chunk(dist.get_world_size())[dist.get_rank() :][:1]\n"
    "            [one.to_local().copy_(rows) for rows in mine]\n"
    "        else:\n            one.copy_(all_rows[name])\n"
})  # fmt: skip
wrong(
    "nobody waits for it", "it returns while a thread still writes", {SAVE: SAVE.replace("dcp.save", "dcp.async_save")}
)


@right("a group of its own, given back; the settings by hand")
def own_group():
    def state_of(model, optimizer):
        adam = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        return dict(model.state_dict()) | {f"adam {name}": one for name, one in adam.items()}

    def save(model, optimizer, folder):
        group = dist.new_group(backend="gloo")
        dcp.save(state_of(model, optimizer), checkpoint_id=folder, process_group=group)
        dist.destroy_process_group(group)

    def load(model, optimizer, folder):
        state = state_of(model, optimizer)
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=dcp.DefaultLoadPlanner())
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        adam = {name.removeprefix("adam "): state.pop(name) for name in list(state) if name.startswith("adam ")}
        set_optimizer_state_dict(model, optimizer, adam, options=options)
        model.load_state_dict(state)

    return save, load
