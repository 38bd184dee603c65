"""A decoder of transformers as a pipeline of DeepSpeed, cut and recomputed where plan.json says so.

One entry for the embedding, for each layer and for the head; a rank builds and loads its own ones only.
"""

import json
from pathlib import Path

import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from safetensors import safe_open
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM


class Entry(torch.nn.Module):
    """Some modules of the model, with weights from its folder or random ones."""

    def __init__(self, skeleton, names, args):
        super().__init__()
        self.parts = torch.nn.ModuleList(skeleton.get_submodule(name) for name in names)
        self.parts.to_empty(device="cpu")
        for name, part in zip(names, self.parts, strict=True):
            if args.scratch:
                torch.manual_seed(hash_of(name, args.seed))
                part.apply(skeleton._init_weights)
            else:
                part.load_state_dict(stored(Path(args.model), f"{name}."))


class Embedding(Entry):
    """Token numbers in, the residual stream out."""

    def forward(self, ids):
        """Return (sequences, tokens, features) of (sequences, tokens)."""
        return self.parts[0](ids)


class Block(Entry):
    """One layer; with ``again`` it is computed again in the backward pass."""

    def __init__(self, skeleton, names, args, again):
        super().__init__(skeleton, names, args)
        self.again = again
        self.rotary = type(skeleton.model.rotary_emb)(config=skeleton.config)

    def forward(self, hidden):
        """Return the stream behind the layer, in the shape that it had."""
        again = self.again and torch.is_grad_enabled()
        return checkpoint(self.run, hidden, use_reentrant=False) if again else self.run(hidden)

    def run(self, hidden):
        """Return the same, its activations kept."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        turned = self.rotary(hidden, positions)
        return self.parts[0](hidden, position_ids=positions, position_embeddings=turned)


class Head(Entry):
    """Norm and projection to the vocabulary."""

    def forward(self, hidden):
        """Return logits, (sequences, tokens, vocabulary)."""
        return self.parts[1](self.parts[0](hidden))


class Planned(PipelineModule):
    """A pipeline whose stages begin where the plan says."""

    def __init__(self, entries, plan, vocabulary):
        self.starts = [chunk["start"] for chunk in plan["chunks"]]
        self.vocabulary = vocabulary
        super().__init__(entries, num_stages=plan["pp"], loss_fn=next_token_loss)

    def _partition_layers(self, method="uniform"):
        self.parts = [*self.starts, self._num_layers]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def build(args, plan):
    """Return the pipeline of a folder's model."""
    with torch.device("meta"):
        dtype = torch.bfloat16 if plan["precision"] == "pure-bf16" else torch.float32
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)
    modes = plan["recompute"][1:-1]
    if len(skeleton.model.layers) != len(modes):
        raise SystemExit(f"{args.model} has {len(skeleton.model.layers)} layers, the plan {len(modes)}")
    blocks = [
        LayerSpec(Block, skeleton, [f"model.layers.{i}"], args, mode == "full")
        for i, mode in enumerate(modes)
    ]
    first = LayerSpec(Embedding, skeleton, ["model.embed_tokens"], args)
    last = LayerSpec(Head, skeleton, ["model.norm", "lm_head"], args)
    return Planned([first, *blocks, last], plan, skeleton.config.vocab_size)


def next_token_loss(logits, ids):
    """Return the mean cross entropy of each token but the first; labels move, so that logits need no copy."""
    labels = functional.pad(ids[:, 1:], (0, 1), value=-100)  # what cross_entropy leaves out
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    logits.data = logits.new_empty(
        0
    )  # the engine keeps its output, the backward pass needs the softmax alone
    return loss


def stored(folder, prefix):
    """Return the weights whose names begin with a prefix, from a folder of safetensors."""
    index = folder / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"] if index.exists() else None
    found = {}
    for file in sorted(set(files.values()) if files else {"model.safetensors"}):
        if files and not any(f == file and name.startswith(prefix) for name, f in files.items()):
            continue
        with safe_open(folder / file, framework="pt") as weights:
            own = [name for name in weights.keys() if name.startswith(prefix)]  # noqa: SIM118
            found |= {name.removeprefix(prefix): weights.get_tensor(name) for name in own}
    return found


def hash_of(name, seed):
    """Return a seed of a module's own, the same on every rank."""
    return seed + sum(ord(letter) * (31**i % 65521) for i, letter in enumerate(name))
