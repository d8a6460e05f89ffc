"""What a training tells of itself beside its losses: alarms, probes, TensorBoard."""
