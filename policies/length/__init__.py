"""How long will the answer be? Distributions of each tenant's earlier answers."""

from policies.length.lengths import Lengths
from policies.types import Prediction

__all__ = ["Lengths", "Prediction"]
