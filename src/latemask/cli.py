"""`latemask VERB …`: verbs → functions; nothing else.

A verb's typed signature and docstring are its command line. A parameter `recipe` brings every key of a recipe along
as an override (`--mask.rate 0.4`). The module of a verb is imported when it is called, and imports what takes seconds
to load (torch, transformers) when there is work for it: help and mistakes are quick.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from latemask import __version__
from latemask.ground.console import printable
from latemask.ground.errors import SaidByTheFirst, UserError, nearest
from latemask.ground.processes import is_first, rank, world_size
from latemask.recipe import Recipe, load_recipe, plain_type_error


@dataclass(frozen=True)
class Verb:
    """Where a verb's function lives, and one line about it."""

    function: str
    summary: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, name = self.function.split(":")
        return getattr(importlib.import_module(module), name)


# As the system, safetensors and torch.save say it; the latter two raise no OSError.
_DISK_FULL = ("no space left on device", "file write failed", "inline_container.cc")
# As gloo and NCCL say that they lost somebody.
_PEER_LOST = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "socket", "watchdog")

VERBS = {
    "demo": Verb("latemask.demonstrating:demo", "the whole job on text already on this machine, in minutes"),
    "prepare": Verb("latemask.text:prepare", "text -> tokenizer + token shards"),
    "inspect": Verb("latemask.inspecting:inspect", "what is in a data folder, in numbers and as a model sees it"),
    "plan": Verb("latemask.planning:plan", "what a run will cost, and what a budget buys"),
    "pretrain": Verb("latemask.training:pretrain", "recipe + data -> a pre-trained encoder"),
    "fill": Verb("latemask.filling:fill", "what a pre-trained model puts in the place of <mask>"),
    "export": Verb("latemask.exporting:export", "run -> a stock Hugging Face folder"),
    "probe": Verb("latemask.evaluation.probing:probe", "what a frozen encoder knows, in minutes and with no file"),
    "finetune": Verb("latemask.evaluation.finetuning:finetune", "encoder + labelled task -> scores and a model"),
    "glue": Verb("latemask.evaluation.tabulating:glue", "encoders -> the GLUE table"),
    "report": Verb("latemask.reporting:report", "run -> a page: how far, losses, compute; also while it runs"),
    "compare": Verb("latemask.reporting:compare", "runs -> a page: curves, scores, what differs, a verdict"),
    "sweep": Verb("latemask.sweeping:sweep", "a grid of recipes x seeds at the same FLOPs -> runs and a page"),
    "predict": Verb("latemask.evaluation.predicting:predict", "label a file with a fine-tuned model"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; a user's mistake is one or two lines, never a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(arguments)
    except SaidByTheFirst as error:
        return error.exit_code
    except UserError as error:
        print("\n".join(printable(line) for line in f"{_speaker()}: {error}".splitlines()), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("latemask: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `latemask --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if (message := _machine_message(error)) is None:
            raise
        print(f"{_speaker()}: {message}", file=sys.stderr)
        return 2


def _speaker() -> str:
    return "latemask" if is_first() else f"latemask (process {rank()})"


def _machine_message(error: Exception) -> str | None:
    """Say what the machine refused; None if it is a mistake of ours."""
    text = str(error).lower()
    if any(sign in text for sign in _DISK_FULL):
        return (
            "the disk is full: what was complete before is intact. Make room and run the command again "
            "(pretrain with --resume)"
        )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        said = str(error.strerror or error).strip().splitlines()
        return f"{where}{said[-1] if said else type(error).__name__}"  # a loader's process sends its whole traceback
    if isinstance(error, RuntimeError) and world_size() > 1 and any(sign in text for sign in _PEER_LOST):
        return "another process of this run ended, and says why; go on from the last checkpoint with --resume"
    if isinstance(error, RuntimeError) and "dataloader worker" in text:
        return (
            "a process that loads rows (train.workers) was killed, perhaps for want of memory; what was saved is "
            "intact, go on with --resume"
        )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in text):  # as torch says it
        return (
            "out of memory; take a smaller encoder, or lower train.micro_batch_size (pretrain: the rest accumulates) "
            "or --batch-size (finetune, glue)"
        )
    return None


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"latemask {__version__}")
        return 0
    name, *rest = arguments
    if name not in VERBS:
        raise UserError(f"unknown verb '{name}'{nearest(name, VERBS)}; latemask --help lists them")
    # The libraries below us talk on stderr; what our user needs to know, we say.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    function = VERBS[name].load()
    parser = _Parser(name, function)
    if "-h" in rest or "--help" in rest:
        print(parser.help())
        return 0
    function(**parser.parse(rest))
    return 0


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: latemask VERB [options]\n\n"
        "Pre-train text encoders for a fraction of the compute: the encoder never sees a [MASK].\n\n"
        f"verbs:\n{verbs}\n\n"
        "latemask VERB --help says more of each; latemask --version says which this is."
    )


# By whether a positional takes several, and whether it may be left out.
_ARGUMENTS_TAKEN: dict[tuple[bool, bool], dict[str, Any]] = {
    (True, True): {"nargs": "*"},
    (True, False): {"nargs": "+"},
    (False, True): {"nargs": "?"},
    (False, False): {},
}


class _Parser:
    """The command line of one verb, made from its function by jsonargparse."""

    def __init__(self, verb: str, function: Callable[..., Any]):
        from jsonargparse import ArgumentParser, set_parsing_settings

        set_parsing_settings(docstring_parse_attribute_docstrings=True)
        types = typing.get_type_hints(function)
        parameters = inspect.signature(function).parameters.values()
        self.positionals = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.flags = [p.name for p in parameters if types[p.name] is bool]
        options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        several = {p.name: _element(types[p.name]) for p in options}
        self.repeated = {p.name: not _is_optional(p) for p in options if several[p.name] is str}
        self.listed = {name: element for name, element in several.items() if element not in (None, str)}
        self.takes_recipe = "recipe" in self.positionals
        self.writes_run = self.takes_recipe and "out" in types
        self.parser = ArgumentParser(
            prog=f"latemask {verb}", usage=_usage(verb, parameters), exit_on_error=False, allow_abbrev=False
        )
        self._describe(function)
        for parameter in (p for p in parameters if p.name in self.positionals):
            many = _ARGUMENTS_TAKEN[_element(types[parameter.name]) is not None, _is_optional(parameter)]
            self.parser.add_argument(parameter.name, type=str, help=self.texts[parameter.name], **many)
        for flag in self.flags:
            self.parser.add_argument(f"--{flag}", action="store_true", help=self.texts[flag])
        for name, required in self.repeated.items():
            self.parser.add_argument(
                f"--{name}", type=str, action="append", required=required, help=f"{self.texts[name]} (may be repeated)"
            )
        for name, element in self.listed.items():
            valid = f": {', '.join(typing.get_args(element))}" if typing.get_args(element) else ""
            text = f"{self.texts[name]} (one or more{valid})"
            self.parser.add_argument(f"--{name}", type=str, nargs="+", action="extend", help=text)
        self.parser.add_function_arguments(
            function, None, skip={*self.positionals, *self.flags, *self.repeated, *self.listed}
        )
        if self.takes_recipe:
            self.parser.add_class_arguments(Recipe, None)

    def _describe(self, function: Callable[..., Any]) -> None:
        from docstring_parser import parse

        doc = parse(function.__doc__ or "")
        self.texts = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
        more = " Every key of a recipe can be given as an option, too, and then wins over the recipe."
        self.title = (doc.short_description or "").rstrip(".")
        self.parser.description = f"{self.title}.{more if self.takes_recipe else ''}"

    def help(self) -> str:
        """Return the help text, with dashes where Python has underscores."""
        text = re.sub(r"--[\w.]+", lambda found: found[0].replace("_", "-"), self.parser.format_help())
        text = text.replace(f"\n\n{self.title}:\n", "\n")  # jsonargparse's group of what is just "options"
        text = re.sub(r"^.*Path to a configuration file\.\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"\s+\(required,\s+type:\s+str\)", "", text)
        text = re.sub(r"(\(one\s+or\s+more[^)]*\))\s+\(type:\s+str,\s+default:\s+null\)", r"\1", text)
        text = re.sub(
            r"(?:Optional\[)?Literal\[([^\]]+)\]\]?",
            lambda found: re.sub(r",\s+", "|", found[1].replace("'", "")),
            text,
        )
        return re.sub(r"<class '(\w+)'>", r"\1", text).rstrip()

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """Return the keyword arguments for the verb's function."""
        try:
            found = self.parser.parse_args(_underscored(arguments), defaults=False).as_dict()
        except Exception as error:  # argparse and jsonargparse raise their own kinds for a wrong command line
            raise UserError(self._plain(str(error))) from None
        for name, element in self.listed.items():
            if name in found:
                found[name] = [
                    _converted(name, word, element) for given in found[name] for word in _words(given, element)
                ]
        if self.takes_recipe:
            found = self._with_recipe(found)
        return found

    def _with_recipe(self, found: dict[str, Any]) -> dict[str, Any]:
        overrides = {key: found.pop(key) for key in Recipe.__dataclass_fields__ if key in found}
        name = found.get("recipe")
        if name is None:
            if overrides:
                raise UserError(f"{_first_option(overrides)} changes a recipe, and none was given")
            return found
        if self.writes_run and "out" not in found:
            found["out"] = Path("runs") / Path(name).stem
        return {**found, "recipe": load_recipe(name, overrides) if overrides else name}

    def _plain(self, message: str) -> str:
        """Say what is wrong with a command line, with the nearest name that would be right."""
        message = plain_type_error(message)
        if found := re.search(r"unrecognized arguments: (\S+)", message):
            given = found[1].split("=")[0].replace("_", "-")
            options = [option.replace("_", "-") for option in self.parser._option_string_actions]
            valid = [option for option in options if option.startswith("--") and "print" not in option]
            if given[0] != "-":
                return f"unexpected argument '{found[1]}'; usage: {self.parser.usage}"
            return f"unknown option '{given}'{nearest(given, valid)}"
        if found := re.search(r"arguments are required: (.*)", message):
            return f"missing {found[1]}; usage: {self.parser.usage}"
        return message.replace("_", "-") if message.startswith("argument --") else message


def _element(annotation: Any) -> Any:
    """Return what a parameter is a sequence of, if it is one or may be one: str for all that is taken as written.

    An option of several `str` is repeated; one of several of anything else takes several words at once.
    """
    kinds = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else [annotation]
    found = next((typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is Sequence), None)
    return found if found in (None, float, Path) or typing.get_origin(found) is typing.Literal else str


def _words(given: str, element: Any) -> list[str]:
    """Return what commas separate; a path may hold one."""
    return [given] if element is Path else given.split(",")


def _converted(name: str, word: str, element: Any) -> Any:
    """Return one word of a list as what it should be."""
    option = f"--{name.replace('_', '-')}"
    if element is float:
        try:
            return float(word)
        except ValueError:
            raise UserError(f"{option} must be numbers, not '{word}'") from None
    if element is Path:
        return Path(word)
    if word not in typing.get_args(element):
        raise UserError(f"{option}: unknown '{word}'{nearest(word, typing.get_args(element))}")
    return word


def _first_option(overrides: dict[str, Any]) -> str:
    """Return the first of nested overrides as it was written: --mask.rate."""
    key, value = next(iter(overrides.items()))
    return f"--{key}" + (_first_option(value).replace("--", ".", 1) if isinstance(value, dict) and value else "")


def _is_optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty


def _usage(verb: str, parameters: typing.Iterable[inspect.Parameter]) -> str:
    words = [f"latemask {verb}"]
    for parameter in parameters:
        name = parameter.name.upper()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            several = " ..." if "Sequence" in str(parameter.annotation) else ""
            words.append(f"[{name}{several}]" if _is_optional(parameter) else f"{name}{several}")
        elif not _is_optional(parameter):
            words.append(f"--{parameter.name} {name}")
    return " ".join([*words, "[options]"])


def _underscored(arguments: list[str]) -> list[str]:
    """--vocab-size=8 → --vocab_size=8: jsonargparse takes Python's names."""
    return [
        re.sub(r"^--[\w.-]+", lambda found: "--" + found[0][2:].replace("-", "_"), argument) for argument in arguments
    ]
