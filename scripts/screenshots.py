"""Take pictures of the page that `kvplan explore` makes, to look at: desktop and telephone, light and dark.

python scripts/screenshots.py FOLDER     # writes four pictures there
python scripts/screenshots.py --docs     # writes the pictures of docs/explore.md, light and dark
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hwcalc.explore.build import explore

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = {"light": ROOT / "docs" / "explore.png", "dark": ROOT / "docs" / "explore-dark.png"}
MODELS: Final = ("google/gemma-3-12b-it", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V2-Lite")
STATE: Final = "#model=google/gemma-3-12b-it&engine=vllm&gpu=h100-sxm5-80gb&seq=32768&batch=4"
COLORS: Final = 240
SIZES: Final = {"desktop": (1280, 900), "telephone": (390, 844)}


def shoot(browser: Any, page: str, target: Path, size: tuple[int, int], scheme: str, *, whole: bool) -> None:
    """Write the picture of a page, or of what a window shows of it."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, offline=True)
    tab = context.new_page()
    tab.goto(page + STATE)
    tab.wait_for_function("() => globalThis.kvplan !== undefined")
    tab.wait_for_timeout(500)
    tab.screenshot(path=str(target), full_page=whole)
    context.close()


def fewer_colors(picture: Path, colors: int = COLORS) -> None:
    """A page has few colours: with a palette its picture is half as large and looks the same."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(picture, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    if len(given) != 1 or path is None:
        print(__doc__ if path else "there is no chromium on this machine")
        return 2
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(explore(MODELS, gpu="h100,l4"), encoding="utf-8")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        if given == ["--docs"]:
            for scheme, picture in PICTURES.items():
                shoot(browser, file.as_uri(), picture, (1060, 1370), scheme, whole=False)
                fewer_colors(picture)
        else:
            for name, size in SIZES.items():
                for scheme in ("light", "dark"):
                    shoot(browser, file.as_uri(), Path(given[0]) / f"{name}-{scheme}.png", size, scheme, whole=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
