"""Starts what a run consists of: the model's files, the SGLang server, and torchrun with two ranks. Ends all of it in any case."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import options as command_line
from engine import Server

HERE = Path(__file__).parent


def main() -> int:
    options = command_line.parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leave through the with block, which stops the server
    if options.engine_python is None:
        sys.exit("--engine-python: the Python of an environment with SGLang is needed (run.sh makes one)")
    work = Path(options.work).resolve()
    shutil.rmtree(work / "weights", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    model = work / "model"
    subprocess.run([sys.executable, HERE.parent / "tiny_moe.py", model], check=True, env={**os.environ, "RLAUDIT_DISABLE": "1"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = Path(options.engine_python).absolute()
    with Server(python, model, port, options.engine_dtype, work / "server.log") as server:
        try:
            server.wait()
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / "train.py"]
        words = [*ranks, *sys.argv[1:], "--model", model, "--url", server.url, "--work", work]
        trainer = subprocess.Popen([str(word) for word in words])
        try:
            status = trainer.wait()
        finally:
            trainer.terminate()  # torchrun ends its ranks; nothing happens where it has ended
            trainer.wait()
        if status != 0:
            print(f"The trainer ended with status {status}. The server's last lines:\n{server.last_lines()}", file=sys.stderr)
        return status


if __name__ == "__main__":
    sys.exit(main())
