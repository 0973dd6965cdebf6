"""Runs first in each Python process that tests start: at its end nothing is taken apart that ends with the process.

The last garbage collection would take all modules apart, a quarter of what a short process takes. It stays where
warnings are errors: it finds what was not closed.
"""

import atexit
import gc
import sys

if "error" not in sys.warnoptions:
    atexit.register(gc.freeze)
