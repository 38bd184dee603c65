"""What the hardware tests share."""

import subprocess
import sys


def isolated(code):
    """Top-level modules that a fresh interpreter has loaded after running ``code``."""
    script = f"{code}\nimport sys; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
