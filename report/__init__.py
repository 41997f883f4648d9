"""Rendering of results: terminal, JSON, Markdown. Computes nothing."""
