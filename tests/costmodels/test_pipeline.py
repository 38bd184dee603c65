"""The event simulation against an independent one, textbook formulas and physics; bounds never above it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.disciplines import DISCIPLINES
from meshwright.costmodels.pipeline import simulate
from meshwright.costmodels.schedule import BACKWARD, FORWARD, WEIGHT, build
from meshwright.hardware.errors import MeshwrightError
from tests.costmodels.cases import ROUNDING, smallest_vpp
from tests.strategies import held_up_schedules, seconds, timed_schedules


def oracle(schedule, forward_s, backward_s, transfer_s, weight_s, ready_s):
    """Run every rank's list in a plain loop; return (end of each rank, start of each chunk's last B or W).

    Knows only the order of each rank and that F needs F before, B needs B after, the turn at the end, W needs
    its B, and that a whole backward hands on its gradient after its W.
    """
    last = schedule.pp * schedule.vpp - 1
    orders = DISCIPLINES[schedule.name].orders(schedule.pp, schedule.vpp, schedule.num_microbatches)
    lives = {int(c): rank for rank, chunks in enumerate(schedule.chunks_of_rank) for c in chunks}
    queues, whole = [], set()
    for order, chunks in zip(orders, schedule.chunks_of_rank, strict=True):
        passes = zip(
            order.kind.tolist(), chunks[order.place].tolist(), order.microbatch.tolist(), strict=True
        )
        queue = list(passes)
        whole |= {(c, m) for (_, c, m), is_whole in zip(queue, order.whole, strict=True) if is_whole}
        queues.append(queue)
    final = WEIGHT if schedule.split else BACKWARD
    done, clock, last_start = {}, [0.0] * schedule.pp, [0.0] * (last + 1)
    while any(queues):
        for rank, queue in enumerate(queues):
            while queue:
                kind, chunk, microbatch = queue[0]
                if kind == FORWARD:
                    needed = (FORWARD, chunk - 1, microbatch) if chunk else None
                elif kind == WEIGHT:
                    needed = (BACKWARD, chunk, microbatch)
                elif chunk == last:
                    needed = (FORWARD, last, microbatch)
                else:
                    ready = WEIGHT if (chunk + 1, microbatch) in whole else BACKWARD
                    needed = (ready, chunk + 1, microbatch)
                if needed is not None and needed not in done:
                    break
                same_rank = needed is None or lives[needed[1]] == rank
                arrival = 0.0 if needed is None else done[needed] + (0.0 if same_rank else transfer_s)
                start = max(clock[rank], arrival, ready_s[chunk] if kind == FORWARD else 0.0)
                clock[rank] = start + (forward_s, backward_s, weight_s)[kind][chunk]
                done[queue.pop(0)] = clock[rank]
                last_start[chunk] = start if kind == final else last_start[chunk]
    return clock, last_start


@given(held_up_schedules())
def test_agrees_with_an_independent_simulator(case):
    times = simulate(*case)
    end_s, start_s = oracle(*case)
    assert times.end_s.tolist() == end_s
    assert times.last_backward_start_s.tolist() == start_s


def test_two_stages_by_hand():
    """Rank 0: F0 0-1, F1 1-2; rank 1 (slower): F0 1-3, B0 3-7, F1 7-9, B1 9-13; rank 0: B0 7-9, B1 13-15."""
    times = simulate(build("1f1b", 2, 1, 2), [1, 2], [2, 4], 0)
    assert times.end_s.tolist() == [15, 13]
    assert times.last_backward_start_s.tolist() == [13, 9]
    assert times.busy_s.tolist() == [6, 12]
    assert times.end_s.max(axis=-1) == 15


def test_a_transfer_delays_what_waits_for_it():
    """One micro-batch through two ranks: one transfer forward, one back."""
    assert simulate(build("1f1b", 2, 1, 1), 1, 2, 0.25).end_s.tolist() == [6.5, 4.25]


@given(st.integers(1, 8), st.integers(1, 24), seconds(), seconds())
def test_equal_stages_take_m_plus_p_minus_1_slots(pp, m, forward_s, backward_s):
    """Huang et al. 2019, Narayanan et al. 2021: the bubble of GPipe and 1F1B is (p - 1)(f + b)."""
    for name in ("gpipe", "1f1b"):
        makespan_s = simulate(build(name, pp, 1, m), forward_s, backward_s, 0).end_s.max(axis=-1)
        assert makespan_s == pytest.approx((m + pp - 1) * (forward_s + backward_s))


@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4), seconds(), seconds())
def test_interleaving_divides_the_bubble_by_vpp(pp, vpp, groups, forward_s, backward_s):
    """Narayanan et al. 2021, section 2.2: the bubble is (p - 1)(f + b) / v."""
    m = groups * pp
    makespan_s = simulate(build("interleaved", pp, vpp, m), forward_s / vpp, backward_s / vpp, 0).end_s.max(
        axis=-1
    )
    assert makespan_s == pytest.approx((m + (pp - 1) / vpp) * (forward_s + backward_s))


@given(timed_schedules(), st.data())
def test_no_time_falls_when_a_duration_rises(case, data):
    schedule, *given_s = case
    chunk = data.draw(st.integers(0, schedule.num_chunks - 1))
    more = np.eye(schedule.num_chunks)[chunk] * data.draw(seconds())
    before = simulate(*case)
    for which, extra in enumerate((more, more, more.max(), more * schedule.split)):
        slower = simulate(schedule, *(t + extra * (i == which) for i, t in enumerate(given_s)))
        assert (slower.end_s >= before.end_s).all()
        assert (slower.last_backward_start_s >= before.last_backward_start_s).all()


@given(held_up_schedules(), st.data())
def test_a_chunk_held_up_delays_others_by_no_more(case, data):
    """Nor does it delay anything while it would wait for its input anyway."""
    schedule, *times, ready_s = case
    held, by = data.draw(st.integers(0, schedule.num_chunks - 1)), data.draw(seconds())
    before = simulate(*case)
    after = simulate(schedule, *times, ready_s + by * (np.arange(schedule.num_chunks) == held))
    assert (after.end_s >= before.end_s).all()
    assert (after.end_s <= (before.end_s + by) * ROUNDING).all()
    assert after.busy_s.tolist() == before.busy_s.tolist()
    forward_s, _, transfer_s, _ = times
    hops = np.cumsum(np.diff(schedule.rank_of_chunk, prepend=0) != 0)
    arrival_s = np.cumsum(forward_s) - forward_s + hops * transfer_s
    free, slack = simulate(schedule, *times), simulate(schedule, *times, arrival_s / ROUNDING)
    assert free.end_s.tolist() == slack.end_s.tolist()


@given(timed_schedules())
def test_a_micro_batch_more_takes_longer(case):
    schedule, *times = case
    name, pp, vpp = schedule.name, schedule.pp, schedule.vpp
    group = pp if vpp > 1 else 1
    m = max(schedule.num_microbatches // group, 2 if name == "dualpipev" else 1) * group
    shorter, longer = (simulate(build(name, pp, vpp, count), *times) for count in (m, m + group))
    assert longer.end_s.max(axis=-1) >= shorter.end_s.max(axis=-1)
    if not schedule.split:
        assert (longer.end_s >= shorter.end_s).all()


@given(timed_schedules(), st.integers(-8, 8))
def test_the_unit_of_time_does_not_matter(case, exponent):
    schedule, *times = case
    scale = 2.0**exponent
    scaled = simulate(schedule, *(scale * time for time in times))
    assert (scaled.end_s == scale * simulate(schedule, *times).end_s).all()


@given(timed_schedules())
def test_a_rank_is_done_no_earlier_than_it_has_worked(case):
    schedule, forward_s, backward_s, transfer_s, weight_s = case
    times = simulate(*case)
    work = (forward_s + backward_s + weight_s)[schedule.chunks_of_rank].sum(axis=1)
    assert times.busy_s == pytest.approx(schedule.num_microbatches * work)
    assert (times.end_s * ROUNDING >= times.busy_s).all()
    hops = 2 * (np.diff(schedule.rank_of_chunk) != 0).sum()
    assert times.end_s.max(axis=-1) * ROUNDING >= forward_s.sum() + backward_s.sum() + hops * transfer_s


@given(timed_schedules())
def test_the_pass_that_completes_the_gradients_ends_each_rank(case):
    """A backward of the first chunk of the rank, or a weight pass: the gradient reduction begins with it."""
    schedule, _, backward_s, _, weight_s = case
    times = simulate(*case)
    last = schedule.last_operation
    assert (schedule.kind[last] == (WEIGHT if schedule.split else BACKWARD)).all()
    chunk = schedule.chunk[last]
    if not schedule.split:
        assert chunk.tolist() == schedule.chunks_of_rank[:, 0].tolist()
    final_s = (weight_s if schedule.split else backward_s)[chunk]
    assert (times.last_backward_start_s[chunk] + final_s == times.end_s).all()


@given(timed_schedules())
def test_chunks_are_completed_one_behind_another(case):
    """Each once on its own rank, and those that come later in the model first where chunks are in a loop."""
    schedule, times = case[0], simulate(*case)
    assert np.sort(schedule.completed, axis=1).tolist() == schedule.chunks_of_rank.tolist()
    assert (np.diff(times.last_backward_start_s[schedule.completed], axis=1) >= 0).all()
    assert schedule.kind[schedule.last_passes].tolist() == [schedule.last_kind] * schedule.num_chunks
    if schedule.name == "interleaved":
        assert (np.diff(schedule.completed, axis=1) == -schedule.pp).all()


def test_ten_thousand_plans_in_one_call_equal_one_by_one(monkeypatch):
    monkeypatch.setattr("meshwright.costmodels.pipeline._BLOCK_ELEMENTS", 1 << 18)
    schedule = build("interleaved", 4, 2, 8)
    random = np.random.default_rng(7)
    forward_s, backward_s = random.random((2, 100, 100, schedule.num_chunks))
    transfer_s = random.random((100, 1))
    batch = simulate(schedule, forward_s, backward_s, transfer_s)
    assert batch.end_s.shape == (100, 100, schedule.pp)
    for i, j in random.integers(0, 100, (40, 2)):
        one = simulate(schedule, forward_s[i, j], backward_s[i, j], transfer_s[i, 0])
        assert (one.end_s == batch.end_s[i, j]).all()
        assert (one.last_backward_start_s == batch.last_backward_start_s[i, j]).all()
        assert (one.busy_s == batch.busy_s[i, j]).all()
        assert one.end_s.max(axis=-1) == batch.end_s.max(axis=-1)[i, j]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (([1, 2, 3], 1, 0), ["forward_s", "3 entries", "4 chunks"]),
        ((1, [[1, 2]], 0), ["backward_s", "2 entries"]),
        ((1, -1, 0), ["backward_s = -1.0", "at least 0"]),
        ((1, 1, np.inf), ["transfer_s = inf", "finite"]),
        ((np.nan, 1, 0), ["forward_s = nan"]),
        ((1, 1, 0, 0.5), ["weight_s = 0.5", "'1f1b'", "backward_s"]),
    ],
)
def test_refusals_name_the_field(times, words):
    with pytest.raises(MeshwrightError) as error:
        simulate(build("1f1b", 4, 1, 4), *times)
    assert all(word in str(error.value) for word in words)


def test_a_chunk_that_is_held_up_by_hand():
    """Two ranks of two chunks, two micro-batches, passes of 1 s: rank 0 ends at 10 s, rank 1 at 9 s.

    Chunk 2 runs from 2 s on by itself; held up till 5 s it moves all that follows by 3 s.
    """
    schedule = build("interleaved", 2, 2, 2)
    assert simulate(schedule, 1, 1, 0).end_s.tolist() == [10, 9]
    assert simulate(schedule, 1, 1, 0, 0, [0, 0, 2, 0]).end_s.tolist() == [10, 9]
    assert simulate(schedule, 1, 1, 0, 0, [0, 0, 5, 0]).end_s.tolist() == [13, 12]


def test_a_zero_bubble_by_hand():
    """zb1p, two ranks, passes of 1 s. Rank 0: F F . B W B W; rank 1 from 1 s on: F B F B W W."""
    times = simulate(build("zb1p", 2, 1, 2), 1, 1, 0, 1)
    assert times.end_s.tolist() == [7, 7]
    assert times.last_backward_start_s.tolist() == [6, 6]


def test_a_whole_backward_hands_on_its_gradient_after_its_weight_pass():
    """DualPipe-V, two ranks, 4 micro-batches: rank 1 runs chunks 1 and 2, whole backwards first."""
    schedule = build("dualpipev", 2, 2, 4)
    passes = zip(schedule.kind, schedule.chunk, schedule.microbatch, strict=True)
    at = {key: i for i, key in enumerate(passes)}
    needs = schedule.data[[at[BACKWARD, 1, m] for m in range(4)]].tolist()
    assert needs == [at[WEIGHT, 2, 0], at[WEIGHT, 2, 1], at[WEIGHT, 2, 2], at[BACKWARD, 2, 3]]


def idle_s(name, pp, m, *, forward_s=1.0, backward_s=1.0, weight_s=1.0):
    """Most that a rank of equal chunks waits between its first and its last pass, the papers' bubble."""
    schedule = build(name, pp, smallest_vpp(name), m)
    times = simulate(schedule, forward_s, backward_s, 0, weight_s)
    return (times.end_s - np.arange(pp) * forward_s - times.busy_s).max()


