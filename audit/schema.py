"""The tables of a run: every column with its type, unit and meaning, in one place.

Nothing heavy is imported here: the recorder inside a training process reads these
definitions too. ``rlaudit.arrow`` turns them into Arrow schemas; ``docs/run-format.md`` and
``rlaudit schema`` are generated from them.

Types are written as Arrow writes them. ``spans`` stands for
``list<struct<start: int32, end: int32, version: string, updates: int64>>``.
"""

from __future__ import annotations

from typing import NamedTuple

FORMAT_VERSION = 1
"""Version of the run format. A reader refuses a run whose version it does not know."""


class Column(NamedTuple):
    """One column. ``unit`` is None where a value has none (ids, labels, flags)."""

    name: str
    type: str
    description: str
    unit: str | None = None


class Table(NamedTuple):
    """One table. ``row`` says what one row is; ``key`` the columns that identify it."""

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of that name; KeyError where there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name}")


ATTEMPT = Column("attempt", "int32", "Restart counter of the job: 0 for the first start, +1 for every resumed one.")
STEP = Column("step", "int32", "The framework's own training step that the sequence belongs to, counted as the framework counts it.")
SEQUENCE_ID = Column("sequence_id", "string", "Identifies one sampled response within a run; equal in every table.")
PROVENANCE = (
    Column("host", "string", "Host name of the process that wrote the row."),
    Column("rank", "int32", "Global rank of that process (environment variable RANK); null outside a distributed job."),
    Column("process", "string", "The writing process: host, process id and start time."),
)
POLICY = (
    Column("policy_version", "string", "The engine's or framework's own label of the weights; for a sequence with several, the first."),
    Column(
        "policy_updates",
        "int64",
        "The same weights as a count of optimizer steps; null where the label can't be mapped.",
        "optimizer steps",
    ),
    Column(
        "policy_syncs",
        "int64",
        "The same weights as a count of observed weight synchronisations; null where none were observed.",
        "synchronisations",
    ),
)
VERSION_SPANS = Column(
    "version_spans",
    "spans",
    "Weights per response-token span [start, end) where a sequence was sampled under several; null where one version covers it all.",
)
PARTS = Column(
    "parts",
    "int32",
    "Into how many rows this evaluation of the sequence is split (context-, sequence- or pipeline-parallel ranks); null or 1 for a "
    "whole one.",
)
SAMPLING = (
    Column("temperature", "float64", "Sampling temperature; null where unknown. 0 means greedy."),
    Column("top_p", "float64", "Nucleus mass kept by sampling; 1.0 keeps everything, null where unknown."),
    Column("top_k", "int32", "Number of candidates kept by sampling; 0 keeps all, null where unknown."),
    Column("min_p", "float64", "Minimum probability relative to the most likely token; 0.0 keeps everything, null where unknown."),
    Column("repetition_penalty", "float64", "Repetition penalty; 1.0 changes nothing, null where unknown."),
)

SEQUENCES = Table(
    "sequences",
    "one sampled response as the trainer consumed it",
    ("attempt", "step", "sequence_id"),
    (
        ATTEMPT,
        STEP,
        SEQUENCE_ID,
        Column("group_id", "string", "Responses to the same prompt that are compared with each other (GRPO group)."),
        Column("trajectory_id", "string", "The episode that the sequence is a part of; null where one sequence is the whole episode."),
        Column("turn", "int32", "Turn within the trajectory, from 0; null where there are no turns."),
        Column("phase", "string", "train, eval, warmup or reward. Only train is judged."),
        Column("prompt_tokens", "list<int32>", "Prompt token ids without padding (keyed hashes under --tokens hashed).", "token id"),
        Column("response_tokens", "list<int32>", "Response token ids without padding, environment and tool tokens included.", "token id"),
        Column("prompt_length", "int32", "Length of prompt_tokens, filled in when the row becomes Parquet.", "tokens"),
        Column("response_length", "int32", "Length of response_tokens, filled in when the row becomes Parquet.", "tokens"),
        Column("sampled_mask", "list<bool>", "True where the policy sampled the response token; null where it sampled all of them."),
        Column(
            "loss_mask",
            "list<bool>",
            "True where the response token counted in the loss, after rejection and truncation; null where unknown.",
        ),
        Column("reward", "float64", "Scalar reward as the trainer used it; null where unknown.", "reward"),
        Column(
            "advantage", "float64", "Advantage where it is one number a sequence; null where it varies by token or is unknown.", "advantage"
        ),
        Column("finish_reason", "string", "stop, length, abort, tool or the engine's own word; null where unknown."),
        *POLICY,
        VERSION_SPANS,
        *SAMPLING,
        *PROVENANCE,
    ),
)

