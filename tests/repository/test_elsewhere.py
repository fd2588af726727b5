"""The script of docs/elsewhere.md arranges an export under the published names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "elsewhere.md").read_text(encoding="utf-8")


def script(name: str) -> str:
    """The block of the page that begins with the name of the script."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    return next(block for block in blocks if block.startswith(f'"""python {name} '))


@pytest.mark.parametrize("merged", [True, False])
def test_an_export_is_arranged_for_one_language(tmp_path: Path, merged: bool) -> None:
    export, folder = tmp_path / "export", tmp_path / "arranged"
    (export / "front_end").mkdir(parents=True)
    (export / "front_end" / "front_end.json").write_text(json.dumps(
        {"languages": {"en": {"tokenizer": "tokenizer.json"}, "am": {"tokenizer": "language-am.json"}}}))
    (export / "front_end" / "tokenizer.json").write_text("base")
    (export / "front_end" / "language-am.json").write_text("base and new")
    for name in ("conds.pt", "Cangjie5_TC.json"):
        (export / name).write_text(name)
    save_file({"plain": torch.zeros(1)}, export / "t3_finetuned.safetensors")
    if merged:
        save_file({"merged": torch.zeros(1)}, export / "t3-merged.safetensors")
    for name in ("s3gen", "ve"):
        save_file({name: torch.arange(3)}, export / f"{name}.safetensors")

    (tmp_path / "arrange.py").write_text(script("arrange.py"), encoding="utf-8")
    subprocess.run([sys.executable, "arrange.py", "export", "am", "arranged"], cwd=tmp_path, check=True)
    for name in ("t3_mtl23ls_v2.safetensors", "t3_23lang.safetensors"):
        assert set(load_file(folder / name)) == {"merged" if merged else "plain"}
    for name in ("mtl_tokenizer.json", "grapheme_mtl_merged_expanded_v1.json"):
        assert (folder / name).read_text() == "base and new"
    # The package reads these two in the older format.
    for name in ("s3gen", "ve"):
        assert torch.equal(torch.load(folder / f"{name}.pt", weights_only=True)[name], torch.arange(3))


def test_the_script_for_servers_compiles() -> None:
    compile(script("start.py"), "start.py", "exec")