@given(st.integers(2, 10), st.integers(0, 20), st.floats(0.5, 1.0), st.floats(0.1, 1.0))
def test_zero_bubble_loops_have_the_published_bubbles(pp, more, forward_s, share):
    """Qi et al. 2023, table 2, for W <= F <= B: (p - 1) (F + B - W) in ZB-H1, one W less in ZB-H2."""
    passes = {"forward_s": forward_s, "weight_s": share * forward_s}
    for name, hidden in (("zb1p", 1), ("zb2p", 2)):
        published_s = (pp - 1) * (forward_s + 1 - hidden * share * forward_s)
        assert idle_s(name, pp, 2 * pp + more, **passes) == pytest.approx(published_s, abs=1e-9)


@pytest.mark.parametrize("pp", [8, 16, 24])
def test_equal_passes_leave_the_published_bubbles(pp):
    """ZB-V none, V-half half of 1F1B's, V-min two thirds (Qi et al. 2024): chunks are half a rank's share."""
    plain_s = 2 * (pp - 1) * 3
    assert idle_s("zbv", pp, 3 * pp) == 0
    assert idle_s("v_half", pp, 3 * pp) == pytest.approx(plain_s / 2, rel=0.06)
    assert idle_s("v_min", pp, 3 * pp) == pytest.approx(plain_s * 2 / 3, rel=0.06)


@given(st.integers(2, 10), st.integers(0, 20), st.floats(0.5, 2.0), st.floats(0.1, 0.5))
def test_dual_pipe_v_waits_no_longer_than_published(pp, more, forward_s, weight_s):
    """github.com/deepseek-ai/DualPipe: (p - 1) (F&B + B - 3 W), B the whole one; F&B takes F + B here."""
    whole_s = 2 * forward_s
    passes = {"forward_s": forward_s, "backward_s": whole_s - weight_s, "weight_s": weight_s}
    published_s = (pp - 1) * (forward_s + 2 * whole_s - 3 * weight_s)
    assert 0 < idle_s("dualpipev", pp, 2 * pp + more, **passes) <= published_s
