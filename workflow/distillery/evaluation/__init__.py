"""Scores of generated images, and the report."""
