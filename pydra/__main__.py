"""`python -m pydra` is the command `pydra`."""

import sys

from pydra.cli.tool import main

sys.exit(main())
