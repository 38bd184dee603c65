"""What a layer holds in its backward pass, before transformers' own decoder layer on fake tensors."""

import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="its tensors are what is counted")
pytest.importorskip("transformers", reason="its layer is what runs")

import torch  # after the skip
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from meshwright.costmodels.adaptation import adapt  # after the skip
from meshwright.costmodels.alive import fullest_bytes  # after the skip
from meshwright.costmodels.loss import find_loss  # after the skip
from meshwright.costmodels.profiles import find_profile  # after the skip
from meshwright.costmodels.recompute import input_bytes, saved_by_operator  # after the skip
from meshwright.costmodels.work import Shape  # after the skip
from meshwright.planner.blocks import decoder_graph  # after the skip
from meshwright.planner.decoder import DecoderSpec  # after the skip

CLOSE = 0.05
HEADS, KV_HEADS = 32, 8


class Count(TorchDispatchMode):
    """Counts the bytes of all storages that operators made and nobody has let go."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known, self.alive, self.peak = known, {}, 0

    def now(self) -> int:
        self.alive = {key: ref for key, ref in self.alive.items() if ref() is not None}
        return sum(ref().nbytes() for ref in self.alive.values())

    def _see(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.alive[storage._cdata] = weakref.ref(storage)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = tree_map_only(torch.Tensor, self._see, func(*args, **(kwargs or {})))
        self.peak = max(self.peak, self.now())
        return out


def counted(hidden: int, ffn: int, tokens: int) -> tuple[int, int]:
    """Return what a layer saves, and the most that its backward pass holds, its input included in both."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        attn_implementation="sdpa",
    )
    usual = torch.get_default_dtype()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        try:
            layer = LlamaDecoderLayer(config, 0)
            x = torch.empty(1, tokens, hidden, requires_grad=True)
        finally:
            torch.set_default_dtype(usual)
        turns = LlamaRotaryEmbedding(config)(x, torch.arange(tokens)[None])
        outside = [*layer.parameters(), x, *turns]
        with Count({t.untyped_storage()._cdata for t in outside}) as count:
            y = layer(x, position_embeddings=turns)
            y = y[0] if isinstance(y, tuple) else y
            own = x.untyped_storage().nbytes()
            saved = count.now() + own - y.untyped_storage().nbytes()
            count.peak = 0
            torch.autograd.backward(y, torch.empty_like(y))
        # The output's gradient is made inside, and the output lives on here: one of the two is the stream's.
        return saved, count.peak + own - y.untyped_storage().nbytes()


@pytest.mark.parametrize("tokens", [2048, 4096, 16384])
@pytest.mark.parametrize(("hidden", "ffn"), [(2048, 8192), (4096, 14336)])
def test_a_layer_holds_what_its_tensors_add_up_to(hidden: int, ffn: int, tokens: int) -> None:
    spec = DecoderSpec(
        hidden=hidden,
        layers=1,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=hidden // HEADS,
        ffn=ffn,
        vocab=1000,
    )
    stack = find_profile("torch-eager-fsdp2")
    kind = adapt(decoder_graph(spec, "one").kinds[1], stack, find_loss("torch"))
    shape = Shape(1, tokens, 1, 0)
    each = saved_by_operator(kind, shape)
    whole = input_bytes(kind, shape)
    saved, held = counted(hidden, ffn, tokens)
    assert whole + sum(each.values()) == pytest.approx(saved, rel=CLOSE)
    assert fullest_bytes(kind, shape, stack, whole, each) == pytest.approx(held, rel=CLOSE)
