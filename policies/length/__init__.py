"""How long will the answer be? Distributions of each tenant's earlier answers."""

from policies.length.distribution import Prediction
from policies.length.lengths import Lengths

__all__ = ["Lengths", "Prediction"]
