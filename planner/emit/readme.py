"""The README of an output folder: what each file is, how to start, what is verified, what to expect."""

from collections.abc import Collection, Container, Sequence

from meshwright.hardware.units import bytes_to_gib
from meshwright.planner.emit.base import Emitter
from meshwright.planner.emit.launchers import Launcher, named, start_lines
from meshwright.planner.emit.registry import EMITTERS, able_targets
from meshwright.planner.emit.text import code
from meshwright.planner.plan import Plan
from meshwright.planner.problem import Problem
from meshwright.planner.result import Estimate, Result
from meshwright.planner.targets import find_target


def readme(
    problem: Problem,
    plan: Plan,
    files: Collection[str],
    answer: Plan | Estimate | Result,
    launchers: Sequence[Launcher],
) -> str:
    """Return the README of a folder with ``files`` (by name) for the plan in ``answer``."""
    emitter, scripts = EMITTERS[plan.target], named(launchers)
    about = {
        **emitter.about,
        **{scripts[tool.name]: tool.about for tool in launchers},
        "plan.json": "every decision of the plan; read it back with `meshwright`",
    }
    sections = {
        f"{code(plan.model)} on {code(plan.cluster)}": _decisions(plan),
        "Expected": _expected(answer),
        "Files": [f"{code(name)}: {about[name]}" for name in sorted(files)],
        "Start": [*start_lines(problem, plan, launchers), *_asked(emitter, files)],
        "What the training script must do": emitter.script(problem, plan),
        "Verified": [
            f"Level {code(emitter.level)}: {emitter.checked}.",
            *(f"{code(scripts[e.name])}, level {code(e.level)}: {e.checked}." for e in launchers),
            *_able(problem, plan),
        ],
    }
    parts = [f"## {title}\n\n{_items(lines)}" for title, lines in sections.items()]
    return "\n".join(parts).removeprefix("#")


def _asked(emitter: Emitter, files: Container[str]) -> list[str]:
    """Return what the emitted script must be told when it is started; a user's own asks what it likes."""
    return [f"Arguments are handed on: {emitter.asks}."] if emitter.asks and "train.py" in files else []


def _items(lines: list[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _decisions(plan: Plan) -> list[str]:
    modes = {mode: plan.recompute.count(mode) for mode in dict.fromkeys(plan.recompute)}
    return [
        f"target: {find_target(plan.target).title}",
        f"devices: {plan.num_devices} = {_degrees(plan)}; vpp {plan.vpp}, "
        f"schedule {plan.schedule}, ZeRO stage {plan.zero_stage}, "
        f"sequence parallelism {'on' if plan.sequence_parallel else 'off'}",
        *_in_use(plan),
        f"global batch: {plan.global_batch_size} sequences of {plan.sequence_length} tokens = dp {plan.dp} "
        f"x micro-batch {plan.micro_batch_size} x {plan.num_microbatches} passes",
        f"precision {plan.precision}, optimizer {plan.optimizer}, loss {plan.loss}, profile {plan.profile}",
        "recompute: "
        + ", ".join(f"{mode} on {count} layers" for mode, count in modes.items())
        + " (embedding and head included)",
    ]


def _degrees(plan: Plan) -> str:
    names = ("tp", "cp", "pp", "dp") if plan.cp > 1 else ("tp", "pp", "dp")
    return " x ".join(f"{name} {getattr(plan, name)}" for name in names)


def _in_use(plan: Plan) -> list[str]:
    """Return the decisions that few plans use, where this one does."""
    degrees = ("ep", "etp", "dp_replicate", "hpz", "ulysses")
    found = [f"{name} {getattr(plan, name)}" for name in degrees if getattr(plan, name) > 1]
    found += [f"key/value exchange {plan.kv_exchange}"] if plan.cp > plan.ulysses else []
    what, _, drives = plan.offload.partition("-")
    place = "the host's drives" if drives else "the host"
    found += [f"{what} offloaded to {place}"] if plan.offload != "none" else []
    lines = [f"also: {', '.join(found)}"] if found else []
    return lines if plan.tuning == "full" else [*lines, f"trained: {plan.tuning}"]


def _expected(answer: Plan | Estimate | Result) -> list[str]:
    best = answer.estimate if isinstance(answer, Result) else answer
    if not isinstance(best, Estimate):
        return ["not priced; `meshwright estimate` does it"]
    lines = [
        f"step time {best.step_time_s:.4g} s, {best.tokens_per_s:,.0f} tokens/s, MFU {best.mfu:.1%} "
        "(causal attention halved)",
        f"memory {bytes_to_gib(max(best.peak_bytes)):.4g} GiB on the fullest device of "
        f"{bytes_to_gib(best.capacity_bytes):.4g} GiB{'' if best.fits else ': does not fit'}",
    ]
    if isinstance(answer, Result):
        proof = f"; no plan of the search space is faster than {answer.lower_bound_s:.4g} s"
        lines.append(f"status {answer.status}{proof}")
    return lines


def _able(problem: Problem, plan: Plan) -> list[str]:
    if plan.target != "any":
        return []
    names = able_targets(problem, plan)
    found = f"Frameworks whose files could say this plan: {', '.join(names) if names else 'none of ours'}."
    return [
        f"{found} `solve --target NAME` finds the fastest plan that one can run; see `meshwright targets`."
    ]
