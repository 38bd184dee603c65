"""Software profiles: inheritance, completeness, plausibility, and files that are wrong."""

from dataclasses import fields, replace
from math import inf
from pathlib import Path

import pytest

from meshwright.costmodels import profiles
from meshwright.costmodels.loss import LOSSES
from meshwright.costmodels.profile import Profile
from meshwright.costmodels.profiles import (
    find_profile,
    own_profile,
    profile_with,
    sourced_profile,
    sourced_profiles,
)
from meshwright.hardware.errors import MeshwrightError, UnknownNameError
from meshwright.planner.estimate import estimate


@pytest.fixture
def table(monkeypatch):
    """Let a test write the profiles' table; what was found before is forgotten, and again afterwards."""

    def write(content):
        monkeypatch.setattr(profiles, "_table", lambda: content)
        find_profile.cache_clear()

    yield write
    find_profile.cache_clear()


def complete(**changes):
    generic = find_profile("generic")
    return {f.name: getattr(generic, f.name) for f in fields(Profile) if f.name != "name"} | changes


@pytest.mark.parametrize("name", sourced_profiles())
def test_every_profile_is_complete_and_plausible(name):
    profile = sourced_profile(name)
    assert find_profile(name).name == name
    assert profile.title
    assert profile.sources, "a profile says where its numbers come from"
    assert profile.loss in LOSSES
    shares = (
        "gemm_fraction",
        "weight_gradient_fraction",
        "low_gemm_fraction",
        "permute_fraction",
        "data_rate",
        "layer_rate",
        "host_share",
        "expert_host_share",
        "host_sync",
        "overlap_gradients",
        "overlap_parameters",
        "overlap_cost",
        "overlap_tensor",
        "overlap_experts",
        "optimizer_fraction",
    )
    assert all(0 <= getattr(profile, share) <= 1 for share in shares)
    assert profile.expert_dispatch in ("alltoall", "deduplicated")
    assert profile.gradient_bytes in (2, 4)


def test_a_child_takes_what_it_does_not_override():
    parent, child = find_profile("generic"), find_profile("deepspeed")
    assert (parent.gradient_bytes, child.gradient_bytes) == (4, 2)
    assert child.optimizer_fraction == parent.optimizer_fraction


def test_stacks_differ_in_how_tokens_reach_experts():
    names = ("megatron-core", "megatron-core-deepep", "dualpipe")
    found = [find_profile(name) for name in names]
    assert [p.expert_dispatch for p in found] == ["alltoall", "deduplicated", "deduplicated"]
    assert [p.overlap_experts for p in found] == [0.0, 0.0, 0.85]


def test_stacks_for_fine_tuning_shard_as_fsdp_and_differ_in_their_loss():
    names = ("peft", "torchtune", "unsloth")
    assert [find_profile(name).loss for name in names] == ["eager", "chunked", "fused"]
    assert not any(find_profile(name).working_copy for name in names)


def test_inheritance_is_transitive(table):
    content = {
        "root": complete(overlap_cost=0.1, step_fixed_s=1.0, title="root"),
        "child": {"inherits": "root", "step_fixed_s": 2.0, "title": "child"},
        "grandchild": {"inherits": "child", "title": "grandchild"},
    }
    table(content)
    got = find_profile("grandchild")
    assert (got.title, got.step_fixed_s, got.overlap_cost) == ("grandchild", 2.0, 0.1)


def test_switches_behind_a_name_override_the_profile():
    name = profile_with("megatron-core", {"norm": "eager", "layer_rate": 0.5, "recompute_exit": False})
    assert name == "megatron-core[layer_rate=0.5,norm=eager,recompute_exit=false]"
    got, plain = find_profile(name), find_profile("megatron-core")
    assert got == replace(plain, name=name, norm="eager", layer_rate=0.5, recompute_exit=False)
    assert find_profile(profile_with(name, {"norm": "fused"})).norm == "fused"
    assert profile_with("megatron-core", {}) == "megatron-core"


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ("norms=eager", "'norms' is not a switch"),
        ("norm=slow", "norm.*'slow'.*eager"),
        ("attention=flash-9", "attention kernel.*flash-9.*flash-2"),
        ("jitter=much", "jitter is 'much'; allowed: a number"),
        ("recompute_exit=1", "recompute_exit is '1'; allowed: true, false"),
    ],
)
def test_wrong_switches_are_refused_with_what_there_is(switch, message):
    with pytest.raises(MeshwrightError, match=message):
        find_profile(f"megatron-core[{switch}]")


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"profile.*'megatron'.*megatron-core"):
        find_profile("megatron")


