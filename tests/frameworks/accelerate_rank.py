"""One rank that trains the tiny Llama with Accelerate and writes down what it is made of.

Started by an emitted ``launch.sh``, with the emitted ``training_args.json`` and the folder for results; the
``train.py`` beside that file runs the micro-batches. Without GPUs Accelerate starts processes that do not
shard, and says nothing: here gloo counts as GPUs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import accelerate.state as state
import torch
from accelerate.utils import DistributedType, GradientAccumulationPlugin
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule

from tests.frameworks import ring_on_cpu, tiny
from tests.frameworks.native_ranks import groups


def on_cpu(self: Any) -> None:
    """Stand in for the choice of a GPU."""
    self.device = torch.device("cpu")


state.PartialState._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
state.PartialState.set_device = on_cpu
ring_on_cpu.allow()


def observe(accelerator: Any, model: Any) -> dict[str, Any]:
    """Return what the rank is made of, read from torch's objects."""
    layers = model.model.layers
    sizes = accelerator.torch_device_mesh
    return {
        "mesh": {} if sizes is None else dict(zip(sizes.mesh_dim_names, sizes.shape, strict=True)),
        "type": str(accelerator.distributed_type),
        "processes": accelerator.num_processes,
        "placements": sorted({str(getattr(p, "placements", "whole")) for p in model.parameters()}),
        "held": sum(p.to_local().numel() for p in model.parameters()),
        "whole": sum(p.numel() for p in model.parameters()),
        "blocks": sum(isinstance(layer, FSDPModule) for layer in layers),
        "reshards": sorted({flag for name, flag in groups(model).items() if ".layers." in f".{name}"}),
        "checkpointed": [i for i, layer in enumerate(layers) if isinstance(layer, CheckpointWrapper)],
    }


def main() -> None:
    """Train with what the emitted files say."""
    from accelerate import Accelerator

    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    from train import forward_backward

    given = json.loads(Path(sys.argv[1]).read_text())
    passes = given["gradient_accumulation_steps"]
    kwargs = given["accelerator_config"]["gradient_accumulation_kwargs"]
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=passes, **kwargs)
    )
    model = tiny.LLAMA.build()
    optimizer = torch.optim.AdamW(model.parameters(), **tiny.OPTIMIZER)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen, rows, losses = observe(accelerator, model), [], []
    context = seen["mesh"].get("cp", 1)
    size = tiny.BATCH * context // accelerator.num_processes
    tokens = set()
    model.model.layers[0].register_forward_pre_hook(lambda module, args: tokens.add(args[0].shape[1]))
    for step in range(tiny.STEPS):
        first = accelerator.process_index // context * size
        total = torch.zeros(())
        for ids in tiny.batch(step)[first : first + size].split(given["per_device_train_batch_size"]):
            with accelerator.accumulate(model):
                total += forward_backward(accelerator, model, ids) / passes
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), given["max_grad_norm"])
                optimizer.step()
                optimizer.zero_grad()
            rows.append(len(ids))
        losses.append(accelerator.reduce(total, "mean").item())
    seen |= {"rows": rows, "losses": losses, "tokens": sorted(tokens)}
    (Path(sys.argv[2]) / f"seen-{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.wait_for_everyone()  # a rank that leaves while another still talks may abort it
    accelerator.end_training()


if __name__ == "__main__":
    main()
