"""The typed configuration: what a user writes, and which part of it each stage depends on."""
