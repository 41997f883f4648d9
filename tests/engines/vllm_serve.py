"""Start vLLM's OpenAI server, ask it, keep the answers and kill it without warning. Arguments: model, JSON file for the answers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

model, out = sys.argv[1:3]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
address = f"http://127.0.0.1:{port}"
server = subprocess.Popen(
    [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32", "--block-size", "32"),
        *("--max-model-len", "256", "--max-num-seqs", "8", "--enable-return-routed-experts"),
    ],
    start_new_session=True,  # killed with all its processes
)


def answered(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.read().decode()


try:
    deadline = time.monotonic() + 600
    while True:
        try:
            answered("/health")
            break
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    common = {"model": "m", "max_tokens": 6, "temperature": 1.0, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
    plain = json.loads(answered("/v1/completions", {**common, "prompt": [5, 6, 7, 8, 9], "seed": 3}))
    several = json.loads(answered("/v1/completions", {**common, "prompt": [15, 16, 17, 18], "n": 2, "seed": 4}))
    lines = answered("/v1/completions", {**common, "prompt": [25, 26, 27], "seed": 5, "stream": True}).splitlines()
    stream = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    Path(out).write_text(json.dumps({"plain": plain, "several": several, "stream": stream}))
    time.sleep(3)  # longer than rows wait for the writer
finally:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
