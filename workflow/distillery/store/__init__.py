"""Durable tensors on disk: recipes, chunk files, shards and their manifest."""
