"""The command line: help for everything, mistakes in a line or two with exit code 2, never a traceback."""

import inspect
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from safetensors import SafetensorError

import latemask
from latemask import VERBS, __version__
from latemask.cli import main
from latemask.command import choices_of
from latemask.recipe import OBJECTIVES, Recipe, flat
from tests.conftest import tiny_recipe


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_the_verbs(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in VERBS)


_HELP_FOR_ALL = """
import sys
from latemask import VERBS
from latemask.cli import main
from latemask.command import choices_of
from latemask.command import choices_of
assert not any(main([verb, "--help"]) for verb in VERBS)
sys.exit(", ".join({"torch", "transformers", "datasets", "sklearn", "matplotlib"} & set(sys.modules)))
"""


def test_help_does_not_load_what_takes_seconds():
    shown = subprocess.run([sys.executable, "-c", _HELP_FOR_ALL], capture_output=True, text=True)
    assert shown.stderr == "\n"  # what was loaded


def test_a_mistake_is_said_before_what_takes_seconds_is_loaded():
    code = "import sys; from latemask.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = ["pretrain", "small", "--data", "nowhere"]
    refused = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert "nowhere" in refused.stderr
    assert refused.returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_a_sentence_for_every_option(capsys, verb):
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    words = " ".join(out.split())
    function = getattr(latemask, verb)
    hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # fields of a dataclass, which Python may spell as keywords
            continue
        if is_dataclass(hints[parameter.name]):
            section = hints[parameter.name]
            inner = [choice.target for choice in choices_of(section)]  # given as --hiwi.rank and the like
            options = [f"--{field.name}" for field in fields(section) if field.name not in inner]
        else:
            options = [parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else f"--{parameter.name}"]
        assert all(f" {option.replace('_', '-')} " in words for option in options)
    for line in out.splitlines():
        if line.startswith("  --"):  # the option's text follows on its line or on the next
            following = out[out.index(line) + len(line) :].split("\n")[1]
            assert len(line.split("  ")) > 2 or following.startswith(" " * 10), line


def test_pretrain_help_has_every_key_of_a_recipe(capsys):
    _, out, _ = run(capsys, "pretrain", "--help")
    assert all(f"--{key}".replace("_", "-") in out for key in flat(tiny_recipe()))
    assert f"One of: {', '.join(OBJECTIVES.names())}." in " ".join(out.split())
    assert "Share of a row that is predicted." in out


