from distillery.config.command_line import keys_of, read_overrides, with_overrides
from distillery.config.earlier import advise_phases
from distillery.config.run import Config, parse_config
from distillery.config.yaml_files import check_files
from distillery.hardware import count_gpus
from distillery.snakemake_private import config_files, config_words, is_main
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

# What the user wants: CONFIG, typed and checked, and the GPUs of this machine.


try:
    check_files(config_files(workflow) or ["config/config.yaml"])
except ValueError as error:
    raise WorkflowError(str(error))

if not config_files(workflow):

    configfile: "config/config.yaml"


if not config:
    raise WorkflowError("there is no configuration: a module needs `config: config`")
# What is nested in --config has the types that a file would give it.
WORDS, AS_TEXT = config_words(workflow)
GIVEN = read_overrides(WORDS)
RAW = with_overrides(config, AS_TEXT, GIVEN)
try:
    CONFIG = parse_config(
        RAW,
        " and ".join(config_files(workflow)) or "--config",
        set(keys_of({**AS_TEXT, **GIVEN})),
    )
    NUM_GPUS = count_gpus()
except ValueError as error:
    raise WorkflowError(str(error))
if is_main(workflow) and (advice := advise_phases(RAW)):
    logger.warning(advice)
