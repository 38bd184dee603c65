import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware import units


def test_capacity_is_binary_and_rate_is_decimal():
    assert units.gib_to_bytes(1) == 2**30
    assert units.mib_to_bytes(1) == 2**20
    assert units.gb_per_s_to_bytes_per_s(1) == 1e9
    assert units.gbit_per_s_to_bytes_per_s(400) == 50e9
    assert units.tflops_to_flops_per_s(1) == 1e12
    assert units.us_to_s(1) == 1e-6
    assert units.s_to_ms(2) == 2000
    assert units.s_to_hours(7200) == 2
    assert units.flops_to_mflops(5e6) == 5
    assert units.flops_to_gflops(5e9) == 5


@given(st.floats(1e-6, 1e9))
def test_round_trips(value):
    assert units.bytes_to_gib(units.gib_to_bytes(value)) == pytest.approx(value, rel=1e-12)
    assert units.bytes_per_s_to_gb_per_s(units.gb_per_s_to_bytes_per_s(value)) == pytest.approx(
        value, rel=1e-12
    )
    assert units.flops_per_s_to_tflops(units.tflops_to_flops_per_s(value)) == pytest.approx(value, rel=1e-12)


@given(st.floats(1e-7, 1e5))
def test_a_time_in_words_is_the_time_to_four_digits(seconds):
    number, unit = units.s_to_text(seconds).replace(",", "").split()
    read = float(number) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    assert read == pytest.approx(seconds, rel=5e-4, abs=5.1e-8)
    assert (unit == "s") == (seconds >= 1)
