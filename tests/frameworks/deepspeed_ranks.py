"""Ranks that train the tiny Llama with DeepSpeed from emitted folders and write down what they are made of.

``python -m tests.frameworks.deepspeed_ranks FOLDER WORLD``: as ``native_ranks``, of every ``NAME/plan.json``
the ``ds_config.json`` beside it, with a pipeline also ``pipeline_model.py`` and the weights in ``weights``.
"""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers.models.llama.modeling_llama  # noqa: F401
from torch import distributed
from transformers.modeling_layers import GradientCheckpointingLayer

from tests.frameworks import tiny
from tests.frameworks.forked import fork

# DeepSpeed would compile it for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def configured(folder: Path) -> dict[str, Any]:
    """Return the emitted configuration with the tests' learning rate; the fused Adam needs a GPU."""
    config = json.loads((folder / "ds_config.json").read_text())
    config["optimizer"]["params"] |= {"lr": tiny.RATE, "torch_adam": True}
    return config


def count_runs(layers: dict[int, Any]) -> dict[int, int]:
    """Return how often each layer's feed-forward runs from now on: twice a pass where it is recomputed."""
    runs = dict.fromkeys(layers, 0)

    def counting(number: int) -> Any:
        def count(module: Any, args: Any) -> None:
            runs[number] += torch.is_grad_enabled()

        return count

    for number, layer in layers.items():
        layer.mlp.register_forward_pre_hook(counting(number))
    return runs


def zero(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Train data-parallel ranks."""
    model = tiny.LLAMA.build()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer, mode in zip(layers, plan["recompute"][1:-1], strict=True):
        layer.gradient_checkpointing = mode == "full"
    runs = count_runs(dict(enumerate(layers)))
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, config=configured(folder), model_parameters=model.parameters()
    )
    rank, passes, rows = distributed.get_rank(), engine.gradient_accumulation_steps(), []
    losses = []
    for step in range(tiny.STEPS):
        size = tiny.BATCH // engine.dp_world_size
        own = tiny.batch(step)[rank * size : (rank + 1) * size]
        total = torch.zeros(())
        for ids in own.split(engine.train_micro_batch_size_per_gpu()):
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            rows.append(len(ids))
            total += loss.detach() / passes / engine.dp_world_size
        distributed.all_reduce(total)
        losses.append(total.item())
    return {**told(engine), **held(engine, optimizer), "rows": rows, "runs": runs, "losses": losses}


def held(engine: Any, optimizer: Any) -> dict[str, Any]:
    """Return how much of weights and optimizer states this rank holds, and whether gradients are split."""
    parameters = list(engine.module.parameters())
    whole = sum(getattr(p, "ds_numel", p.numel()) for p in parameters)
    weights = sum(p.ds_tensor.ds_numel if hasattr(p, "ds_tensor") else p.numel() for p in parameters)
    base = getattr(optimizer, "optimizer", optimizer)
    moments = sum(s["exp_avg"].numel() for s in base.state.values())
    split = bool(getattr(optimizer, "partition_gradients", False))
    return {"whole": whole, "weights": weights, "moments": moments, "partitions_gradients": split}


def told(engine: Any) -> dict[str, Any]:
    """Return what the engine says of itself."""
    return {
        "stage": engine.zero_optimization_stage(),
        "replicas": engine.dp_world_size,
        "batch": engine.train_batch_size(),
        "passes": engine.gradient_accumulation_steps(),
        "steps": engine.global_steps,
    }


def pipeline(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Train a pipeline from the emitted module."""
    spec = importlib.util.spec_from_file_location("pipeline_model", folder / "pipeline_model.py")
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    weights = str(folder.parent / "weights")
    model = emitted.build(Namespace(model=weights, scratch=False, seed=0), plan)
    engine, *_ = deepspeed.initialize(
        model=model, config=configured(folder), model_parameters=model.parameters()
    )
    stage = engine.grid.get_pipe_parallel_rank()
    start, stop = model.parts[stage], model.parts[stage + 1]
    entries = dict(zip(range(start, stop), model.forward_funcs, strict=True))
    blocks = {i - 1: entry.parts[0] for i, entry in entries.items() if hasattr(entry, "again")}
    runs, rows = count_runs(blocks), []
    model.forward_funcs[0].register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    replica, size = engine.grid.get_data_parallel_id(), tiny.BATCH // engine.dp_world_size
    losses = []
    for step in range(tiny.STEPS):
        own = tiny.batch(step)[replica * size : (replica + 1) * size]
        data = iter([(ids, ids) for ids in own.split(engine.train_micro_batch_size_per_gpu())])
        losses.append(engine.train_batch(data_iter=data).item())
    layers = {
        "layers": [start, stop],
        "stage_of": stage,
        "stages": engine.grid.get_pipe_parallel_world_size(),
        "logits": sum(out.numel() for out in engine.pipe_buffers["outputs"] if engine.is_last_stage()),
    }
    return {**told(engine), **layers, "rows": rows, "runs": runs, "losses": losses}


def main() -> None:
    """Train from every folder."""
    folder, world = Path(sys.argv[1]), int(sys.argv[2])

    def run(rank: int) -> None:
        deepspeed.init_distributed(dist_backend="gloo")
        for path in sorted(folder.glob("*/plan.json")):
            plan = json.loads(path.read_text())
            seen = (pipeline if plan["pp"] > 1 else zero)(path.parent, plan)
            (path.parent / f"seen-{rank}.json").write_text(json.dumps(seen))

    fork(world, folder, run)


if __name__ == "__main__":
    main()
