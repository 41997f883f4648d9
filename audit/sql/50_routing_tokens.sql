-- view: routing_tokens
-- description: One row per token, layer and policy evaluation: the experts chosen. Large: filter by step, sequence_id or source.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response; null where only the engine call is known
-- column request_id: the engine call; null where the sequence is known
-- column source: which policy evaluation
-- column update (optimizer steps): optimizer steps since the sequence's first use
-- column absolute_position (tokens): 0 at the prompt's first token
-- column layer: absolute decoder layer
-- column num_experts (experts): experts that the router chooses from
-- column experts: chosen expert ids, in the engine's slot order
CREATE OR REPLACE VIEW routing_tokens AS
WITH rows_of AS (
    SELECT attempt, step, sequence_id, request_id, source, "update", first_position, layer_ids, num_experts,
           unnest(routing_rows(experts, top_k, num_experts)) AS experts,
           unnest(range(tokens * len(layer_ids))) AS cell
    FROM routing
    WHERE experts IS NOT NULL
)
SELECT attempt, step, sequence_id, request_id, source, "update",
       first_position + cell // len(layer_ids) AS absolute_position,
       layer_ids[cell % len(layer_ids) + 1] AS layer,
       num_experts, experts
FROM rows_of;
