"""Megatron-Core 0.16.1's own GPTModel on a CPU beside transformers' Qwen3-MoE with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.environments import installed, run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.integration

REQUIREMENTS = (["torch==2.13.0", "transformers==5.24.0", "numpy", "packaging>=24.2"], ["--no-deps", "megatron-core==0.16.1"])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    bin_folder, folder = installed("megatron-core-0.16.1", *REQUIREMENTS), tmp_path_factory.mktemp("megatron")
    for size in (1, 2):
        run(
            [bin_folder / "torchrun", "--standalone", "--nproc-per-node", str(size), Path(__file__).with_name("megatron_forward.py"),
             str(size), folder / f"{size}.pt"],
            OMP_NUM_THREADS="1",
        )  # fmt: skip
    return {size: torch.load(folder / f"{size}.pt", weights_only=False) for size in (1, 2)}


def sets(experts: Any) -> Any:
    return experts.long().sort(-1).values


def test_every_tensor_of_megatrons_model_is_in_the_layout_that_the_conversion_says(found: dict[int, dict[str, Any]]) -> None:
    assert len(found[1]["layout"]) == 3 + 4 * (6 + 1 + 16)
    assert {verdict for _, verdict, _ in found[1]["layout"]} == {"equal"}


@pytest.mark.parametrize("size", [1, 2])
def test_log_probabilities_agree_with_hugging_face(found: dict[int, dict[str, Any]], size: int) -> None:
    assert (found[size]["logprobs"] - found[size]["hf_logprobs"]).abs().max() < 1e-5
    assert found[size]["hf_logprobs"].std() > 0.1  # not a model that says the same of every token


@pytest.mark.parametrize("size", [1, 2])
def test_routing_agrees_with_hugging_face_in_every_cell_and_slot(found: dict[int, dict[str, Any]], size: int) -> None:
    experts, weights, layers, num_experts = found[size]["routing"]
    expected, expected_weights, _, _ = found[size]["hf_routing"]
    assert experts.shape == (3, 24, 4, 2)
    assert (layers, num_experts) == ((0, 1, 2, 3), 8)
    assert torch.equal(experts, expected)
    assert torch.allclose(weights, expected_weights, atol=1e-5)
    assert found[size]["own"] is None  # nothing was replayed


def test_tensor_parallel_two_is_tensor_parallel_one(found: dict[int, dict[str, Any]]) -> None:
    assert torch.equal(found[1]["routing"][0], found[2]["routing"][0])
    assert (found[1]["logprobs"] - found[2]["logprobs"]).abs().max() < 1e-5
    assert [rank[0] for rank in found[2]["duties"]] == [True, False]  # log-probabilities
    assert [rank[2] for rank in found[2]["duties"]] == [True, False]  # routing


@pytest.mark.parametrize("size", [1, 2])
def test_the_window_changes_no_bit_and_draws_no_random_number(found: dict[int, dict[str, Any]], size: int) -> None:
    assert torch.equal(found[size]["logprobs"], found[size]["plain_logprobs"])
    assert torch.equal(found[size]["after_logprobs"], found[size]["plain_logprobs"])
    assert found[size]["same_random_state"]


@pytest.mark.parametrize("size", [1, 2])
def test_under_replay_the_forward_computes_with_the_given_experts_and_the_own_choice_is_kept_too(
    found: dict[int, dict[str, Any]], size: int
) -> None:
    given, replayed, own = found[size]["given"], found[size]["replayed"][0], found[size]["replayed_own"][0]
    assert torch.equal(sets(replayed), sets(given))
    assert (found[size]["replayed_logprobs"] - found[size]["logprobs"]).abs().max() > 1e-3
    # The first layer's input is what it was without replay, so its own choice is too; later layers' inputs are not.
    assert torch.equal(own[:, :, 0], found[size]["routing"][0][:, :, 0])
    assert not torch.equal(sets(own), sets(given))


@pytest.mark.parametrize("size", [1, 2])
def test_replaying_the_routers_own_choice_gives_its_own_log_probabilities(found: dict[int, dict[str, Any]], size: int) -> None:
    assert (found[size]["own_replayed_logprobs"] - found[size]["logprobs"]).abs().max() < 1e-6
