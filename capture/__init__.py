"""What runs inside the training process: launcher, bootstrap, recorder and adapters."""
