"""A decoder as Megatron-LM's arguments, and what of it no argument says.

Read from ``megatron/training/arguments.py`` and ``TransformerConfig`` of Megatron-Core 0.19. Where its words
differ from a plan's:

- A bias is on every product or on none (``--disable-bias-linear``), or on queries, keys and values alone.
- ``--window-size`` counts the tokens before the query, a plan's window the query too.
- Routers take the softmax of the chosen experts by default, which is a softmax of all, normalised again.
"""

from collections.abc import Iterator
from typing import Final

from meshwright.planner.decoder import PRE_NORMS, DecoderSpec
from meshwright.planner.emit.megatron_moe import Flags, moe_flags, moe_unsaid, runs
from meshwright.planner.graph import ModelGraph
from meshwright.planner.latent import LatentAttention
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import layers_of

POSITIONS: Final = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
GELUS: Final = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"})
SILUS: Final = frozenset({"silu", "swish"})
ROPE_YARN: Final = {
    "rope_factor": "--rotary-scaling-factor",
    "rope_mscale": "--mscale",
    "rope_mscale_all": "--mscale-all-dim",
}
LLAMA_ROPE: Final = {
    "rope_low_frequency": 1.0,
    "rope_high_frequency": 4.0,
    "rope_original_length": 8192.0,
}
"""What ``--use-rope-scaling`` takes for granted."""
LATENT_ROPE: Final = {"rope_original_length": 4096.0, "rope_beta_fast": 32.0, "rope_beta_slow": 1.0}
"""What latent attention's YaRN takes for granted."""


def model_flags(model: ModelGraph, length: int) -> Flags:
    """Return the sizes and switches of a decoder, as far as its file gave them."""
    found = _sizes(model, length)
    if model.spec is None:
        return found | ({"--swiglu": None} if model.attributes.get("gated") is True else {})
    spec = model.spec
    return {
        **found,
        **_norms(model, spec),
        **_biases(spec),
        **_activation(model, spec),
        **_positions(model, spec),
        **_attention(spec),
        "--attention-dropout": str(spec.attention_dropout),
        "--hidden-dropout": str(spec.hidden_dropout),
        **_number(model, "init_std", "--init-method-std"),
        **moe_flags(model, spec),
        **({"--mtp-num-layers": str(spec.mtp_layers)} if model.mtp_included else {}),
    }


def predicting(model: ModelGraph) -> int:
    """Return how many of the model's layers are for multi-token prediction."""
    return model.spec.mtp_layers if model.spec is not None and model.mtp_included else 0


def _sizes(model: ModelGraph, length: int) -> Flags:
    a = model.attributes
    found: Flags = {
        "--num-layers": str(len(model.block_layers) - predicting(model)),
        "--hidden-size": str(model.hidden_size),
        "--max-position-embeddings": str(max(length, model.max_sequence_length or 0)),
        "--make-vocab-size-divisible-by": "128",
    }
    sizes = {"--ffn-hidden-size": "ffn", "--num-attention-heads": "heads"}
    found |= {flag: str(a[name]) for flag, name in sizes.items() if a.get(name)}
    if not _latent(model.spec):
        if a.get("head_dim"):
            found["--kv-channels"] = str(a["head_dim"])
        if a.get("kv_heads") and a["kv_heads"] != a.get("heads"):
            found |= {"--group-query-attention": None, "--num-query-groups": str(a["kv_heads"])}
    return found | ({} if model.tied else {"--untie-embeddings-and-output-weights": None})


def _norms(model: ModelGraph, spec: DecoderSpec) -> Flags:
    latent = _latent(spec)
    scaled = latent is not None and latent.scaled_latents
    return {
        "--normalization": "LayerNorm" if spec.norm_bias else "RMSNorm",
        **_number(model, "norm_epsilon", "--norm-epsilon"),
        **({"--qk-layernorm": None} if spec.qk_norm == "head" or scaled else {}),
    }


def _biases(spec: DecoderSpec) -> Flags:
    if spec.qkv_bias and spec.o_bias and spec.mlp_bias:
        return {}
    return {"--disable-bias-linear": None, **({"--add-qkv-bias": None} if spec.qkv_bias else {})}


def _activation(model: ModelGraph, spec: DecoderSpec) -> Flags:
    """Return SwiGLU or squared ReLU; without either Megatron-LM's is GELU."""
    if spec.gated:
        return {"--swiglu": None}
    return {"--squared-relu": None} if model.attributes.get("activation") == "relu2" else {}


def _positions(model: ModelGraph, spec: DecoderSpec) -> Flags:
    found: Flags = {}
    if spec.positions in POSITIONS:
        found["--position-embedding-type"] = POSITIONS[spec.positions]
    if spec.positions != "rotary":
        return found
    a = model.attributes
    if a.get("rotary_base"):
        found["--rotary-base"] = _plain(a["rotary_base"])
    if _latent(spec):
        stretched = a.get("rope_scaling") == "yarn"
        # The fused rotation of latent attention knows YaRN alone.
        found |= {"--rope-type": "yarn"} if stretched else {"--rope-type": "rope", "--no-rope-fusion": None}
        yarn = {flag: _plain(a[name]) for name, flag in ROPE_YARN.items() if stretched and name in a}
        return found | yarn
    if spec.rotary_share != 1:
        found["--rotary-percent"] = str(spec.rotary_share)
    if a.get("rope_scaling") == "llama3":
        factor = {"--rope-scaling-factor": str(a["rope_factor"])} if "rope_factor" in a else {}
        found |= {"--use-rope-scaling": None, **factor}
    return found


