"""Importing ``simgpu`` changes nothing in torch, ``cluster`` does, and everything is taken back again."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

COMPARE = """
import sys, types
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
import torch._dynamo, torch.utils.flop_counter, torch.utils.checkpoint, torch.utils.dlpack  # loaded sooner or later
from torch.utils.data import DataLoader

KEYS = ["PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1", "CPU", "Autograd", "CompositeImplicitAutograd"]

def in_torch():
    '''Everything that torch's modules and classes hold, by name; and which operators have which kernels.'''
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and module is not None:
            for key, value in list(vars(module).items()):
                found[name, key] = value
                if isinstance(value, type) and str(value.__module__).startswith("torch"):
                    found.update({(name, key, member): each for member, each in vars(value).items()})
    found["submit"] = ThreadPoolExecutor.submit
    for key in KEYS:
        found["kernels", key] = sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    for module, name in [("serialization", "_package_registry"), ("optim.optimizer", "_foreach_supported_types"),
                         ("optim.optimizer", "_global_optimizer_pre_hooks"),
                         ("optim.optimizer", "_global_optimizer_post_hooks")]:
        found["content", name] = list(getattr(sys.modules["torch." + module], name))
    return found

CACHES = {"__warningregistry__", "__slotnames__", "next_id"}  # Python's own, and the count of hooks ever made

def differences(before, after, allowed=()):
    def same(a, b):
        return a is b or (type(a) in (list, tuple, int, str, bool, dict, float) and a == b)
    names = [name for name in before if name not in after or not same(before[name], after[name])]
    modules = {key[:1] for key in before}
    names += [name for name in after if name not in before and name[:1] in modules]
    plain = [name for name in names if not isinstance(after.get(name), types.ModuleType) and name[-1] not in CACHES]
    return sorted(str(name) for name in plain if not any(word in str(name) for word in allowed))

def train(device):
    torch.manual_seed(0)
    model = nn.DataParallel(nn.Linear(3, 2).to(device)) if device != "cpu" else nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        loss = model(torch.ones(8, 3).to(device)).float().square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()

def asked():
    '''What torch answers to those who look for an accelerator.'''
    answers = []
    for ask in [torch.accelerator.is_available, torch.accelerator.device_count,
                lambda: torch._utils._get_available_device_type(), lambda: torch.empty(2).is_pinned(),
                lambda: torch.is_autocast_enabled(), lambda: type(nn.DataParallel(nn.Linear(1, 1))).__name__,
                lambda: [batch.tolist() for batch in DataLoader([1, 2], batch_size=2)],
                lambda: torch.accelerator.synchronize()]:
        try:
            answers.append(ask())
        except Exception as error:
            answers.append((type(error).__name__, str(error)))
    return answers

train("cpu")
plain_answers = asked()
plain = in_torch()
import simgpu
"""


def python(code: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


ENDS = {
    "nothing was done": "simgpu.cluster(gpus_per_node=2); simgpu.uninstall(); first = None",
    "uninstall": "simgpu.cluster(gpus_per_node=2); first = train('simgpu:0'); simgpu.uninstall()",
    "with": "with simgpu.cluster(gpus_per_node=2): first = train('simgpu:0')",
    "with an error": """
try:
    with simgpu.cluster(gpus_per_node=2):
        first = train('simgpu:0')
        1 / 0
except ZeroDivisionError: pass
""",
    "twice": """
for _ in range(2):
    with simgpu.cluster(gpus_per_node=2): first = train('simgpu:0')
simgpu.uninstall()
""",
    "one of many": "with simgpu.one_of(8): first = None",
}

# What stays are names, of a device type and of a backend: torch offers no way to take them back.
AFTERWARDS = """
allowed = ["SIMGPU", "SIMCCL", "ProfilerActivity", "DeviceType", "privateuse1_backend_name"]
allowed += ["'_backend'"]  # (torch's own: the backend of the last process group)
allowed += ["torch._custom_class_base"]  # (torch's own: 2.14 fills it at its first use)
found = [train("cpu") == train("cpu"), asked()[:-1] == plain_answers[:-1], differences(plain, in_torch(), allowed)]
try: torch.ones(1, device="simgpu:0")
except Exception as error: found.append(str(error))
with simgpu.cluster(gpus_per_node=2): again = train("simgpu:0")
results[end] = [*found, first in (None, again)]
"""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What one process finds after the import, with a cluster, and after each way to end one."""
    code = """
import json
results = {"import": [differences(plain, in_torch()), asked() == plain_answers]}
"""
    for end, program in ENDS.items():
        code += f"{program}\nend = {end!r}{AFTERWARDS}"
    code += """
simgpu.cluster(gpus_per_node=2)
results["cluster"] = differences(plain, in_torch())
print(json.dumps(results))
"""
    return json.loads(python(COMPARE + code))


