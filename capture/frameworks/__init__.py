"""One module for each reinforcement-learning framework whose training loop rlaudit can read."""
