"""Megatron-Core's GPTModel with a Hugging Face Qwen3-MoE's weights on a CPU: log-probabilities, routing, replay.

    torchrun --nproc-per-node TP megatron_forward.py TP OUT

Four functions of Megatron are replaced where they need CUDA or Transformer Engine; none of them takes part in routing. Rank 0 writes OUT.
"""

import contextlib
import sys
from typing import Any

import torch
import torch.distributed as dist

torch.set_num_threads(1)
torch.cuda.current_device = lambda: "cpu"
dist.init_process_group("gloo")
TP = int(sys.argv[1])

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from rlaudit.capture.models.routing import routing_window  # noqa: E402
from rlaudit.capture.trainers.megatron_layout import Heads, compare_layouts, to_megatron  # noqa: E402
from rlaudit.capture.trainers.megatron_ranks import who_records  # noqa: E402
from rlaudit.capture.trainers.megatron_routing import megatron_routing_window, replayed_routing  # noqa: E402

tensor_parallel.get_cuda_rng_tracker().fork = lambda *a, **k: contextlib.nullcontext()
moe_utils.te_general_gemm = None
HEADS = Heads(4, 2, 32)
BATCH, WIDTH, LAYERS, EXPERTS, TOP_K = 3, 24, 4, 8, 2


def hugging_face() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_experts=EXPERTS, num_experts_per_tok=TOP_K, moe_intermediate_size=32,
        norm_topk_prob=True, rms_norm_eps=1e-6, tie_word_embeddings=False, max_position_embeddings=128, initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def megatron() -> Any:
    parallel_state.initialize_model_parallel(TP, 1)
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=64, num_attention_heads=4, num_query_groups=2, kv_channels=32, ffn_hidden_size=128,
        num_moe_experts=EXPERTS, moe_router_topk=TOP_K, moe_ffn_hidden_size=32, moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="allgather", tensor_model_parallel_size=TP, use_cpu_initialization=True, normalization="RMSNorm",
        layernorm_epsilon=1e-6, gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, qk_layernorm=True,
        hidden_dropout=0.0, attention_dropout=0.0, params_dtype=torch.float32, pipeline_dtype=torch.float32,
        moe_enable_routing_replay=True,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False, qk_layernorm=True)
    return GPTModel(config, spec, vocab_size=512, max_sequence_length=128, position_embedding_type="rope", rotary_base=1_000_000,
                    share_embeddings_and_output_weights=False).eval()  # fmt: skip


def piece(name: str, whole: Any, local: Any) -> Any:
    """This tensor rank's shard of a whole tensor: the dimension that is smaller here; gate and up each by themselves."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    axes = [axis for axis in range(whole.dim()) if whole.shape[axis] != local.shape[axis]]
    if not axes:
        return whole
    if name.endswith("linear_fc1.weight"):
        return torch.cat([half.chunk(TP)[rank] for half in whole.chunk(2)])
    return whole.chunk(TP, axes[0])[rank]


def logprobs(model: Any, ids: Any) -> Any:
    positions = torch.arange(WIDTH)[None].expand(BATCH, -1)
    mask = torch.triu(torch.ones(1, 1, WIDTH, WIDTH, dtype=torch.bool), 1)
    logits = model(ids, positions, mask)
    if TP > 1:
        logits = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
    return logits.float().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


@torch.no_grad()
def main() -> None:
    source, model = hugging_face(), megatron()
    mapped = to_megatron(source.state_dict(), HEADS)
    for name, parameter in model.named_parameters():
        parameter.copy_(piece(name, mapped[name], parameter))
    ids = torch.randint(0, 500, (BATCH, WIDTH), generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {"duties": tuple(who_records())}
    if TP == 1:
        state = dict(model.state_dict())
        found["layout"] = [tuple(match) for match in compare_layouts(source.state_dict(), state, HEADS)]
    with routing_window(source, weights=True) as window:
        logits = source(input_ids=ids).logits
    found["hf_routing"] = tuple(window.forwarded(WIDTH))
    found["hf_logprobs"] = logits.float().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]

    found["plain_logprobs"] = logprobs(model, ids)
    state = torch.get_rng_state()
    with megatron_routing_window(model, weights=True) as window:
        found["logprobs"] = logprobs(model, ids)
    routed = window.routed(BATCH)
    assert routed is not None, window.failure
    found |= {"routing": tuple(routed.computed), "own": routed.own, "same_random_state": torch.equal(state, torch.get_rng_state())}

    # R3: other experts than the router's own, in an order of their own.
    given = torch.rand(BATCH, WIDTH, LAYERS, EXPERTS, generator=torch.Generator().manual_seed(2)).argsort(-1)[..., :TOP_K]
    with replayed_routing(model, list(given), range(LAYERS)), megatron_routing_window(model) as window:
        found["replayed_logprobs"] = logprobs(model, ids)
    routed = window.routed(BATCH)
    assert routed is not None and routed.own is not None, window.failure
    found |= {"given": given, "replayed": tuple(routed.computed), "replayed_own": tuple(routed.own)}
    with replayed_routing(model, list(found["routing"][0]), range(LAYERS)):
        found["own_replayed_logprobs"] = logprobs(model, ids)
    found["after_logprobs"] = logprobs(model, ids)
    duties = [None] * TP
    dist.all_gather_object(duties, found["duties"])
    if dist.get_rank() == 0:
        torch.save({**found, "duties": duties}, sys.argv[2])
    dist.destroy_process_group()


main()
