"""Graphs from code: equal to those from the class's own config.json, and torch's FLOP counter agrees."""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="reads torch modules")
transformers = pytest.importorskip("transformers", reason="reads the framework's own classes")

from meshwright import MeshwrightError, from_module, load_model, solve  # noqa: E402  # after the skip
from meshwright.costmodels.attention import Attention  # noqa: E402
from meshwright.costmodels.moe import ExpertActivation  # noqa: E402
from meshwright.costmodels.recompute import saved_bytes  # noqa: E402
from meshwright.costmodels.work import Shape  # noqa: E402
from meshwright.planner.graph import ModelGraph  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2}
BOTH, EAGER = ("sdpa", "eager"), ("eager",)
DECODERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Llama": (GROUPED, BOTH),
    "Mistral": ({**GROUPED, "sliding_window": 40}, BOTH),
    "Qwen2": (GROUPED, BOTH),
    "Qwen3": ({**GROUPED, "head_dim": 32}, BOTH),
    "Gemma2": ({**GROUPED, "head_dim": 32, "sliding_window": 40}, EAGER),
    "GPT2": ({"n_embd": 64, "n_head": 4, "n_layer": 3, "n_inner": 128}, BOTH),
    "GPTNeoX": ({}, BOTH),
    "OPT": ({"ffn_dim": 128, "word_embed_proj_dim": 64}, BOTH),
    "Phi3": (GROUPED, BOTH),
    "Falcon": ({"ffn_hidden_size": 128}, BOTH),
    "Bloom": ({"n_layer": 3, "n_head": 4}, EAGER),
    "Starcoder2": (GROUPED, BOTH),
    "Olmo2": (GROUPED, BOTH),
    "Granite": (GROUPED, BOTH),
    "Cohere": (GROUPED, BOTH),
    "Mixtral": ({**GROUPED, "num_local_experts": 4}, BOTH),
    "Qwen3Moe": ({**GROUPED, "num_experts": 8, "moe_intermediate_size": 32}, BOTH),
    "GptOss": ({**GROUPED, "num_local_experts": 4, "sliding_window": 40, "head_dim": 16}, EAGER),
    "DeepseekV3": (
        {
            "n_routed_experts": 8,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
        },
        BOTH,
    ),
}
CASES = [(name, way) for name, (_, ways) in DECODERS.items() for way in ways]
EXPERTS = ("Mixtral", "Qwen3Moe", "GptOss", "DeepseekV3")
SHAPE = Shape(1, 512, 1, False, context_length=300)


def decoder(name: str, way: str) -> Any:
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **DECODERS[name][0]})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=way)


def from_config(model: Any, folder: Path) -> ModelGraph:
    """Return the graph of the config.json that the class would write."""
    values = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(values))
    return load_model(folder / "config.json")


def count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def flops(graph: ModelGraph, shape: Shape = SHAPE) -> float:
    """Return the FLOPs of products and attention in a forward pass: what a counter of products sees."""
    works = (w for k in graph.layer_kinds for op in graph.kinds[k].operators for w in op.forward(shape))
    return sum(float(w.flops) for w in works if w.kernel != "memory")


def kept(graph: ModelGraph, mode: str) -> float:
    return sum(float(saved_bytes(graph.kinds[k], mode, SHAPE)) for k in graph.layer_kinds)


def moved(graph: ModelGraph) -> float:
    """Return the bytes of tensor-parallel collectives."""
    shape = Shape(1, 512, 4, True)
    ways = (ts for k in graph.layer_kinds for op in graph.kinds[k].operators for ts in op.traffic(shape))
    return sum(float(t.bytes) for ts in ways for t in ts)


def held(graph: ModelGraph) -> float:
    shape = Shape(1, 512, 2, True)
    return sum(
        float(op.local_parameters(shape)) for k in graph.layer_kinds for op in graph.kinds[k].operators
    )