SCORES = Table(
    "scores",
    "the log-probabilities of one sequence from one policy evaluation",
    ("attempt", "step", "sequence_id", "source", "update", "first_position"),
    (
        ATTEMPT,
        STEP,
        SEQUENCE_ID,
        Column(
            "source",
            "string",
            "Which evaluation: rollout (sampling time), trainer (recomputed before the update), update (inside the training forward), "
            "reference, replay/<variant>.",
        ),
        Column(
            "update",
            "int32",
            "Optimizer steps done since the sequence's first use when this was computed; 0 for rollout and trainer.",
            "optimizer steps",
        ),
        Column(
            "first_position",
            "int32",
            "Response position of logprobs[0]; above 0 only in parts written by context-parallel ranks.",
            "tokens",
        ),
        PARTS,
        Column(
            "logprobs",
            "list<float32>",
            "Log-probability of each response token; null where missing, never 0.0. NaN and infinities are kept as computed.",
            "nats",
        ),
        Column("entropies", "list<float32>", "Entropy of the full distribution at each response token; null where not computed.", "nats"),
        *POLICY,
        Column("forward", "string", "Kind of forward pass: decode, prefill, recompute or update."),
        Column("temperature", "float64", "Temperature that was applied to the logits before these log-probabilities; null where unknown."),
        Column(
            "logprob_mode",
            "string",
            "processed (after temperature and truncation), tempered (after temperature, before truncation), raw (before both); "
            "null where unknown.",
        ),
        Column("dtype", "string", "Compute dtype of the forward pass (autocast's where it is on), as torch names it without the prefix."),
        Column("weight_dtype", "string", "Dtype of the weights that the forward pass read."),
        Column("backend", "string", "What computed it, for example transformers.generate, vllm, sglang, trl."),
        Column(
            "micro_batch",
            "int64",
            "The forward call within its process that held this sequence; sequences with equal numbers shared a batch.",
        ),
        *PROVENANCE,
    ),
)

ROUTING = Table(
    "routing",
    "the experts chosen for one sequence's tokens by one policy evaluation",
    ("attempt", "step", "sequence_id", "request_id", "source", "update", "first_position"),
    (
        ATTEMPT,
        STEP,
        SEQUENCE_ID,
        Column("request_id", "string", "The engine call, where an engine that knows no sequence wrote the row; otherwise null."),
        Column("source", "string", "As in scores."),
        Column("update", "int32", "As in scores.", "optimizer steps"),
        Column("first_position", "int32", "Absolute position (0 = the prompt's first token) of the first token row.", "tokens"),
        PARTS,
        Column(
            "tokens",
            "int32",
            "Number of token rows. Row j belongs to the forward pass of token j; the last sampled token has none in a rollout.",
            "tokens",
        ),
        Column(
            "layer_ids", "list<int32>", "Absolute decoder layer of each routed layer, in the order of the bytes; dense layers are absent."
        ),
        Column("top_k", "int32", "Experts chosen for each token and layer.", "experts"),
        Column(
            "num_experts",
            "int32",
            "Experts that the router chooses from. Up to 256 an id is one byte, above it two (little endian).",
            "experts",
        ),
        Column("experts", "binary", "Expert ids: tokens x layers x top_k, row-major, slots in the engine's own order."),
        Column("weights", "binary", "Gate weights, float32 little endian, same shape and order as experts; null where not recorded."),
        *POLICY,
        *PROVENANCE,
    ),
)

REQUESTS = Table(
    "requests",
    "one engine call as the engine saw it: tokens in, tokens out",
    ("attempt", "request_id"),
    (
        ATTEMPT,
        Column("request_id", "string", "Identifies the call within the run."),
        Column("engine_id", "string", "The engine or replica that answered."),
        Column(
            "phase",
            "string",
            "train, eval, warmup, reward, or probe (a fixed sequence scored to see what weights compute); null where unknown.",
        ),
        Column("step", "int32", "Training step, where the caller knows it; null otherwise."),
        Column("trajectory_id", "string", "The episode, where the caller knows it; null otherwise."),
        Column("turn", "int32", "Turn within the trajectory, from 0; null where unknown."),
        Column("input_tokens", "list<int32>", "Token ids that the engine was given.", "token id"),
        Column("output_tokens", "list<int32>", "Token ids that the engine returned.", "token id"),
        Column("logprobs", "list<float32>", "Log-probabilities that the engine returned for output_tokens; null where missing.", "nats"),
        Column("logprob_mode", "string", "As in scores."),
        Column(
            "input_logprobs",
            "list<float32>",
            "Log-probability of each input token given those before it, where the caller asked for them; null for the first token and "
            "wherever missing.",
            "nats",
        ),
        Column("input_logprob_mode", "string", "logprob_mode of input_logprobs: engines ignore the temperature there (raw)."),
        *POLICY,
        VERSION_SPANS,
        Column("cached_tokens", "int32", "Input tokens served from the prefix cache; null where unknown.", "tokens"),
        Column("retractions", "int32", "How often the engine put the call back into its queue and computed it anew; null where unknown."),
        Column("finish_reason", "string", "As in sequences."),
        Column("parent_id", "string", "The call that this is one of n samples of; null where it stands alone."),
        *SAMPLING,
        Column("sampling", "string", "All sampling parameters as the engine held them, as JSON; null where unknown."),
        Column("dtype", "string", "Compute dtype of the engine, as torch names it without the prefix."),
        Column("weight_dtype", "string", "Dtype of the engine's weights; quantised ones by their method, for example fp8."),
        Column("backend", "string", "The engine, for example vllm or sglang."),
        Column("started", "timestamp[us]", "When the call was made (UTC)."),
        Column("finished", "timestamp[us]", "When it returned (UTC)."),
        *PROVENANCE,
    ),
)

