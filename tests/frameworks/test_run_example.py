"""The example trains from an emitted folder, alone and launched; what does not fit is refused first."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meshwright
from meshwright.planner.emit.write import write_plan
from tests.frameworks import tiny
from tests.frameworks.runs import CHECKOUT, start

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

RUN = ["--scratch", "--steps", "8", "--lr", "3e-3"]


def losses(printed: str) -> list[float]:
    """Return the losses of the printed steps, which must be numbered in turn."""
    found = re.findall(r"^step (\d+) loss (\S+)$", printed, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [float(loss) for _, loss in found]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the option with a file of tokens that count upwards: easy to learn."""
    path: Path = tmp_path_factory.mktemp("tokens") / "tokens.npy"
    np.save(path, np.arange(4096, dtype=np.uint16) % tiny.SIZES["vocab_size"])
    return ["--tokens", str(path)]


def test_a_launcher_starts_the_written_script(tmp_path: Path, tokens: list[str]) -> None:
    problem, plan = tiny.planned("native", "cpu:2", dp=2, zero_stage=2, micro_batch_size=2)
    write_plan(problem, plan, tmp_path / "out")
    command = ["bash", str(tmp_path / "out" / "launch.sh"), "--model", str(tiny.folder(tiny.LLAMA))]
    found = losses(start([*command, *RUN, *tokens], MASTER_PORT="29731"))
    assert len(found) == 8 and found[-1] < found[0] - 0.1


def test_one_process_needs_no_launcher(tmp_path: Path, tokens: list[str]) -> None:
    _, plan = tiny.planned("native", "cpu:1", dp=1, micro_batch_size=4)
    (tmp_path / "plan.json").write_text(plan.to_json())
    tiny.LLAMA.build().save_pretrained(tmp_path / "model")
    options = ["--plan", str(tmp_path / "plan.json"), "--model", str(tmp_path / "model")]
    script = str(CHECKOUT / "examples" / "train.py")
    found = losses(start([sys.executable, script, *options, *tokens, "--steps", "2", "--lr", "1e-2"]))
    assert len(found) == 2 and found[1] < found[0]


