"""How Hypothesis runs everywhere: no deadline on busy machines, the same examples in every gate."""

import os

from hypothesis import settings

settings.register_profile("meshwright", deadline=None, max_examples=60, derandomize="CI" in os.environ)
settings.load_profile("meshwright")
