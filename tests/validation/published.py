"""The runs of arXiv 2205.05198, as the benchmark prices them."""

from benchmarks.published import LENGTH, VOCAB, price_run, runs

__all__ = ["LENGTH", "VOCAB", "name", "price_run", "runs"]


def name(run: dict) -> str:
    return f"{run['model']}-dp{run['dp']}-{run['recompute']}"
