"""Loops of our own in compiled graphs, and where they are used."""
