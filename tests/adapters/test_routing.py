"""Routed experts are what the model's own routers chose, for every family, in generation and in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rlaudit.capture.models.routers import Unroutable, routed_layers
from rlaudit.capture.models.routing import RoutingWindow, chosen, routing_window

from .moe_families import FAMILIES, ROUTED_LAYERS, left_padded, tiny_model


class RouterOutputs:
    """Reads the ids that each router's forward returns, independently of the window: {layer: [call, ...]}."""

    def __init__(self, model: Any) -> None:
        self.calls: dict[int, list[Any]] = {}
        classes = tuple(
            spec.target_class
            for module in model.modules()
            for spec in [(getattr(module, "_can_record_outputs", None) or {}).get("router_logits")]
            if spec is not None
        )
        for name, module in model.named_modules():
            if isinstance(module, classes):
                layer = int(name.split("layers.")[1].split(".")[0])
                module.register_forward_hook(lambda _, __, output, layer=layer: self.calls.setdefault(layer, []).append(output[2].clone()))


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(family: str) -> Any:
    return tiny_model(family)


def test_layer_ids_are_absolute_and_leave_out_dense_layers(family: str, model: Any) -> None:
    assert tuple(routed.layer for routed in routed_layers(model)) == ROUTED_LAYERS[family]


def test_generation_records_the_routers_own_ids_for_every_position_but_the_last(family: str, model: Any) -> None:
    watched = copy.deepcopy(model)
    outputs = RouterOutputs(watched)
    ids, mask = left_padded()
    with routing_window(watched) as window:
        sequences = watched.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    routed = window.generated(batch=len(ids))
    assert routed is not None
    assert sequences.shape[1] == 9 + 6
    assert routed.experts.shape[:3] == (3, 9 + 6 - 1, len(ROUTED_LAYERS[family]))
    for axis, layer in enumerate(routed.layer_ids):
        expected = torch.cat([call.view(3, -1, call.shape[-1]) for call in outputs.calls[layer]], dim=1)
        assert torch.equal(routed.experts[:, :, axis].long(), expected)


def test_checkpointed_training_forward_is_counted_once_and_equals_the_plain_forward(family: str, model: Any) -> None:
    plain, checkpointed = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    outputs = RouterOutputs(plain)
    ids, mask = left_padded()
    plain(input_ids=ids, attention_mask=mask, use_cache=False)
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    with routing_window(checkpointed) as window:
        loss = checkpointed(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False).loss
    loss.backward()
    routed = window.forwarded(width=ids.shape[1])
    assert routed is not None
    assert routed.experts.shape[:2] == ids.shape
    for axis, layer in enumerate(routed.layer_ids):
        assert torch.equal(routed.experts[:, :, axis].long(), outputs.calls[layer][0].view(3, 9, -1))


def test_forwards_in_chunks_give_the_rows_of_one_forward(model: Any) -> None:
    ids, mask = left_padded((6, 6, 6, 6))
    with torch.no_grad():
        with routing_window(model) as whole:
            model(input_ids=ids, attention_mask=mask)
        with routing_window(model) as chunks:
            for start in range(0, 4, 2):
                model(input_ids=ids[start : start + 2], attention_mask=mask[start : start + 2])
    assert torch.equal(whole.forwarded(6).experts, chunks.forwarded(6).experts)


def test_gate_weights_are_recorded_where_asked_for(model: Any) -> None:
    ids, mask = left_padded((6, 6))
    seen: list[Any] = []
    routed = routed_layers(model)
    handle = routed[0].module.register_forward_pre_hook(lambda _, args: seen.append(args[2].clone()))
    with torch.no_grad(), routing_window(model, weights=True) as window:
        model(input_ids=ids, attention_mask=mask)
    handle.remove()
    recorded = window.forwarded(6)
    assert recorded.weights.dtype == torch.float32
    assert torch.equal(recorded.weights[:, :, 0].reshape(12, -1), seen[0].float())


