"""Replay of actor forward passes over recorded tokens. Nothing is implemented yet: see docs/roadmap.md."""
