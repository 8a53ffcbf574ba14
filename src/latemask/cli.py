"""`latemask VERB …`: verbs → functions; nothing else.

The module of a verb is imported when it is called, and imports what takes seconds to load (torch, transformers) when
there is work for it: help and mistakes are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import latemask
from latemask import VERBS, __version__
from latemask.command import Command
from latemask.ground.allocator import keep_freed_memory
from latemask.ground.console import printable
from latemask.ground.errors import SaidByTheFirst, UserError, nearest
from latemask.ground.processes import is_first, rank, world_size
from latemask.ground.registry import load_plugins

# As the system, safetensors and torch.save say it; the latter two raise no OSError.
_DISK_FULL = ("no space left on device", "file write failed", "inline_container.cc")
# As gloo and NCCL say that they lost somebody.
_PEER_LOST = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "socket", "watchdog")
_TRAINING = ("demo", "plan", "pretrain", "resume", "sweep")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; a user's mistake is one or two lines, never a traceback."""
    is_own_process = arguments is None
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(arguments, is_own_process)
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


def _main(arguments: list[str], is_own_process: bool) -> int:
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
    load_plugins()
    function = getattr(latemask, name)
    command = Command(name, function)
    if "-h" in rest or "--help" in rest:
        print(command.help(rest).rstrip())
        return 0
    values = command.parse(rest)
    if is_own_process and name in _TRAINING:  # malloc is the whole process's: never change it for whoever called us
        keep_freed_memory()
    function(**values)
    return 0


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in VERBS.items())
    return (
        "usage: latemask VERB [options]\n\n"
        "Pre-train text encoders for a fraction of the compute: the encoder never sees a [MASK].\n\n"
        f"verbs:\n{verbs}\n\n"
        "latemask VERB --help says more of each; latemask --version says which this is."
    )


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
