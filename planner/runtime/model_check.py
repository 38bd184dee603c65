"""Whether a module is the model that a plan was made for, asked before anything is allocated."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.plan import Plan
from meshwright.planner.runtime.architecture import COLUMNS, ROWS, WORDS, Architecture

if TYPE_CHECKING:
    from torch import nn

STORED: Final = {"bf16": "float32", "fp32": "float32", "tf32": "float32", "pure-bf16": "bfloat16"}
"""In which dtype each recipe keeps the weights that the optimizer updates."""


@dataclass(frozen=True)
class Facts:
    """What a module is made of.

    Attributes
    ----------
    blocks, hidden_size, logits, parameters
        Decoder layers, width, logits of a token, and parameters, tied ones counted once.
    tied
        Whether head and embedding share their weight.
    dtypes
        Of the parameters.
    frozen
        Parameters that are not trained.
    splits
        By path in a block, the width that tensor parallelism divides.
    heads
        Attention and key/value heads by name, as far as the model's configuration tells them.
    """

    blocks: int
    hidden_size: int
    logits: int
    parameters: int
    tied: bool
    dtypes: frozenset[str]
    frozen: int
    splits: dict[str, int]
    heads: dict[str, int]


def facts_of(model: "nn.Module", architecture: Architecture) -> Facts:
    """Return the facts of a module; its weights may be on the ``meta`` device."""
    blocks: Any = architecture.part(model, "blocks")
    embedding: Any = architecture.part(model, "embedding")
    head: Any = architecture.part(model, "head")
    config = getattr(model, "config", None)
    names = ("num_attention_heads", "num_key_value_heads")
    heads = {name: getattr(config, name, None) for name in names}
    return Facts(
        blocks=len(blocks),
        hidden_size=embedding.weight.shape[1],
        logits=head.weight.shape[0],
        parameters=sum(p.numel() for p in model.parameters()),
        tied=head.weight is embedding.weight,
        dtypes=frozenset(str(p.dtype).removeprefix("torch.") for p in model.parameters()),
        frozen=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        splits=dict(_splits(blocks[0], architecture)) if len(blocks) else {},
        heads={name: value for name, value in heads.items() if value},
    )


def _splits(block: "nn.Module", architecture: Architecture) -> list[tuple[str, int]]:
    """Return path and divided width of each linear layer of a block."""
    found = []
    for path, word in architecture.tensor.items():
        if word in (COLUMNS, ROWS):
            weight: Any = block.get_submodule(path).weight
            found.append((path, weight.shape[word == ROWS]))
    return found


def check_model(plan: Plan, facts: Facts, architecture: Architecture) -> None:
    """Refuse a model that the plan was not made for, or whose weights it cannot place.

    Raises
    ------
    MeshwrightError
        Naming the model's value and the plan's.
    """
    found = [*_differences(plan, facts), *_tensor(plan, facts, architecture)]
    if plan.cp > 1 and plan.sequence_length % (2 * plan.cp):
        found.append(f"sequence_length={plan.sequence_length} is not divisible by 2 x cp={2 * plan.cp}")
    stored = STORED[plan.precision]
    if facts.dtypes != {stored}:
        found.append(
            f"parameters are {', '.join(sorted(facts.dtypes))}, precision {plan.precision} keeps {stored}: "
            f"load the model in {stored}"
        )
    if facts.frozen:
        found.append(f"{facts.frozen} parameters are frozen, the plan trains all of them")
    if facts.tied and plan.pp > 1:
        found.append("head and embedding share a weight, which a pipeline would part: plan with pp=1")
    if found:
        raise MeshwrightError(f"model: {'; '.join(found)}")


def _differences(plan: Plan, facts: Facts) -> list[str]:
    """Return a line for each size in which the model is not the planned one."""
    sizes = {
        "decoder layers": (facts.blocks, plan.num_layers - 2),
        "hidden_size": (facts.hidden_size, plan.hidden_size),
        "parameters": (facts.parameters, plan.parameters),
    }
    return [
        f"it has {have} {name}, the plan is for {wanted} ({plan.model})"
        for name, (have, wanted) in sizes.items()
        if wanted is not None and have != wanted
    ]


def _tensor(plan: Plan, facts: Facts, architecture: Architecture) -> list[str]:
    """Return a line for each thing that tensor parallelism cannot split so."""
    if plan.tp == 1:
        return []
    words = {path: word for path, word in architecture.tensor.items() if isinstance(word, str)}
    found = [
        f"tensor parallelism knows no {word!r} ({path}); known: {', '.join(WORDS)} and torch's own styles"
        for path, word in words.items()
        if word not in WORDS
    ]
    if COLUMNS not in words.values() and len(words) == len(architecture.tensor):
        found.append("its architecture does not say how blocks split over tensor ranks: give tensor={...}")
    split = facts.splits | facts.heads
    found += [
        f"{name}={size} is not divisible by tp={plan.tp}" for name, size in split.items() if size % plan.tp
    ]
    if plan.sequence_parallel and plan.sequence_length % (plan.tp * plan.cp):
        ranks = f"tp={plan.tp}" if plan.cp == 1 else f"tp x cp={plan.tp * plan.cp}"
        found.append(f"sequence_length={plan.sequence_length} is not divisible by {ranks}")
    return found
