"""``python -m corral``: the program without its script."""

from __future__ import annotations

import sys

from corral.cli.main import main

sys.exit(main())