def test_hooks_are_gone_when_the_window_closes_even_after_an_error(model: Any) -> None:
    with pytest.raises(KeyError), routing_window(model):
        raise KeyError("the user's own")
    assert not any(module._forward_pre_hooks or module._forward_hooks for routed in routed_layers(model) for module in [routed.module])


def test_a_window_changes_no_bit_of_the_logits_or_of_the_gradients(model: Any) -> None:
    ids, mask = left_padded()

    def run(watched: Any, window: bool) -> tuple[Any, dict[str, Any]]:
        state = torch.random.get_rng_state()
        if window:
            with routing_window(watched):
                output = watched(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False)
        else:
            output = watched(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False)
        output.loss.backward()
        assert torch.equal(state, torch.random.get_rng_state())
        return output.logits, {name: parameter.grad for name, parameter in watched.named_parameters() if parameter.grad is not None}

    logits, gradients = run(copy.deepcopy(model).train(), window=False)
    watched_logits, watched_gradients = run(copy.deepcopy(model).train(), window=True)
    assert torch.equal(logits, watched_logits)
    assert gradients.keys() == watched_gradients.keys()
    assert all(torch.equal(gradients[name], watched_gradients[name]) for name in gradients)


def test_a_dense_model_is_said_to_have_no_routed_layer() -> None:
    with pytest.raises(Unroutable, match="no routed layer"), routing_window(tiny_model("qwen3", head_dim=8)):
        pass


def test_a_compiled_model_is_refused_because_hooks_would_break_its_graph() -> None:
    compiled = torch.compile(tiny_model("mixtral"), backend="eager")
    with pytest.raises(Unroutable, match="is compiled"), routing_window(compiled):
        pass


def test_expert_parallel_ids_are_refused_because_they_are_local_to_the_rank() -> None:
    model = tiny_model("mixtral")
    for module in model.modules():
        if hasattr(module, "_is_expert_parallel"):
            module._is_expert_parallel = True
    with pytest.raises(Unroutable, match="expert parallel"), routing_window(model):
        pass


def test_a_failing_hook_never_reaches_the_model_and_gives_out_nothing() -> None:
    model = tiny_model("mixtral")
    window = RoutingWindow(tuple(routed._replace(num_experts=1) for routed in routed_layers(model)))
    ids, mask = left_padded((4, 4))
    window.open()
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    window.close()
    assert window.forwarded(4) is None
    assert window.failure == "an expert id is outside the experts that the layer has"


def test_ids_are_not_guessed_where_a_router_returns_several_integer_tensors() -> None:
    with pytest.raises(Unroutable, match="2 tensors"):
        chosen((torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long)))


def test_output_recorder_routers_work_without_the_experts_interface() -> None:
    model = tiny_model(
        "longcat_flash",
        num_layers=2,
        n_routed_experts=4,
        zero_expert_num=2,
        moe_topk=2,
        expert_ffn_hidden_size=16,
        ffn_hidden_size=32,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        head_dim=8,
        num_key_value_heads=4,
    )
    outputs = RouterOutputs(model)
    ids, mask = left_padded((6, 4))
    with torch.no_grad(), routing_window(model) as window:
        model(input_ids=ids, attention_mask=mask)
    routed = window.forwarded(6)
    assert routed is not None
    assert routed.num_experts == 4 + 2
    for axis, layer in enumerate(routed.layer_ids):
        assert torch.equal(routed.experts[:, :, axis].long(), outputs.calls[layer][0].view(2, 6, -1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device: copies to pinned memory are not exercised")
def test_ids_copied_from_a_device_without_waiting_are_the_routers_own() -> None:
    model = tiny_model("qwen3_moe").cuda()
    outputs = RouterOutputs(model)
    ids, mask = (tensor.cuda() for tensor in left_padded())
    with routing_window(model) as window:
        model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    routed = window.generated(batch=3)
    assert routed is not None
    assert routed.experts.device.type == "cpu"
    for axis, layer in enumerate(routed.layer_ids):
        expected = torch.cat([call.view(3, -1, call.shape[-1]) for call in outputs.calls[layer]], dim=1)
        assert torch.equal(routed.experts[:, :, axis].long(), expected.cpu())
