"""What differs between systems."""

import sys


def configure_windows_console() -> None:
    """On Windows, lets Python print any character; elsewhere, does nothing."""
    if sys.platform == "win32":
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", errors="replace")
