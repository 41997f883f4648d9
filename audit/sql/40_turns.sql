-- view: turns
-- description: One row per engine call that produced a part of a sequence: what went in, what came out, and what the trainer consumed in its place.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response
-- column turn: turn of the sequence, from 0
-- column request_id: the engine call
-- column start (tokens): first response position that the call produced
-- column end (tokens): one past the last
-- column input_length (tokens): length of what the engine was given
-- column output_length (tokens): length of what it returned
-- column output_tokens: token ids that the engine returned
-- column consumed_tokens: token ids that the trainer has at these positions
-- column tokens_equal: the two are the same
-- column input_equal: the engine was given exactly the trainer's prompt and earlier response tokens
-- column finish_reason: as the engine said
-- column method: how the call was linked to the sequence
-- column ambiguous: several calls fit equally well
CREATE OR REPLACE VIEW turns AS
SELECT l.attempt, l.step, l.sequence_id, l.turn, l.request_id, l.start, l."end",
       len(r.input_tokens) AS input_length, len(r.output_tokens) AS output_length, r.output_tokens,
       q.response_tokens[l.start + 1 : l."end"] AS consumed_tokens,
       r.output_tokens = q.response_tokens[l.start + 1 : l."end"] AS tokens_equal,
       r.input_tokens = list_concat(q.prompt_tokens, q.response_tokens[1 : l.start]) AS input_equal,
       r.finish_reason, l.method, l.ambiguous
FROM links l
JOIN requests r ON l.attempt = r.attempt AND l.request_id = r.request_id
LEFT JOIN sequences q ON l.attempt = q.attempt AND l.step = q.step AND l.sequence_id = q.sequence_id;
