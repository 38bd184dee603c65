"""The only place where bytes, GiB, TFLOP/s and seconds are converted.

Inside the project everything is SI with the unit in the name (``_bytes``, ``_s``, ``_flops``,
``_bytes_per_s``). GiB is 2**30 bytes and serves for capacity only; GB/s is 1e9 bytes a second.
"""

from typing import Final

GIB: Final = 2**30
MIB: Final = 2**20
KIB: Final = 2**10
GB: Final = 1e9
TB: Final = 1e12
"""Drives are sold in these."""
MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12
GBIT_BYTES: Final = 1e9 / 8
MICROSECOND: Final = 1e-6
HOUR_S: Final = 3600.0


def gib_to_bytes(gib: float) -> float:
    """Return bytes for a capacity in GiB (2**30)."""
    return gib * GIB


def mib_to_bytes(mib: float) -> float:
    """Return bytes for a capacity in MiB (2**20)."""
    return mib * MIB


def bytes_to_gib(n_bytes: float) -> float:
    """Return GiB (2**30) for a capacity in bytes."""
    return n_bytes / GIB


def gb_per_s_to_bytes_per_s(gb_per_s: float) -> float:
    """Return bytes a second for GB/s (1e9)."""
    return gb_per_s * GB


def bytes_per_s_to_gb_per_s(bytes_per_s: float) -> float:
    """Return GB/s (1e9) for bytes a second."""
    return bytes_per_s / GB


def gbit_per_s_to_bytes_per_s(gbit_per_s: float) -> float:
    """Return bytes a second for a line rate in Gb/s (1e9 bits)."""
    return gbit_per_s * GBIT_BYTES


def tflops_to_flops_per_s(tflops: float) -> float:
    """Return FLOP/s for a rate in TFLOP/s (1e12)."""
    return tflops * TERA


def flops_per_s_to_tflops(flops_per_s: float) -> float:
    """Return TFLOP/s (1e12) for a rate in FLOP/s."""
    return flops_per_s / TERA


def flops_to_mflops(flops: float) -> float:
    """Return MFLOPs (1e6) for a count of FLOPs."""
    return flops / MEGA


def flops_to_gflops(flops: float) -> float:
    """Return GFLOPs (1e9) for a count of FLOPs."""
    return flops / GIGA


def us_to_s(us: float) -> float:
    """Return seconds for microseconds."""
    return us * MICROSECOND


def s_to_ms(seconds: float) -> float:
    """Return milliseconds for seconds."""
    return seconds * 1e3


def s_to_hours(seconds: float) -> float:
    """Return hours for seconds."""
    return seconds / HOUR_S


def s_to_us(seconds: float) -> float:
    """Return microseconds for seconds."""
    return seconds / MICROSECOND


def ms_to_s(ms: float) -> float:
    """Return seconds for milliseconds."""
    return ms / 1e3


def s_to_text(seconds: float) -> str:
    """Return a time with four or five digits and its unit: ``2.506 s``, ``38.06 ms``, ``9.5 µs``."""
    if seconds >= 1:
        return f"{seconds:,.3f} s" if seconds < 100 else f"{seconds:,.1f} s"
    if seconds >= us_to_s(1e3):
        return f"{s_to_ms(seconds):.2f} ms"
    return f"{s_to_us(seconds):.1f} µs" if seconds else "0 s"
