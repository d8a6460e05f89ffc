"""What a run will cost and whether it can work, found before anything is computed."""
