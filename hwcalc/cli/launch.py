"""``kvplan launch``: what a command, a script or a manifest would start, planned. ``kvplan -- vllm serve ...`` and ``kvplan FILE`` are the same."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.launch_line import starts_server
from hwcalc.cli.options import DETAIL, OUTPUT, Option, command, given_options, plan_options, progress, say_unreachable
from hwcalc.cli.output import Answer, answer, detail_of, output_lines, view_of
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.files import decoded, standard_input
from hwcalc.planner.options import WITHIN
from hwcalc.text import brief, shell_word, shown

if TYPE_CHECKING:
    from hwcalc.launch.read import Given
    from hwcalc.launch.server import Server
    from hwcalc.planner.result import Plan

_LARGEST: Final = 4 * 1024**2
_MOST_SHOWN: Final = 12
LEFT_OPEN: Final = (
    Option(
        "sets",
        ("--set",),
        "NAME=VALUE",
        "A variable left open, or model=ORG/NAME; of one server SERVER.model=ORG/NAME, SERVER.seq=8k; repeatable.",
        "list",
        group="model",
    ),
    Option("env_file", ("--env-file",), "FILE", "Variables, a line each: NAME=VALUE.", group="model"),
)
"""The options for what a command or a manifest leaves open."""


@command(
    (
        Option(
            "words",
            (),
            "COMMAND | FILE | -",
            "A command of any engine, files of commands or manifests, or - for standard input.",
            "list",
        ),
        *LEFT_OPEN,
        *(replace(option, short="") if option.name in WITHIN else option for option in plan_options("plan")),
        *OUTPUT,
        *DETAIL,
    ),
    {
        "Does this command fit on an L4?": "kvplan launch --gpu l4 -- vllm serve Qwen/Qwen3-8B --max-model-len 16k --kv-cache-dtype fp8",
        "The same, in quotes": "kvplan launch 'vllm serve Qwen/Qwen3-8B --max-model-len 16k --kv-cache-dtype fp8' --gpu l4",
        "What does the text leave open?": "kvplan launch 'sglang serve --model-path $M --tp ${TP:-2}' --set M=Qwen/Qwen3-8B",
    },
)
def launch(*, words: list[str] | None, sets: list[str] | None = None, env_file: str | None = None, **options: Any) -> Answer:
    """Plan what a command, a script or a manifest would start.

    Nothing is run, and nothing is fetched because a manifest says so. Commands of vLLM, SGLang, llama.cpp, TensorRT-LLM, TGI, LMDeploy, mistral.rs, mlx-lm and Ollama, alone, behind docker, srun or a shell, and in files of Compose,
    Kubernetes, Helm values, SkyPilot, systemd, llama-swap, Slurm, Dockerfiles and Modelfiles. What the text leaves open is named; options of a
    plan change what it says. The exit status is 1 if one of the servers does not fit.
    """
    from hwcalc.launch.documents import fault_in
    from hwcalc.report.plan import FORMATS

    view = view_of(**options, formats=FORMATS)
    given = given_options("plan", options)
    said = given_of(sets or (), env_file)
    found: list[tuple[str, Server, dict[str, Any]]] = []
    notes: list[str] = []
    for text, path in _texts(words or []):
        filled, more = said.with_beside(text, path) if path else (said, ())
        fault = fault_in(text, path)
        where = "" if fault is None or fault.line is None else f":{fault.line}"
        notes += (
            more if fault is None else [*more, f"warning: {path}{where}: {fault.problem}. What stands behind that is not read."]
        )
        found += [(called, server, said.load_of(called)) for called, server in filled.named(text, os.path.basename(path))]
    if not found:
        line = shown(" ".join(words or ()), 60)
        raise UsageError(f"nothing in {line} starts a server that kvplan knows.", hint="See: kvplan help launch")
    one = len(found) == 1 and view.format != "json"
    outcomes = [_planned(called, server, given, load, one=one) for called, server, load in found]
    status = max(outcome.status for outcome in outcomes)
    remarks = (*notes, *(remark for outcome in outcomes for remark in outcome.remarks)) if not view.quiet else ()
    if view.format == "json":
        from hwcalc.report.launch import launch_document

        return answer(launch_document([(each.server, each.plan, each.error) for each in outcomes], notes), status=status)
    from hwcalc.report.plan import plan_report

    pieces = []
    for outcome in outcomes:
        if outcome.plan is None:
            pieces.append(f"{_heading(outcome.server)}\nnot planned: {outcome.failure}\n")
            continue
        several = len(outcomes) > 1 and view.detail == "usual"
        detail = "brief" if several else detail_of(view, verdict=outcome.plan.fit is not None)
        style = {"color": view.color, "width": view.width, "quiet": view.quiet, "detail": detail, "lines": output_lines()}
        text = plan_report(outcome.plan, view.format, **style)
        pieces.append(text if len(outcomes) == 1 else f"{_heading(outcome.server)}\n{text}")
    return Answer(text="\n".join(pieces), remarks=remarks, status=status)


class _Outcome:
    """A server with its plan, or why there is none."""

    def __init__(self, server: Server, plan: Plan | None, error: KvplanError | None, remarks: tuple[str, ...]) -> None:
        self.server, self.plan, self.error, self.remarks = server, plan, error, remarks

    @property
    def status(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        # With what the engine does not take so, it does not start, or not as it was meant.
        return 1 if self.plan is not None and (self.plan.refutes or self.server.faults) else 0

    @property
    def failure(self) -> str:
        return "" if self.error is None else f"{self.error.message.removesuffix('.')}. {self.error.hint}".rstrip()


def _planned(called: str, server: Server, given: dict[str, Any], load: dict[str, Any], *, one: bool) -> _Outcome:
    """Plan a server, which is ``called`` so where ``--set`` gives it its ``load``. The error of ``one`` server alone is raised."""
    from hwcalc.launch.planned import BeyondError, TooFewGpusError, planned
    from hwcalc.launch.spelled import in_flags
    from hwcalc.library.plan import plan_told

    given = {**given, **load}
    try:
        told = planned(server, given)
        with progress():
            made = plan_told(told)
    except KvplanError as error:
        if isinstance(error, BeyondError):
            error.message, error.hint = f"{error.message}.", error.hint_of(called, load)
        if isinstance(error, TooFewGpusError):
            error = _refused_on_enough(server, given) or error
        error = in_flags(error, server, given)
        if one:
            raise error from None
        return _Outcome(server, None, error, tuple(_remarks(server)))
    say_unreachable(made.notes)
    warned = {each.flag.key or each.flag.name for each in told.left}
    return _Outcome(server, made, None, (*_remarks(server, warned), *told.remarks))


def _refused_on_enough(server: Server, given: Mapping[str, Any]) -> KvplanError | None:
    """Why a server would not start on as many GPUs as its parallel sizes take: more of them do not help it; ``None`` where it would."""
    from hwcalc.launch.planned import TooFewGpusError, planned
    from hwcalc.library.plan import plan_told

    enough = replace(server, settings={name: value for name, value in server.settings.items() if name != "gpus_per_replica"})
    try:
        plan_told(planned(enough, {name: value for name, value in given.items() if name != "gpus"}))
    except (UsageError, UnsupportedError) as error:
        return None if isinstance(error, TooFewGpusError) else error
    except KvplanError:
        return None
    return None


def _remarks(server: Server, told: Container[str] = ()) -> Iterator[str]:
    """Remarks on a text: what it leaves open, but for the settings that the plan has ``told``, and which flags the plan is without."""
    from hwcalc.launch.planned import unknown_flags, warned

    called = f"{server.name}: " if server.name else ""
    replicas = server.settings.get("replicas")
    if isinstance(replicas, int) and replicas != 1:
        yield f"{called}{replicas:,} replicas: the plan is of one of them."
    left = [each for each in server.unresolved if each.partition("=")[0] not in told]
    if left:
        more = len(left) - _MOST_SHOWN
        said = "; ".join(brief(_in_words(each), 120) for each in left[:_MOST_SHOWN])
        yield f"{called}left open: {said}{f'; and {more} more' if more > 0 else ''}."
    yield from (f"warning: {called}{said}" for said in warned(server))
    if server.unknown:
        yield f"{called}not known of {server.settings.get('engine')}: {', '.join(unknown_flags(server))}."
    for fault in server.faults:
        yield f"warning: {called}{brief(fault, 80)}: the engine does not take it so."
    dropped = [each for each in server.irrelevant if each not in server.unknown]
    if dropped:
        yield f"{called}left out, because no byte that is planned depends on it: {', '.join(dropped)}."


def _in_words(left: str) -> str:
    """An open point of a text, in words where its key is none."""
    key, colon, rest = left.partition(": ")
    return f"how many GPUs it has ({rest})" if colon and key == "gpus_per_replica" else left


def _heading(server: Server) -> str:
    model = server.settings.get("model") or "model not known"
    name = f"{server.name}: " if server.name else ""
    return f"== {name}{server.settings.get('engine')} {model} (line {server.line})"


def given_of(sets: Sequence[str], env_file: str | None) -> Given:
    """Values of ``--set``, ``--env-file``."""
    from hwcalc.launch.read import Given

    return Given.of(sets) if env_file is None else Given.of(sets, _content(env_file, "--env-file"), env_file)


def _texts(words: list[str]) -> Iterator[tuple[str, str]]:
    """The texts that the words are or name, with the paths of files."""
    if not words:
        raise UsageError("there is no command and no file.", hint="Write: kvplan -- vllm serve MODEL, or kvplan launch FILE")
    if words == ["-"]:
        data = standard_input("Pipe a command or a manifest in: kvplan launch - < FILE").read(_LARGEST + 1)
        yield (decoded(data, "replace") if isinstance(data, bytes) else data), ""
        return
    if all(os.path.isfile(word) for word in words):
        for word in words:
            yield _content(word, "FILE"), word
        return
    if len(words) == 1:
        if not starts_server(words[0].split()) and "\n" not in words[0]:
            raise UsageError(
                f"{shown(words[0], 60)} is no file here and starts no server that kvplan knows.", hint="See: kvplan help launch"
            )
        yield words[0], ""
        return
    yield " ".join(_quoted(word) for word in words), ""


def _quoted(word: str) -> str:
    """A word of a line that a shell has read, for a reader of shell text. Variables in it are still looked up."""
    if re.search(r"[\s'\"\\;&|<>()#]", word) or not word:
        escaped = re.sub(r"([\"\\`])", r"\\\1", word)
        return f'"{escaped}"' if "$" in word else shell_word(word)
    return word


def _content(path: str, called: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(
            f"{called} {shown(path, 60)} cannot be read: {error.strerror}.", hint="Name a file that is there."
        ) from error
    return decoded(data, "replace")
