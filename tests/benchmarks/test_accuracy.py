"""The accuracy of predictions is told of the right rows, and none is lost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accuracy, accuracy_left_out, accuracy_memory
from benchmarks.accuracy_groups import best_tau, kind_of, mean_over_families, packed, ranking, sweeps
from benchmarks.accuracy_left_out import alone, left_out_figures, price_left_out, voters
from benchmarks.accuracy_memory import fit_confusion, memory_error, memory_errors
from benchmarks.accuracy_report import figures, text
from benchmarks.accuracy_stats import Confusion
from benchmarks.accuracy_targets import TARGETS
from benchmarks.fit_observable import PEAK
from benchmarks.measured_prices import Priced, price_rows
from benchmarks.rows import Row, counter_of, read_rows
from meshwright.costmodels.calibration import overlaid, rate_factor
from meshwright.costmodels.profiles import sourced_profiles
from meshwright.hardware.catalogue import load_accelerator
from meshwright.hardware.units import gib_to_bytes
from meshwright.planner.headroom import Headroom

ROWS = {row.id: row for row in read_rows()}
PLAIN = ROWS["dgxc_v24111_llama31_405b_bf16_32"]


def run(family: str, measured: float, predicted: float | None, **changes: Any) -> Priced:
    name = f"{family} {measured} {predicted} {sorted(changes.items())}"
    row = replace(PLAIN, id=name, family=family, step_time_s=measured, **changes)
    return Priced(row, step_time_s=predicted, reason=None if predicted else "no words for it")


def line(row: Row) -> str:
    return json.dumps({k: dict(v) if isinstance(v, Mapping) else v for k, v in asdict(row).items()})


def test_equal_rows_have_one_hash_though_they_hold_mappings() -> None:
    row = replace(PLAIN, moe={"experts": 8}, extra={"kernel": "flash"})
    assert len({row, replace(row, extra={"kernel": "flash"}), PLAIN}) == 2


def test_kinds_are_what_is_trained() -> None:
    assert kind_of(PLAIN) == "dense"
    assert kind_of(replace(PLAIN, moe={"experts": 8})) == "moe"
    assert kind_of(replace(PLAIN, moe={"experts": 8}, tuning="qlora")) == "tuned"
    assert kind_of(replace(PLAIN, model_name="LLAMA2-70B LoRA")) == "tuned"
    assert kind_of(replace(PLAIN, tuning="full")) == "dense"


def test_full_sequences_are_those_that_no_source_calls_variable() -> None:
    assert packed(PLAIN)
    assert not packed(replace(PLAIN, notes="Alpaca-2k (variable length, max 512)"))


@pytest.mark.parametrize(
    ("metric", "counter"),
    [
        ("peak reserved GiB", "reserved"),
        ("max_memory_allocated (MB printed)", "allocated"),
        ("peak active GB (reserved 19.52)", "active"),
        ("reserved GB while wrapping (allocated 33.5)", "reserved"),
        ("nvidia-smi, GB label", "nvidia-smi"),
        ("G as printed", "not stated"),
    ],
)
def test_the_first_counter_named_is_the_one(metric: str, counter: str) -> None:
    assert counter_of(replace(PLAIN, memory_metric=metric)) == counter


def test_a_counter_may_stand_in_the_notes() -> None:
    row = replace(PLAIN, memory_metric=None, notes="Peak = max over ranks of max_memory_allocated.")
    assert counter_of(row) == "allocated"


def test_a_large_family_has_one_vote_and_a_small_one_none() -> None:
    large = [run("large", 1.0 + i / 1000, 1.1 * (1.0 + i / 1000)) for i in range(95)]
    five = [run("five", 1.0 + i, 1.3 * (1.0 + i)) for i in range(5)]
    four = [run("four", 1.0 + i, 9.0) for i in range(4)]
    headline, votes = mean_over_families([*large, *five, *four])
    assert votes == 2
    assert headline == pytest.approx(0.2)


def test_untrusted_and_unpriced_rows_have_no_errors_but_are_counted() -> None:
    runs = [run("a", 1.0, 1.5), run("a", 1.0, 9.0, trust="C"), run("a", 2.0, None)]
    got = figures(runs)["by"]["family"]["a"]
    assert (got["rows"], got["priced"], got["count"]) == (3, 2, 1)
    assert got["mape"] == pytest.approx(0.5)


def test_sweeps_hold_layouts_of_one_model_alone() -> None:
    one = [run("a", 1.0 + i, 9.0 - i) for i in range(5)]
    other = [run("a", 1.0 + i, 1.0 + i, global_batch=7) for i in range(5)]
    few = [run("a", 1.0 + i, 1.0 + i, seq_len=7) for i in range(4)]
    found = sweeps([*one, *other, *few])
    assert [len(s) for s in found] == [5, 5]
    assert [ranking(s) for s in found] == [(-1.0, 4.0), (1.0, 0.0)]


def test_a_layout_timed_again_is_no_new_layout() -> None:
    (priced,) = price_rows([PLAIN])
    assert priced.expressed is not None
    plan = priced.expressed.plan

    def timed(number: int, measured: float, size: int) -> Priced:
        row = replace(PLAIN, id=f"{number}", step_time_s=measured)
        own = replace(priced.expressed, plan=replace(plan, micro_batch_size=size))
        return replace(priced, row=row, expressed=own, step_time_s=float(size))

    once = [timed(size, 2.0 * size, size) for size in range(1, 6)]
    again = [timed(10, 1.0, 1), timed(11, 9.0, 1)]
    assert sweeps([*again, *once[:4]]) == []
    (sweep,) = sweeps([*again, *once])
    assert [len(each.runs) for each in sweep] == [3, 1, 1, 1, 1]
    assert sweep[0].measured_s == 4.0
    assert ranking(sweep) == (pytest.approx(0.9 / 0.9**0.5), 0.0)
    (single,) = sweeps([*again, *once], apart=True)
    assert len(single) == 7
    assert ranking(single)[1] == pytest.approx(4.0 / 1.0 - 1.0)
    assert best_tau(sweep) == 1.0
    # four runs are predicted to take 4 s; of the other 15 pairs of 21 those of 9 s with 6 and 8 s are wrong
    assert best_tau(single) == pytest.approx((13 - 2) / (21 * 15) ** 0.5)


def test_runs_out_of_memory_count_whatever_their_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    (priced,) = price_rows([PLAIN])
    items = dict.fromkeys(priced.memory or {}, 0.0)

    def holding(gib: float, **changes: Any) -> Priced:
        memory = items | {"weights": gib_to_bytes(gib)}
        return replace(priced, row=replace(PLAIN, **changes), memory=memory)

    runs = [
        holding(79.0),
        holding(70.0),
        holding(81.0),
        holding(81.0, trust="C"),
        holding(79.0, outcome="oom", trust=None),
        holding(99.0, outcome="oom", trust="C"),
    ]
    monkeypatch.setattr(accuracy_memory, "measured_headroom", lambda risk, *_: Headroom(risk, "made up"))
    at_all, with_room = fit_confusion(runs), fit_confusion(runs, 0.04)
    assert at_all == Confusion(fit_called_fit=2, fit_called_oom=1, oom_called_fit=1, oom_called_oom=1)
    assert with_room == Confusion(fit_called_fit=1, fit_called_oom=2, oom_called_fit=0, oom_called_oom=2)


def test_a_peak_is_compared_with_what_its_counter_sees() -> None:
    (priced,) = price_rows([PLAIN])
    row = replace(PLAIN, peak_memory_gib=60.0, memory_metric="peak reserved GiB")
    memory = {"weights": gib_to_bytes(66.0), "context": gib_to_bytes(1.0)}
    runs = [replace(priced, row=row, memory=memory, counted=memory, cached_bytes=0.0)]
    assert memory_errors(runs, "full") == pytest.approx([0.1])
    assert memory_errors(runs, "full", ("nvidia-smi",)) == []
    assert memory_errors(runs, "tuned") == []
    seen = [replace(runs[0], row=replace(row, memory_metric="nvidia-smi"))]
    assert memory_errors(seen, "full") == pytest.approx([7 / 60])


def test_a_peak_without_a_step_tells_nothing() -> None:
    """Neither compared nor fitted to: of a run out of memory, of a model that was only wrapped."""
    row = replace(PLAIN, peak_memory_gib=60.0, memory_metric="peak reserved GiB")
    assert PEAK.measured(row) == gib_to_bytes(60.0)
    for other in ({"outcome": "oom"}, {"notes": "wrapping only, not a training step"}):
        (priced,) = price_rows([replace(row, **other)])
        assert memory_error(priced) is None
        assert PEAK.measured(priced.row) is None


def test_every_target_finds_its_rows() -> None:
    """Rows priced at what was measured meet all targets of time: none looks for rows that do not exist."""
    exact = [
        Priced(r, step_time_s=r.step_time_s, reason=None if r.step_time_s else "not timed")
        for r in ROWS.values()
    ]
    for target in TARGETS:
        if "memory" in target.what or "rows of trust" in target.what or "out of memory" in target.what:
            continue
        reached = target.figure(exact)
        assert reached == pytest.approx(1.0 if target.at_least else 0.0), target.what
        assert target.met(reached)


def test_the_command_prices_a_file_and_loses_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, data = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", tmp_path / "all.json"
    lost = replace(PLAIN, id="lost", accelerator=None, accelerator_as_printed=None)
    file.write_text(f"{line(PLAIN)}\n{line(lost)}\n", encoding="utf-8")
    options = ["--rows", str(out), "--json", str(data), "--worst", "3", "--by", "accelerator"]
    accuracy.main([str(file), *options])
    shown = capsys.readouterr().out
    assert "lost" in shown.split("not priced: 1")[1].splitlines()[2]
    assert PLAIN.id in shown
    first, second = (json.loads(row) for row in out.read_text("utf-8").splitlines())
    assert list(first) == [
        "id",
        "predicted_step_time_s",
        "predicted_peak_memory_bytes",
        "fits",
        "profile",
        "reason",
    ]
    assert (first["id"], first["reason"], second["reason"]) == (PLAIN.id, None, "accelerator not stated")
    assert isinstance(first["fits"], bool)
    told = json.loads(data.read_text("utf-8"))
    error = first["predicted_step_time_s"] / PLAIN.step_time_s - 1
    assert told["worst"][0]["error"] == pytest.approx(error)
    assert told["by"]["accelerator"]["h100-sxm-80gb"]["bias"] == pytest.approx(error)
    assert told["unpriced"] == [{"id": "lost", "reason": "accelerator not stated"}]


def test_targets_are_those_of_the_built_in_rows_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{line(PLAIN)}\n", encoding="utf-8")
    for options, told in (([], False), (["--targets"], True)):
        accuracy.main([str(file), *options])
        assert ("targets (" in capsys.readouterr().out) is told


@pytest.mark.parametrize("count", ["-3", "1.5", "many"])
def test_a_number_of_rows_that_is_none_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        accuracy.main(["--worst", count])
    assert caught.value.code == 2
    assert "--worst" in capsys.readouterr().err


def test_a_file_that_is_none_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        accuracy.main(["no-such-file.jsonl"])
    assert caught.value.code == 2
    assert "cannot be read" in capsys.readouterr().err


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        accuracy.main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_no_file_that_is_read_or_written_is_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.json"
    file.write_text(f"{line(PLAIN)}\n", encoding="utf-8")
    same = tmp_path / "link"
    same.symlink_to(file)
    for option in ("--rows", "--json"):
        for place in (file, same):
            assert f"{option}: {str(place)!r} is one" in refused([str(file), option, str(place)], capsys)
    assert "what --json names" in refused([str(file), "--rows", str(out), "--json", str(out)], capsys)
    assert file.read_text("utf-8") == f"{line(PLAIN)}\n"
    assert not out.exists()
    accuracy.main([str(file), "--rows", "/dev/stdout", "--json", "/dev/stdout"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("option", ["--rows", "--json"])
def test_a_full_disk_ends_with_a_message(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{line(PLAIN)}\n", encoding="utf-8")
    assert "output: '/dev/full' cannot be written" in refused([str(file), option, "/dev/full"], capsys)


def test_a_family_that_no_row_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "family: 'dgxcc' is not known; did you mean" in refused(["--family", "dgxcc"], capsys)


@pytest.mark.parametrize("held", [b"\x80\xff", b"one\ntwo\n", b'{"id": "a"}\n', b"[1]\n"])
def test_a_file_of_other_lines_is_no_cache(
    held: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(held)
    told = refused(["--leave-one-out", "family", "--cache", str(file)], capsys)
    assert "holds other lines" in told
    assert file.read_bytes() == held


def test_figures_without_any_row_are_told_as_missing() -> None:
    shown = text(figures([], by=("family", "profile")))
    assert "no rows" in shown
    assert "nan" not in shown


def family_rows(name: str, accelerator: str, count: int = 5) -> list[Row]:
    return [
        replace(PLAIN, id=f"{name} {accelerator} {i}", family=name, accelerator=accelerator)
        for i in range(count)
    ]


def test_families_without_a_vote_are_not_left_out() -> None:
    rows = [*family_rows("a", "h100-sxm-80gb"), *family_rows("b", "h100-sxm-80gb", 4)]
    assert voters(rows) == ("a",)


def test_accelerators_of_one_family_are_extrapolation_outside_the_mean() -> None:
    rows = [
        *family_rows("a", "h100-sxm-80gb"),
        *family_rows("b", "h100-sxm-80gb"),
        *family_rows("b", "b200-sxm"),
    ]
    assert alone(rows) == {"b200-sxm": "b"}
    off = {"b200-sxm": 1.5, "h100-sxm-80gb": 1.1}
    runs = [Priced(r, step_time_s=off[str(r.accelerator)] * float(r.step_time_s or 1)) for r in rows]
    found = left_out_figures(runs)
    assert found["kinds"]["dense"]["mean_over_families"] == pytest.approx(0.1)
    assert found["kinds"]["dense"]["votes"] == 2
    assert found["extrapolated"]["dense"]["b"]["mape"] == pytest.approx(0.5)
    assert found["targets"][0]["met"] is False


def test_a_stopped_run_resumes_and_a_changed_one_starts_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def leave_one_out(rows: Sequence[Row], families: Sequence[str]) -> dict[str, list[Priced]]:
        calls.extend(families)
        return {
            f: [Priced(r, step_time_s=1.0, memory={"weights": 2.0}) for r in rows if r.family == f]
            for f in families
        }

    monkeypatch.setattr(accuracy_left_out, "leave_one_out", leave_one_out)
    rows, cache = [*family_rows("a", "h100-sxm-80gb"), *family_rows("b", "b200-sxm")], tmp_path / "done.jsonl"
    whole = price_left_out(rows, cache)
    kept = cache.read_text("utf-8").splitlines()
    cache.write_text(f"{kept[0]}\n{kept[1][:50]}", encoding="utf-8")  # stopped while writing the second
    assert price_left_out(rows, cache) == whole
    assert calls == ["a", "b", "b"]
    assert price_left_out(rows, cache) == whole
    assert calls == ["a", "b", "b"], "the second family stands on a line of its own"
    assert price_left_out(rows[:9], cache) != whole
    assert calls == ["a", "b", "b", "a"]


def test_without_the_fit_constants_are_the_sourced_ones() -> None:
    sourced, device = sourced_profiles(), load_accelerator("a100-80gb-sxm")
    with accuracy.constants(accuracy.options_of(["--without-fit"])):
        assert overlaid(sourced) == sourced
        assert rate_factor(device, "gemm") == 1.0
    with accuracy.constants(accuracy.options_of([])):
        assert overlaid(sourced) != sourced
