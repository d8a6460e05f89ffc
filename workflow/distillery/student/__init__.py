"""The student network: how it is built from the teacher and exported."""