LINKS = Table(
    "links",
    "which engine call produced which part of a sequence",
    ("attempt", "step", "sequence_id", "request_id", "turn"),
    (
        ATTEMPT,
        STEP,
        SEQUENCE_ID,
        Column("request_id", "string", "The engine call."),
        Column("turn", "int32", "Turn of the sequence that the call produced, from 0."),
        Column("start", "int32", "First response position that the call produced.", "tokens"),
        Column("end", "int32", "One past the last response position that it produced.", "tokens"),
        Column(
            "method",
            "string",
            "How the link was made: framework (the framework's own order or id), content (the call's tokens are the sequence's), "
            "content/prefix (its input is, its output only at the beginning) or content/output (its output is, its input is not).",
        ),
        Column("ambiguous", "bool", "True where several calls fit equally well."),
        Column(
            "aligned",
            "bool",
            "True where the call's input is the sequence's prompt and response before start, so that its positions are the sequence's; "
            "null where not looked at.",
        ),
        Column(
            "routing_from",
            "int32",
            "Absolute position from which on the call's routing rows count for the sequence (earlier ones are of an earlier call); null "
            "where they don't.",
            "tokens",
        ),
        *PROVENANCE,
    ),
)

WEIGHTS = Table(
    "weights",
    "one weight synchronisation, checksum or saved checkpoint",
    ("attempt", "time", "fact", "tensor"),
    (
        ATTEMPT,
        Column("time", "timestamp[us]", "When (UTC)."),
        *POLICY,
        Column(
            "fact",
            "string",
            "sent (by the trainer), received (by the engine), resident (what the engine computes with) or saved (checkpoint).",
        ),
        Column("tensor", "string", "Parameter name; null for the whole model."),
        Column("checksum", "string", "Shard-additive checksum in hexadecimal; null where none was asked for. Of this rank's shard."),
        Column("elements", "int64", "Elements of this rank's shard that the checksum covers; null without a checksum.", "elements"),
        Column("elements_of", "int64", "Elements that the whole tensor's checksum covers.", "elements"),
        Column("stride", "int64", "Every how manieth element of the whole tensor the checksum covers; 1 for all.", "elements"),
        Column("dtype", "string", "Dtype whose bits were checksummed, as torch names it without the prefix."),
        Column("replica", "int32", "Which copy of the tensor the shard belongs to, where ranks hold several; null without a checksum."),
        Column("checkpoint", "string", "Path of the saved checkpoint; null unless fact is saved."),
        Column("engine_id", "string", "The engine concerned; null on the trainer's side."),
        *PROVENANCE,
    ),
)

FRAMEWORK_METRICS = Table(
    "framework_metrics",
    "one number that the framework itself logged",
    ("attempt", "step", "framework", "name"),
    (
        ATTEMPT,
        STEP,
        Column("framework", "string", "Who logged it, for example trl."),
        Column("name", "string", "The framework's own name for the number."),
        Column("value", "float64", "The value as logged."),
        *PROVENANCE,
    ),
)

EVENTS = Table(
    "events",
    "something that capture wants known",
    ("attempt", "time", "process", "kind", "name"),
    (
        ATTEMPT,
        Column("time", "timestamp[us]", "When (UTC)."),
        Column(
            "kind",
            "string",
            "process_started, hook_attached, hook_refused, hook_failed, heartbeat, rows_dropped, capture_stopped, step, ...",
        ),
        Column("name", "string", "What it is about: a hook, a table, a reason."),
        Column("message", "string", "One sentence for people; null where kind and name say it all."),
        Column("count", "int64", "How many rows, calls or times; null where there is nothing to count."),
        Column("detail", "string", "More, as JSON; null where there is none."),
        *PROVENANCE,
    ),
)

TABLES: tuple[Table, ...] = (SEQUENCES, SCORES, ROUTING, REQUESTS, LINKS, WEIGHTS, FRAMEWORK_METRICS, EVENTS)
BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}

TOKEN_COLUMNS: dict[str, tuple[str, ...]] = {
    "sequences": ("prompt_tokens", "response_tokens"),
    "requests": ("input_tokens", "output_tokens"),
}
"""Columns that hold token ids, which ``--tokens hashed`` replaces."""


def expert_bytes(num_experts: int) -> int:
    """Bytes that one expert id takes in ``routing.experts``: 1 up to 256 experts, else 2.

    >>> expert_bytes(128), expert_bytes(256), expert_bytes(257)
    (1, 1, 2)
    """
    return 1 if num_experts <= 256 else 2
