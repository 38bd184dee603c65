"""What context ranks compute, all of them in one process: together it is attention and loss of one."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402  # after the skip

from meshwright.planner.runtime import context  # noqa: E402  # after the skip
from meshwright.planner.runtime.apply import next_token_loss  # noqa: E402
from meshwright.planner.runtime.context import IGNORED, Context, attend  # noqa: E402

SIZES = {"size": st.integers(1, 4), "each": st.integers(1, 5), "seed": st.integers(0, 2**16)}


@settings(max_examples=30, deadline=None)
@given(**SIZES, share=st.floats(0.0, 0.9))
def test_losses_of_the_ranks_average_to_the_loss(size: int, each: int, seed: int, share: float) -> None:
    draw, length = torch.Generator().manual_seed(seed), 2 * size * each
    logits = torch.randn(3, length, 7, generator=draw, dtype=torch.float64)
    labels = torch.randint(7, (3, length), generator=draw)
    labels[torch.rand(labels.shape, generator=draw) < share] = IGNORED
    labels[0, 1] = 3  # at least one target
    ranks = [Context(None, rank, size) for rank in range(size)]
    found = [own.loss(own.own(logits), own.targets(labels)) for own in ranks]
    torch.testing.assert_close(sum(found) / size, next_token_loss(logits, labels), check_dtype=False)


@settings(max_examples=20, deadline=None)
@given(**SIZES, groups=st.sampled_from((1, 2)))
def test_ranks_attend_as_one(size: int, each: int, seed: int, groups: int) -> None:
    draw, length = torch.Generator().manual_seed(seed), 2 * size * each
    query = torch.randn(2, 2, length, 8, generator=draw)
    key, value = torch.randn(2, 2, 2 // groups, length, 8, generator=draw)
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.3, enable_gqa=groups > 1
    )
    for rank in range(size):
        place = Context(None, rank, size)
        places = [t for piece in place.pieces(length) for t in piece]
        own = (x[:, :, places] for x in (query, key, value))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context, "gathered", lambda pair, place: torch.stack([key, value]))
            found, _ = attend(SimpleNamespace(context=place), *own, None, scaling=0.3)
        torch.testing.assert_close(found, whole[:, :, places].transpose(1, 2))


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_gathered_goes_and_comes_again(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of one: what it gathers is what it has, in memory of its own."""
    made: list[StorageWeakRef] = []

    def gathered(pair: torch.Tensor, place: Context) -> torch.Tensor:
        every = pair.clone()
        made.append(StorageWeakRef(every.untyped_storage()))
        return every

    monkeypatch.setattr(context, "gathered", gathered)
    own = [torch.randn(2, 2, 8, 4, requires_grad=True) for _ in range(3)]
    alone = [x.detach().clone().requires_grad_() for x in own]
    found, _ = attend(SimpleNamespace(context=Context(kept=kept)), *own, None)
    assert [each.expired() for each in made] == [not kept]
    weights = torch.randn_like(found)
    for _ in range(2):  # a graph may be asked twice
        found.backward(weights, retain_graph=True)
    assert [each.expired() for each in made] == ([False] if kept else [True] * 3)
    whole = torch.nn.functional.scaled_dot_product_attention(*alone, is_causal=True).transpose(1, 2)
    whole.backward(2 * weights)
    for mine, wanted in zip(own, alone, strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)
