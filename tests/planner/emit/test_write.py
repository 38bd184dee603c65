"""An output folder is written whole or not at all."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.emit.write import render, write_plan
from meshwright.planner.plan import Plan
from meshwright.planner.result import Estimate, Result
from tests.planner.emit.cases import case


def state(folder: Path) -> dict[str, bytes]:
    """Return every path below a folder with its content; links and folders by what they are."""
    return {
        str(p.relative_to(folder)): os.fsencode(p.readlink()) if p.is_symlink() else p.read_bytes()
        for p in folder.rglob("*")
        if p.is_symlink() or p.is_file()
    } | {f"{p.relative_to(folder)}/": b"" for p in folder.rglob("*") if p.is_dir() and not p.is_symlink()}


def estimate(plan: Plan) -> Estimate:
    return Estimate(
        plan=plan,
        step_time_s=2.5,
        breakdown={"compute": 2.5},
        hidden={},
        memory=({"weights": 40.0 * 2**30},),
        peak_bytes=(40.0 * 2**30,),
        capacity_bytes=80.0 * 2**30,
        usable_bytes=76.0 * 2**30,
        tokens_per_s=419430.4,
        mfu=0.41,
        hfu=0.5,
        model_flops=1e18,
        hardware_flops=1.2e18,
    )


def test_the_folder_holds_what_was_rendered_and_the_plan_reads_back(tmp_path: Path) -> None:
    problem, plan = case("deepspeed")
    out = tmp_path / "deep" / "out"
    paths = write_plan(problem, plan, out)
    assert paths == sorted(out.iterdir())
    assert {p.name: p.read_text() for p in paths} == render(problem, plan)
    assert Plan.from_json((out / "plan.json").read_text()) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]


def test_permissions_follow_the_umask_and_scripts_may_be_run(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_plan(*case(), tmp_path / "out")
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out").iterdir()}
    assert modes == {"README.md": 0o640, "plan.json": 0o640, "launch.sh": 0o750, "job.sbatch": 0o750}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".hidden").write_text("mine")
    before = state(tmp_path)
    with pytest.raises(MeshwrightError, match=r"not empty \('.hidden'\).*--force"):
        write_plan(*case(), tmp_path / "out")
    assert state(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
def test_an_empty_folder_is_filled_in_place(tmp_path: Path, force: bool) -> None:
    (tmp_path / "out").mkdir()
    inode = (tmp_path / "out").stat().st_ino
    paths = write_plan(*case(), tmp_path / "out", force=force)
    assert sorted((tmp_path / "out").iterdir()) == paths
    assert (tmp_path / "out").stat().st_ino == inode


def test_force_replaces_our_files_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_plan(*case("any"), out)
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "weights").write_text("precious")
    (tmp_path / "elsewhere").write_text("not ours")
    (out / "plan.json").unlink()
    (out / "plan.json").symlink_to(tmp_path / "elsewhere")
    problem, plan = case("any", tp=4, pp=2)
    write_plan(problem, plan, out, force=True)
    assert {n: (out / n).read_text() for n in render(problem, plan)} == render(problem, plan)
    assert (out / "checkpoint" / "weights").read_text() == "precious"
    assert (tmp_path / "elsewhere").read_text() == "not ours"
    assert not list(out.glob(".meshwright-*"))


@pytest.mark.parametrize("fail_at", range(1, 9))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_swap_that_fails_midway_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int, error: BaseException
) -> None:
    out = tmp_path / "out"
    write_plan(*case("any"), out)
    (out / "launch.sh").unlink()
    (out / "notes.txt").write_text("mine")
    before, calls, rename = state(tmp_path), [], Path.rename

    def failing(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == fail_at:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    new = case("any", tp=4, pp=2)
    if fail_at > 7:  # three files replaced by two renames each, one new
        write_plan(*new, out, force=True)
        assert state(tmp_path) != before
        return
    with pytest.raises((MeshwrightError, KeyboardInterrupt)):
        write_plan(*new, out, force=True)
    assert state(tmp_path) == before


@pytest.mark.parametrize("fail_at", range(4))
def test_a_new_folder_that_fails_midway_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    calls, fsync = [], os.fsync

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > fail_at:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(MeshwrightError, match=r"out: .*No space left on device"):
        write_plan(*case(), tmp_path / "a" / "b" / "out")
    assert state(tmp_path) == {}


def test_a_folder_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = tmp_path / "out", Path.rename

    def late(self: Path, target: Path) -> Path:
        out.mkdir()
        (out / "theirs").write_text("first")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(MeshwrightError, match="cannot be written"):
        write_plan(*case(), out)
    assert state(tmp_path) == {"out/": b"", "out/theirs": b"first"}


def test_places_that_are_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in ("file", "file/below", "file/far/below", "loop", "a\0b", "n" * 300):
        with pytest.raises(MeshwrightError, match="out: "):
            write_plan(*case(), tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_folder_where_a_file_must_go(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(MeshwrightError, match=r"plan.json' is a folder"):
        write_plan(*case(), tmp_path, force=True)


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    paths = write_plan(*case(), tmp_path / "link")
    assert {p.parent for p in paths} == {tmp_path / "link"}
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "plan.json").is_file()


def test_an_inexpressible_plan_writes_nothing(tmp_path: Path) -> None:
    problem, plan = case("any", tp=4, pp=2)
    with pytest.raises(MeshwrightError, match=r"tp=4.*pp=2"):
        write_plan(problem, replace(plan, target="fsdp"), tmp_path / "out")
    assert state(tmp_path) == {}


def test_a_stray_byte_in_the_script_s_name_comes_out_as_it_went_in(tmp_path: Path) -> None:
    write_plan(*case(), tmp_path / "out", script=os.fsdecode(b"tr\xffain.py"))
    assert b"tr\xffain.py" in (tmp_path / "out" / "launch.sh").read_bytes()


def test_the_readme_says_what_to_expect() -> None:
    problem, plan = case("any", tp=4, pp=2)
    assert "not priced" in render(problem, plan)["README.md"]
    priced = render(problem, estimate(plan))["README.md"]
    assert (
        "2.5 s, 419,430 tokens/s" in priced
        and "40 GiB" in priced
        and "80 GiB" in priced
        and "does not fit" not in priced
    )
    full = replace(estimate(plan), peak_bytes=(90.0 * 2**30,))
    assert "does not fit" in render(problem, full)["README.md"]


def test_the_readme_of_a_result_carries_the_proof() -> None:
    problem, plan = case("any", "dgx-h100:1", zero_stage=3)
    result = Result("OPTIMAL", 2.5, 2.499, plan, 1.0, estimate(plan))
    text = render(problem, result)["README.md"]
    assert "status OPTIMAL" in text and "2.499 s" in text
    assert "could say this plan: deepspeed, fsdp" in text


def test_a_result_without_a_plan_writes_nothing(tmp_path: Path) -> None:
    problem, _ = case()
    with pytest.raises(MeshwrightError, match="found none"):
        write_plan(problem, Result("INFEASIBLE", None, 0.0, None, 1.0), tmp_path / "out")
    assert state(tmp_path) == {}