@pytest.mark.parametrize(("name", "way"), CASES)
def test_code_and_config_agree(name: str, way: str, tmp_path: Path) -> None:
    model = decoder(name, way)
    code, file = from_module(model), from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert code.active_parameters == file.active_parameters
    assert flops(code) == pytest.approx(flops(file), rel=0.01)
    for mode in ("none", "selective", "full"):
        assert kept(code, mode) == pytest.approx(kept(file, mode), rel=0.02)
    assert moved(code) == pytest.approx(moved(file), rel=0.05)
    assert held(code) == pytest.approx(held(file))
    assert code.layer_kinds == file.layer_kinds
    assert code.tied == file.tied
    assert (code.vocab_size, code.hidden_size) == (file.vocab_size, file.hidden_size)
    assert code.block_class == file.block_class


@pytest.mark.parametrize(("name", "gate"), [("GptOss", "clamped_offset"), ("Mixtral", "plain")])
def test_code_and_config_agree_on_how_experts_join_their_branches(
    name: str, gate: str, tmp_path: Path
) -> None:
    model = decoder(name, "eager")
    for graph in (from_module(model), from_config(model, tmp_path)):
        operators = (op for k in graph.layer_kinds for op in graph.kinds[k].operators)
        found = {op.gate for op in operators if isinstance(op, ExpertActivation)}
        assert found == {gate}


def seen_by_torch(model: Any, length: int) -> float:
    """Return the FLOPs that torch counts in a forward pass on fake tensors, with eager attention."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        twin = type(model)(model.config).eval()
        ids = torch.zeros((1, length), dtype=torch.long)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            twin(input_ids=ids, use_cache=False)
    return float(counter.get_total_flops())


def uncut(graph: ModelGraph, length: int) -> float:
    """Return the graph's FLOPs with every query meeting every key, as eager attention computes them."""
    shape = Shape(1, length, 1, False)
    total = flops(graph, shape)
    for k in graph.layer_kinds:
        for op in graph.kinds[k].operators:
            if isinstance(op, Attention):
                per_pair = 2 * op.heads * (op.head_dim + op.v_head_dim)
                total += float(per_pair * (length**2 - op.pairs(length)))
    return total


@pytest.mark.parametrize("name", [n for n in DECODERS if n not in EXPERTS])
def test_torch_counts_the_same_flops(name: str) -> None:
    model = decoder(name, "eager")
    assert uncut(from_module(model), 48) == pytest.approx(seen_by_torch(model, 48), rel=0.01)


def encoder_decoder(name: str) -> Any:
    sizes = {"d_model": 64, "vocab_size": 320, "pad_token_id": 0}
    with torch.device("meta"):
        if name == "T5":
            config = transformers.T5Config(**sizes, d_ff=128, num_layers=3, num_heads=4, d_kv=16)
            return transformers.T5ForConditionalGeneration(config)
        both = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SIDES.items()}
        return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **both))


SIDES = {"layers": 3, "ffn_dim": 128, "attention_heads": 4}


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_encoder_decoders_agree(name: str, tmp_path: Path) -> None:
    model = encoder_decoder(name)
    code, file = from_module(model), from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert flops(code) == pytest.approx(flops(file), rel=0.01)
    assert kept(code, "none") == pytest.approx(kept(file, "none"), rel=0.1)
    assert code.streams == file.streams
    assert code.context == file.context
    assert set(code.edges) == set(file.edges)
    assert set(code.tied) == set(file.tied)


