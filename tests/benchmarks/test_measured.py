"""Published runs become plans that say what their rows print, and batches do not change prices."""

import json
import re
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import measured, row_settings
from benchmarks.measured_prices import as_run, express, price_rows
from benchmarks.row_model import NotExpressibleError, graph_of
from benchmarks.row_profile import profile_of
from benchmarks.row_settings import recompute_of
from benchmarks.row_spelling import KNOWN
from benchmarks.row_strategy import _stages, micro_batches_of
from benchmarks.rows import Row, features
from meshwright.costmodels.profiles import find_profile
from meshwright.hardware.units import GIGA
from tests.benchmarks.cases import PLAIN, ROWS, line

SAMPLE = (
    "vtrain_single_0001",
    "sc21_t1_1.7b_32",
    "korth22_t5_22B_full",
    "zbpp_t4_1.5B_ZB-2p_m32",
    "dgxc_v24111_llama31_405b_bf16_32",
    "dgxc_v24111_llama31_405b_fp8_32",
    "moefold_t4_mixtral-8x22b_128_tp2pp8ep4_gbs1024",
    "bridge260401_llama370b_gb300_nvfp4_64",
    "fsdpq-001",
    "maxtext-012",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_plan_says_what_its_row_prints(name: str) -> None:
    row, run = ROWS[name], express(ROWS[name])
    plan = run.plan
    for degree in ("tp", "pp", "cp", "dp", "ep"):
        printed = getattr(row, degree)
        assert printed is None or getattr(plan, degree) == printed
    assert plan.num_devices == run.problem.cluster.num_devices == row.num_gpus
    assert plan.sequence_length == row.seq_len
    assert len(run.problem.model.block_layers) in (row.layers, None)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_price_is_a_time_and_a_memory(name: str) -> None:
    (got,) = price_rows([ROWS[name]])
    assert got.reason is None
    assert got.step_time_s is not None and isfinite(got.step_time_s) and got.step_time_s > 0
    assert got.breakdown is not None
    assert sum(got.breakdown.values()) == pytest.approx(got.step_time_s)
    assert got.peak_bytes is not None and got.comparable_bytes is not None
    assert 0 < got.comparable_bytes <= got.peak_bytes


def test_a_batch_prices_each_run_as_if_alone() -> None:
    rows = [r for r in ROWS.values() if r.id.startswith(("dgxc_v24111_nem", "aleph_13B_32"))][:12]
    rows += [r for r in ROWS.values() if r.family == "vtrain"][::150]
    for row, together in zip(rows, price_rows(rows), strict=True):
        (alone,) = price_rows([row])
        assert together.row is row
        assert together.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
        assert together.memory == pytest.approx(alone.memory, rel=1e-12)


def test_what_cannot_be_written_carries_its_reason() -> None:
    homeless = replace(PLAIN, accelerator=None, accelerator_as_printed=None)
    crooked = replace(PLAIN, id="crooked", tp=3)
    shapeless = replace(PLAIN, id="shapeless", layers=None, params_b=None)
    got = price_rows([homeless, crooked, shapeless])
    assert [p.step_time_s for p in got] == [None, None, None]
    reasons = " | ".join(str(p.reason) for p in got)
    assert reasons.startswith("accelerator not stated | tp 3 x cp 2 x pp 1 does not divide 32")
    assert reasons.endswith("model sizes not stated: layers")


def test_widened_features_can_all_be_written() -> None:
    """Mixtures, long contexts, low precision, adapters; missing is what sources leave out or contradict."""
    reasons = []
    for row in ROWS.values():
        if row.trusted and features(row) != {"dense"}:
            try:
                express(row)
            except NotExpressibleError as error:
                reasons.append(str(error))
    contradicted = [reason for reason in reasons if "not stated" not in reason]
    assert contradicted == ["ep 64 does not divide the 32 ranks that tp, cp and dp leave"]
    assert len(reasons) <= 3


def test_graphs_have_the_printed_parameters() -> None:
    """A printed count with decimals is met within 5 %; whole billions are names.

    It is the published model's: a framework that parts a tied head from its embedding has more.
    """
    seen: dict[tuple[object, ...], Row] = {}
    for row in ROWS.values():
        if row.params_b is not None and not float(row.params_b).is_integer() and row.layers is not None:
            seen.setdefault((row.model_name, row.layers, row.vocab, row.params_b, row.seq_len), row)
    assert len(seen) > 100
    for row in seen.values():
        graph, _ = graph_of(replace(row, tuning=None))
        assert graph.parameters == pytest.approx(row.params_b * GIGA, rel=0.05), row.id  # type: ignore[operator]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_setting_in_unknown_words_counts_as_not_stated(name: str) -> None:
    silent, odd = (express(replace(PLAIN, **{name: said})) for said in (None, "spiral"))
    assert odd.plan == silent.plan
    assert any(note.startswith(f"{name} is 'spiral'") for note in odd.assumptions)


@pytest.mark.parametrize(
    "name", [r.id for r in ROWS.values() if r.moe and re.search("Mixtral|V3", r.model_name)][::8]
)
def test_a_mixture_under_an_unknown_name_has_the_experts_that_its_row_prints(name: str) -> None:
    row = replace(ROWS[name], params_b=None)
    known, unknown = graph_of(row)[0], graph_of(replace(row, model_name="Anything", notes=""))[0]
    assert unknown.parameters == pytest.approx(known.parameters, rel=0.05)
    assert unknown.active_parameters == pytest.approx(known.active_parameters, rel=0.05)


def test_a_vocabulary_that_is_not_printed_is_assumed_and_told() -> None:
    graph, assumed = graph_of(replace(PLAIN, model_name="Anything", vocab=None, params_b=None))
    assert f"vocabulary not stated: {graph.vocab_size:,}" in assumed


@pytest.mark.parametrize("said", ["zbv", "v-half", "V-Min", "DualPipe", "gpipe"])
def test_a_schedule_is_the_one_that_its_word_names(said: str) -> None:
    row = replace(PLAIN, schedule=said, vpp=None, tp=4, cp=1, pp=4, dp=None)
    plan = express(row).plan
    assert plan.schedule.replace("_", "") in said.lower().replace("-", "") + "v"
    assert plan.vpp == (1 if said == "gpipe" else 2)


def test_virtual_stages_that_are_not_printed_are_the_stack_s_own() -> None:
    row = replace(PLAIN, schedule="interleaved 1f1b", vpp=None, tp=8, cp=1, pp=2, dp=None)
    titan, megatron = (express(replace(row, framework=f)) for f in ("torchtitan", "Megatron-Core"))
    assert titan.plan.vpp == 2 < megatron.plan.vpp
    for got in (titan, megatron):
        assert any("virtual stages not stated" in said for said in got.assumptions)


PRINTED = {"schedule": None, "vpp": None, "notes": "", "extra": None}


def test_a_pipeline_of_which_nothing_is_printed_interleaves_under_newer_megatron_alone() -> None:
    row = replace(PLAIN, **PRINTED, tp=4, cp=1, pp=4, dp=None, framework="Megatron-Core")
    assert [express(replace(row, year=y)).plan.vpp > 1 for y in (2023, 2024)] == [False, True]


@pytest.mark.parametrize(
    ("framework", "degree"), [("Megatron-Core", 2), ("Megatron-Bridge", 1), ("torchtitan", 1)]
)
def test_experts_are_split_as_other_products_unless_a_recipe_says_otherwise(
    framework: str, degree: int
) -> None:
    row = ROWS["moefold_t4_mixtral-8x22b_128_tp2pp8ep4_gbs1024"]
    assert express(replace(row, framework=framework)).plan.etp == degree


@given(st.integers(2, 200), st.integers(2, 16), st.integers(0, 1))
def test_stages_hold_every_block_and_a_layer_that_predicts_ahead_has_room(
    blocks: int, chunks: int, ahead: int
) -> None:
    try:
        sizes = _stages(blocks, chunks, ahead)
    except NotExpressibleError:
        assert blocks < 2 * chunks
        return
    assert sum(sizes) == blocks
    assert len(sizes) == chunks
    if ahead and min(sizes) > 0:
        assert max(sizes) - sizes[0] <= 1
        assert sizes[-1] <= max(sizes) + ahead


def test_a_printed_layout_of_deepseek_v3_is_the_one_that_is_taken() -> None:
    # Et*4|(t*4|)*14tmL
    assert _stages(62, 16, 1) == (*[4] * 15, 2)


@pytest.mark.parametrize(
    ("changes", "once"),
    [
        ({"extra": {"moe_flex_dispatcher_backend": "deepep"}}, True),
        ({"extra": {"recipe": "R"}}, False),
        ({"extra": None, "notes": "token-drop"}, False),
        ({"extra": None, "year": 2025}, False),
        ({"extra": None, "year": 2026}, True),
        ({"extra": None, "year": 2025, "accelerator": "gb200"}, True),
        ({"extra": None, "year": 2025, "accelerator": "h100-sxm-80gb"}, True),
    ],
)
def test_a_token_enters_a_node_once_where_a_recipe_says_so_or_came_to(
    changes: dict[str, Any], once: bool
) -> None:
    row = ROWS["bridge2602_deepseekv3_b200_mxfp8_256"]
    profile = find_profile(profile_of(replace(row, **changes)))
    assert (profile.expert_dispatch == "deduplicated") == once


def test_experts_with_a_capacity_wait_for_no_counts_and_pad_nothing() -> None:
    row = replace(ROWS["bridge2511_deepseekv3_b200_fp8mx_256"], extra=None)
    dropping = find_profile(profile_of(replace(row, notes="token-drop MoE")))
    dropless = find_profile(profile_of(replace(row, notes="token-dropless")))
    assert (dropping.expert_padding, dropping.dispatch_sync_s) == (False, 0)
    assert dropless.expert_padding
    assert dropless.dispatch_sync_s > 0


def test_releases_of_megatron_core_overlap_tensor_traffic_whatever_the_model() -> None:
    mixture = ROWS["moefold_t4_mixtral-8x22b_128_tp2pp8ep4_gbs1024"]
    dense = replace(mixture, moe=None)
    elsewhere = replace(mixture, framework="Megatron-LM")
    shares = [find_profile(profile_of(row)).overlap_tensor for row in (mixture, dense, elsewhere)]
    assert shares[0] == shares[1] > shares[2] == 0


@pytest.mark.parametrize(
    ("scope", "rest"),
    [
        ("full_iteration", 0),
        (["full_iteration"], 0),
        (["attn", "moe_router"], 0.4),
        (["moe_router"], 0.6),
        (None, 1),
        ([], 1),
    ],
)
def test_graphs_of_sub_blocks_leave_the_experts_to_the_host(scope: Any, rest: float) -> None:
    row = replace(ROWS["bridge2511_deepseekv3_b200_fp8mx_256"], extra={"cuda_graph_scope": scope})
    profile = find_profile(profile_of(row))
    assert profile.host_share == rest
    assert profile.expert_host_share == (rest > 0)


@pytest.mark.parametrize(
    ("kind", "scope", "rest"),
    [
        ("none", "full_iteration", 1),  # switched off, whatever would be captured
        ("none", ["attn"], 1),
        ("local", ["full_iteration"], 0),
        ("local", None, 0),
        ("full_iteration", [], 0),
        ("transformer_engine", None, 0.4),
        ("transformer_engine", ["moe_router"], 0.6),
    ],
)
def test_graphs_are_captured_as_their_implementation_says(kind: str, scope: Any, rest: float) -> None:
    stated = {"cuda_graph_impl": kind, "cuda_graph_scope": scope}
    row = replace(ROWS["bridge2511_deepseekv3_b200_fp8mx_256"], extra=stated)
    assert find_profile(profile_of(row)).host_share == rest


@pytest.mark.parametrize(
    ("changes", "hides"),
    [
        ({"ep": 32, "vpp": 2}, True),
        ({"ep": 8, "vpp": 2}, False),
        ({"ep": 32, "vpp": 1}, False),
        ({"ep": 32, "vpp": 2, "year": 2025}, False),
        ({"ep": 32, "vpp": 2, "extra": {"recipe": "R"}}, False),
        ({"ep": 8, "vpp": 1, "extra": {"moe_a2a_overlap": True}}, True),
    ],
)
def test_an_exchange_between_nodes_is_hidden_where_virtual_stages_allow_it(
    changes: dict[str, Any], hides: bool
) -> None:
    row = replace(ROWS["bridge260401_deepseekv3_b200_mxfp8_256"], extra=None)
    assert (find_profile(profile_of(replace(row, **changes))).overlap_experts > 0) == hides


def test_torchtitan_recomputes_by_operators_where_its_row_says_nothing() -> None:
    row = replace(ROWS["titanlog-066"], recompute=None, framework="torchtitan (FSDP2)")
    silent, told = recompute_of(row, 4), recompute_of(replace(row, recompute="selective-op"), 4)
    captured = replace(row, framework="torchtitan GraphTrainer")
    assert recompute_of(captured, 4)[0] == ("none",) * 4
    assert recompute_of(replace(captured, recompute="selective-op"), 4) == told
    assert silent[0] == told[0] != ("none",) * 4
    assert recompute_of(replace(row, framework="Megatron-Core"), 4)[0] == ("none",) * 4


@given(batch=st.integers(1, 5000), dp=st.integers(1, 512), size=st.integers(1, 64))
def test_the_last_micro_batch_may_be_smaller(batch: int, dp: int, size: int) -> None:
    row = replace(PLAIN, micro_batch=size)
    own, count, _ = micro_batches_of(row, batch, dp)
    assert own <= size
    assert dp * own * count >= batch
    assert dp * own * (count - 1) < batch


@pytest.mark.parametrize(
    ("printed", "stage", "copies"),
    [
        ("zero1", 1, 1),
        ("ddp", 0, 1),
        ("distributed_fused_adam", 1, 1),
        ("fsdp-full-shard", 3, 1),
        ("DDP + distributed optimizer (FSDP=0)", 1, 1),
        ("Megatron-FSDP, shard group 64", 3, 4),
        ("zero1 sharded within 8 GPUs (hybrid)", 1, 32),
    ],
)
def test_sharding_is_read_from_its_words(printed: str, stage: int, copies: int) -> None:
    got = row_settings.sharding_of(replace(PLAIN, sharding=printed, sharding_as_printed=None), 256)
    assert got == (stage, copies, ())


def test_sharding_inside_slices_makes_a_copy_for_each() -> None:
    for name, copies in (("maxtext-008", 1), ("maxtext-012", 2), ("maxtext-028", 32)):
        plan = express(ROWS[name]).plan
        assert (plan.zero_stage, plan.dp_replicate) == (3, copies)


def test_recompute_words_become_modes() -> None:
    def modes(**changes: object) -> tuple[str, ...]:
        return row_settings.recompute_of(replace(PLAIN, **changes), 4)[0]  # type: ignore[arg-type]

    assert modes(recompute="full") == ("full",) * 4
    assert modes(recompute="selective-layer (every 2nd layer)") == ("full", "none", "full", "none")
    assert modes(recompute="selective-op") == ("selective",) * 4
    assert modes(recompute="selective-op (graph default)") == ("selective",) * 4
    assert modes(extra={"cpu_offloading_num_layers": 3}) == ("offload", "offload", "offload", "none")


@given(st.integers(1, 8), st.integers(1, 64), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2)))
def test_no_replica_runs_without_a_micro_batch(micro: int, batch: int, dp: int, tp: int) -> None:
    row = as_run(replace(PLAIN, micro_batch=micro, global_batch=batch, dp=dp, num_gpus=dp * tp))
    assert row.dp is not None and row.num_gpus == row.dp * tp
    assert row.dp == (dp if batch >= micro * dp or batch < micro else batch // micro)


def test_the_command_tells_errors_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    lost = replace(PLAIN, id="lost", accelerator=None, accelerator_as_printed=None)
    file.write_text(f"{line(PLAIN)}\n{line(lost)}\n", encoding="utf-8")
    measured.main([str(file), "--rows", str(out)])
    text = capsys.readouterr().out
    assert "accelerator not stated" in text
    assert "50.0% of trust A and B are priced" in text
    first, second = (json.loads(line) for line in out.read_text("utf-8").splitlines())
    assert first["id"] == PLAIN.id
    assert first["error"] == pytest.approx(first["predicted_step_s"] / PLAIN.step_time_s - 1)
    assert first["plan"]["cp"] == 2
    assert second["reason"] == "accelerator not stated"


def test_a_file_that_is_none_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        measured.main(["no-such-file.jsonl"])
    assert caught.value.code == 2
    assert "cannot be read" in capsys.readouterr().err
