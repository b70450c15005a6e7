"""The colours of a terminal, all in one place. Words in each can be read on a black ground and on a white one.

Plain red is faint on black, and cyan on white. What is said in colour is bold, and stands there in words too.
"""

from __future__ import annotations

from typing import Final

GOOD: Final = "bold green"
BAD: Final = "bold bright_red"
UNSURE: Final = "bold yellow"
ACCENT: Final = "bold bright_blue"
"""What to find at once: commands to copy, titles of a long answer."""
OF_VERDICT: Final = {"fits": GOOD, "probably fits": UNSURE, "probably not": UNSURE, "does not fit": BAD}
"""The style of each verdict's words."""
WORDS: Final = (GOOD, BAD, UNSURE, ACCENT)

WEIGHTS: Final = "bright_blue"
CACHE: Final = "cyan"
REST: Final = "magenta"
"""Areas of a bar. Green and red are for verdicts."""
