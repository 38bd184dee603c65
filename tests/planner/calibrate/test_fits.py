"""From samples to constants: those of a made-up machine come back, and each sample is explained by them."""

from dataclasses import replace

import pytest

from meshwright.hardware.errors import MeshwrightError
from meshwright.planner.calibrate.cases import (
    TENSOR_PASSES,
    Beside,
    Exchange,
    Host,
    Product,
    Sample,
    Stream,
    Unit,
    Update,
)
from meshwright.planner.calibrate.fits import fitted
from meshwright.planner.calibrate.group_fits import exchange_s, tier_fit
from meshwright.planner.calibrate.host_fits import layer_launches
from tests.planner.calibrate.machines import (
    CALL_S,
    GPU_MACHINE,
    LATENCY,
    MACHINE,
    MEMORY,
    PEAK,
    RATE,
    SPLIT_S,
    samples,
)


@pytest.fixture(scope="module")
def found():
    return fitted(samples(), MACHINE)


def test_the_device_s_rates_come_back(found):
    assert found.memory == pytest.approx(MEMORY, rel=0.01)
    assert found.peaks["fp32"] == pytest.approx(PEAK, rel=0.03)
    assert found.fill_k < 20  # nothing is lost at a product's start here
    assert found.attention["forward"] == pytest.approx(0.5, rel=0.05)
    assert found.attention["backward"] == pytest.approx(0.5, rel=0.05)
    assert found.profile["weight_gradient_fraction"] == pytest.approx(1.0, rel=0.03)
    assert found.profile["optimizer_fraction"] == pytest.approx(0.5, rel=0.02)


def test_the_network_s_rates_come_back(found):
    bandwidth, latency = found.tiers["inside"]
    assert bandwidth == pytest.approx(RATE, rel=0.15)  # the cost model's ramp is not in the made-up times
    assert latency == pytest.approx(LATENCY, rel=0.3)
    assert found.profile["data_rate"] == pytest.approx(0.5, rel=0.1)
    assert found.profile["layer_rate"] == pytest.approx(1.0, rel=0.1)
    assert found.profile["scatter_rate"] == pytest.approx(0.25, rel=0.1)
    # a reduction takes the time of a gather, though it is two passes
    assert found.profile["reduce_rate"] == pytest.approx(2.0, rel=0.1)


def test_slow_scatters_do_not_spoil_the_tier(found):
    without = [s for s in samples() if getattr(s.case, "collective", None) != "reduce_scatter"]
    assert fitted(without, MACHINE).tiers == found.tiers


def test_plain_collectives_tell_of_scatters_where_no_unit_was_measured():
    plain = [s for s in samples() if not isinstance(s.case, Unit)]
    rates = fitted(plain, MACHINE).profile
    assert rates["scatter_rate"] == pytest.approx(1 / 3, rel=0.1)


def test_the_host_s_times_are_calls_and_what_a_layer_takes_beyond_them(found):
    ahead, back = layer_launches()
    layer = found.profile["layer_host_s"]
    assert found.profile["forward_host_s"] == CALL_S
    assert layer + ahead * CALL_S == pytest.approx(1e-3)
    assert layer + back * found.profile["backward_host_s"] == pytest.approx(2e-3)
    assert found.profile["step_fixed_s"] == pytest.approx(1e-3)


def test_a_split_layer_s_time_is_the_host_s_beyond_its_exchanges(found):
    assert found.profile["tensor_host_s"] == pytest.approx(SPLIT_S, rel=0.05)
    alone = [s for s in samples() if getattr(s.case, "what", None) not in TENSOR_PASSES]
    assert "tensor_host_s" not in fitted(alone, MACHINE).profile


def test_a_split_layer_that_is_no_slower_costs_the_host_nothing_more():
    def quick(sample: Sample) -> Sample:
        return replace(
            sample, seconds=sample.seconds / (100 if sample.case in map(Host, TENSOR_PASSES) else 1)
        )

    assert fitted(samples(alter=quick), MACHINE).profile["tensor_host_s"] == 0


