"""What a terminal shows while Snakemake runs the jobs: how far each is, and how it all ended."""
