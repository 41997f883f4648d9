"""What a trainer would record for vLLM's sequences: Hugging Face's log-probabilities and routing. Arguments: model, pickle, dtype."""

import pickle
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import rlaudit

path, kept, dtype = sys.argv[1:4]
torch.set_num_threads(1)
sequences = pickle.loads(Path(kept).read_bytes())["single"]
model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
gates: list[torch.Tensor] = []
if "moe" in path:
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, inputs, output: gates.append(output[-1]))
names = [f"s{i}" for i in range(len(sequences))]
logprobs, experts = [], []
with torch.no_grad():
    for one in sequences:
        gates.clear()
        tokens = torch.tensor([one["prompt"] + one["tokens"]])
        table = torch.log_softmax(model(input_ids=tokens).logits[0].float(), -1)
        first = len(one["prompt"])
        logprobs.append([table[first - 1 + i, token].item() for i, token in enumerate(one["tokens"])])
        if gates:
            experts.append(torch.stack(gates, 1))
rlaudit.record_rollout(
    step=0,
    sequence_ids=names,
    prompt_tokens=[one["prompt"] for one in sequences],
    response_tokens=[one["tokens"] for one in sequences],
    temperature=1.0,
)
rlaudit.record_scores(
    step=0, sequence_ids=names, source="trainer", logprobs=logprobs, forward="recompute", temperature=1.0, logprob_mode="raw", dtype=dtype
)
if experts:
    rlaudit.record_routing(step=0, sequence_ids=names, source="trainer", experts=experts, num_experts=16, layer_ids=range(4))
rlaudit.step(0)
