"""Drafting: what the next tokens may be, from the text so far and the target's own logits."""

from pathlib import Path

from racer.cache import prepare

prepare(Path(__file__).parent)  # before a module of this package compiles anything
