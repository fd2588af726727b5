"""The layers of the code base, read from its imports; and what never loads torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("config", "core", "data", "models", "scripts", "ui")

# From the bottom to the top: each imports itself and what stands before it. Other modules directly in `core` are verbs,
# or programs beside them, and may import all of `core`.
CORE = ("core.workspace", "core.machine", "core.wait_policy", "core.compute", "core.jobs", "core.library",
        "core.sources", "core.text", "core.dataset", "core.submission", "core.model", "core.speech", "core.serving",
        "core.training", "core.proof")

# Whole packages that never load torch, with all that they import. The page imports nothing else of `core`.
TORCH_FREE = ("app", "config", "core.workspace", "core.machine", "core.jobs", "core.library", "core.sources",
              "core.text", "core.dataset", "core.submission", "core.verbs", "ui")
HEAVY = ("torch", "torchaudio", "peft", "transformers", "accelerate", "safetensors.torch")

DEVELOPMENT = ("scripts.dev",)  # programs that make or measure models: they may import families
BY_NAME = {"models.registry", "core.jobs.verbs", "core.model_server",  # they import modules that a table names
           "scripts.scripts"}  # itself, as the package


@dataclass(frozen=True)
class Import:
    """One imported module, or a name of one: `a.b` for `from a import b` as well as for `import a.b`."""

    target: str
    line: int
    for_types: bool  # under TYPE_CHECKING, so never run


@cache
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


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, module: str) -> tuple[Import, ...]:
    """All imports of a file, inside functions and under TYPE_CHECKING too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []
    waiting: list[tuple[ast.AST, bool]] = [(tree(path), False)]
    while waiting:
        node, for_types = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += [(child, True) for child in node.body]
            waiting += [(child, for_types) for child in node.orelse]
            continue
        found.extend(Import(target, node.lineno, for_types) for target in targets(node, package))
        # No expression imports: only statements, and what holds some (`except`, `case`), are looked into.
        waiting += [(child, for_types) for child in ast.iter_child_nodes(node)
                    if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)]
    return tuple(found)


