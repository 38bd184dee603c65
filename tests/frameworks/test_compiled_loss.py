"""What a compiled cross entropy keeps, against torch's own partitioner."""

from typing import Any

import pytest

from meshwright.costmodels.loss import find_loss

torch = pytest.importorskip("torch")

ROWS, VOCABULARY = 16, 1_000


def test_a_compiled_cross_entropy_keeps_logits_of_two_bytes_and_returns_as_many() -> None:
    from torch._functorch.aot_autograd import aot_function, make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    made: dict[str, list[Any]] = {}

    def seen(name: str) -> Any:
        def compiler(graph: Any, _: Any) -> Any:
            outputs = list(graph.graph.nodes)[-1].args[0]
            made[name] = [out.meta["val"] for out in outputs if out is not None]
            return make_boxed_func(graph.forward)

        return compiler

    def loss(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")

    logits = torch.randn(ROWS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    compiled = aot_function(
        loss,
        seen("forward"),
        seen("backward"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    compiled(logits, torch.zeros(ROWS, dtype=torch.int64)).backward()
    wide = {
        name: sum(t.element_size() for t in ts if t.numel() == logits.numel()) for name, ts in made.items()
    }
    kernel = find_loss("compiled")
    assert kernel.saved_bytes == wide["forward"]
    assert kernel.transient_bytes == wide["forward"] + wide["backward"]