def test_the_import_alone_changes_nothing(results: dict[str, Any]) -> None:
    assert results["import"] == [[], True]


def test_a_cluster_changes_what_it_needs(results: dict[str, Any]) -> None:
    # Otherwise the other tests here would compare with something that cannot see what is changed.
    for name in (
        "('torch', 'Tensor', 'to')",
        "('torch.accelerator', 'synchronize')",
        "('torch._C', '_scatter')",
        "('torch.autograd.graph', '_engine_run_backward')",
        "('kernels', 'PrivateUse1')",
        "('torch', 'Tensor', 'simgpu')",
    ):
        assert name in results["cluster"]


@pytest.mark.parametrize("end", ENDS)
def test_afterwards_torch_is_as_before(results: dict[str, Any], end: str) -> None:
    *same, error, again = results[end]
    assert same[:2] == [True, True] and again
    # Autograd goes on to say that real GPUs do not train here any more: where torch knows some.
    engine = ["('torch.autograd', '_engine_run_backward')", "('torch.autograd.graph', '_engine_run_backward')"]
    assert same[2] == (engine if torch.version.cuda else [])
    assert "call simgpu.cluster(gpus_per_node=4) first" in error


AFTER_THE_END = """
import json, torch
from torch.utils.checkpoint import checkpoint
import simgpu
found = {}

def sentence(use):
    try: use()
    except (RuntimeError, NotImplementedError) as error: return str(error)

simgpu.cluster(gpus_per_node=2)
simgpu.uninstall()
model = torch.nn.Linear(3, 2)
model(torch.ones(8, 3)).sum().backward()
torch.optim.Adam(model.parameters()).step()
found["accelerator"] = torch.accelerator.is_available()

x = torch.ones(3, requires_grad=True)
with simgpu.cluster(): checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
found["checkpointing"] = torch.equal(x.grad, 2 * x.exp())

with simgpu.cluster(): left = torch.ones(3, device="simgpu:1")
uses = [lambda: torch.ones(2, device="simgpu:0"), lambda: torch.tensor([1.0], device="simgpu"),
        lambda: torch.randn(2, device="simgpu:1"), lambda: torch.ones(2).to("simgpu:0"),
        lambda: model.to("simgpu:1"), lambda: torch.arange(3, device=torch.device("simgpu", 0)),
        lambda: left + 1, lambda: left.cpu(), lambda: left.to("simgpu:0")]
found["told"] = ["call simgpu.cluster(" in sentence(use) for use in uses[:6]]
found["left over"] = ["simgpu.cluster(" in sentence(use) for use in uses[6:]]

with simgpu.cluster():
    found["no kernel"] = sentence(
        lambda: torch._cudnn_init_dropout_state(0.1, True, 1, dtype=torch.uint8, device="simgpu:0"))
with simgpu.cluster(gpus_per_node=2):
    simgpu.cluster(gpus_per_node=3)
found["newer"] = torch.simgpu.device_count(), str((torch.ones(3, device="simgpu:2") + 1).device)
print(json.dumps(found))
"""


def test_after_a_cluster_ends_the_cpu_works_and_whoever_uses_a_gpu_is_told_to_make_one() -> None:
    found = json.loads(python(AFTER_THE_END))
    assert found["accelerator"] is False and found["checkpointing"] is True
    assert found["told"] == [True] * 6 and found["left over"] == [True] * 3
    assert found["no kernel"].startswith("a simulated GPU cannot do aten._cudnn_init_dropout_state")
    assert len(found["no kernel"].splitlines()) == 1
    assert found["newer"] == [3, "simgpu:2"], "a newer cluster outlives the end of an older one"
