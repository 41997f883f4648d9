"""What rlaudit reads of TRL's GRPO and RLOO trainers, which share their method names.

One generation batch is followed from its engine calls to every loss forward that uses its rows. Its rows are labelled by one
host tensor in the batch's dictionary: TRL shuffles and splits it with the others, so a loss forward knows its rows. Log-probabilities
are tagged by what was going on when the model was called: scoring the batch, its reference, or the loss.
"""

from __future__ import annotations

import itertools
import time
import weakref
from typing import Any

from rlaudit import recording
from rlaudit.capture.engines.transformers_generate import open_tap
from rlaudit.capture.hooks import Attachment, Call, Target
from rlaudit.capture.models.host import host_copy, torch
from rlaudit.capture.models.routers import Unroutable, routed_layers
from rlaudit.capture.models.routing import RoutingWindow

from . import trl_settings as settings
from .trl_batch import Evaluation, GenerationBatch, Turn, from_label
from .trl_records import Update, record_batch, record_requests, record_update_routing, record_update_scores
from .trl_state import REMEMBERED_BATCHES, SYNCS, LossForward, Open, TrainerState

ROWS = "rlaudit_rows"
"""Key of the row labels in TRL's batch dictionaries."""

TARGETS = (
    Target("_generate_and_score_completions", ("inputs",)),
    Target("_generate", ("prompts",)),
    Target("_generate_single_turn"),
    Target("_get_per_token_logps_and_entropies", ("model", "input_ids", "attention_mask", "logits_to_keep")),
    Target("compute_loss", ("model", "inputs")),
    Target("_compute_loss", ("model", "inputs")),
    Target("_calculate_rewards", ("inputs", "prompts")),
    Target("_prepare_inputs"),
    Target("log", ("logs",)),
    Target("_save_checkpoint", ("trial",)),
    Target("_move_model_to_vllm", required=False),
)
RECORDS = (
    "tokens, log-probabilities of sampling, scoring, loss and reference, masks, rewards, routed experts, TRL's own metrics, checkpoints"
)


def targets(class_name: str) -> tuple[Target, ...]:
    """The observed methods of a trainer class."""
    return tuple(target._replace(path=f"{class_name}.{target.path}") for target in TARGETS)


_forwards = itertools.count()


