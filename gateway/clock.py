"""The clock of the data plane: seconds since some moment, never set back.

A constant, because it is read ten times for each request: compiled, what is imported from a module that is not is looked up
by its name at each call.
"""

import time
from typing import Final

monotonic: Final = time.monotonic
