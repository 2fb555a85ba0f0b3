"""Puts a fresh run of the demonstration into the README: `.venv/bin/python stages/01_tensor/refresh_readme.py`.

Run it on a quiet machine: what the README shows is what was measured there.
"""

import re
import subprocess
import sys
from pathlib import Path

STAGE = Path(__file__).parent
ROOT = STAGE.parents[1]
README = STAGE / "README.md"
OUTPUT = re.compile(r"(?<=```text\nStage 1, ).*?(?=\n```)", re.DOTALL)


def main() -> None:
    command = [sys.executable, STAGE.relative_to(ROOT).as_posix()]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    text = README.read_text(encoding="utf-8")
    assert OUTPUT.search(text), f"no output block in {README}"
    output = shown.removeprefix("Stage 1, ")
    README.write_text(OUTPUT.sub(lambda _: output, text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
