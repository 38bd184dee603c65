"""Two ranks with a plan each and weights of one seed, or of two; they print what they are told."""

import sys
from pathlib import Path

import torch

import meshwright
from tests.frameworks import tiny
from tests.frameworks.forked import fork


def main() -> None:
    """Apply ``plan-RANK.json`` of a folder; ``seeds`` draws the head anew on each rank."""
    folder, seeds = Path(sys.argv[1]), sys.argv[2:] == ["seeds"]

    def run(rank: int) -> None:
        model = tiny.LLAMA.build()
        if seeds:
            torch.manual_seed(rank)
            torch.nn.init.normal_(model.lm_head.weight)
        try:
            meshwright.apply(folder / f"plan-{rank}.json", model, torch.optim.SGD, device="cpu")
        except meshwright.MeshwrightError as error:
            print(f"rank {rank}: {error}", flush=True)

    fork(2, folder, run)


if __name__ == "__main__":
    main()
