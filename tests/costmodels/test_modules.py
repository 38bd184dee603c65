"""Modules that selective recompute names: what belongs to each, what it frees, what it runs again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.attention import Attention
from meshwright.costmodels.modules import MODULES, modules_of, operators_of
from meshwright.costmodels.operators import LayerKind
from meshwright.costmodels.profiles import find_profile
from meshwright.costmodels.recompute import repeated, saved_bytes
from meshwright.costmodels.work import Shape
from meshwright.planner.blocks import block_kind
from meshwright.planner.decoder import DecoderSpec
from meshwright.planner.experts import Experts
from meshwright.planner.feeds import Mlp
from meshwright.planner.latent import LatentAttention
from meshwright.planner.mixers import SelfAttention
from meshwright.planner.pattern import Layer

SPEC = DecoderSpec(hidden=512, layers=2, heads=8, kv_heads=4, head_dim=64, ffn=1024, vocab=1000)
PLAIN = block_kind(SPEC, Layer(SelfAttention(), Mlp()))
LATENT = block_kind(SPEC, Layer(LatentAttention(128, 64, 32, 64, 256), Experts(8, 2, 128, shared=128)))
SHAPE = Shape(1, 256, 1, False)
KINDS = st.sampled_from([PLAIN, LATENT])
LISTS = st.sets(st.sampled_from(sorted(MODULES)))


def kept(kind: LayerKind, modules: set[str] | tuple[str, ...]) -> float:
    told = replace(kind, again=operators_of(kind, modules))
    return float(saved_bytes(told, "selective", SHAPE))


def test_a_layer_has_the_modules_of_its_mixer_and_its_feed():
    assert modules_of(PLAIN) == ("core_attn", "layernorm", "mlp", "norms", "activations", "by_operator")
    experts = {"moe", "moe_act", "shared_experts", "mla_up_proj"}
    assert experts <= set(modules_of(LATENT))
    assert "mlp" not in modules_of(LATENT)


def test_up_projections_are_what_stands_between_latents_and_core():
    assert operators_of(LATENT, ("mla_up_proj",)) == {"q_up", "kv_up", "rotary", "keys"}
    assert not operators_of(PLAIN, ("mla_up_proj",))


@given(KINDS, LISTS, LISTS)
def test_more_modules_keep_less_and_run_more_again(kind: LayerKind, some: set[str], more: set[str]):
    fewer, all_ = operators_of(kind, some), operators_of(kind, some | more)
    assert fewer <= all_
    assert kept(kind, some | more) <= kept(kind, some) <= float(saved_bytes(kind, "none", SHAPE))


@given(KINDS, LISTS)
def test_what_a_list_frees_is_what_its_operators_save(kind: LayerKind, modules: set[str]):
    chosen = [op for op in kind.operators if op.name in operators_of(kind, modules)]
    freed = sum(op.core_bytes(SHAPE) if isinstance(op, Attention) else op.saved_bytes(SHAPE) for op in chosen)
    assert float(saved_bytes(kind, "none", SHAPE)) - kept(kind, modules) == pytest.approx(float(freed))
    told = replace(kind, again=operators_of(kind, modules))
    assert list(repeated(told, "selective", find_profile("generic"))) == chosen


def test_without_a_list_selective_takes_norms_and_activations_under_flash():
    light = {op.name for op in PLAIN.operators if op.light}
    assert operators_of(PLAIN, ("norms", "activations")) == light
    assert kept(PLAIN, ("norms", "activations")) == float(saved_bytes(PLAIN, "selective", SHAPE))
