"""Generate in process with SGLang and keep what it returned. Arguments: folder with models, dtype, pickle to write, part.

Parts: answers (all ways to call an engine), relabelled (a weight update of which only the label arrives), unasked (nothing asked for beside
tokens, at temperature 0.7).
"""

import pickle
import random
import sys
from pathlib import Path

import rlaudit

folder, dtype, kept, part = sys.argv[1:5]
MODEL = f"{folder}/moe"
ASK = {"return_logprob": True, "return_routed_experts": True}


def sampling(tokens=24, **more):
    return {"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True, **more}


def sequences(prompts, answers, step=0, trainer=MODEL):
    return [{"prompt": p, "tokens": a["output_ids"], "step": step, "trainer": trainer} for p, a in zip(prompts, answers, strict=True)]


def all_answers(engine, prompts):
    batch = engine.generate(input_ids=prompts, sampling_params=[sampling(24 + i) for i in range(len(prompts))], **ASK)
    several = engine.generate(input_ids=prompts[:2], sampling_params=sampling(6, n=2, temperature=0.8, top_k=20, min_p=0.01), **ASK)
    streamed = list(engine.generate(input_ids=prompts[0], sampling_params=sampling(12), stream=True, **ASK))
    scored = engine.generate(input_ids=prompts[3], sampling_params=sampling(1, temperature=0.0), return_logprob=True, logprob_start_len=4)

    async def dropped():
        chunks = await engine.async_generate(input_ids=prompts[1], sampling_params=sampling(200), stream=True, return_logprob=True)
        seen = 0
        async for chunk in chunks:
            seen = len(chunk["output_ids"])
            if seen >= 5:
                last = {"tokens": list(chunk["output_ids"]), "id": chunk["meta_info"]["id"]}
                break
        await chunks.aclose()
        engine.tokenizer_manager.abort_request(last["id"])
        return last

    return {
        "batch": batch,
        "several": several,
        "streamed": streamed[-1],
        "scored": scored,
        "dropped": engine.loop.run_until_complete(dropped()),
        "sequences": sequences(prompts, batch),
    }


def relabelled(engine, prompts):
    first = engine.generate(input_ids=prompts, sampling_params=sampling(), **ASK)
    rlaudit.record_weights(fact="sent", policy_version="v1", policy_updates=1, policy_syncs=1)
    engine.loop.run_until_complete(engine.tokenizer_manager.update_weight_version(version_request("v1")))
    second = engine.generate(input_ids=prompts, sampling_params=sampling(), **ASK)
    return {"batch": first + second, "sequences": sequences(prompts, first) + sequences(prompts, second, 1, f"{folder}/updated")}


def version_request(name):
    from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

    return UpdateWeightVersionReqInput(new_version=name, abort_all_requests=False)


def unasked(engine, prompts):
    batch = engine.generate(input_ids=prompts, sampling_params=sampling(temperature=0.7))
    streamed = list(engine.generate(input_ids=prompts[0], sampling_params=sampling(6, temperature=0.7), stream=True))
    return {"batch": batch, "streamed": streamed, "sequences": sequences(prompts, batch)}


def main():
    import sglang

    draw = random.Random(0)
    prompts = [[draw.randrange(3, 768) for _ in range(length)] for length in (4, 7, 11, 16, 17, 33)]
    engine = sglang.Engine(
        model_path=MODEL,
        dtype=dtype,
        device="cpu",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        grammar_backend="none",
        max_total_tokens=4096,
        max_running_requests=8,
        mem_fraction_static=0.1,
        skip_server_warmup=True,
        enable_return_routed_experts=part != "unasked",
        random_seed=0,
    )
    try:
        found = {"answers": all_answers, "relabelled": relabelled, "unasked": unasked}[part](engine, prompts)
    finally:
        engine.shutdown()
    Path(kept).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
