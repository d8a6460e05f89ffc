"""One module per stage, named like its rule: `python -m distillery.stages.targets --help`.

Each has one function that makes the stage's outputs from its inputs, and a command line made from
the signature of that function.
"""
