"""What one job of each stage does, from its inputs to its outputs."""
