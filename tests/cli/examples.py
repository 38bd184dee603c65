"""Hand-made answers, small enough to check by eye: every page and every key is tested on them."""

from dataclasses import replace

from meshwright.hardware.catalogue import load_cluster
from meshwright.hardware.spec import Cluster
from meshwright.hardware.units import gib_to_bytes
from meshwright.planner.plan import Chunk, Plan
from meshwright.planner.result import Alternative, Estimate, Infeasibility, Result, SearchRecord

BREAKDOWN = {"forward": 3.0, "backward": 6.0, "bubble": 0.9, "pipeline_transfer": 0.0, "optimizer": 0.1}


def cluster() -> Cluster:
    """Two nodes of eight."""
    return load_cluster("dgx-h100:2")


def plan(pp: int = 2, *, blocks: int = 16, vpp: int = 1, model: str = "toy") -> Plan:
    """A plan over 16 devices whose chunks have equal numbers of blocks; block 1 of each recomputes fully."""
    chunks, layers = pp * vpp, blocks + 2
    size = blocks // chunks
    cuts = [0, *(1 + size * c for c in range(1, chunks)), layers]
    recompute = ["none"] * layers
    for c in range(chunks):
        recompute[1 + size * c] = "full"
    return Plan(
        model=model,
        cluster="dgx-h100:2",
        sequence_length=4096,
        global_batch_size=64,
        precision="bf16",
        optimizer="adamw",
        loss="full",
        target="any",
        profile="generic",
        tp=2,
        pp=pp,
        dp=8 // pp,
        vpp=vpp,
        placement=("tp", "dp", "pp"),
        schedule="interleaved" if vpp > 1 else "1f1b",
        zero_stage=1,
        micro_batch_size=2,
        num_microbatches=64 // (2 * (8 // pp)),
        sequence_parallel=True,
        chunks=tuple(Chunk(c % pp, cuts[c], cuts[c + 1]) for c in range(chunks)),
        recompute=tuple(recompute),
    )


def estimate(
    pp: int = 2, *, activations_gib: tuple[float, ...] | None = None, model: str = "toy"
) -> Estimate:
    """An estimate of 10 s a step in which rank r keeps ``activations_gib[r]`` beside 40 GiB of weights."""
    kept = activations_gib or tuple(20.0 - r for r in range(pp))
    memory = tuple(
        {"weights": gib_to_bytes(40), "activations": gib_to_bytes(a), "buckets": 0.0} for a in kept
    )
    return Estimate(
        plan=plan(pp, model=model),
        step_time_s=10.0,
        breakdown=BREAKDOWN,
        hidden={"gradient_reduction": 0.25, "tensor_parallel": 0.0},
        memory=memory,
        peak_bytes=tuple(sum(m.values()) for m in memory),
        capacity_bytes=gib_to_bytes(80),
        usable_bytes=gib_to_bytes(76),
        tokens_per_s=26214.4,
        mfu=0.41,
        hfu=0.5,
        model_flops=1e17,
        hardware_flops=1.2e17,
        usd_per_hour=55.0,
        usd_per_step=0.1528,
        notes=("the price is of a made-up machine",),
    )


def result() -> Result:
    """A proven result with one alternative."""
    best = estimate()
    other = replace(best, step_time_s=11.0, plan=plan(4))
    return Result(
        status="OPTIMAL",
        objective_s=10.0,
        lower_bound_s=9.999,
        plan=best.plan,
        runtime_s=1.5,
        estimate=best,
        alternatives=(Alternative(other, 0.1, "a longer bubble", proven=True),),
        binding=("memory of stage 0: 16.00 GiB are left",),
        record=SearchRecord(
            1234,
            {"cannot fit": 1000, "cannot win": 200},
            34,
            1,
            1e-6,
            True,
            ("the schedule gpipe", "etp of 3"),
        ),
        notes=("found fast",),
    )


def infeasible() -> Result:
    """Nothing fits, by 5 GiB."""
    return Result(
        status="INFEASIBLE",
        objective_s=None,
        lower_bound_s=float("inf"),
        plan=None,
        runtime_s=0.5,
        infeasibility=Infeasibility(
            rule="memory",
            message="needs 81.00 GiB on stage 0, usable are 76.00",
            missing_bytes=gib_to_bytes(5),
            closest=estimate(activations_gib=(41.0, 2.0)),
            remedies=("--precision pure-bf16", "24 devices"),
        ),
    )


def unknown() -> Result:
    """The clock came first."""
    return Result("UNKNOWN", None, 4.0, None, 1.0)
