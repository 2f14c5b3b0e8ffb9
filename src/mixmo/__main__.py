"""python -m mixmo"""

from mixmo.cli import main

raise SystemExit(main())
