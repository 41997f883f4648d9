"""Who records what: over all ranks every row is recorded once, whatever the parallelism."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlaudit.capture.trainers.megatron_ranks import Duties, who_records


def duties(tp: int, pp: int, cp: int, sequence_parallel: bool) -> list[Duties]:
    return [
        who_records(
            sequence_parallel,
            SimpleNamespace(
                get_tensor_model_parallel_rank=lambda t=t: t,
                get_tensor_model_parallel_world_size=lambda: tp,
                get_pipeline_model_parallel_rank=lambda p=p: p,
                get_pipeline_model_parallel_world_size=lambda: pp,
                get_context_parallel_rank=lambda c=c: c,
                get_context_parallel_world_size=lambda: cp,
            ),
        )
        for p in range(pp)
        for c in range(cp)
        for t in range(tp)
    ]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("tp", "pp", "cp"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (2, 2, 2), (4, 2, 1), (1, 1, 3), (5, 1, 3)])
def test_every_position_of_every_stage_is_recorded_once_in_as_many_parts_as_said(
    tp: int, pp: int, cp: int, sequence_parallel: bool
) -> None:
    width = 2 * cp * tp * 3
    ranks = duties(tp, pp, cp, sequence_parallel)
    routed = [span for rank in ranks if rank.routing for span in rank.spans(width)]
    assert np.bincount([p for span in routed for p in range(*span)], minlength=width).tolist() == [pp] * width
    assert {rank.routing_parts for rank in ranks} == {len(routed)}
    scored = [span for rank in ranks if rank.logprobs for span in rank.spans(width, sequence_parallel=False)]
    assert sorted(p for span in scored for p in range(*span)) == list(range(width))
    assert {rank.logprob_parts for rank in ranks} == {len(scored)}


def test_context_ranks_own_a_chunk_from_either_end() -> None:
    assert [rank.spans(16) for rank in duties(1, 1, 2, False)] == [((0, 4), (12, 16)), ((4, 8), (8, 12))]


def test_a_width_that_ranks_can_not_share_is_refused() -> None:
    with pytest.raises(ValueError, match="15"):
        duties(1, 1, 2, False)[0].spans(15)
