"""`python -m latemask`."""

import sys

from latemask.cli import main

sys.exit(main())
