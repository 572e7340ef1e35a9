"""Video-language continual learning for Avalanche.

The package imports lazily: ``import avalanche_vilco`` costs milliseconds, and
Avalanche (8 to 10 s) is loaded when a benchmark is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

_HOMES = {
    "vilco_mq": "avalanche_vilco.benchmarks.vilco_mq.generator",
    "vilco_nlq": "avalanche_vilco.benchmarks.vilco_nlq.generator",
    "vilco_vq": "avalanche_vilco.benchmarks.vilco_vq.generator",
    "vilco_mq_tiny": "avalanche_vilco.models.build",
    "vilco_mq_base": "avalanche_vilco.models.build",
    "MomentLoss": "avalanche_vilco.models.losses",
}

if TYPE_CHECKING:
    from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
    from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq
    from avalanche_vilco.benchmarks.vilco_vq.generator import vilco_vq
    from avalanche_vilco.models.build import vilco_mq_base, vilco_mq_tiny
    from avalanche_vilco.models.losses import MomentLoss

__all__ = [
    "MomentLoss",
    "__version__",
    "vilco_mq",
    "vilco_mq_base",
    "vilco_mq_tiny",
    "vilco_nlq",
    "vilco_vq",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'avalanche_vilco' has no attribute {name!r}; "
            f"it offers {', '.join(sorted(_HOMES))}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
