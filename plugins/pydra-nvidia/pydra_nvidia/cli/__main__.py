"""`python -m pydra_nvidia.cli`."""

import sys

from pydra_nvidia.cli import main

sys.exit(main())
