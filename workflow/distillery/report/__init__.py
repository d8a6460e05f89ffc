"""The pages that show a run, and what they say of it."""
