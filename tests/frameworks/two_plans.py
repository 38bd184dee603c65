"""Two ranks that were given different plans, and print what each is told."""

import sys
from pathlib import Path

import torch

import meshwright
from tests.frameworks import tiny
from tests.frameworks.forked import fork


def main() -> None:
    """Apply ``plan-RANK.json`` of a folder."""
    folder = Path(sys.argv[1])

    def run(rank: int) -> None:
        model = tiny.LLAMA.build()
        try:
            meshwright.apply(folder / f"plan-{rank}.json", model, torch.optim.SGD, device="cpu")
        except meshwright.MeshwrightError as error:
            print(f"rank {rank}: {error}", flush=True)

    fork(2, folder, run)


if __name__ == "__main__":
    main()
