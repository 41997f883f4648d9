"""The SGLang server as the loop sees it: a process to start and stop, and its HTTP interface."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Answer(NamedTuple):
    """One finished call. experts: (len(input) + len(tokens) - 1, layers, top_k), row j belongs to the forward pass of token j."""

    request_id: str
    tokens: list[int]
    logprobs: list[float]
    experts: np.ndarray
    finish_reason: str
    weight_version: str
    cached_tokens: int


class Engine:
    """Client of a running server. Takes its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def generate(
        self, request_ids: list[str], inputs: list[list[int]], layers: int, top_k: int, max_new_tokens: int, temperature: float
    ) -> list[Answer]:
        """Token ids in and out; log-probabilities are tempered, not truncated (nothing is truncated here)."""
        answers = self.post(
            "/generate",
            rid=request_ids,
            input_ids=inputs,
            sampling_params={"max_new_tokens": max_new_tokens, "temperature": temperature},
            return_logprob=True,
            return_routed_experts=True,
        )
        return [_answer(answer, layers, top_k) for answer in answers]

    def load_weights(self, folder: Path, version: str) -> None:
        """Load a checkpoint and drop cached prefixes, which were computed with the old weights."""
        done = self.post("/update_weights_from_disk", model_path=str(folder), weight_version=version, flush_cache=True)
        if not done["success"]:
            raise RuntimeError(f"the engine didn't load {folder}: {done['message']}")

    def weight_version(self) -> str:
        """What the engine says that it computes with."""
        return _open(f"{self.url}/model_info")["weight_version"]

    def post(self, path: str, **body: Any) -> Any:
        """POST as JSON; RuntimeError with the server's answer where it refuses."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return _open(request)


class Server:
    """The server's process, in an environment of its own. Use as a context manager: it is stopped in any case."""

    def __init__(self, python: Path, model: Path, port: int, dtype: str, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        # Capture stays out of the server: this loop records what it received over HTTP, as it would from a server elsewhere.
        environment = {**os.environ, "RLAUDIT_DISABLE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
        command = [python, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", port, "--dtype", dtype,
                   "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none",
                   "--disable-cuda-graph", "--skip-server-warmup", "--max-total-tokens", 8192, "--max-running-requests", 16,
                   "--mem-fraction-static", 0.1, "--random-seed", 0, "--enable-return-routed-experts",
                   "--log-level", "warning"]  # fmt: skip
        with log.open("w") as output:  # a session of its own, so that its children can be stopped with it
            self.process = subprocess.Popen([str(word) for word in command], env=environment, stdout=output, stderr=output,
                                            start_new_session=True)  # fmt: skip

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds: float = 240) -> None:
        """Return when the server answers; RuntimeError with the end of its log where it doesn't."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self.process.returncode}:\n{self.last_lines()}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise RuntimeError(f"the server did not answer within {seconds:.0f} s:\n{self.last_lines()}")

    def last_lines(self, count: int = 25) -> str:
        """The end of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self.process.pid, number)


def _open(request: Any) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.url}: {error.code} {error.read().decode(errors='replace')}") from error


def _answer(answer: dict[str, Any], layers: int, top_k: int) -> Answer:
    meta = answer["meta_info"]
    tokens = answer["output_ids"]
    logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
    experts = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32).reshape(-1, layers, top_k)
    if len(logprobs) != len(tokens) or len(experts) != meta["prompt_tokens"] + len(tokens) - 1:
        raise RuntimeError(f"{meta['id']}: {len(tokens)} tokens came with {len(logprobs)} log-probabilities, {len(experts)} routing rows")
    return Answer(meta["id"], tokens, logprobs, experts, meta["finish_reason"]["type"], meta["weight_version"], meta["cached_tokens"])
