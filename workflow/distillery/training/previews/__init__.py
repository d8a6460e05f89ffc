"""Pictures of held-out prompts while a student trains, or from a kept checkpoint."""
