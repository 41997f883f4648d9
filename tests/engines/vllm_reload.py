"""Load the same weights into a running vLLM again and say, as a trainer would, that they are the same. Argument: model."""

import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams

import rlaudit

llm = LLM(model=sys.argv[1], enforce_eager=True, max_model_len=128, max_num_seqs=4, seed=0, dtype="float32", block_size=32)
prompt = [{"prompt_token_ids": list(range(5, 25))}]
greedy = SamplingParams(temperature=0.0, max_tokens=4, logprobs=0)
llm.generate(prompt, greedy, use_tqdm=False)
rlaudit.record_weights(fact="sent", policy_updates=0, policy_syncs=1)
llm.collective_rpc("reload_weights")
llm.generate(prompt, greedy, use_tqdm=False)
