"""Runs from what engines wrote by themselves, without capture."""
