"""A typed function → its command line, by argparse.

Its signature and docstring say all there is to say. A parameter that is a dataclass (a fine-tuning's protocol) brings
its fields along as options, and one called `recipe` every key of a recipe (`--mask.rate 0.4`). argparse splits words;
what they mean is found out by the same reader that reads recipe files.
"""

from __future__ import annotations

import argparse
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from latemask.ground.errors import UserError, nearest
from latemask.ground.typed import converted, defaults_of, hints_of, texts_of
from latemask.recipe import OBJECTIVES, Recipe, load_recipe, sections_of_objectives


@dataclass(frozen=True)
class Option:
    """One option or positional argument."""

    name: str
    """As Python has it: `out`, or `mask.rate`."""
    annotation: Any
    text: str
    default: Any = None
    is_required: bool = False
    is_flag: bool = False

    @property
    def option(self) -> str:
        """As a command line has it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def element(self) -> Any:
        """What it is a sequence of, if it is one or may be one."""
        kinds = typing.get_args(self.annotation) if _is_union(self.annotation) else [self.annotation]
        found = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) in (Sequence, tuple)]
        return found[0] if found else None

    @property
    def is_repeated(self) -> bool:
        """Whether several are given by repeating the option; numbers, names and paths stand behind one."""
        element = self.element
        is_word = element in (int, float, Path) or typing.get_origin(element) is Literal
        return element is not None and not is_word and typing.get_origin(self.annotation) is not tuple

    def add_to(self, group: Any) -> argparse.Action:
        """Make it known to a parser. Values stay text: what they mean is found out later, with better words."""
        if self.is_flag:
            return group.add_argument(self.option, dest=self.name, action="store_true", default=None, help=self.text)
        how: dict[str, Any] = {"dest": self.name, "metavar": self._metavar(), "help": self._help()}
        if self.is_repeated:
            how |= {"action": "append"}
        elif self.element is not None:
            how |= {"action": "extend", "nargs": "+"}
        elif self.annotation is bool:
            how |= {"nargs": "?", "const": "true"}
        return group.add_argument(self.option, **how)

    def _metavar(self) -> str:
        choices = _choices(self.element or self.annotation)
        return f"{{{','.join(map(str, choices))}}}" if choices else _type_name(self.element or self.annotation)

    def _help(self) -> str:
        several = " (may be repeated)" if self.is_repeated else " (one or more)" if self.element is not None else ""
        shown = "" if self.default in (None, (), "") else f" (default: {self.default})"
        return f"{self.text}{several}{shown}".replace("%", "%%")

    def value(self, given: Any) -> Any:
        """Return what was given as what it should be."""
        if self.element is None:
            return converted(given, self.annotation, self.name)
        words = given if isinstance(given, list) else [given]
        if self.element is not Path and not self.is_repeated:  # a path may hold a comma
            words = [word for one in words for word in one.split(",")]
        element = str if self.is_repeated else self.element
        choices = _choices(self.element)
        for word in words:
            if choices and word not in choices:
                raise UserError(f"{self.option}: unknown '{word}'{nearest(word, choices)}")
        found = [converted(word, element, self.option) for word in words if word]
        return tuple(found) if typing.get_origin(self.annotation) is tuple else found


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if _is_union(annotation):
        return next((found for one in typing.get_args(annotation) if (found := _choices(one))), ())
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _type_name(annotation: Any) -> str:
    kinds = (
        [kind for kind in typing.get_args(annotation) if kind is not types.NoneType] if _is_union(annotation) else []
    )
    name = getattr(kinds[0] if kinds else annotation, "__name__", "text")
    return {"str": "TEXT", "bool": "true|false", "Path": "PATH"}.get(name, name.upper())


def options_of(section: type, prefix: str = "") -> Iterator[Option]:
    """Return the fields of a dataclass as options; the names of a table are part of the help."""
    hints, texts, defaults = hints_of(section), texts_of(section), defaults_of(section)
    for field in fields(section):
        if any(choice.target == field.name for choice in choices_of(section)):
            continue
        text = texts.get(field.name, "")
        if "table" in field.metadata:
            text = f"{text} One of: {', '.join(field.metadata['table'].names())}."
        if "options" in field.metadata:
            text = f"{text} Together with --help it shows the options of its own."
        yield Option(f"{prefix}{field.name}", hints[field.name], text, defaults.get(field.name))


@dataclass(frozen=True)
class Choice:
    """A field that names an entry of a table, and the field that takes the entry's own options."""

    name: str
    target: str
    table: Any

    @property
    def own(self) -> dict[str, list[Option]]:
        """The options of every entry, as `--ENTRY.NAME`."""
        return {entry: list(options_of(self.table[entry].Options, f"{entry}.")) for entry in self.table.names()}

    def taken(self, chosen: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return what the chosen entry was given; what another one was given is refused."""
        for entry, options in self.own.items():
            for option in options:
                if entry != chosen and option.name in given:
                    raise UserError(f"{option.option} is for --{self.name} {entry}, and this is {chosen}")
        return {
            option.name.rpartition(".")[2]: option.value(given[option.name])
            for option in self.own.get(chosen, ())
            if option.name in given
        }


def choices_of(section: type) -> list[Choice]:
    """Return the fields of a dataclass that choose whose options it takes."""
    return [
        Choice(field.name, field.metadata["options"], field.metadata["table"])
        for field in fields(section)
        if "options" in field.metadata
    ]


class Command:
    """The command line of one verb, made from its function."""

    def __init__(self, verb: str, function: Callable[..., Any]):
        from docstring_parser import parse

        doc = parse(function.__doc__ or "")
        texts = {param.arg_name: " ".join((param.description or "").split()) for param in doc.params}
        hints = typing.get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        self.positionals = [_option(p, hints, texts) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.options = [_option(p, hints, texts) for p in own if not is_dataclass(hints[p.name])]
        self.sections = {
            p.name: (hints[p.name], list(options_of(hints[p.name]))) for p in own if is_dataclass(hints[p.name])
        }
        self.takes_recipe = any(option.name == "recipe" for option in self.positionals)
        self.writes_run = self.takes_recipe and "out" in hints
        self.usage = _usage(verb, self.positionals, self.options)
        more = " Every key of a recipe can be given as an option, too, and then wins over the recipe."
        self.parser = argparse.ArgumentParser(
            prog=f"latemask {verb}",
            usage=self.usage,
            description=f"{(doc.short_description or '').rstrip('.')}.{more if self.takes_recipe else ''}",
            exit_on_error=False,
            allow_abbrev=False,
        )
        for option in self.positionals:
            self.parser.add_argument(option.name, nargs="*" if option.element else "?", help=option.text)
        for option in self.options:
            option.add_to(self.parser)
        for section, options in self.sections.values():
            group = self.parser.add_argument_group((section.__doc__ or "").split("\n")[0].rstrip("."))
            for option in options:
                option.add_to(group)
        self.choices = {name: choices_of(section) for name, (section, _) in self.sections.items()}
        self.own: list[Option] = []
        self.shown_with: list[tuple[Choice, str, argparse.Action]] = []
        """What help shows only of the entry that is chosen."""
        for choice in (choice for choices in self.choices.values() for choice in choices):
            self._add(choice)
        self.keys = list(self._add_recipe()) if self.takes_recipe else []

    def _add(self, choice: Choice) -> None:
        for entry, options in choice.own.items():
            title = (choice.table[entry].Options.__doc__ or entry).split("\n")[0].rstrip(".")
            group = self.parser.add_argument_group(f"--{choice.name} {entry}: {title}")
            self.shown_with += [(choice, entry, option.add_to(group)) for option in options]
            self.own += options

    def _add_recipe(self) -> Iterator[Option]:
        sections = {field.name: hints_of(Recipe)[field.name] for field in fields(Recipe) if field.name != "options"}
        plain = [
            option for option in options_of(Recipe) if option.name in sections and not is_dataclass(option.annotation)
        ]
        groups = {"": ("Recipe", plain)}
        own = {name: OBJECTIVES[owner].Options for name, owner in sections_of_objectives().items()}
        for name, section in {**{n: s for n, s in sections.items() if is_dataclass(s)}, **own}.items():
            groups[name] = ((section.__doc__ or name).split("\n")[0].rstrip("."), list(options_of(section, f"{name}.")))
        for title, options in groups.values():
            group = self.parser.add_argument_group(title)
            for option in options:
                option.add_to(group)
                yield option

    def help(self, arguments: list[str]) -> str:
        """Return the help, with the options of those entries of tables alone that the arguments choose."""
        words = " ".join(_dashed(arguments)).replace("=", " ").split()
        chosen = set(pairwise(words))
        for choice, entry, action in self.shown_with:
            if (f"--{choice.name}", entry) not in chosen:
                action.help = argparse.SUPPRESS
        return self.parser.format_help()

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """Return the keyword arguments for the verb's function."""
        try:
            found, unknown = self.parser.parse_known_args(_dashed(arguments))
        except argparse.ArgumentError as error:
            raise UserError(str(error)) from None
        given = {name: value for name, value in vars(found).items() if value is not None and value != []}
        if unknown:
            self._refuse(unknown[0])
        if missing := [o.name for o in (*self.positionals, *self.options) if o.is_required and o.name not in given]:
            raise UserError(f"missing {', '.join(missing)}; usage: {self.usage}")
        values = self._taken(self.positionals, given) | self._taken(self.options, given)
        for name, (section, options) in self.sections.items():
            taken = self._taken(options, given)
            for choice in self.choices[name]:
                chosen = taken.get(choice.name, getattr(section, choice.name))
                taken |= {choice.target: own} if (own := choice.taken(chosen, given)) else {}
            values[name] = section(**taken)
        return self._with_recipe(values, given) if self.takes_recipe else values

    def _taken(self, options: Sequence[Option], given: dict[str, Any]) -> dict[str, Any]:
        return {option.name: option.value(given[option.name]) for option in options if option.name in given}

    def _refuse(self, word: str) -> None:
        if not word.startswith("-"):
            raise UserError(f"unexpected argument '{word}'; usage: {self.usage}")
        every = (
            *self.options,
            *self.keys,
            *self.own,
            *(option for _, options in self.sections.values() for option in options),
        )
        name = word.split("=")[0]
        raise UserError(f"unknown option '{name}'{nearest(name, [option.option for option in every])}")

    def _with_recipe(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        overrides: dict[str, Any] = {}
        for name, value in self._taken(self.keys, given).items():
            section, _, key = name.rpartition(".")
            (overrides.setdefault(section, {}) if section else overrides)[key] = value
        if "recipe" not in values:
            if overrides:
                first = next(option.option for option in self.keys if option.name in given)
                raise UserError(f"{first} changes a recipe, and none was given")
            return values
        if self.writes_run and "out" not in values:
            values["out"] = Path("runs") / Path(values["recipe"]).stem
        if not overrides:
            return values
        recipe = load_recipe(values["recipe"], overrides)
        for section, owner in sections_of_objectives().items():
            if section in overrides and owner != recipe.objective:
                raise UserError(f"{section} is a section of objective {owner}, and this run's is {recipe.objective}")
        return {**values, "recipe": recipe}


def _option(parameter: inspect.Parameter, hints: dict[str, Any], texts: dict[str, str]) -> Option:
    has_default = parameter.default is not parameter.empty
    annotation = hints[parameter.name]
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and "Sequence" not in str(annotation):
        annotation = str  # a recipe or a path, as it was written
    return Option(
        parameter.name,
        annotation,
        texts[parameter.name],
        parameter.default if has_default else None,
        is_required=not has_default,
        is_flag=annotation is bool,
    )


def _usage(verb: str, positionals: Sequence[Option], options: Sequence[Option]) -> str:
    words = [f"latemask {verb}"]
    for option in positionals:
        word = option.name.upper() + (" ..." if option.element else "")
        words.append(word if option.is_required else f"[{word}]")
    words += [f"{option.option} {option.name.upper()}" for option in options if option.is_required]
    return " ".join([*words, "[options]"])


def _dashed(arguments: list[str]) -> list[str]:
    """--vocab_size=8 → --vocab-size=8: both are understood."""
    return [re.sub(r"^--[\w.-]+", lambda found: found[0].replace("_", "-"), argument) for argument in arguments]
