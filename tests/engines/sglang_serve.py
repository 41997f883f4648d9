"""Serve over HTTP with SGLang, update weights amid a call, and keep what clients got.

Arguments: folder with models, dtype, pickle to write.
"""

import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import requests

folder, dtype, kept = sys.argv[1:4]
MODEL = f"{folder}/moe"
PROMPT = list(range(5, 25))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
URL = f"http://127.0.0.1:{port}"


def post(path, **body):
    answer = requests.post(URL + path, json=body, timeout=120)
    answer.raise_for_status()
    return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text


def generate(tokens, prompt=PROMPT, **more):
    given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
    sampling = {"temperature": 0.7, "max_new_tokens": tokens, "ignore_eos": True}
    return {**given, "sampling_params": sampling, "return_logprob": True, "return_routed_experts": True, **more}


def chunks(body):
    with requests.post(f"{URL}/generate", json={**body, "stream": True}, stream=True, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def updated_amid(tokens):
    """A call that is retracted while the weights change: what its client got last."""
    under_way, last = threading.Event(), {}

    def client():
        for number, chunk in enumerate(chunks(generate(tokens, [700, *PROMPT], rid="retracted"))):
            last.update(chunk)
            if number == 20:
                under_way.set()

    thread = threading.Thread(target=client)
    thread.start()
    assert under_way.wait(60)
    post("/pause_generation", mode="retract")
    assert post("/update_weights_from_disk", model_path=f"{folder}/updated", weight_version="v1", flush_cache=False)["success"]
    post("/continue_generation")
    thread.join()
    return last


def dropped():
    stream = chunks(generate(300, [701, *PROMPT], rid="dropped"))
    seen = [next(stream) for _ in range(5)]
    stream.close()
    return seen


def main():
    options = "--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph --grammar-backend none"
    limits = (
        "--max-total-tokens 4096 --max-running-requests 8 --mem-fraction-static 0.1 --skip-server-warmup --enable-return-routed-experts"
    )
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", MODEL, "--dtype", dtype, "--port", str(port)]
    server = subprocess.Popen([*command, *options.split(), *limits.split(), "--log-level", "error"])
    try:
        for _ in range(600):
            try:
                if requests.get(f"{URL}/health", timeout=5).ok:
                    break
            except requests.ConnectionError:
                pass
            assert server.poll() is None, "the server ended"
            time.sleep(0.2)
        plain = post("/generate", **generate(8, rid="plain"))
        streamed = list(chunks(generate(8, rid="streamed")))[-1]
        text = post("/generate", **generate(4, "the quick brown fox", rid="text"))
        told = post("/generate", **generate(4, "the quick brown fox", rid="told", return_prompt_token_ids=True))
        seen = dropped()
        retracted = updated_amid(300)
        stale = post("/generate", **generate(8, rid="stale"))
    finally:
        server.terminate()
        server.wait(60)
    named = {"plain": plain, "streamed": streamed, "text": text, "told": told, "retracted": retracted, "stale": stale}
    both = [plain, streamed]
    sequences = [{"prompt": PROMPT, "tokens": one["output_ids"], "step": 0, "trainer": MODEL} for one in both]
    Path(kept).write_bytes(pickle.dumps({**named, "dropped": seen, "batch": both, "sequences": sequences}))


if __name__ == "__main__":
    main()