@pytest.mark.parametrize("name", ["Bert", "Roberta", "ModernBert"])
def test_encoders_agree(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{name}Config")(**SIZES)
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(config)
    code, file = from_module(model), from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert flops(code) == pytest.approx(flops(file), rel=0.01)
    assert kept(code, "none") == pytest.approx(kept(file, "none"), rel=0.02)
    attention = [op for k in code.kinds for op in k.operators if isinstance(op, Attention)]
    assert not any(op.causal for op in attention)


def test_tower_and_decoder_are_two_streams(tmp_path: Path) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    vision |= {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": 32}
    config = transformers.LlavaConfig(
        vision_config=vision, text_config={"model_type": "llama", **SIZES}, image_token_index=5
    )
    with torch.device("meta"):
        model = transformers.LlavaForConditionalGeneration(config)
    ids = torch.tensor([[5] * 16 + [1] * 32])
    code = from_module(model, {"input_ids": ids, "pixel_values": torch.zeros(1, 3, 56, 56)})
    file = from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert code.num_layers == file.num_layers
    assert [code.kinds[k].stream for k in code.layer_kinds] == [
        file.kinds[k].stream for k in file.layer_kinds
    ]


def test_speech_encoder_and_decoder_agree(tmp_path: Path) -> None:
    sides = {"layers": 3, "ffn_dim": 128, "attention_heads": 4}
    both = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in sides.items()}
    sizes = {"d_model": 64, "vocab_size": 320, "num_mel_bins": 16, "max_source_positions": 100}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(**sizes, **both, **ids, max_target_positions=64)
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(config)
    spoken = torch.ones(1, 48, dtype=torch.long)
    code = from_module(model, {"input_features": torch.zeros(1, 16, 200), "decoder_input_ids": spoken})
    file = from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert flops(code) == pytest.approx(flops(file), rel=0.01)


def test_towers_side_by_side_agree(tmp_path: Path) -> None:
    blocks = {"num_hidden_layers": 3, "intermediate_size": 64}
    vision = {"hidden_size": 32, "num_attention_heads": 2, "image_size": 56, "patch_size": 14, **blocks}
    text = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 320, "eos_token_id": 2, **blocks}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    with torch.device("meta"):
        model = transformers.CLIPModel(config)
    ids = torch.ones(1, 77, dtype=torch.long)
    code = from_module(model, {"input_ids": ids, "pixel_values": torch.zeros(1, 3, 56, 56)})
    file = from_config(model, tmp_path)
    assert code.parameters == file.parameters == count(model)
    assert flops(code) == pytest.approx(flops(file), rel=0.01)


def test_frozen_weights_are_frozen_and_tied_ones_count_once() -> None:
    model = decoder("Llama", "sdpa")
    model.lm_head.weight = model.model.embed_tokens.weight
    for parameter in model.model.layers.parameters():
        parameter.requires_grad_(False)
    graph = from_module(model)
    assert graph.parameters == count(model)
    assert graph.tied == ((0, graph.num_layers - 1),)
    trained = {op.trained for k in graph.kinds if k.role == "block" for op in k.operators if op.parameters()}
    assert trained == {False}
    assert all(op.trained for k in graph.kinds if k.role != "block" for op in k.operators if op.parameters())


def test_full_size_class_is_read_without_memory_and_planned() -> None:
    import resource

    from meshwright.planner.importers import PRESETS

    config = transformers.LlamaConfig(**json.loads((PRESETS / "llama-3.1-8b.json").read_text()))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    graph = from_module(model, name="llama-3.1-8b")
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert graph.parameters == 8_030_261_248
    assert grown < 1e9  # the weights are 16e9 bytes
    assert seconds < 60  # some 3 s on an idle core
    job = {"sequence_length": 4096, "global_batch_size": 64}
    code, file = solve(graph, "dgx-h100:1", job), solve("llama-3.1-8b", "dgx-h100:1", job)
    assert code.status == file.status == "OPTIMAL"
    assert code.plan is not None and file.plan is not None
    assert code.objective_s == pytest.approx(file.objective_s, rel=0.01)


def test_the_module_stays_as_it_is() -> None:
    config = transformers.LlamaConfig(**{**SIZES, **GROUPED})
    model = transformers.LlamaForCausalLM(config).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_module(model)
    assert modes == [m.training for m in model.modules()]
    assert model.config.use_cache
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert "forward" not in vars(model)


def test_no_inputs_and_no_config_is_told() -> None:
    with pytest.raises(MeshwrightError, match="example_inputs"):
        from_module(torch.nn.Linear(2, 2))


def test_a_module_without_a_vocabulary_has_a_plan() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    with torch.device("meta"):
        module = torch.nn.Sequential(*(Block() for _ in range(4)), torch.nn.Linear(64, 8))
        graph = from_module(module, (torch.zeros(1, 128, 64),))
    assert graph.vocab_size == 0
    found = solve(graph, "dgx-h100:1", {"sequence_length": 128, "global_batch_size": 16})
    assert found.status == "OPTIMAL"
    assert found.record is not None
    assert "tp within the vocabulary" not in found.record.discarded
