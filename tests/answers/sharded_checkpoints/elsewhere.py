"""Exercise 4 of the lab on sharded checkpoints: torch's own, from N ranks to M."""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from known_answers import right, wrong
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

SAVE = '    dcp.save({"model": parameters, "optimizer": adam}, checkpoint_id=folder)\n'
LOAD = '    dcp.load({"model": parameters, "optimizer": adam}, checkpoint_id=folder)\n'
SET = "    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=adam)\n"
GOT = "    parameters, adam = get_state_dict(model, optimizer)\n    dcp.save"
OPTIONS = "from torch.distributed.checkpoint.state_dict import StateDictOptions as Options\n"
ALONE = 'f"{folder}/{torch.distributed.get_rank()}"'


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


right("asynchronously, and waited for; two checkpoints in two folders", {
    SAVE: '    dcp.async_save(parameters, checkpoint_id=f"{folder}/model").result()\n'
    '    dcp.async_save(adam, checkpoint_id=f"{folder}/adam").result()\n',
    LOAD: '    dcp.load(parameters, checkpoint_id=f"{folder}/model")\n    dcp.load(adam, checkpoint_id=f"{folder}/adam")\n',
})  # fmt: skip


@right("the model's own state_dict, one file for each tensor, a group of its own")
def own_state_dict():
    def save(model, optimizer, folder):
        writer, group = dcp.FileSystemWriter(folder, single_file_per_rank=False), dist.new_group(backend="gloo")
        state = model.state_dict() | {"adam": get_optimizer_state_dict(model, optimizer)}
        dcp.save(state, storage_writer=writer, process_group=group)
        dist.destroy_process_group(group)

    def load(model, optimizer, folder):
        adam = get_optimizer_state_dict(model, optimizer)
        state = model.state_dict() | {"adam": adam}
        dcp.load(state, checkpoint_id=folder)
        set_optimizer_state_dict(model, optimizer, state.pop("adam"))
        model.load_state_dict(state)

    return save, load


wrong("a file for each rank", "the folder has no .metadata", {
    SAVE: f"    os.makedirs(folder, exist_ok=True)\n    torch.save([parameters, adam], {ALONE})\n",
})  # fmt: skip
wrong("rank 0 collects", "save brings a rank what the others have", {
    GOT: f"    {OPTIONS}    options = Options(full_state_dict=True, cpu_offload=True)\n"
    + GOT.replace("optimizer)", "optimizer, options=options)")
})  # fmt: skip
wrong("only rank 0 saves", "does a rank wait for another", {
    SAVE: "    if torch.distributed.get_rank() == 0:\n    " + SAVE
})  # fmt: skip
wrong("the optimizer is forgotten", "Adam's exp_avg", {', "optimizer": adam}': "}"})
wrong("loaded, and not put back", "the learning rate of group 0", {SET: ""})
