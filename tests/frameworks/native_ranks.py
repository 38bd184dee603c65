"""Ranks that train tiny models by ``meshwright.apply`` and write down what they are made of.

``python -m tests.frameworks.native_ranks FOLDER WORLD``: every ``NAME/plan.json`` in the folder is applied in
turn by WORLD processes to the model of ``NAME/model.json``, and rank R writes ``NAME/seen-R.json``. The
processes are forked, so that torch and transformers are imported once; nothing of torch runs before.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers.models.llama.modeling_llama  # noqa: F401
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import meshwright
from tests.frameworks import plain, tiny
from tests.frameworks.forked import fork


def placed(tensor: Any) -> dict[str, str]:
    """Return the placement of a tensor along each dimension of its mesh."""
    if not isinstance(tensor, DTensor):
        return {}
    return dict(zip(tensor.device_mesh.mesh_dim_names, map(str, tensor.placements), strict=True))


def blocks_of(part: Any) -> dict[int, Any]:
    """Return the blocks that have weights here."""
    blocks = part.model.layers if hasattr(part, "model") else part.stack
    return {i: b for i, b in enumerate(blocks) if next(b.parameters(), None) is not None}


def groups(part: Any) -> dict[str, bool]:
    """Return the modules that gather their weights by themselves, and whether they free them after use."""
    found = {}
    for name, module in part.named_modules():
        if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group):
            plain = name.replace("_checkpoint_wrapped_module", "").strip(".")
            found[plain] = group._reshard_after_forward
    return found


def observe(applied: Any) -> dict[str, Any]:
    """Return what a rank is made of, read from torch's objects and not from the plan."""
    names = dict(zip(applied.mesh.mesh_dim_names, applied.mesh.shape, strict=True))
    parts = []
    for part in applied.parts:
        blocks = blocks_of(part)
        weights = {n.replace("_checkpoint_wrapped_module.", ""): p for n, p in part.named_parameters()}
        parts.append(
            {
                "blocks": list(blocks),
                "ends": ["model.embed_tokens.weight" in weights, "lm_head.weight" in weights],
                "checkpointed": [i for i, b in blocks.items() if isinstance(b, CheckpointWrapper)],
                "placements": {n: placed(p) for n, p in weights.items()},
                "held": {
                    n: list(p.to_local().shape if isinstance(p, DTensor) else p.shape)
                    for n, p in weights.items()
                },
                "whole": {n: list(p.shape) for n, p in weights.items()},
                "groups": groups(part),
            }
        )
    return {
        "mesh": names,
        "coordinate": dict(zip(names, applied.mesh.get_coordinate(), strict=True)),
        "data": [applied.data_rank, applied.data_ranks],
        "schedule": type(applied.schedule).__name__,
        "parts": parts,
    }


def watch(applied: Any) -> tuple[list[list[int]], set[int], set[str]]:
    """Return what fills with each part's rows pass by pass, and with tokens and dtypes between layers."""
    rows: list[list[int]] = [[] for _ in applied.parts]
    tokens, dtypes = set(), set()

    def look(module: Any, args: Any) -> None:
        hidden = args[0].to_local() if isinstance(args[0], DTensor) else args[0]
        tokens.add(hidden.shape[1])
        dtypes.add(str(hidden.dtype))

    for part, own in zip(applied.parts, rows, strict=True):
        part.register_forward_pre_hook(lambda module, args, own=own: own.append(len(args[0])))
        for block in blocks_of(part).values():
            block.register_forward_pre_hook(look)
    return rows, tokens, dtypes


def model_of(case: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the module of a case, and what else ``apply`` must be told."""
    if case["kind"] == "plain":
        return plain.build(), {"architecture": plain.ARCHITECTURE}
    model = tiny.Model(**case["model"])
    if case["kind"] == "meta":
        with torch.device("meta"):
            empty = model.build()
        return empty, {"initialise": lambda part: fill(part, model.build().state_dict())}
    return model.build(), {}


def fill(part: Any, weights: dict[str, Any]) -> None:
    """Give a part its weights, shard by shard, and the buffers that no checkpoint holds."""
    for module in part.modules():
        part._init_weights(module)
    own = {name.replace("_checkpoint_wrapped_module.", "") for name, _ in part.named_parameters()}
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(part, {name: weights[name] for name in own}, options=options)


def train(plan: Path) -> dict[str, Any]:
    """Apply a plan, train and return the losses and what was seen."""
    model, more = model_of(json.loads((plan.parent / "model.json").read_text()))
    applied = meshwright.apply(
        plan,
        model,
        lambda parameters: torch.optim.AdamW(parameters, **tiny.OPTIMIZER),
        max_grad_norm=tiny.CLIP,
        device="cpu",
        **more,
    )
    seen = observe(applied)
    rows, tokens, dtypes = watch(applied)
    size = applied.local_batch_size
    losses = []
    for step in range(tiny.STEPS):
        own = tiny.batch(step)[applied.data_rank * size : (applied.data_rank + 1) * size]
        losses.append(applied.step({"input_ids": own}))
    between = {"tokens": sorted(tokens), "dtypes": sorted(dtypes)}
    return {**seen, **between, "losses": losses, "rows": [own[: len(own) // tiny.STEPS] for own in rows]}


def main() -> None:
    """Apply every plan in a folder."""
    folder, world = Path(sys.argv[1]), int(sys.argv[2])

    def run(rank: int) -> None:
        for plan in sorted(folder.glob("*/plan.json")):
            (plan.parent / f"seen-{rank}.json").write_text(json.dumps(train(plan)))

    fork(world, folder, run)


if __name__ == "__main__":
    main()