class TrlObserver:
    """The hooks of one trainer class. A hook that starts something returns what its counterpart ends."""

    def __init__(self) -> None:
        self._states: weakref.WeakKeyDictionary[Any, TrainerState] = weakref.WeakKeyDictionary()

    def attach(self, attachment: Attachment, class_name: str) -> None:
        """Observe the trainer class's methods."""

        def observe(method: str, **hooks: Any) -> None:
            attachment.observe(f"{class_name}.{method}", **hooks)

        observe("_generate_and_score_completions", before=self._batch_begins, after=self._batch_ends, cleanup=self._batch_over)
        observe("_generate", after=self._tokens_known)
        observe("_generate_single_turn", before=self._turn_begins, after=self._turn_ends, cleanup=_close)
        observe("_get_per_token_logps_and_entropies", before=self._forward_begins, after=self._forward_ends, cleanup=_close)
        # Both: a subclass may replace either one and call the other.
        observe("compute_loss", before=self._loss_begins, cleanup=self._loss_over)
        observe("_compute_loss", before=self._loss_begins, cleanup=self._loss_over)
        observe("_calculate_rewards", after=self._rewards_known)
        observe("_prepare_inputs", before=self._micro_step_begins)
        observe("log", after=self._logged)
        observe("_save_checkpoint", after=self._saved)
        observe("_move_model_to_vllm", after=lambda token, result, call: SYNCS.sent())

    def state(self, trainer: Any) -> TrainerState:
        """The state of a trainer; kept as long as the trainer is."""
        return self._states.setdefault(trainer, TrainerState())

    # Generation

    def _batch_begins(self, call: Call) -> Any:
        if not recording.capturing():
            return None
        trainer = call["self"]
        state = self.state(trainer)
        train = bool(trainer.model.training)
        group_size = trainer.num_generations if train else getattr(trainer, "num_generations_eval", trainer.num_generations)
        rank = int(trainer.accelerator.process_index)
        state.batch = GenerationBatch(
            int(trainer.state.global_step), "train" if train else "eval", rank, max(int(group_size), 1), rank * len(call["inputs"])
        )
        SYNCS.generating.append(trainer)
        return trainer

    def _batch_over(self, trainer: Any) -> None:
        if trainer is not None:
            SYNCS.generating.remove(trainer)
            self.state(trainer).batch = None

    def _tokens_known(self, token: Any, result: Any, call: Call) -> None:
        batch = self.state(call["self"]).batch
        if batch is None:
            return
        batch.prompts, batch.completions = list(result[0]), list(result[1])
        batch.tool_mask = _tool_mask(result[2], batch.completions) if len(result) > 2 else None

    def _turn_begins(self, call: Call) -> Open | None:
        trainer = call["self"]
        state = self.state(trainer)
        if state.batch is None:
            return None
        inputs = call.get("prompt_ids")
        turn = Turn(len(state.batch.turns), [list(tokens) for tokens in inputs] if inputs is not None else [], time.time())
        engine = settings.engine_name(trainer)
        if engine == "transformers.continuous_batching":
            state.say("not_recorded", "sampling log-probabilities", "continuous batching of transformers gives TRL none and is not read")
        if engine != "transformers.generate":
            return Open(turn)
        window = self._window(state, trainer.model_wrapped)
        return Open(turn, tap=open_tap(), window=window)

    def _turn_ends(self, opened: Open | None, result: Any, call: Call) -> None:
        if opened is None or opened.turn is None:
            return
        opened.close()
        trainer = call["self"]
        state = self.state(trainer)
        batch, turn = state.batch, opened.turn
        if batch is None:
            return
        parts = result if isinstance(result, tuple) else (result,)  # RLOO returns the completions alone
        if call.get("prompt_ids") is None:  # TRL before 0.29 tokenizes inside and returns the prompts too
            turn.inputs, parts = [list(tokens) for tokens in parts[0]], parts[1:]
        turn.outputs = [list(tokens) for tokens in parts[0]]
        turn.request_ids = batch.request_ids(turn.number, len(turn.outputs))
        self._read_taps(state, opened, len(turn.outputs))
        batch.turns.append(turn)
        logprobs = parts[1] if len(parts) > 1 and isinstance(parts[1], list) else None
        record_requests(trainer, batch, turn, logprobs, SYNCS.count or None)

    def _read_taps(self, state: TrainerState, opened: Open, rows: int) -> None:
        """Move what the taps of a ``generate`` call saw to its turn."""
        if opened.tap is None or opened.turn is None:
            return
        sampled = opened.tap.result()
        if sampled is None:
            reason = opened.tap.refused or "the hooks of transformers' generate are not attached"
            state.say("not_recorded", "sampling log-probabilities", reason)
        else:
            opened.turn.sampled = sampled._replace(logprobs=sampled.logprobs.numpy(), tokens=sampled.tokens.numpy())
        if opened.window is not None and sampled is not None:
            opened.turn.routed = opened.window.generated(rows)
            if opened.window.failure is not None:
                state.say("not_recorded", "rollout routing", opened.window.failure)

    def _say_what_is_missing(self, trainer: Any, state: TrainerState, batch: GenerationBatch) -> None:
        """Say which of TRL's own methods a subclass replaced without calling them: their part of the record is missing."""
        if not batch.completions:
            state.say("not_recorded", "token lists", "TRL's _generate was not called: lengths come from the masks, requests have no links")
        elif not batch.turns and settings.engine_name(trainer) != "rollout_func":
            state.say(
                "not_recorded",
                "requests",
                "TRL's _generate_single_turn was not called: no requests, no sampling log-probabilities of generate",
            )

    def _rewards_known(self, token: Any, result: Any, call: Call) -> None:
        batch = self.state(call["self"]).batch
        if batch is not None:
            batch.rewards = settings.weighted_rewards(call["self"], result, len(call["prompts"]))

    def _batch_ends(self, token: Any, result: Any, call: Call) -> None:
        trainer = call["self"]
        state = self.state(trainer)
        if state.batch is None:
            return
        self._say_what_is_missing(trainer, state, state.batch)
        state.remember(state.batch.number, record_batch(trainer, state.batch, result, SYNCS.count or None, state.say, _forwards))
        result[ROWS] = torch().tensor(state.batch.labels(result["completion_ids"].shape[0]), dtype=torch().int64)

    # Forwards of the trainer

    def _loss_begins(self, call: Call) -> Any:
        trainer, inputs = call["self"], call["inputs"]
        labels = inputs.get(ROWS)
        if labels is None:
            if recording.capturing():
                self.state(trainer).say("not_recorded", "loss forwards", "the batch lost rlaudit's row labels on its way to the loss")
            return None
        state = self.state(trainer)
        rows = [from_label(label) for label in labels.tolist()]
        state.loss = LossForward(rows, int(inputs["prompt_ids"].shape[1]), inputs["completion_mask"], outer=state.loss)
        return trainer

    def _loss_over(self, trainer: Any) -> None:
        if trainer is None:
            return
        state = self.state(trainer)
        loss, state.loss = state.loss, None
        if loss is None:
            return
        if loss.outer is not None:
            loss.outer.recorded |= loss.recorded
            state.loss = loss.outer
        elif not loss.recorded:
            state.say(
                "not_recorded", "loss forwards", "the loss did not ask TRL for log-probabilities (Liger's fused loss, or a subclass's own)"
            )

    def _forward_begins(self, call: Call) -> Open | None:
        trainer = call["self"]
        state = self.state(trainer)
        if state.loss is not None:
            source = "update"
        elif state.batch is not None:
            source = "reference" if settings.is_reference(trainer, call["model"]) else "trainer"
        else:
            return None
        return Open(source=source, window=None if source == "reference" else self._window(state, call["model"]))

    def _forward_ends(self, opened: Open | None, result: Any, call: Call) -> None:
        if opened is None or opened.source is None:
            return
        opened.close()
        trainer = call["self"]
        state = self.state(trainer)
        logprobs, entropies = result[0], result[1] if len(result) > 1 else None
        rows, width = call["input_ids"].shape
        if state.loss is not None:
            self._record_update(trainer, state, opened.window, (logprobs, entropies), width)
        elif state.batch is not None:
            state.batch.evaluations.append(
                Evaluation(
                    opened.source,
                    host_copy(logprobs),
                    None if entropies is None else host_copy(entropies),
                    int(call.get("batch_size") or rows),
                    width,
                    opened.window,
                )
            )

    def _record_update(self, trainer: Any, state: TrainerState, window: RoutingWindow | None, values: tuple[Any, Any], width: int) -> None:
        loss = state.loss
        if loss is None:
            return
        loss.recorded = True
        forward = next(_forwards)
        for number in sorted({number for number, _ in loss.rows}):
            if number not in state.finished:
                state.say("not_recorded", "old loss forwards", f"rows of more than {REMEMBERED_BATCHES} generations ago are in use")
                continue
            places = [place for place, (owner, _) in enumerate(loss.rows) if owner == number]
            update = Update(
                state.finished[number],
                number,
                [loss.rows[place][1] for place in places],
                places if len(places) < len(loss.rows) else None,
                int(trainer.state.global_step),
                loss.prompt_width,
                width,
                forward,
                window,
            )
            record_update_scores(trainer, update, *values, loss.completion_mask)
            if window is not None:
                state.pending.append(update)

    def _window(self, state: TrainerState, model: Any) -> RoutingWindow | None:
        """An open routing window on ``model``; None, said once, where routing isn't wanted or can't be recorded."""
        if not recording.wants("routing"):
            return None
        try:
            layers = routed_layers(model)
            if not layers:
                return None
            window = RoutingWindow(layers, weights=recording.wants("routing_weights"))
        except Unroutable as reason:
            state.say("not_recorded", "routing", str(reason))
            return None
        window.open()
        return window

    # Steps, metrics, checkpoints

    def _micro_step_begins(self, call: Call) -> None:
        self._catch_up(call["self"])

    def _catch_up(self, trainer: Any) -> None:
        """Record the routing of loss forwards that are over, and say that a step ended where one did.

        Routing waits until here so that the host does not wait for the device in the middle of a step.
        """
        state = self.state(trainer)
        pending, state.pending = state.pending, []
        for update in pending:
            record_update_routing(update, state.say)
        step = int(trainer.state.global_step)
        if state.step is not None and step != state.step:
            recording.step(state.step)
        state.step = step

    def _logged(self, token: Any, result: Any, call: Call) -> None:
        trainer = call["self"]
        self._catch_up(trainer)
        if not trainer.state.log_history or not trainer.accelerator.is_main_process:  # every rank computes them, the main one reports them
            return
        entry = trainer.state.log_history[-1]
        values = {
            name: value
            for name, value in entry.items()
            if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        # TRL logs a step's numbers after it counted the step: they describe the sequences of the step before.
        step = int(trainer.state.global_step) - (1 if trainer.model.training else 0)
        recording.record_metrics(step=max(step, 0), framework="trl", values=values)

    def _saved(self, token: Any, result: Any, call: Call) -> None:
        trainer = call["self"]
        self._catch_up(trainer)
        path = settings.checkpoint_path(trainer, call.get("trial"))
        if path is not None:
            step = int(trainer.state.global_step)
            recording.record_weights(fact="saved", policy_version=str(step), policy_updates=step, checkpoint=str(path))


def _close(opened: Open | None) -> None:
    if opened is not None:
        opened.close()


def _tool_mask(candidate: Any, completions: list[list[int]]) -> list[list[int]] | None:
    """``candidate`` where it is a mask over ``completions`` (TRL's versions and trainers return other things in its place)."""
    if not isinstance(candidate, list) or len(candidate) != len(completions):
        return None
    fits = all(
        isinstance(mask, (list, tuple)) and len(mask) == len(tokens) and (not mask or isinstance(mask[0], int))
        for mask, tokens in zip(candidate, completions, strict=True)
    )
    return candidate if fits else None
