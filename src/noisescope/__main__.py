"""`python -m noisescope`."""

import sys

from .cli import main

sys.exit(main())
