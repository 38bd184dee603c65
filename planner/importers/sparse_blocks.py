"""The rule for Phi-3-small's block-sparse attention."""

from meshwright.planner.block_sparse import BlockSparseAttention
from meshwright.planner.decoder import Sublayer
from meshwright.planner.importers.layer_types import shortest
from meshwright.planner.importers.rules import Reading, Value, optional_size, size
from meshwright.planner.mixers import SelfAttention


def block_sparse(reading: Reading) -> Value:
    """Return full attention on every n-th layer (``dense_attention_every_n_layers``), else sparse attention.

    Where the file names no ``blocksparse_vert_stride`` all layers attend to all tokens.
    """
    stride = optional_size("blocksparse_vert_stride")(reading)
    if stride is None:
        return ()
    blocks = size("blocksparse_num_local_blocks", default=16)(reading)
    sparse = BlockSparseAttention(blocks * size("blocksparse_block_size", default=64)(reading), stride)
    every = optional_size("dense_attention_every_n_layers", what="layers")(reading)

    def mixer(layer: int) -> Sublayer:
        """Return the mixer of one layer."""
        return SelfAttention() if every and (layer + 1) % every == 0 else sparse

    return shortest([mixer(i) for i in range(reading.fields["layers"])])
