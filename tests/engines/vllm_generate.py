"""Generate in process with vLLM and keep what it returned. Arguments: model, dtype, pickle to write, "reload" to reload weights after."""

import os
import pickle
import random
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams

model, dtype, out = sys.argv[1:4]
draw = random.Random(0)
prompts = [[draw.randrange(3, 768) for _ in range(length)] for length in (4, 7, 11, 16, 17, 33, 40, 64)]
llm = LLM(
    model=model,
    enforce_eager=True,
    max_model_len=256,
    max_num_seqs=16,
    seed=0,
    dtype=dtype,
    block_size=32,
    enable_return_routed_experts="moe" in model,
)


def generate(these, parameters):
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in these], parameters, use_tqdm=False)
    return [
        {
            "prompt": list(output.prompt_token_ids),
            "tokens": list(one.token_ids),
            "logprobs": None if one.logprobs is None else [place[t].logprob for place, t in zip(one.logprobs, one.token_ids, strict=True)],
            "experts": one.routed_experts,
        }
        for output in outputs
        for one in output.outputs
    ]


sampling = [SamplingParams(temperature=1.0, max_tokens=24, logprobs=0, seed=100 + i, ignore_eos=True) for i in range(len(prompts))]
kept = {"single": generate(prompts, sampling)}
if sys.argv[4:] == ["reload"]:
    samples = SamplingParams(n=2, temperature=0.7, top_k=20, min_p=0.01, seed=1, max_tokens=5, logprobs=0)
    kept["n=2"] = generate(prompts[:1], samples)
    llm.collective_rpc("reload_weights")
    kept["reloaded"] = generate(prompts[:1], SamplingParams(temperature=0.0, max_tokens=5))
Path(out).write_bytes(pickle.dumps(kept))
