"""Secrets of the environment and of the command line appear nowhere in a run, however many processes saw them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from rlaudit import Run
from tests.launch.place import Place


def texts(run: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a run with its bytes; Parquet files once more with their values unpacked."""
    for path in sorted(run.rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes()
            if path.suffix == ".parquet":
                yield f"{path} (values)", repr(pq.read_table(path, partitioning=None).to_pylist()).encode()


def test_planted_secrets_are_nowhere_in_a_run_of_several_processes(place: Place) -> None:
    words = iter(secrets.token_hex(9) for _ in range(40))
    planted: dict[str, str] = {}

    def secret(label: str, before: str = "") -> str:
        planted[label] = next(words)
        return before + planted[label]

    environment = {
        # Names outside the allow-list.
        "WANDB_API_KEY": secret("name"),
        "HF_TOKEN": secret("token", "hf_"),
        "AWS_SECRET_ACCESS_KEY": secret("aws"),
        "DATABASE_URL": f"postgres://user:{secret('password in an address')}@host/db",
        # Names inside it: by the name, by the value's shape, and in the middle of a value.
        "SGLANG_API_KEY": secret("allowed prefix, secret name"),
        "VLLM_ENDPOINT": f"https://user:{secret('allowed, password in an address')}@host/v1",
        "VERL_ARGS": f"--lr 1e-6 --api-key {secret('allowed, an option inside')} --epochs 2",
        "TRL_SETTINGS": f"a=1;hub_token={secret('allowed, an assignment inside')}",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    inner = place.code("emit('code')")
    train = place.script(
        "train.py",
        "import multiprocessing, subprocess, sys\n"
        "if __name__ == '__main__':\n"
        "    emit('parent')\n"
        "    for method in ('spawn', 'fork'):\n"
        "        child = multiprocessing.get_context(method).Process(target=emit, args=(method,))\n"
        "        child.start(); child.join()\n"
        f"    subprocess.run([sys.executable, '-uc', {inner!r}, *sys.argv[1:]], check=True)\n",
    )
    inline = f"export MY_PASSWORD='{secret('exported in bash -c')}'; API_TOKEN={secret('assigned in bash -c')} python {train} \"$@\""
    arguments = [
        "--api-key", secret("after an option"),
        f"--hub-token={secret('behind =')}",
        f"wandb.api_key={secret('hydra override')}",
        "--header", f"Authorization: Bearer {secret('header')}",
        f"--store=s3://key:{secret('address')}@bucket/x",
        secret("bare token", "hf_"),
    ]  # fmt: skip
    done = place.capture("bash", "-c", inline, "bash", *arguments, variables=environment)
    assert done.returncode == 0, done.stderr
    assert set(place.pids()) == {"parent", "spawn", "fork", "code"}
    assert sorted(Run.open(place.out).read("sequences")["sequence_id"].to_pylist()) == ["code", "fork", "parent", "spawn"]
    everything = list(texts(place.out))
    assert any(b"eth0" in data for _, data in everything), "what is allowed and no secret is there"
    found = {label: path for label, value in planted.items() for path, data in everything if value.encode() in data}
    assert found == {}
    shown = {label for label, value in planted.items() if value in done.stderr}
    assert shown == set()
