"""What a graph read from code keeps of any module: parameters, causality, splits, streams, and its errors."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="reads torch modules")
nn = torch.nn

from meshwright.costmodels.attention import Attention  # noqa: E402  # after the skip
from meshwright.costmodels.moe import ExpertGemm, Router  # noqa: E402
from meshwright.costmodels.operators import Boundary  # noqa: E402
from meshwright.costmodels.product import Gemm  # noqa: E402
from meshwright.costmodels.rows import OnRows  # noqa: E402
from meshwright.costmodels.work import Shape  # noqa: E402
from meshwright.hardware.errors import MeshwrightError  # noqa: E402
from meshwright.planner.graph import ModelGraph  # noqa: E402
from meshwright.planner.importers.module import from_module  # noqa: E402

IDS = (torch.zeros((2, 24), dtype=torch.long),)


class Block(nn.Module):
    """A pre-norm block on torch's own attention, with a mask made on the spot."""

    def __init__(self, width: int, heads: int, window: int | None, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.sees, self.ordered = window, causal

    def forward(self, x: Any) -> Any:
        place = torch.arange(x.shape[1])
        apart = place[:, None] - place[None, :]
        hidden = apart < 0 if self.ordered else torch.zeros_like(apart, dtype=torch.bool)
        if self.sees is not None:
            hidden = hidden | (apart.abs() >= self.sees)
        y = self.first(x)
        x = x + self.mixer(y, y, y, attn_mask=hidden, need_weights=False)[0]
        return x + self.feed(self.second(x))


class Language(nn.Module):
    """Tokens, learned positions, blocks, head."""

    def __init__(self, *, layers: int = 3, window: int | None = None, causal: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(96, 32)
        self.places = nn.Parameter(torch.zeros(64, 32))
        self.blocks = nn.ModuleList(Block(32, 4, window, causal) for _ in range(layers))
        self.head = nn.Linear(32, 96, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def attention(graph: ModelGraph) -> Attention:
    return next(op for k in graph.kinds for op in k.operators if isinstance(op, Attention))


def products(graph: ModelGraph, role: str = "block") -> list[Gemm]:
    return [op for k in graph.kinds if k.role == role for op in k.operators if isinstance(op, Gemm)]


def test_blocks_of_one_shape_are_one_kind() -> None:
    graph = from_module(Language(layers=5), IDS)
    assert graph.layer_kinds == (0, 1, 1, 1, 1, 1, 2)
    assert graph.parameters == count(Language(layers=5))
    assert (graph.vocab_size, graph.hidden_size, graph.block_class) == (96, 32, "Block")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 5])
def test_the_mask_says_what_attention_sees(causal: bool, window: int | None) -> None:
    core = attention(from_module(Language(window=window, causal=causal), IDS))
    assert (core.causal, core.window) == (causal, window)
    places = torch.arange(24)
    apart = places[:, None] - places[None, :]
    seen = (apart >= 0) if causal else torch.ones_like(apart, dtype=torch.bool)
    if window is not None:
        seen &= apart.abs() < window
    assert int(core.pairs(24)) == int(seen.sum())


def test_products_are_split_into_and_out_of_the_region() -> None:
    graph = from_module(Language(), IDS)
    assert [op.shard for op in products(graph)] == ["column", "row", "column", "row"]
    block = next(k for k in graph.kinds if k.role == "block")
    ways = [op.direction for op in block.operators if isinstance(op, Boundary)]
    assert ways == ["enter", "exit", "enter", "exit"]


def test_weights_are_no_matter_and_meta_does() -> None:
    with torch.device("meta"):
        bare = Language()
    assert from_module(bare, IDS).kinds == from_module(Language(), IDS).kinds


def test_more_tokens_do_not_change_the_graph() -> None:
    longer = (torch.zeros((1, 48), dtype=torch.long),)
    assert from_module(Language(), longer).kinds == from_module(Language(), IDS).kinds


def test_mapping_and_tuple_are_the_same() -> None:
    assert from_module(Language(), {"ids": IDS[0]}).kinds == from_module(Language(), IDS).kinds


def test_a_module_without_blocks_is_one() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    graph = from_module(module, (torch.zeros(4, 8),))
    assert [graph.kinds[k].role for k in graph.layer_kinds] == ["embedding", "block", "head"]
    assert graph.parameters == count(module)


def test_convolutions_do_their_work_on_their_own_positions() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.norm(self.inner(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 2, 2)
            self.stack = nn.Sequential(*[Residual() for _ in range(3)])
            self.out = nn.Linear(16, 10)

        def forward(self, x: Any) -> Any:
            return self.out(self.stack(self.stem(x)).mean((2, 3)))

    net = Net()
    graph = from_module(net, (torch.zeros(2, 3, 16, 16),))
    assert graph.parameters == count(net)
    shape = Shape(2, 64, 1, False)  # 8 x 8 positions behind the stem
    works = [w for k in graph.layer_kinds for op in graph.kinds[k].operators for w in op.forward(shape)]
    flops = sum(w.flops for w in works if w.kernel == "gemm")
    assert flops == 2 * 128 * (12 * 16 + 3 * 9 * 16 * 16) + 2 * 2 * 16 * 10
    assert any(isinstance(op, OnRows) for k in graph.kinds for op in k.operators)
    assert int(net.stack[0].norm.num_batches_tracked) == 0


def test_an_encoder_and_a_decoder_are_two_streams() -> None:
    module = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    graph = from_module(module, (torch.zeros(2, 10, 32), torch.zeros(2, 7, 32)))
    assert graph.parameters == count(module)
    assert [s.name for s in graph.streams] == ["target"]
    assert graph.context == "text"
    crossing = [op for k in graph.kinds for op in k.operators if isinstance(op, Attention) and op.cross]
    assert crossing
    assert all(k.carries == 32 for k in graph.kinds if k.role == "block" and k.stream == "target")


def test_batched_experts_are_experts_whatever_their_loop() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.zeros(4, 48, 32))
            self.down = nn.Parameter(torch.zeros(4, 32, 48))

        def forward(self, x: Any, chosen: Any, scores: Any) -> Any:
            out = torch.zeros_like(x)
            for i in chosen.unique():  # its length depends on values
                rows, slot = (chosen == i).nonzero(as_tuple=True)
                made = torch.relu(x[rows] @ self.up[i].T) @ self.down[i].T
                out[rows] += made * scores[rows, slot, None]
            return out

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.gate, self.experts = nn.LayerNorm(32), nn.Linear(32, 4, bias=False), Experts()

        def forward(self, x: Any) -> Any:
            flat = self.norm(x).view(-1, 32)
            scores, chosen = self.gate(flat).softmax(-1).topk(2, dim=-1)
            return x + self.experts(flat, chosen, scores).view_as(x)

    module = nn.Sequential(
        nn.Embedding(96, 32), nn.Sequential(*[Sparse() for _ in range(3)]), nn.Linear(32, 96)
    )
    graph = from_module(module, IDS)
    block = next(k for k in graph.kinds if k.role == "block")
    routers = [op for op in block.operators if isinstance(op, Router)]
    assert [(op.experts, op.topk) for op in routers] == [(4, 2)]
    grouped = [op for op in block.operators if isinstance(op, ExpertGemm)]
    assert [op.shard for op in grouped] == ["column", "row"]
    assert graph.parameters == count(module)
    assert graph.active_parameters == count(module) - 3 * 2 * 2 * 48 * 32


def test_weights_that_layers_share_count_once() -> None:
    shared = Block(32, 4, None, True)

    class Loop(Language):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([shared, shared, shared])

    module = Loop()
    module.head.weight = module.tokens.weight
    graph = from_module(module, IDS)
    assert graph.parameters == count(module)
    assert graph.tied[-1] == (0, graph.num_layers - 1)


def test_adapters_beside_frozen_weights() -> None:
    class Adapted(nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x))

    module = Language()
    for block in module.blocks:
        block.feed[0] = Adapted(block.feed[0])
    graph = from_module(module, IDS)
    block = next(k for k in graph.kinds if k.role == "block")
    frozen = sum(op.parameters() for op in block.operators if not op.trained)
    assert frozen == 32 * 96 + 96
    assert graph.parameters == count(module)


