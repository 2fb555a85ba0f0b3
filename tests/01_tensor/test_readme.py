"""The README of the stage keeps its word: its example runs, and the files and tests that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "stages" / "01_tensor"
README = (STAGE / "README.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})


def test_the_files_it_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|c|h))`", README)
    assert named
    roots = (ROOT, STAGE / "aie_tensor", STAGE / "aie_tensor" / "native" / "src")
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []


def test_the_tests_it_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", README))
    assert len(named) >= 3
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in named if f"def {name}(" not in sources] == []
