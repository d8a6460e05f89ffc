"""Scores of generated pictures, and the report."""