def _attention(spec: DecoderSpec) -> Flags:
    """Return latent attention's sizes, or windows, layers without rotation and learned sinks."""
    latent = _latent(spec)
    if latent is not None:
        return {
            "--multi-latent-attention": None,
            **({} if latent.q_rank is None else {"--q-lora-rank": str(latent.q_rank)}),
            "--kv-lora-rank": str(latent.kv_rank),
            "--qk-head-dim": str(latent.nope),
            "--qk-pos-emb-head-dim": str(latent.rope),
            "--v-head-dim": str(latent.value),
        }
    mixers = _self_attention(spec)
    windows = [m.window is not None for m in mixers]
    sizes = {m.window for m in mixers if m.window}
    found: Flags = {}
    if len(sizes) == 1:
        found["--window-size"] = f"({sizes.pop() - 1},0)"
        found |= {} if all(windows) else {"--window-attn-skip-freq": runs(windows)}
    still = [not m.rotary for m in mixers]
    if spec.positions == "rotary" and any(still):
        found["--no-rope-freq"] = runs(still)
    return found | ({"--softmax-type": "learnable"} if any(m.sinks for m in mixers) else {})


def unsaid(model: ModelGraph) -> list[str]:
    """Return which traits of the model no flag says, or the model's file does not."""
    if model.spec is None:
        return ["all but its sizes: norms, biases, positions, activation, routers"]
    return [
        *_unsaid_shape(model, model.spec),
        *_unsaid_words(model, model.spec),
        *moe_unsaid(model, model.spec),
    ]


def _unsaid_shape(model: ModelGraph, spec: DecoderSpec) -> Iterator[str]:
    mixers = _self_attention(spec)
    latent = _latent(spec)
    biases = {spec.o_bias, spec.mlp_bias} if spec.qkv_bias else {spec.qkv_bias, spec.o_bias, spec.mlp_bias}
    sizes = {(m.heads, m.kv_heads, m.head_dim, m.value_dim) for m in mixers}
    traits = {
        f"norms at {', '.join(spec.norms)}": spec.norms != PRE_NORMS,
        "norms without a scale": not spec.norm_weight,
        "no final norm": not spec.final_norm,
        f"the norm of queries and keys ({spec.qk_norm})": spec.qk_norm in ("full", "plain"),
        "biases on some products only": len(biases) > 1,
        "the head's bias": spec.head_bias,
        "attention and MLP side by side": spec.parallel,
        "alibi": spec.positions == "alibi",
        "the norm behind the embedding": spec.embedding_norm,
        "the embedding's own width": spec.embedding_dim is not None,
        "several residual streams": spec.residual_streams > 1,
        "windows of several sizes": len({m.window for m in mixers if m.window}) > 1,
        "attention in chunks": any(m.chunk for m in mixers),
        "gated attention": any(m.gate for m in mixers),
        "heads of several sizes": len(sizes) > 1 or len(set(map(type, spec.mixers))) > 1,
        "sparse attention's indexer": latent is not None and latent.index is not None,
        "windows of latent attention": latent is not None and latent.window is not None,
        "dropout behind the embedding": spec.embedding_dropout != spec.hidden_dropout,
    }
    yield from (trait for trait, given in traits.items() if given)
    if model.attributes.get("multipliers"):
        yield str(model.attributes["multipliers"])


def _unsaid_words(model: ModelGraph, spec: DecoderSpec) -> Iterator[str]:
    a = model.attributes
    act = a.get("activation")
    if isinstance(act, str) and act not in (SILUS if spec.gated else GELUS | {"relu2"}):
        yield f"the activation {act}"
    if act is None:
        yield f"the activation (not in the model's file; {'SwiGLU' if spec.gated else 'GELU'} is assumed)"
    if "norm_epsilon" not in a:
        yield "`--norm-epsilon` (not in the model's file)"
    if spec.positions != "rotary":
        return
    if "rotary_base" not in a:
        yield "`--rotary-base` (not in the model's file)"
    kind = a.get("rope_scaling")
    latent = _latent(spec) is not None
    taken = LATENT_ROPE if latent else LLAMA_ROPE
    usual = all(a.get(name, value) == value for name, value in taken.items())
    if kind is not None and not (usual and kind == ("yarn" if latent else "llama3")):
        yield f"positions stretched by {kind}"


def missing(model: ModelGraph) -> list[str]:
    """Return a line on what of the model the arguments leave open; nothing where they say it all."""
    open_traits = unsaid(model)
    if not open_traits:
        return []
    return [f"Add or adapt what no argument here says of {model.name}: {'; '.join(open_traits)}."]


def _latent(spec: DecoderSpec | None) -> LatentAttention | None:
    found = () if spec is None else (m for m in spec.mixers if isinstance(m, LatentAttention))
    return next(iter(found), None)


def _self_attention(spec: DecoderSpec) -> list[SelfAttention]:
    return [layer.mixer for layer in layers_of(spec) if isinstance(layer.mixer, SelfAttention)]


def _number(model: ModelGraph, name: str, flag: str) -> Flags:
    return {flag: _plain(model.attributes[name])} if name in model.attributes else {}


def _plain(value: object) -> str:
    """Return a number, a whole one without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