def test_a_cpu_waits_for_everything_and_a_gpu_has_its_overlap_measured(found):
    waits = {"host_sync": 1.0, "overlap_gradients": 0.0, "overlap_parameters": 0.0, "overlap_tensor": 0.0}
    assert waits.items() <= found.profile.items()
    gpu = fitted(samples(GPU_MACHINE), GPU_MACHINE).profile
    assert not waits.keys() & gpu.keys()
    # product 3 s, collective 2 s, both 4 s: the two hidden seconds cost one
    assert gpu["overlap_cost"] == found.profile["overlap_cost"] == pytest.approx(0.5)


def test_every_sample_that_a_formula_was_fitted_to_has_its_residual(found):
    explained = {type(r.case) for r in found.residuals}
    assert explained == {type(s.case) for s in samples()} - {Host, Beside}
    exact = [r for r in found.residuals if isinstance(r.case, Stream | Product | Update)]
    assert max(abs(r.log_ratio) for r in exact) < 0.05


def test_one_disturbed_sample_is_an_outlier_and_not_the_answer(found):
    def disturbed(sample: Sample) -> Sample:
        return replace(sample, seconds=sample.seconds * (30 if sample.case == Stream("fp32", 2**18) else 1))

    assert fitted(samples(alter=disturbed), MACHINE).memory == pytest.approx(found.memory, rel=0.1)


@pytest.mark.parametrize("one_ring", [True, False])
def test_a_network_between_hosts_comes_back_as_the_planner_prices_it(one_ring):
    """Gathers over one ring through all ranks are no gathers tier by tier."""
    below = {"inside": (400e9, 3e-6)}
    told = below | {"across": (20e9, 8e-6)}
    cases = [
        Exchange(name, size, 8, hosts)
        for name in ("all_gather", "all_reduce")
        for size in (2**16, 2**22, 2**28)
        for hosts in (2, 16)
    ]
    measured = [Sample(case, exchange_s(case, told, one_ring)) for case in cases]
    same, other = (tier_fit(measured, "across", below, ring).values for ring in (one_ring, not one_ring))
    assert (same["bandwidth"], same["latency"]) == pytest.approx(told["across"], rel=0.02)
    assert (other["bandwidth"], other["latency"]) != pytest.approx(told["across"], rel=0.02)


@pytest.mark.parametrize("machine", [MACHINE, GPU_MACHINE], ids=lambda machine: machine.kind)
def test_whether_one_ring_is_fitted_follows_from_the_machine(machine):
    told, one_ring = {"inside": (400e9, 3e-6), "across": (20e9, 8e-6)}, machine.kind == "gpu"
    places = [
        (size, inside, across) for size in (2**16, 2**22, 2**28) for inside, across in ((8, 1), (8, 16))
    ]
    plain = [Exchange(name, *place) for name in ("all_gather", "all_reduce") for place in places]
    units = [Unit("gather", *place) for place in places if place[-1] > 1]
    measured = [Sample(case, exchange_s(case, told, one_ring)) for case in plain]
    measured += [
        Sample(unit, 2 * exchange_s(Exchange("all_gather", unit.tensor_bytes, 8, 16), told, one_ring))
        for unit in units
    ]
    others = [s for s in samples(machine) if not isinstance(s.case, Exchange | Unit)]
    found = fitted([*others, *measured], replace(machine, inside=8, across=16))
    assert found.tiers["across"] == pytest.approx(told["across"], rel=0.02)
    assert found.profile["data_rate"] == pytest.approx(0.5, rel=0.02)


def test_hosts_that_were_not_joined_have_one_tier():
    alone = [s for s in samples() if not isinstance(s.case, Exchange | Unit | Beside)]
    constants = fitted(alone, replace(MACHINE, inside=1))
    assert constants.tiers == {}
    assert "data_rate" not in constants.profile


@pytest.mark.parametrize(("kind", "what"), [(Stream, "stream"), (Product, "product")])
def test_without_streams_or_products_there_is_nothing_to_write(kind, what):
    with pytest.raises(MeshwrightError, match=f"no {what} was measured"):
        fitted([s for s in samples() if not isinstance(s.case, kind)], MACHINE)
