"""The Python source that torchtitan's configuration is made of."""

from typing import Final, NamedTuple


class Policy(NamedTuple):
    """How checkpointing is said: what is imported, defined, and given to the trainer."""

    imports: str
    definition: str
    value: str


NONE: Final = Policy("", "", "None")
FULL: Final = Policy(
    "from torchtitan.distributed.activation_checkpoint import FullAC\n", "", "FullAC.Config()"
)
LAYERWISE: Final = Policy(
    "from dataclasses import dataclass\n\nfrom torchtitan.distributed.activation_checkpoint import FullAC\n",
    '''\
RECOMPUTED = {layers}


class PlannedAC(FullAC):
    """Recomputes the layers that the plan names."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        pass

    def _wrap_block(self, module, *, base_fqn=None):
        if int(base_fqn.rpartition(".")[2]) not in RECOMPUTED:
            return module
        return super()._wrap_block(module, base_fqn=base_fqn)


''',
    "PlannedAC.Config()",
)
TEMPLATE: Final = '''\
"""The plan in plan.json as a configuration of torchtitan 0.3; written by meshwright."""

import os
{imports}
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.trainer import Trainer

FLAVOR = os.environ.get("TITAN_FLAVOR", "{flavor}")
LAYERS, HIDDEN, VOCABULARY = {layers}, {hidden}, {vocabulary}


{policy}def model():
    """Return torchtitan's model, which must be the one that was planned for."""
    spec = model_registry(FLAVOR)
    found = len(spec.model.layers), spec.model.dim, decoder_vocab_size(spec)
    if found != (LAYERS, HIDDEN, VOCABULARY):
        raise ValueError(
            f"TITAN_FLAVOR={{FLAVOR}}: layers, width and vocabulary are {{found}}, "
            f"planned for {{(LAYERS, HIDDEN, VOCABULARY)}}"
        )
    return spec


def planned() -> Trainer.Config:
    """Return the trainer's configuration; rate and data are common values: set yours."""
    spec = model()
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        model_spec=spec,
        optimizer=default_adamw(lr={lr}),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        training=TrainingConfig(
{training}        ),
        parallelism=ParallelismConfig(
{parallelism}        ),
        activation_checkpoint={checkpointing},
    )
'''
