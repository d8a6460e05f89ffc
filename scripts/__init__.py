"""One module per stage, named like its rule: what it is to the run, and its command line.

`python -m distillery.stages.targets --help` shows the options, which are the parameters of the
function that makes the stage.
"""
