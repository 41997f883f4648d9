"""The trainer's side of hand-written FSDP2, DDP and Megatron-Core loops: checksums of weights, routing, which rank records what."""
