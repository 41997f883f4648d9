"""Which Megatron-Core rank records what: copies once, parts where ranks own parts.

Written after reading megatron-core 0.16.1: ``parallel_state`` and ``utils.get_batch_on_this_cp_rank`` (each sequence in 2 x CP chunks, of
which rank r has the r-th from either end). Nothing here communicates.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Duties(NamedTuple):
    """What this rank records. Parts are those of ``rlaudit.record_scores`` and ``record_routing``.

    logprobs: it records log-probabilities (last pipeline stage, first tensor rank). logprob_parts: rows a sequence's are split into.
    routing: it records its own layers' routing: one of the tensor ranks, or each its own tokens under sequence parallelism.
    routing_parts: rows over all ranks, where every stage has routed layers.
    """

    logprobs: bool
    logprob_parts: int
    routing: bool
    routing_parts: int
    context: tuple[int, int]
    sequence: tuple[int, int]

    def spans(self, width: int, sequence_parallel: bool = True) -> tuple[tuple[int, int], ...]:
        """Positions [start, end) of a sequence of padded ``width`` that this rank's rows are, in the rows' order.

        sequence_parallel False: of the rows before they are scattered over tensor ranks, as logits are. ValueError where the
        width can't be divided.
        """
        return _spans(width, self.context, self.sequence if sequence_parallel else (0, 1))


def who_records(sequence_parallel: bool = False, parallel_state: Any = None) -> Duties:
    """This rank's duties under tensor, pipeline, context and sequence parallelism.

    sequence_parallel: the model's ``config.sequence_parallel``. parallel_state: ``megatron.core.parallel_state``, initialised; None
    imports it. Ranks of different data-parallel groups have different sequences: all of them record.
    """
    if parallel_state is None:
        parallel_state = import_module("megatron.core.parallel_state")
    tp_rank, tp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    cp_rank, cp = parallel_state.get_context_parallel_rank(), max(1, parallel_state.get_context_parallel_world_size())
    pp_rank, pp = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_world_size()
    split = sequence_parallel and tp > 1
    grid = [(c, t) for c in range(cp) for t in range(tp if split else 1)]
    pieces = sum(len(_spans(2 * cp * tp, (c, cp), (t, tp if split else 1))) for c, t in grid)
    return Duties(
        logprobs=pp_rank == pp - 1 and tp_rank == 0,
        logprob_parts=2 * cp if cp > 1 else 1,
        routing=split or tp_rank == 0,
        routing_parts=pp * pieces,
        context=(cp_rank, cp),
        sequence=(tp_rank, tp) if split else (0, 1),
    )


def _spans(width: int, context: tuple[int, int], sequence: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    (cp_rank, cp_size), (sp_rank, sp_size) = context, sequence
    chunks = 2 * cp_size if cp_size > 1 else 1
    if width % chunks or (width // cp_size) % sp_size:
        raise ValueError(f"a width of {width} can't be split over {cp_size} context and {sp_size} sequence ranks")
    size = width // chunks
    held = [(cp_rank * size, (cp_rank + 1) * size)]
    if cp_size > 1:
        held.append((width - (cp_rank + 1) * size, width - cp_rank * size))
    rows = width // cp_size // sp_size
    low, high, passed, spans = sp_rank * rows, (sp_rank + 1) * rows, 0, []
    for start, end in held:
        first, last = max(low, passed), min(high, passed + end - start)
        if first < last:
            spans.append((start + first - passed, start + last - passed))
        passed += end - start
    return tuple(spans)
