"""Generate with vLLM and record Hugging Face's side, once for each of the reference's dtypes: a step each, in one captured process.

Arguments: model, vLLM's dtype, the reference's dtypes joined by commas, pickle to write: what the engine returned and what the reference
computed, a list of steps. The same prompts and seeds in every step.
"""

import os
import pickle
import random
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams

import rlaudit

path, engine_dtype, dtypes, out = sys.argv[1:5]
routed = "moe" in Path(path).name
draw = random.Random(0)
prompts = [[draw.randrange(3, 768) for _ in range(length)] for length in (4, 7, 11, 16, 17, 33, 40, 64)]
sampling = [SamplingParams(temperature=1.0, max_tokens=24, logprobs=0, seed=100 + i, ignore_eos=True) for i in range(len(prompts))]
llm = LLM(
    model=path,
    enforce_eager=True,
    max_model_len=256,
    max_num_seqs=16,
    seed=0,
    dtype=engine_dtype,
    block_size=32,
    enable_return_routed_experts=routed,
)


def generated():
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    return [
        {
            "prompt": list(output.prompt_token_ids),
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [place[t].logprob for place, t in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True)],
            "experts": output.outputs[0].routed_experts,
        }
        for output in outputs
    ]


def scored(sequences, dtype):
    """Log-probabilities of the sampled tokens and, a layer each, the experts of all tokens."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    gates = []
    if routed:
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda module, inputs, output: gates.append(output[-1]))
    logprobs, experts = [], []
    with torch.no_grad():
        for one in sequences:
            gates.clear()
            table = torch.log_softmax(model(input_ids=torch.tensor([one["prompt"] + one["tokens"]])).logits[0].float(), -1)
            first = len(one["prompt"])
            logprobs.append([table[first - 1 + i, token].item() for i, token in enumerate(one["tokens"])])
            if routed:
                experts.append(torch.stack(gates, 1).numpy())
    return logprobs, experts


kept = []
for step, dtype in enumerate(dtypes.split(",")):
    sequences = generated()
    logprobs, experts = scored(sequences, dtype)
    kept.append({"engine": sequences, "logprobs": logprobs, "experts": experts})
    names = [f"{step}-{i}" for i in range(len(sequences))]
    rlaudit.record_rollout(
        step=step,
        sequence_ids=names,
        prompt_tokens=[one["prompt"] for one in sequences],
        response_tokens=[one["tokens"] for one in sequences],
        temperature=1.0,
    )
    rlaudit.record_scores(
        step=step, sequence_ids=names, source="trainer", logprobs=logprobs, forward="recompute", temperature=1.0, logprob_mode="raw",
        dtype=dtype,
    )  # fmt: skip
    if experts:
        rlaudit.record_routing(step=step, sequence_ids=names, source="trainer", experts=experts, num_experts=16, layer_ids=range(4))
    rlaudit.step(step)
Path(out).write_bytes(pickle.dumps(kept))
