"""What is told from a secret in environment and command line, and what is kept."""

from __future__ import annotations

import pytest

from rlaudit.capture.environment import REDACTED, allowed_environment, redact_arguments, redact_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("WANDB_API_KEY=abc python train.py", f"WANDB_API_KEY={REDACTED} python train.py"),
        ("A=1 B=2 HF_TOKEN='a b' bash run.sh", f"A=1 B=2 HF_TOKEN={REDACTED} bash run.sh"),
        ("export PASSWORD=abc; python t.py", f"export PASSWORD={REDACTED}; python t.py"),
        ("python t.py --api-key abc --lr 1e-6", f"python t.py --api-key {REDACTED} --lr 1e-6"),
        ("os.environ['API_KEY'] = 'abc'; train()", f"os.environ['API_KEY'] = {REDACTED}; train()"),
        ('{"auth": "abc", "steps": 3}', f'{{"auth": {REDACTED}, "steps": 3}}'),
        ("Authorization: Bearer abc", f"Authorization: Bearer {REDACTED}"),
        ("s3://user:abc@bucket/x", f"s3://{REDACTED}@bucket/x"),
        ("login hf_abcdefgh now", f"login {REDACTED} now"),
        ("id 0a1b2c3d4e5f60718293a4b5c6d7e8f9 end", f"id {REDACTED} end"),
    ],
)
def test_a_secret_inside_a_longer_text_is_replaced_and_the_rest_kept(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --max-tokens 512 max_new_tokens=64 --tokenizer Qwen/Qwen3-0.6B",
        "python -m verl.trainer.main_ppo data.train_files=/data/gsm8k/a_very_long_folder_name_without_meaning/train.parquet",
        "python /opt/venv/lib/python3.11/site-packages/torch/distributed/run.py --nproc-per-node 8",
        "NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun train.py",
    ],
)
def test_ordinary_commands_stay_readable(text: str) -> None:
    assert redact_text(text) == text
    assert redact_arguments(text.split()) == text.split()


def test_an_option_hides_the_argument_after_it_but_not_an_option() -> None:
    assert redact_arguments(["x", "--api-key", "abc", "--token", "--lr", "1"]) == ["x", "--api-key", REDACTED, "--token", "--lr", "1"]


def test_code_on_the_command_line_keeps_what_is_not_secret() -> None:
    code = "cd /work && HF_TOKEN=abc python train.py"
    assert redact_arguments(["bash", "-c", code]) == ["bash", "-c", f"cd /work && HF_TOKEN={REDACTED} python train.py"]


def test_allowed_variables_with_a_secret_in_their_value_keep_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_ARGS", "--lr 1e-6 --api-key abc")
    monkeypatch.setenv("NOT_ALLOWED", "x")
    assert allowed_environment()["VERL_ARGS"] == f"--lr 1e-6 --api-key {REDACTED}"
    assert "NOT_ALLOWED" not in allowed_environment()
