"""The demo's training script: its model, its data and what its settings make the trainer compute."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="the examples need TRL: pip install '.[trl]'")

TRAINED = "trained weights: sha256 "


def test_the_tokenizer_gives_back_any_text_it_was_given() -> None:
    from tiny_moe import make_tokenizer

    text = "Grüße, 世界! 2 + 2 = 4\n\tΔ log p"
    tokenizer = make_tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_model_routes_each_token_to_two_of_eight_experts() -> None:
    from tiny_moe import make_model, make_tokenizer

    config = make_model(make_tokenizer()).config
    assert (config.model_type, config.num_hidden_layers, config.num_experts, config.num_experts_per_tok) == ("qwen3_moe", 4, 8, 2)


def test_the_same_seed_makes_the_same_model() -> None:
    from grpo_tiny_moe import fingerprint
    from tiny_moe import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    assert fingerprint(make_model(tokenizer, seed=3)) == fingerprint(make_model(tokenizer, seed=3))
    assert fingerprint(make_model(tokenizer, seed=3)) != fingerprint(make_model(tokenizer, seed=4))


def test_the_trainer_computes_old_logprobs_because_generation_spans_two_updates(tmp_path: Path) -> None:
    from grpo_tiny_moe import settings

    # trl/trainer/grpo_trainer.py, _generate_and_score_completions: old_per_token_logps is computed where this holds.
    chosen = settings(str(tmp_path), steps=2, seed=0)
    assert chosen.gradient_accumulation_steps % (chosen.steps_per_generation * chosen.num_iterations) != 0
    assert chosen.steps_per_generation == 2 * chosen.gradient_accumulation_steps  # every second update is one step behind


def test_a_batch_of_prompts_needs_padding() -> None:
    from grpo_tiny_moe import prompts
    from tiny_moe import make_tokenizer

    rows = prompts(24)["prompt"]
    # Four questions are answered together: those of each such batch differ in length.
    lengths = [len(make_tokenizer().apply_chat_template(row, tokenize=True, return_dict=True)["input_ids"]) for row in rows]
    assert all(len(set(lengths[start : start + 4])) > 1 for start in range(0, len(lengths), 4))


def test_the_reward_is_the_share_of_lower_case_letters_and_spaces() -> None:
    from grpo_tiny_moe import plain_words

    answers = [[{"role": "assistant", "content": text}] for text in ("to be", "BE", "a1", "")]
    assert plain_words(answers) == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.integration
def test_two_runs_of_one_seed_end_in_the_same_bits_and_keep_the_model(examples: Path, tmp_path: Path) -> None:
    lines = []
    for name in ("one", "two"):
        command = [sys.executable, examples / "grpo_tiny_moe.py", "--steps", "2", "--output", tmp_path / name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        lines.append([line for line in done.stdout.splitlines() if line.startswith(TRAINED)])
        assert "step   2/2" in done.stdout
    assert lines[0] == lines[1]
    assert len(lines[0]) == 1
    assert (tmp_path / "one" / "start" / "model.safetensors").is_file()
    assert (tmp_path / "one" / "trained" / "model.safetensors").is_file()