def test_a_branch_on_values_is_refused_with_its_module() -> None:
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            return y * 2 if y.sum() > 0 else y

    with pytest.raises(MeshwrightError, match=r"1 \(Choosy\).*depends on the values.*try") as caught:
        from_module(nn.Sequential(nn.Linear(4, 4), Choosy()), (torch.zeros(2, 4),))
    assert "inner" not in str(caught.value)


class Guarded(nn.Linear):
    """A layer whose configuration cannot be read."""

    @property
    def config(self) -> Any:
        raise ValueError("locked")


class Bounded(nn.Linear):
    """A layer whose configuration says what it is given."""

    def __init__(self, **said: Any) -> None:
        super().__init__(4, 4)
        self.config = SimpleNamespace(**said)


@pytest.mark.parametrize(
    ("module", "example", "word"),
    [
        (nn.Sequential(nn.LazyLinear(4)), (torch.zeros(2, 4),), "0.weight.*uninitialised.*try a forward"),
        (nn.LazyBatchNorm1d(affine=False), (torch.zeros(2, 4),), "running_mean.*uninitialised"),
        (nn.Linear(4, 4), (torch.zeros(0, 4),), r"example_inputs.*\(0, 4\) is empty.*one sample"),
        (nn.Linear(4, 4), {"input": torch.zeros(2, 0, 4)}, r"\(2, 0, 4\) is empty"),
        (Guarded(4, 4), (torch.zeros(2, 4),), "Guarded.*config fails.*ValueError: locked.*try"),
        (nn.Sequential(Guarded(4, 4)), (torch.zeros(2, 4),), "Guarded.*config fails"),
        (Bounded(vocab_size=9, max_position_embeddings=-5), None, "max_position_embeddings is -5.*positive"),
        (Bounded(max_position_embeddings="x"), (torch.zeros(2, 4),), "max_position_embeddings is 'x'"),
        (nn.Linear(4, 4), (torch.zeros(2, 5),), "fails on the example inputs"),
        (nn.Linear(4, 4), 7, "an? int is no input"),
        (nn.Linear(4, 4), None, "no config"),
        (nn.ReLU(), torch.zeros(1, 2, 4), "no parameter to train"),
        ("gpt2", None, "no torch.nn.Module"),
    ],
)
def test_what_cannot_be_read_is_told(module: Any, example: Any, word: str) -> None:
    with pytest.raises(MeshwrightError, match=word):
        from_module(module, example)
