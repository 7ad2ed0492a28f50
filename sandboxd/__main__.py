"""What does ``python -m sandboxd`` do? The same as ``sandboxctl``."""

from __future__ import annotations

from sandboxd.cli import main

main()