def targets(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        above = package.split(".")
        base = ".".join([*above[:len(above) - node.level + 1], *filter(None, [base])])
    return [f"{base}.{alias.name}" for alias in node.names]


def within(target: str, roots: tuple[str, ...]) -> bool:
    return any(target == root or target.startswith(root + ".") for root in roots)


def families(root: Path) -> tuple[str, ...]:
    """Packages of model families."""
    return tuple(sorted({name.rpartition(".")[0] for name in sources(root)
                         if name.startswith("models.") and name.endswith(".family")}))


def shared_models(root: Path) -> tuple[str, ...]:
    """What all families share: it may be imported by a family and must not import one."""
    return tuple(name for name in sources(root)
                 if name.startswith("models.") and not within(name, families(root)))


def allowed(module: str, root: Path) -> tuple[str, ...]:
    """What `module` may import of ours."""
    package = module.split(".")[0]
    if package == "models":
        own = tuple(family for family in families(root) if within(module, (family,)))
        return ("config", "data", "models.base", *shared_models(root), *own)
    if package == "core":
        place = [within(module, (layer,)) for layer in CORE]
        below = CORE[:place.index(True) + 1] if any(place) else ("core",)
        return ("config", "data", "models.base", "models.registry", "models.phonetic_encoder", *below)
    page = ("config", "ui", *(name for name in TORCH_FREE if name.startswith("core.")))
    return {
        "config": ("config",),
        "data": ("config", "data"),
        "ui": page,
        "app": page,
        "scripts": ("config", "core", "scripts", *(("data", "models") if within(module, DEVELOPMENT) else ())),
    }[package]


def wrong_directions(root: Path) -> list[str]:
    """Imports of ours that go where they may not."""
    modules = sources(root)
    return [
        f"{path.relative_to(root)}:{item.line} imports {item.target}"
        for module, path in modules.items()
        for item in imports(path, module)
        if within(item.target, (*PACKAGES, "app")) and not within(item.target, allowed(module, root))
    ]


def cycle(root: Path) -> list[str]:
    """Modules that import one another in a circle."""
    modules = sources(root)
    graph = {module: {ours for item in imports(path, module) for ours in loaded(item.target, modules)[-1:]} - {module}
             for module, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def loaded(target: str, modules: dict[str, Path]) -> list[str]:
    """Modules of ours that importing `target` runs: each package above it, and itself last."""
    parts = target.split(".")
    return [name for length in range(1, len(parts) + 1) if (name := ".".join(parts[:length])) in modules]


def heavy_paths(root: Path, start: str) -> list[str]:
    """Chains of imports that lead from `start` to a library the web process must not load."""
    modules, found, seen = sources(root), [], {start}
    waiting = [(start, start)]
    while waiting:
        module, chain = waiting.pop()
        for item in imports(modules[module], module):
            if item.for_types:
                continue
            if within(item.target, HEAVY):
                found.append(f"{chain} -> {item.target}")
            for ours in loaded(item.target, modules):
                if ours not in seen:
                    seen.add(ours)
                    waiting.append((ours, f"{chain} -> {ours}"))
    return found


def closure(root: Path, start: str) -> set[str]:
    """The modules of ours that importing `start` loads."""
    modules, seen, waiting = sources(root), {start}, [start]
    while waiting:
        module = waiting.pop()
        for item in imports(modules[module], module):
            fresh = set() if item.for_types else set(loaded(item.target, modules)) - seen
            seen |= fresh
            waiting += fresh
    return seen


def importers(root: Path, library: str) -> set[str]:
    return {
        module for module, path in sources(root).items()
        if any(within(item.target, (library,)) for item in imports(path, module))
    }


@cache
def calls(root: Path) -> list[tuple[str, str, ast.Call]]:
    """Every call by a name in a module: the module, what is called, the call."""
    return [(module, ast.unparse(node.func), node) for module, path in sources(root).items()
            for node in ast.walk(tree(path)) if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)]


def test_imports_go_in_the_directions_of_the_design() -> None:
    assert wrong_directions(ROOT) == []


def test_every_layer_exists() -> None:
    assert [layer for layer in (*CORE, *TORCH_FREE) if layer not in sources(ROOT)] == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert cycle(ROOT) == []


@pytest.mark.parametrize("package", TORCH_FREE)
def test_nothing_in_a_torch_free_package_leads_to_torch(package: str) -> None:
    modules = [module for module in sources(ROOT) if within(module, (package,))]
    assert {module: chains for module in modules if (chains := heavy_paths(ROOT, module))} == {}


def test_the_trainer_loads_no_hub_client_and_no_recogniser() -> None:
    """It takes tensors and clips; what synthesizes and scores them stands above it."""
    above = ("core.sources", "core.speech")
    assert not [name for name in closure(ROOT, "core.training.trainer") if within(name, above)]


def test_jobs_are_created_in_one_module_which_checks_them_all() -> None:
    creators = {module for module, name, _ in calls(ROOT) if name.rpartition(".")[2] == "create_job"}
    # The page's benchmark shows a training that a stand-in worker pretends; no artefact of it exists.
    assert creators == {"core.submission.jobs", "scripts.dev.benchmark.page"}


def test_torchaudio_is_imported_in_one_module() -> None:
    assert len(importers(ROOT, "torchaudio")) == 1


def test_gradio_is_imported_by_the_page_alone() -> None:
    assert all(module == "app" or module.startswith("ui") for module in importers(ROOT, "gradio"))


def test_pickles_are_read_and_written_in_one_module_each_as_tensors_alone() -> None:
    assert importers(ROOT, "pickle") == {"models.restricted_pickle", "models.weights"}  # for the name of its error
    found = {
        (module, name, *(ast.unparse(word) for word in node.keywords if word.arg == "weights_only"))
        for module, name, node in calls(ROOT) if name.startswith(("torch.load", "torch.save", "pickle."))
        and name != "pickle.UnpicklingError"
    }
    assert found == {("models.restricted_pickle", "torch.load", "weights_only=True"), ("models.weights", "torch.save")}


def test_modules_are_loaded_by_name_in_few_places() -> None:
    # `find_spec` only looks; a family named as a string elsewhere would be a hidden import of it.
    found = {module for module, name, _ in calls(ROOT)
             if not module.startswith("ui.")  # which imports Gradio by name, and no direction forbids that
             and name.endswith(("import_module", "__import__"))}
    assert found <= BY_NAME
    assert "models.tiny" in families(ROOT)
    named = [
        f"{module}:{node.lineno} {node.value}"
        for module, path in sources(ROOT).items() if module.split(".")[0] in ("core", "ui", "config", "data", "app")
        for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and within(node.value.partition(":")[0], families(ROOT))
    ]
    assert named == []


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("name", "text", "target"), [
    ("config/a.py", "import data.manifest", "data.manifest"),
    ("data/a.py", "from core.jobs import events", "core.jobs.events"),
    ("core/a.py", "def f():\n    from models.tiny import codec", "models.tiny.codec"),
    ("core/a.py", "from models import tiny", "models.tiny"),
    ("core/a.py", "import ui.layout", "ui.layout"),
    ("core/jobs/a.py", "from core.library import catalog", "core.library.catalog"),
    ("core/speech/a.py", "def f():\n    from core.training import replay", "core.training.replay"),
    ("core/model/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from core.speech import synthesis",
     "core.speech.synthesis"),
    ("core/training/a.py", "from core import train", "core.train"),
    ("models/tiny/a.py", "from models.chatterbox.t3 import T3", "models.chatterbox.t3.T3"),
    ("models/base.py", "from .tiny import family", "models.tiny.family"),
    ("models/tiny/a.py", "import core.jobs.events", "core.jobs.events"),
    ("ui/a.py", "from core import train", "core.train"),
    ("ui/a.py", "from data.manifest import read", "data.manifest.read"),
    ("scripts/train.py", "import models.base", "models.base"),
])
def test_a_wrong_direction_is_found(tmp_path: Path, name: str, text: str, target: str) -> None:
    write(tmp_path, {"models/tiny/family.py": "", "models/chatterbox/family.py": "", "models/chatterbox/t3.py": "",
                     name: text})
    found = [line.split(" imports ")[1] for line in wrong_directions(tmp_path)]
    assert found == [target]


def test_a_circle_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"core/jobs/a.py": "def f():\n    from core.jobs import b", "core/jobs/b.py": "import core.jobs.a"})
    assert set(cycle(tmp_path)) == {"core.jobs.a", "core.jobs.b"}


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


def test_a_worker_starts_without_the_compiler_and_without_peft() -> None:
    """They take as long to import as torch does, and most jobs need neither; `torch.compiler.disable` imports it."""
    code = ("import sys, core.train, core.synthesize, core.prepare, core.compare\n"
            "print([name for name in ('torch._dynamo', 'sympy', 'peft', 'transformers') if name in sys.modules])")
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
