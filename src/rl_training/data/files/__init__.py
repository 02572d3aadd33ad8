"""Datasets in files: one reader and writer per format."""
