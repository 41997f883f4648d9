"""What a trainer would record for SGLang's sequences: Hugging Face's log-probabilities and routing.

Arguments: pickle, dtype, sampling temperature, the temperature that the trainer divides by.
"""

import pickle
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import rlaudit

kept, dtype = sys.argv[1:3]
temperature, divisor = float(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
found = pickle.loads(Path(kept).read_bytes())["sequences"]
for step in sorted({one["step"] for one in found}):
    ours = [one for one in found if one["step"] == step]
    model = AutoModelForCausalLM.from_pretrained(ours[0]["trainer"], dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    gates: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, inputs, output, gates=gates: gates.append(output[-1]))
    names = [f"step{step}-{i}" for i in range(len(ours))]
    logprobs, experts = [], []
    with torch.no_grad():
        for one in ours:
            gates.clear()
            tokens = torch.tensor([one["prompt"] + one["tokens"]])
            table = torch.log_softmax(model(input_ids=tokens).logits[0].float() / divisor, -1)
            first = len(one["prompt"])
            logprobs.append([table[first - 1 + i, token].item() for i, token in enumerate(one["tokens"])])
            experts.append(torch.stack(gates, 1))
    rlaudit.record_rollout(
        step=step,
        sequence_ids=names,
        prompt_tokens=[one["prompt"] for one in ours],
        response_tokens=[one["tokens"] for one in ours],
        temperature=temperature,
        policy_updates=step,
    )
    rlaudit.record_scores(
        step=step,
        sequence_ids=names,
        source="trainer",
        logprobs=logprobs,
        forward="recompute",
        temperature=divisor,
        logprob_mode="tempered" if divisor == temperature else "raw",
        dtype=dtype,
        weight_dtype=dtype,
        policy_updates=step,
    )
    rlaudit.record_routing(step=step, sequence_ids=names, source="trainer", experts=experts, num_experts=16, layer_ids=range(4))
    rlaudit.step(step)
