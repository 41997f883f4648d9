"""ROUTING_INVALID_ROWS: routed experts that no router can have chosen (an id twice, an id out of range, bytes of the wrong length)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlaudit.analyzers import routing_kernel as rk
from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, source, absolute_position, layer, experts FROM routing_tokens
WHERE len(list_distinct(experts)) < len(experts) OR list_max(experts) >= num_experts ORDER BY ALL LIMIT 1000"""
LENGTH_SQL = """SELECT step, sequence_id, source, tokens * len(layer_ids) * top_k * CASE WHEN num_experts > 256 THEN 2 ELSE 1 END
AS expected_bytes, octet_length(experts) AS bytes
FROM routing WHERE octet_length(experts) <> tokens * len(layer_ids) * top_k * CASE WHEN num_experts > 256 THEN 2 ELSE 1 END ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Any invalid row fails: placeholders and misread buffers otherwise look like disagreement."""
    found = []
    routing = [measured.routing[key] for key in measured.routing if key[0] == "main"]
    counts = sum((part.total() for part in routing), np.zeros(rk.LAYER_COUNTS, np.int64))
    layers = sorted({layer for part in routing for layer, row in part.by_layer().items() if row[rk.INVALID_A] or row[rk.INVALID_B]})
    if layers:
        rollout, trainer = int(counts[rk.INVALID_A]), int(counts[rk.INVALID_B])
        found.append(
            Finding(
                "ROUTING_INVALID_ROWS",
                "fail",
                f"{rollout + trainer:,} routing rows name an expert twice or an expert that does not exist; they are "
                f"compared with nothing.",
                (Evidence("on the rollout side", rollout, "rows"), Evidence("on the trainer side", trainer, "rows")),
                {"layers": layers},
                SQL,
                (
                    "Rows of zeros or of one id are placeholders (padding, positions that the engine did not route).",
                    "Check the byte order and the id width of the recorded buffer.",
                ),
            )
        )
    broken = sum(part.invalid_blob_count for part in routing)
    if broken:
        examples = [example for part in routing for example in part.invalid_blobs]
        first = examples[0]
        found.append(
            Finding(
                "ROUTING_INVALID_ROWS",
                "fail",
                f"{broken:,} routing arrays have another size than tokens × layers × top_k; they are left out.",
                (
                    Evidence("arrays", broken),
                    Evidence(
                        "example", f"step {first.step}, {first.sequence_id}, {first.source}: {first.found} bytes for {first.expected}"
                    ),
                ),
                {"sequences": [example.sequence_id for example in examples]},
                LENGTH_SQL,
                ("Record the array as (tokens, layers, top_k) with the layers of this process only.",),
            )
        )
    return found