@pytest.mark.parametrize("module", [["-m", "latemask"], ["-c", "from latemask.cli import main; main()"]])
def test_the_module_runs_as_a_program(module):
    done = subprocess.run([sys.executable, *module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"latemask {__version__}\n"


def test_help_does_not_load_torch():
    code = "import sys; from latemask.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_dashes_and_underscores_are_both_understood(capsys, tmp_path, corpus):
    for number, option in enumerate(("--vocab-size", "--vocab_size")):
        assert run(capsys, "prepare", corpus, "--out", tmp_path / str(number), f"{option}=300")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretain"], "unknown verb 'pretain' (did you mean 'pretrain'?)"),
        (["prepare"], "say what to prepare: INPUT files"),
        (["prepare", "x.txt"], "say where the data goes: --out"),
        (
            ["prepare", "x.txt", "--out", "o", "--format", "doc"],
            "format must be one of 'txt', 'jsonl', 'csv', 'tsv', 'parquet', 'arrow' or null, not 'doc'",
        ),
        (["prepare", "x.txt", "--out", "o", "--executor-option", "a=b"], "is for --executor slurm or ray"),
        (["prepare", "x.txt", "--out", "o", "--workers", "0"], "--workers 0: one at least"),
        (["pretrain", "demo"], "missing data; usage: latemask pretrain RECIPE --data DATA"),
        (["inspect", "nowhere"], "nowhere: no such folder"),
        (["prepare", "x.txt", "--out"], "argument --out: expected one argument"),
        (["prepare", "nothing.txt", "--out", "o"], "nothing.txt: no such file or folder"),
        (["prepare", "--bultin", "--out", "o"], "unknown option '--bultin' (did you mean '--builtin'?)"),
        (
            ["prepare", "--builtin", "--out", "o", "--vocab-size", "many"],
            "vocab_size must be int or null, not 'many'",
        ),
        (["pretrain", "demo", "--data", "nowhere"], "nowhere: no such folder; run: latemask prepare"),
        (["pretrain", "dem", "--data", "d"], "no recipe at 'dem' (did you mean 'demo'?)"),
        (["pretrain", "demo", "--data", "d", "--mask.rte", "0.4"], "(did you mean '--mask.rate'?)"),
        (["pretrain", "demo", "--data", "d", "--mask.rate", "1.4"], "mask.rate is 1.4"),
        (["pretrain", "demo", "--data", "d", "--mask.rate", "x"], "mask.rate must be float, not 'x'"),
        (["pretrain", "demo", "--data", "d", "--encoder.heads", "5"], "encoder.heads 5 does not divide"),
        (["fill", "nowhere", "<mask>"], "nowhere: no such folder"),
        (["export", "nowhere", "--out", "o"], "nowhere: no such folder"),
        (["export", "a", "b", "--out", "o"], "unexpected argument 'b'; usage: latemask export RUN"),
    ],
)
def test_a_mistake_is_a_line_or_two_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("latemask: ")
    assert len(err.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_an_override_reaches_the_run(capsys, tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = ["--encoder.layers", 2, "--encoder.width", 32, "--encoder.heads", 2, "--train.batch-size", 4]
    code, _, _ = run(
        capsys,
        "pretrain",
        "demo",
        "--data",
        data.folder,
        "--max-steps",
        1,
        "--mask.rate",
        0.25,
        "--length",
        16,
        *shape,
    )
    assert code == 0
    from latemask.recipe import load_recipe

    saved = load_recipe(tmp_path / "runs" / "demo" / "recipe.yaml")
    assert (saved.mask.rate, saved.length, saved.encoder.layers, saved.budget.steps) == (0.25, 16, 2, 1)
    assert saved.train.learning_rate == load_recipe("demo").train.learning_rate
    assert isinstance(saved, Recipe)


def test_a_read_only_folder_is_one_line(capsys, tmp_path, corpus):
    target = tmp_path / "file"
    target.write_text("")
    code, _, err = run(capsys, "prepare", corpus, "--out", target / "below", "--vocab-size", 300)
    assert code == 2
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 2


def test_an_unreadable_file_is_named(capsys, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("text")

    usual = Path.open

    def refuse(self, *arguments, **options):
        if self == path:  # root, who runs CI, may read everything
            raise PermissionError(13, "Permission denied", str(self))
        return usual(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    code, _, err = run(capsys, "prepare", path, "--out", tmp_path / "o")
    assert (code, err) == (2, f"latemask: {path}: cannot be read (Permission denied)\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "the disk is full"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"), "the disk is full"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 518080 vs 517968"),
            "the disk is full",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (PermissionError(13, "Permission denied", "/here"), "/here: Permission denied"),
    ],
)
def test_what_the_machine_refuses_is_one_line(capsys, monkeypatch, error, message):
    monkeypatch.setattr("latemask.model.load_model", raiser(error))
    monkeypatch.setattr("latemask.run_folder.RunFolder.newest_model", lambda self: self.path)
    code, _, err = run(capsys, "export", "a", "--out", "b")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr("latemask.model.load_model", raiser(KeyError("ours")))
    monkeypatch.setattr("latemask.run_folder.RunFolder.newest_model", lambda self: self.path)
    with pytest.raises(KeyError):
        main(["export", "a", "--out", "b"])


def raiser(error):
    def refuse(*_, **__):
        raise error

    return refuse


def test_malloc_is_changed_in_a_process_of_our_own_and_never_for_a_caller(monkeypatch, capsys):
    changed = []
    monkeypatch.setattr("latemask.cli.keep_freed_memory", lambda: changed.append(True))
    assert main(["plan", "mini-base"]) == 0
    assert changed == []
    monkeypatch.setattr(sys, "argv", ["latemask", "plan", "mini-base"])
    assert main() == 0
    assert changed == [True]


def test_training_as_a_library_does_not_touch_malloc():
    source = Path(latemask.__file__).parent
    users = [path.name for path in source.rglob("*.py") if "keep_freed_memory" in path.read_text()]
    assert sorted(users) == ["allocator.py", "cli.py"]
