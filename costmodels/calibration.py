"""Constants fitted to published runs, read from ``data/calibration.toml`` and laid over sourced ones.

The sourced values (microbenchmarks, datasheets, counting) stay where they are, in the hardware catalogue and
in ``data/profiles.toml``; what training runs showed beyond them stands in one file with its date, its bounds,
its standard errors and the rows behind it. A profile's fitted value replaces its own and is inherited like
any other. An accelerator's is a factor on its achieved rate: its own where enough runs on it are known, else
that of its architecture, else one.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.spec import Accelerator

RATES = ("gemm", "low_gemm", "memory")
"""Achieved rates of an accelerator that may have a fitted factor."""
_FILE = "data/calibration.toml"


@lru_cache(maxsize=1)
def calibration() -> Mapping[str, Any]:
    """Return the whole file: the fit, constants by place, residuals by family, and a sample of them by run.

    Raises
    ------
    MeshwrightError
        If an accelerator's constant is not one of :data:`RATES`.
    """
    import tomllib

    text = resources.files("meshwright.costmodels").joinpath(_FILE).read_text("utf-8")
    found = tomllib.loads(text)
    for place in ("architectures", "accelerators"):
        for name, constants in found.get(place, {}).items():
            for rate in constants:
                if rate not in RATES:
                    raise MeshwrightError(
                        f"{_FILE}: {place}.{name}: {rate!r} is not a rate; allowed: {', '.join(RATES)}"
                    )
    return found


def overlaid(profiles: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return a table of profiles with each one's fitted constants in place of its own or inherited ones."""
    fitted = calibration().get("profiles", {})
    return {
        name: {**own, **{field: entry["value"] for field, entry in fitted.get(name, {}).items()}}
        for name, own in profiles.items()
    }


def rate_factor(accelerator: Accelerator, rate: str) -> float:
    """Return the fitted factor on an achieved rate (one of :data:`RATES`); 1 where none was fitted."""
    found = calibration()
    own = found.get("accelerators", {}).get(accelerator.name, {})
    shared = found.get("architectures", {}).get(accelerator.architecture, {})
    entry = own.get(rate) or shared.get(rate)
    return 1.0 if entry is None else float(entry["value"])
