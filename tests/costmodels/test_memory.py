"""State bytes by hand for each stage and stack, and activations of a two-stage pipeline."""

import numpy as np
import pytest

from meshwright.costmodels.memory import activation_bytes, optimizer_traffic, state_bytes, transient_bytes
from meshwright.costmodels.precision import find_optimizer, find_precision
from meshwright.costmodels.profiles import find_profile, sourced_profile
from meshwright.costmodels.schedule import build
from meshwright.costmodels.tables import build_tables
from tests.costmodels.cases import make_setting, make_strategies

ADAM, SGD = find_optimizer("adamw"), find_optimizer("sgd")


def items(stage, dp, recipe, profile, gradient, optimizer=ADAM):
    got = state_bytes(stage, dp, find_precision(recipe), optimizer, find_profile(profile), gradient)
    return [float(v) for v in (got.weights, got.gradients, got.master_weights, got.optimizer_moments)]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, [2, 4, 4, 8]), (1, [2, 4, 1, 2]), (2, [2, 1, 1, 2]), (3, [0.5, 1, 1, 2])],
)
def test_zero_stages_over_four_ranks_with_a_working_copy(stage, expected):
    assert items(stage, 4, "bf16", "megatron-core", 4) == expected


@pytest.mark.parametrize(
    ("recipe", "stage", "expected"),
    [
        ("bf16", 3, [0, 1, 1, 2]),  # the fp32 shard is the master
        ("bf16", 2, [2, 1, 1, 2]),  # gathered weights stay
        ("bf16", 0, [2, 4, 4, 8]),
        ("fp32", 3, [0, 1, 1, 2]),
        ("fp32", 0, [4, 4, 0, 8]),  # nothing is sharded: the weight is its own master
        ("pure-bf16", 3, [0, 1, 0.5, 1]),
    ],
)
def test_fsdp_keeps_shards_and_gathered_weights(recipe, stage, expected):
    assert items(stage, 4, recipe, "fsdp2", 4) == expected


def test_an_optimizer_without_moments_keeps_none():
    assert items(0, 1, "bf16", "generic", 2, SGD) == [2, 2, 4, 0]


def test_states_broadcast_over_stages_and_ranks():
    got = state_bytes(
        np.array([[0], [3]]),
        np.array([1, 2, 4]),
        find_precision("bf16"),
        ADAM,
        find_profile("deepspeed"),
        2,
    )
    assert got.total.tolist() == [[16, 16, 16], [16, 8, 4]]


def test_adam_moves_its_states_twice_and_reads_the_gradient():
    """Reads and writes master (8) and moments (16), reads the gradient, writes the 16-bit weight."""
    assert optimizer_traffic(find_precision("bf16"), ADAM, 4) == 4 + 8 + 16 + 2
    assert optimizer_traffic(find_precision("fp32"), SGD, 4) == 4 + 4


def test_a_recipe_of_fp16_alone_divides_its_gradients_by_the_scale_of_its_loss():
    """Read and written once more: 8 bytes of an fp32 gradient."""
    step = {name: build_tables(make_setting(precision=name), make_strategies()) for name in ("fp16", "bf16")}
    moved = 4 + 8 + 16 + 2 + sourced_profile("generic").gradient_passes * 4
    ratio = step["fp16"].optimizer_s / step["bf16"].optimizer_s
    assert ratio.reshape(-1).tolist() == pytest.approx([(moved + 8) / moved] * ratio.size)


def test_activations_of_two_stages_under_1f1b_and_interleaved():
    """The first of two ranks holds two micro-batches, the last one; interleaved both hold more passes."""
    assert activation_bytes(build("1f1b", 2, 1, 8), np.array([3.0, 5.0])).tolist() == [6, 5]
    # 1 + (p - 1) / (p v) of the layers of p micro-batches (arXiv 2205.05198, section 4.2.3): 5 passes.
    first, _ = activation_bytes(build("interleaved", 2, 2, 8), np.ones(4))
    assert first == 2 * 2 * (1 + 1 / 4)


def transient(working, saved, unreduced=0.0, pending=0.0, follows=True):
    one = [np.array([[v]]) for v in (10.0, unreduced, pending)]
    gathered, left, sent = one
    kept = np.array([[[working]]]), np.array([[[saved]]])
    return transient_bytes(gathered, *kept, left, sent, np.array([follows])).item()


def test_a_layer_peaks_in_its_work_behind_another_or_at_its_end():
    assert transient(7, 3) == 10 + 7
    assert transient(7, 3, pending=5) == 10 + 7 - 3 + 5
    assert transient(7, 3, pending=5, follows=False) == 10 + 7
    assert transient(7, 3, unreduced=4, pending=8) == 10 + 7 - 3 + 8
    assert transient(1, 3, unreduced=4, pending=8) == 10 + 4 + 8 - 3