def told(plan: meshwright.Plan, model: torch.nn.Module, **more: object) -> str:
    """Return what ``apply`` refuses, and assert that nothing was started or changed before."""
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    with pytest.raises(meshwright.MeshwrightError) as error:
        meshwright.apply(plan, model, torch.optim.SGD, device="cpu", **more)
    assert not torch.distributed.is_initialized()
    assert before == {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    return str(error.value)


def test_what_does_not_fit_is_refused_before_anything_starts() -> None:
    model = tiny.LLAMA.build()
    _, alone = tiny.planned("native", "cpu:1", dp=1)
    _, two = tiny.planned("native", "cpu:2", dp=2, zero_stage=3)
    assert "1 processes run, the plan is for tp 1 x pp 1 x dp 2 = 2" in told(two, model)
    assert "ep=2: only ep=1" in told(replace(two, ep=2), model)
    apart = replace(two, schedule="zb1p", recompute=("none", "full", *two.recompute[2:]))
    assert "zero_stage=3: only 0, 2; recompute=full: only none" in told(apart, model)
    assert "decoder layers" in told(alone, shorter())
    assert "parameters, the plan is for" in told(alone, tiny.Model(tied=True).build())
    assert "parameters are float64" in told(alone, tiny.LLAMA.build().double())
    assert "known are llama" in told(alone, torch.nn.Linear(2, 2))
    with torch.device("meta"):
        empty = tiny.LLAMA.build()
    assert "meta device; give initialise" in told(alone, empty)


def test_what_context_ranks_would_compute_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.frameworks import plain

    monkeypatch.setenv("WORLD_SIZE", "2")
    _, plan = tiny.planned("native", "cpu:2", dp=1, cp=2, kv_exchange="all_gather", zero_stage=3)
    model = tiny.LLAMA.build()
    assert "kv_exchange=ring: only all_gather" in told(replace(plan, kv_exchange="ring"), model)
    assert "not divisible by 2 x cp=4" in told(replace(plan, sequence_length=18), model)
    assert "loss_fn: context ranks" in told(plan, model, loss_fn=torch.nn.functional.mse_loss)
    narrow = tiny.Model("mistral").build()
    narrow.config.sliding_window = 4
    assert "looks at a window" in told(plan, narrow)
    facts = replace(plan, parameters=None, hidden_size=None)
    assert "whose family is known" in told(facts, plain.build(), architecture=plain.ARCHITECTURE)


def shorter() -> torch.nn.Module:
    """Return the model without its last layer."""
    model = tiny.LLAMA.build()
    del model.model.layers[-1]
    return model


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(meshwright.MeshwrightError, match="missing"):
        meshwright.apply(path, tiny.LLAMA.build(), torch.optim.SGD)
    path.write_text(text)
    with pytest.raises(meshwright.MeshwrightError, match="plan: "):
        meshwright.apply(path, tiny.LLAMA.build(), torch.optim.SGD)


@pytest.mark.parametrize(
    ("sizes", "seeds", "message"),
    [
        ((1, 2), [], "plan: rank 1 read another plan than rank 0"),
        ((1, 1), ["seeds"], "model: rank 1 has other weights than rank 0"),
    ],
)
def test_ranks_that_disagree_are_told(
    tmp_path: Path, sizes: tuple[int, int], seeds: list[str], message: str
) -> None:
    for rank, size in enumerate(sizes):
        _, plan = tiny.planned("native", "cpu:2", dp=2, zero_stage=3, micro_batch_size=size)
        (tmp_path / f"plan-{rank}.json").write_text(plan.to_json())
    quiet = "error:Converting a tensor:UserWarning"  # the checks themselves warn of nothing
    command = [sys.executable, "-m", "tests.frameworks.disagreeing", str(tmp_path), *seeds]
    printed = start(command, PYTHONWARNINGS=quiet)
    assert printed.count(message) == 2


def test_a_batch_that_cannot_be_trained_on_as_it_is_is_refused() -> None:
    code = (
        "import torch, meshwright\nfrom tests.frameworks import tiny\n"
        "_, plan = tiny.planned('native', 'cpu:1', dp=1)\n"
        "applied = meshwright.apply(plan, tiny.LLAMA.build(), torch.optim.SGD, device='cpu')\n"
        "good = {'input_ids': torch.zeros(8, 16, dtype=int)}\n"
        "short, real = torch.zeros(8, 15, dtype=int), torch.zeros(8, 16)\n"
        "masked = good | {'attention_mask': good['input_ids']}\n"
        "for batch in ({'input_ids': short}, {}, {'input_ids': real}, good | {'labels': real}, masked, 3):\n"
        "    try: applied.step(batch)\n"
        "    except meshwright.MeshwrightError as error: print(error)\n"
    )
    printed = start([sys.executable, "-c", code]).splitlines()
    assert printed[0].startswith("batch: input_ids has shape (8, 15), the plan needs (8, 16)")
    assert printed[1].startswith("batch: input_ids has shape (), the plan needs (8, 16)")
    assert printed[2].startswith("batch: input_ids holds torch.float32; whole numbers are expected")
    assert printed[3].startswith("batch: labels holds torch.float32; whole numbers are expected")
    assert printed[4] == "batch: 'attention_mask' is not read; allowed: input_ids, labels; leave it out"
    assert printed[5] == "batch: a mapping with input_ids is expected, not int"


def test_a_function_that_makes_no_optimizer_is_refused() -> None:
    code = (
        "import meshwright\nfrom tests.frameworks import tiny\n"
        "_, plan = tiny.planned('native', 'cpu:1', dp=1)\n"
        "try: meshwright.apply(plan, tiny.LLAMA.build(), lambda weights: None, device='cpu')\n"
        "except meshwright.MeshwrightError as error: print(error)\n"
    )
    said = "optimizer_fn: it returned NoneType; an optimizer with step and zero_grad is expected"
    assert said in start([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("plan", "said"), [("/dev/zero", "no regular file"), (5, "not int"), ({}, "not dict")]
)
def test_what_is_no_plan_file_is_refused(plan, said):
    with pytest.raises(meshwright.MeshwrightError, match=said):
        meshwright.apply(plan, None, None)