def test_a_missing_field_is_named(table):
    content = complete()
    del content["overlap_cost"]
    table({"broken": content})
    with pytest.raises(MeshwrightError, match=r"profile broken: fields differ: \['overlap_cost'\]"):
        find_profile("broken")


def test_an_unknown_field_is_named(table):
    table({"broken": complete(overlap_costs=0.1)})
    with pytest.raises(MeshwrightError, match=r"profile broken: fields differ: \['overlap_costs'\]"):
        find_profile("broken")


def own_file(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_of_ones_own_overrides_what_it_inherits(tmp_path):
    path = own_file(tmp_path, '[mine]\ninherits = "fsdp2"\ndata_rate = 0.5\nnorm = "eager"\n')
    found, parent = find_profile(path), find_profile("fsdp2")
    assert (found.name, found.data_rate, found.norm) == (path, 0.5, "eager")
    assert replace(found, name="fsdp2", data_rate=parent.data_rate, norm=parent.norm) == parent
    assert find_profile(f"{path}[attention=flash-1]").attention == "flash-1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[mine]\ninherits = "fsdp9"\n', "fsdp9"),
        ("[mine]\ndata_rat = 0.5\n", "data_rat"),
        ('[mine]\ndata_rate = "fast"\n', "data_rate"),
        ("[mine]\ndata_rate = nan\n", "data_rate"),
        ("[mine]\ndata_rate = true\n", "data_rate"),
        ("[mine]\nworking_copy = 1\n", "working_copy"),
        ('[mine]\nattention = "none"\n', "attention"),
        ("[mine]\ntitle = 3\n", "title"),
        ("[mine]\n[other]\n", "one table"),
        ("data_rate = 0.5\n", "one table"),
        ("[mine\n", "TOML"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_its_field(tmp_path, text, told):
    with pytest.raises(MeshwrightError, match=told):
        find_profile(own_file(tmp_path, text))


def test_a_file_that_is_missing_is_told_by_its_path(tmp_path):
    with pytest.raises(MeshwrightError, match=r"none\.toml"):
        find_profile(str(tmp_path / "none.toml"))


NUMBERS = [f.name for f in fields(Profile) if isinstance(getattr(find_profile("generic"), f.name), float)]
RUNS = (
    ("mixtral-8x7b", {"tp": 2, "pp": 2, "ep": 2}),
    ("llama-3.2-1b", {"zero_stage": 3, "recompute": "full"}),
)


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_that_no_run_can_have_is_refused_in_a_switch_and_in_a_file(tmp_path, field):
    for number in ("nan", "inf", "-1"):
        with pytest.raises(MeshwrightError, match=f"{field} is .*{number}.*allowed: a number from"):
            find_profile(f"generic[{field}={number}]")
        with pytest.raises(MeshwrightError, match=f"{field} is {number}.*; allowed: a number from"):
            own_profile(Path(own_file(tmp_path, f"[mine]\n{field} = {number}\n")))


@pytest.mark.parametrize("field", NUMBERS)
def test_a_field_that_may_be_nothing_leaves_a_step_its_time(field):
    name = f"megatron-core[{field}=0]"
    try:
        find_profile(name)
    except MeshwrightError as error:
        assert field.endswith(("_rate", "_fraction")), error
        return
    for model, strategy in RUNS:
        job = {"global_batch_size": 64, "sequence_length": 1024, "profile": name}
        assert 0 < estimate(model, "dgx-h100:2", job, strategy).step_time_s < inf
