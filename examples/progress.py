"""One line a training step: reward, loss and time, in place of the libraries' own notices and dictionaries."""

from __future__ import annotations

import time
import warnings
from typing import Any

import transformers
from transformers import PrinterCallback, TrainerCallback


class StepLines(TrainerCallback):
    """Prints a line for every optimizer step; reward and length are those of new answers, "-" where a step reuses the last ones."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        reward = f"{logs['reward']:6.3f}" if "reward" in logs else "     -"
        length = f"{logs['completions/mean_length']:4.0f}" if "completions/mean_length" in logs else "   -"
        seconds = time.perf_counter() - self.started
        print(
            f"step {state.global_step:>3}/{state.max_steps}   reward {reward}   loss {logs['loss']:+.4f}   "
            f"answer {length} tokens   {seconds:5.1f} s",
            flush=True,
        )


def hush() -> None:
    """Silence the libraries' progress bars and their notices of names that will change in later releases."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers.utils.logging.disable_progress_bar()


def show_steps(trainer: Any) -> None:
    """Let ``trainer`` (a transformers Trainer with its progress bar disabled) print ``StepLines``."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StepLines())
