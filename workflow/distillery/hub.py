"""Ask the hub once, and say why a download failed, and what helps."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

NO_NETWORK = re.compile("Connect|Network|Timeout|Proxy|LocalEntryNotFound")
"""In the names of errors that mean that the hub did not answer."""


def download_file(repository: str, name: str) -> Path:
    """A file of a repository on the hub, in the cache.

    Raises OSError or ValueError, see `explain_hub`; without network at once, see `ask_once`.
    """
    from huggingface_hub import hf_hub_download

    if logging.getLogger().handlers:  # which write these lines too
        logging.getLogger("huggingface_hub").handlers.clear()
    ask_once(repository, name)
    return Path(hf_hub_download(repository, name))


def check_reachable(setting: str, repository: str) -> None:
    """Ask for one small file that every model has, before a library asks for many.

    Each of them would be tried again and again where the hub does not answer.

    Args:
        setting: key and value, for the message.

    Raises:
        ValueError: it cannot be had.
    """
    try:
        ask_once(repository, "config.json")
    except (OSError, ValueError) as error:
        raise ValueError(explain_missing(setting, repository, error)) from error


def ask_once(repository: str, name: str, revision: str | None = None) -> None:
    """Ask the hub for a file that the cache does not hold, without a second try.

    Downloads try five more times within 23 s, or wait for minutes where nothing answers, and have
    no setting for it. How long this one try waits, 10 s, is set by HF_HUB_ETAG_TIMEOUT.

    Raises OSError or ValueError, see `explain_hub`.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(repository, name, revision=revision), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(repository, name, revision=revision))
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the library that it asks by, whose errors are no OSError
        if not NO_NETWORK.search(type(error).__name__):
            raise
        raise ConnectionError(str(error)) from error


def explain_missing(setting: str, repository: str, error: Exception) -> str:
    """The message for a path that is no folder and no download; `setting` names key and value."""
    return (
        f"{setting}: there is no such folder, and it could not be downloaded from the hub: "
        f"{explain_hub(repository, error)}"
    )


def explain_hub(repository: str, error: Exception) -> str:
    """Why a repository could not be had, and what to do, for the end of an error's message.

    Diffusers raises one class for all causes, whose text speaks of an argument that nobody gave;
    the cause is chained to it.

    Args:
        repository: its id, owner/name; for a local folder the error is only shortened.
        error: as Diffusers or huggingface_hub raised it.
    """
    from huggingface_hub import errors

    if Path(repository).exists():
        return _first_line(error)
    causes = list(_chain(error))
    if any(isinstance(cause, errors.GatedRepoError) for cause in causes):
        return (
            f"its licence must be accepted at https://huggingface.co/{repository}; then run "
            "`hf auth login`, or set HF_TOKEN"
        )
    if any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
        return "the hub has the repository, and no such revision of it"
    if any(isinstance(cause, errors.RepositoryNotFoundError) for cause in causes):
        return (
            "the hub has no such repository, or it is private: check the name; for a private one "
            "run `hf auth login`, or set HF_TOKEN"
        )
    reason = _unreachable(causes)
    return _fill_the_cache(repository, reason) if reason else _first_line(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _unreachable(causes: list[BaseException]) -> str:
    """Why the hub was not asked, "" if that is not what failed."""
    from huggingface_hub import constants, errors

    # Errors of several libraries, which agree only on the names.
    failed = [cause for cause in causes if NO_NETWORK.search(type(cause).__name__)]
    # Transformers does not ask then, and says nothing of the reason.
    is_offline = constants.HF_HUB_OFFLINE and failed
    if is_offline or any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
        return "HF_HUB_OFFLINE is set"
    return f"the hub cannot be reached ({_first_line(failed[0])})" if failed else ""


def _fill_the_cache(repository: str, reason: str) -> str:
    """What to do without network."""
    from huggingface_hub import constants

    return (
        f"{reason}, and the cache in {constants.HF_HUB_CACHE} does not hold all of it; run "
        f"`hf download {repository}` where there is network, and name the folder that it fills "
        "by HF_HUB_CACHE or HF_HOME here (docs/teachers.md)"
    )
