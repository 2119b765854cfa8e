"""What a configuration must have before several workers may run on it."""

from gateway.config import ConfigError, Loaded
from gateway.config.problems import Problem


def missing(loaded: Loaded, workers: int) -> list[ConfigError]:
    """What is not there, with the place where it belongs. Empty: so many workers may run.

    Without a store that they share each would allow every limit once more. With one `isolation.salt_secret` must be set,
    which workers have to agree on too.
    """
    if workers == 1 or loaded.config.redis is not None:
        return []
    message = f"required with --workers {workers}: the store through which workers share limits"
    return [loaded.error(Problem(path=("redis",), message=message))]
