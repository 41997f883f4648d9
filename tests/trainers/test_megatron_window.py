"""What the Megatron window and the replay refuse, and faults in what routers hand on; with stand-ins for Megatron's modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlaudit.capture.models.routers import Unroutable
from rlaudit.capture.trainers.megatron_routing import megatron_routers, megatron_routing_window, replayed_routing

torch = pytest.importorskip("torch")


class TopKRouter(torch.nn.Module):
    """Known by its class's name; hands on what it is called with."""

    def __init__(self, layer_number: int | None = 1, **config: Any) -> None:
        super().__init__()
        self.layer_number, self.topk, self.router_replay = layer_number, 2, None
        self.config = SimpleNamespace(**{"moe_expert_capacity_factor": None, "num_moe_experts": 4, "cuda_graph_impl": "none"} | config)

    def forward(self, probs: Any) -> tuple[Any, Any]:
        return probs, probs > 0


def model(**routers: TopKRouter) -> Any:
    return torch.nn.ModuleDict(routers)


@pytest.mark.parametrize(
    ("router", "words"),
    [
        (TopKRouter(None), "no layer number"),
        (TopKRouter(1, moe_expert_capacity_factor=1.0), "drops tokens"),
        (TopKRouter(1, cuda_graph_impl="local"), "CUDA graphs"),
    ],
)
def test_what_would_be_wrong_or_break_the_run_is_refused(router: TopKRouter, words: str) -> None:
    with pytest.raises(Unroutable, match=words):
        megatron_routers(model(one=router))


def test_two_routers_of_one_layer_and_no_router_at_all_are_refused() -> None:
    with pytest.raises(Unroutable, match="layer 0 has more than one"):
        megatron_routers(model(one=TopKRouter(1), two=TopKRouter(1)))
    with pytest.raises(Unroutable, match="no routed layer"), megatron_routing_window(torch.nn.Linear(2, 2)):
        pass


def test_layers_are_absolute_from_zero_over_the_chunks_of_a_virtual_pipeline() -> None:
    chunks = [model(one=TopKRouter(7)), model(one=TopKRouter(3), mtp=TopKRouter(1))]
    assert [routed.layer for routed in megatron_routers(chunks)] == [2, 6]


def test_rows_come_by_position_then_sequence_and_slots_by_gate() -> None:
    routers = model(one=TopKRouter(1))
    rows = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.6, 0.0, 0.0, 0.4], [0.1, 0.9, 0.0, 0.0], [0.0, 0.0, 0.8, 0.2]])
    with megatron_routing_window(routers, weights=True) as window:
        routers["one"](rows)  # positions 0 and 1 of sequences a and b: a0, b0, a1, b1
    routed = window.routed(batch=2)
    assert routed is not None
    assert routed.computed.experts[:, :, 0].tolist() == [[[2, 1], [1, 0]], [[0, 3], [2, 3]]]
    assert torch.equal(routed.computed.weights[0, 0, 0], torch.tensor([0.7, 0.3]))
    assert not routers["one"]._forward_hooks


def test_a_token_with_fewer_experts_than_top_k_gives_nothing_out_and_says_why() -> None:
    routers = model(one=TopKRouter(1))
    with megatron_routing_window(routers) as window:
        routers["one"](torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert window.routed(batch=1) is None
    assert window.failure == "a token was routed to fewer experts than top_k"


def test_a_failing_hook_does_not_reach_the_model() -> None:
    routers = model(one=TopKRouter(1))
    with megatron_routing_window(routers) as window:
        out = routers["one"](torch.tensor([0.5]))  # fewer experts than topk asks for
    assert out[1].tolist() == [True]
    assert window.routed(batch=1) is None
    assert window.failure is not None


@pytest.mark.parametrize(
    ("ids", "layers", "words"),
    [
        ([[[0, 0]]], [0], "twice"),
        ([[[0, 4]]], [0], "2 of 4 experts"),
        ([[[0, 1, 2]]], [0], "2 of 4 experts"),
        ([[[0, 1]]], [5], "no experts are given for layer 0"),
    ],
)
def test_experts_that_can_not_be_replayed_are_refused_before_anything_is_set(ids: Any, layers: list[int], words: str) -> None:
    router = TopKRouter(1)
    router.router_replay = SimpleNamespace()  # nothing may be called on it
    with pytest.raises(ValueError, match=words), replayed_routing(model(one=router), [ids], layers):
        pass


def test_a_model_without_replay_is_told_how_to_get_it() -> None:
    with (
        pytest.raises(ValueError, match="moe_enable_routing_replay=True"),
        replayed_routing(model(one=TopKRouter(1)), [[[[0, 1]]]], [0]),
    ):
        pass
