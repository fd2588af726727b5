"""Who may know whom, read from the imports; and what the web process never loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("config", "core", "data", "models", "scripts", "ui")

# What all families share: it may be imported by a family and must not import one.
SHARED_MODELS = ("models.base", "models.values", "models.decoder", "models.speech_lm", "models.teacher_forcing",
                 "models.sampling", "models.generate", "models.captured", "models.compact", "models.guided_attention",
                 "models.language_model", "models.lazy_weights", "models.linear", "models.weights")

# The part of `core` that the page may import. The walk below proves that none of it leads to torch.
WEB_SAFE = (
    "core.dataset.clip_index", "core.dataset.languages", "core.dataset.playable", "core.demo",
    "core.doctor", "core.download",
    "core.incoming.hub", "core.incoming.looking", "core.job.asked", "core.job.directory", "core.job.events",
    "core.job.free_gpu", "core.job.gpus", "core.job.journal", "core.job.kept",
    "core.job.locks", "core.job.pages", "core.job.places", "core.job.queueing", "core.job.reader",
    "core.job.reporter", "core.job.state", "core.jobs", "core.library.catalog", "core.library.model_record",
    "core.library.offers", "core.library.presets", "core.proof.certificate", "core.proof.diagnosis", "core.push",
    "core.review",
    "core.segments.folder", "core.speech.references", "core.speech.resident", "core.text.lab_report",
    "core.text.lab_text", "core.text.row_starts", "core.text.rules_preview", "core.text.rules_text",
    "core.text.text_rules",
    "config.sharding_checks", "core.worker", "core.workspace",
)
HEAVY = ("torch", "torchaudio", "peft", "transformers", "accelerate", "safetensors.torch")
# They make the built-in model or look into a family's parts, so they know it.
BUILDERS = ("scripts.tiny", "scripts.build_tiny", "scripts.conformance", "scripts.benchmark",
            "scripts.experiments.broken")
BY_NAME = ("models.registry", "core.worker")  # the two places that turn a string into a module


@dataclass(frozen=True)
class Import:
    """One imported module, or a name of one: `a.b` for `from a import b` as well as for `import a.b`."""

    target: str
    line: int


def sources(root: Path) -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    found = {dotted(path.relative_to(root)): path for path in paths}
    if (root / "app.py").is_file():
        found["app"] = root / "app.py"
    return found


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, module: str) -> list[Import]:
    """All imports of a file, inside functions too; those for the type checker alone are left out."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        found.extend(_named(node, package))
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _named(node: ast.AST, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")
            base = ".".join([*above[:len(above) - node.level + 1], *filter(None, [base])])
        yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def within(target: str, roots: tuple[str, ...]) -> bool:
    return any(target == root or target.startswith(root + ".") for root in roots)


def allowed(module: str) -> tuple[str, ...]:
    """What `module` may import of ours."""
    package = module.split(".")[0]
    if package == "models":
        own = tuple(SHARED_MODELS) if within(module, (*SHARED_MODELS, "models.registry")) else (
            *SHARED_MODELS, ".".join(module.split(".")[:2]))
        return ("config", "data", *own)
    return {
        "config": ("config",),
        "data": ("config", "data"),
        "core": ("config", "data", "core", "models.base", "models.registry"),
        "ui": ("config", "ui", *WEB_SAFE),
        "app": ("config", "ui", *WEB_SAFE),
        "scripts": ("config", "core", "scripts", *(("data", "models") if within(module, BUILDERS) else ())),
    }[package]


def wrong_directions(root: Path) -> list[str]:
    """Imports of ours that go where they may not."""
    modules = sources(root)
    return [
        f"{path.relative_to(root)}:{item.line} imports {item.target}"
        for module, path in modules.items()
        for item in imports(path, module)
        if within(item.target, (*PACKAGES, "app")) and not within(item.target, allowed(module))
    ]


def heavy_paths(root: Path, start: str) -> list[str]:
    """Chains of imports that lead from `start` to a library the web process must not load."""
    modules, found, seen = sources(root), [], {start}
    waiting = [(start, start)]
    while waiting:
        module, chain = waiting.pop()
        for item in imports(modules[module], module):
            if within(item.target, HEAVY):
                found.append(f"{chain} -> {item.target}")
            for ours in loaded(item.target, modules):
                if ours not in seen:
                    seen.add(ours)
                    waiting.append((ours, f"{chain} -> {ours}"))
    return found


def loaded(target: str, modules: dict[str, Path]) -> list[str]:
    """Modules of ours that importing `target` runs: itself, and each package above it."""
    parts = target.split(".")
    return [name for length in range(1, len(parts) + 1) if (name := ".".join(parts[:length])) in modules]


def importers(root: Path, library: str) -> set[str]:
    return {
        module for module, path in sources(root).items()
        if any(within(item.target, (library,)) for item in imports(path, module))
    }


def strings(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def test_imports_go_in_the_directions_of_the_design() -> None:
    assert wrong_directions(ROOT) == []


@pytest.mark.parametrize("module", WEB_SAFE)
def test_a_web_safe_module_never_leads_to_torch(module: str) -> None:
    assert module in sources(ROOT), f"{module} is listed as web-safe and does not exist"
    assert heavy_paths(ROOT, module) == []


def test_nothing_that_the_page_imports_leads_to_torch() -> None:
    pages = [module for module in sources(ROOT) if module == "app" or module.startswith("ui")]
    assert "app" in pages
    assert {module: chains for module in pages if (chains := heavy_paths(ROOT, module))} == {}


def test_torchaudio_is_imported_in_one_module() -> None:
    assert importers(ROOT, "torchaudio") == {"data.audio"}


def test_gradio_is_imported_by_the_page_alone() -> None:
    assert all(module == "app" or module.startswith("ui") for module in importers(ROOT, "gradio"))


def test_pickles_are_read_in_one_module_as_tensors_alone_and_written_nowhere() -> None:
    assert importers(ROOT, "pickle") == {"models.weights"}  # for the name of its error
    calls = {
        (module, ast.unparse(node.func), *(ast.unparse(word) for word in node.keywords if word.arg == "weights_only"))
        for module, path in sources(ROOT).items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("torch.load", "torch.save", "pickle."))
    }
    assert calls == {("models.weights", "torch.load", "weights_only=True")}


def test_modules_are_loaded_by_name_in_two_places() -> None:
    # `find_spec` only looks; a family named as a string elsewhere would be a hidden import of it.
    calls = {
        module for module, path in sources(ROOT).items()
        if not module.startswith("ui.")  # ui.startup imports Gradio by name, which no direction forbids
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    }
    assert calls <= set(BY_NAME)
    families = tuple(
        f"models.{path.name}" for path in (ROOT / "models").iterdir() if (path / "family.py").is_file()
    )
    assert "models.tiny" in families
    named = [
        f"{module}:{line} {text}"
        for module, path in sources(ROOT).items() if module.split(".")[0] in ("core", "ui", "config", "data", "app")
        for text, line in strings(path) if within(text.partition(":")[0], families)
    ]
    assert named == []


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("name", "text", "target"), [
    ("config/a.py", "import data.manifest", "data.manifest"),
    ("data/a.py", "from core.job import journal", "core.job.journal"),
    ("core/a.py", "def f():\n    from models.tiny import codec", "models.tiny.codec"),
    ("core/a.py", "from models import tiny", "models.tiny"),
    ("core/a.py", "import ui.layout", "ui.layout"),
    ("models/tiny/a.py", "from models.chatterbox.t3 import T3", "models.chatterbox.t3.T3"),
    ("models/base.py", "from .tiny import family", "models.tiny.family"),
    ("models/tiny/a.py", "import core.job.journal", "core.job.journal"),
    ("ui/a.py", "from core import train", "core.train"),
    ("ui/a.py", "from data.manifest import read", "data.manifest.read"),
    ("scripts/train.py", "import models.base", "models.base"),
])
def test_a_wrong_direction_is_found(tmp_path: Path, name: str, text: str, target: str) -> None:
    write(tmp_path, {name: text})
    assert [line.split(" imports ")[1] for line in wrong_directions(tmp_path)] == [target]


def test_a_hidden_way_to_torch_is_found(tmp_path: Path) -> None:
    write(tmp_path, {
        "core/jobs.py": "from core import helper",
        "core/helper.py": "def f():\n    from data import batches",
        "data/batches.py": "import torch.nn",
    })
    assert heavy_paths(tmp_path, "core.jobs") == ["core.jobs -> core.helper -> data.batches -> torch.nn"]


def test_an_import_for_the_type_checker_is_no_way_to_torch(tmp_path: Path) -> None:
    write(tmp_path, {"core/jobs.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"})
    assert heavy_paths(tmp_path, "core.jobs") == []


def test_the_package_file_counts_as_loaded(tmp_path: Path) -> None:
    write(tmp_path, {
        "core/jobs.py": "import data.manifest", "data/__init__.py": "import torch", "data/manifest.py": "",
    })
    assert heavy_paths(tmp_path, "core.jobs") == ["core.jobs -> data -> torch"]
