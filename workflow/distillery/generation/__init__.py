"""Drawing images and walking trajectories with stock pipelines, in batches, at speed."""
