"""The teacher: find it, know it, load it as the configuration asks, onto what there is."""
