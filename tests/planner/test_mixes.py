"""The fastest mix of a stage, against all mixes there are."""

from dataclasses import fields
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.arrays import IntArray
from meshwright.planner.bounds import Demand
from meshwright.planner.cpsat.mixes import Mixes, unbeaten
from meshwright.planner.cpsat.ration import rationed
from meshwright.planner.cpsat.scaling import Away, Scaled

KINDS, MODES = 2, 3
units = st.integers(0, 40)


def tables(*shape: int) -> st.SearchStrategy[IntArray]:
    size = int(np.prod(shape))
    return st.lists(units, min_size=size, max_size=size).map(lambda v: np.array(v).reshape(shape))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Scaled, Demand]:
    """Return a mesh whose last mode keeps something off the device, and which modes its kinds may take."""
    nothing = {f.name: 0 for f in fields(Scaled)}
    allowed = np.array(draw(st.lists(st.booleans(), min_size=6, max_size=6))).reshape(KINDS, MODES)
    allowed[:, draw(st.integers(0, MODES - 1))] = True
    away = np.zeros((KINDS, MODES), dtype=np.int64)
    away[:, -1] = draw(tables(KINDS)) + 1
    place = Away(draw(tables(KINDS)), away, draw(st.integers(0, 400)))
    made = {name: draw(tables(KINDS, MODES)) for name in ("backward", "saved", "working")}
    given_ = {"states": draw(tables(KINDS)), "room": draw(st.integers(0, 400)), "away": (place,)}
    scaled = Scaled(**{**nothing, **made, **given_})  # type: ignore[arg-type]
    return scaled, Demand(np.array([9, 9]), allowed, np.ones(KINDS, dtype=np.bool_))


def every_mix(want: Demand, layers: tuple[int, ...]) -> list[IntArray]:
    ways = [
        [
            row
            for row in product(range(n + 1), repeat=MODES)
            if sum(row) == n and not any(row * ~want.allowed[k])
        ]
        for k, n in enumerate(layers)
    ]
    return [np.array(mix) for mix in product(*ways)]


def fits(s: Scaled, mix: IntArray, live: int) -> bool:
    layers, place = mix.sum(axis=1), s.away[0]
    working = int(np.where(mix > 0, s.working, 0).max())
    here = int(s.states @ layers) + live * int((s.saved * mix).sum()) + working
    return here <= s.room and int(place.states @ layers) + live * int((place.saved * mix).sum()) <= place.room


@given(meshes(), st.tuples(st.integers(0, 4), st.integers(1, 4)), st.integers(1, 3))
def test_no_mix_that_fits_is_faster(mesh: tuple[Scaled, Demand], layers: tuple[int, int], live: int) -> None:
    s, want = mesh
    able = [mix for mix in every_mix(want, layers) if fits(s, mix, live)]
    found = Mixes(s, want).fastest(layers, live)
    if found is None:
        assert not able
        return
    assert found.sum(axis=1).tolist() == list(layers)
    assert fits(s, found, live)
    assert (found * s.backward).sum() == min((mix * s.backward).sum() for mix in able)


@given(meshes(), st.integers(1, 4))
def test_a_ration_without_limits_is_the_quickest_mode(mesh: tuple[Scaled, Demand], layers: int) -> None:
    s, want = mesh
    found = rationed(s, want, (layers, 0), 10**6, 10**6, 1)
    assert found is not None
    assert (found * s.backward).sum() == layers * s.backward[0][want.allowed[0]].min()
    assert rationed(s, want, (layers, 0), -1, 10**6, 1) is None


@given(st.lists(st.tuples(units, units), min_size=1, max_size=30))
def test_what_is_left_is_beaten_by_none_and_beats_the_rest(points: list[tuple[int, int]]) -> None:
    cost, kept = np.array(points).T
    best = unbeaten(cost, kept)
    assert (np.diff(cost[best]) > 0).all()
    assert (np.diff(kept[best]) < 0).all()
    for c, k in points:
        assert ((cost[best] <= c) & (kept[best] <= k)).any()
