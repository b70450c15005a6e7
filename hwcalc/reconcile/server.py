"""What a running server holds, how full it is, and how many more users fit: its answers become the facts that its log would state.

Every dialect names the paths under which its engine answers, and reads the answers. All of them are asked once; then those of the engine
that answered. The comparison with a plan is that of a log (``core.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import DecodeError, json

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.errors import KvplanError, LogError, ServerError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, Note
from hwcalc.planner.asked import take_options
from hwcalc.planner.options import ReconcileOptions, takes
from hwcalc.planner.solve import last_yes
from hwcalc.reconcile.core import TOLERANCE, Findings, LogRead, findings_of, load_own, reconciliation_of, share_of
from hwcalc.reconcile.dialects import DIALECTS
from hwcalc.reconcile.endpoint import Endpoint
from hwcalc.reconcile.facts import Dialect, Facts
from hwcalc.reconcile.prometheus import sample
from hwcalc.reconcile.result import Reconciliation, Unread

if TYPE_CHECKING:
    from typing import Unpack

    from hwcalc.engines.deployment import Occupancy

_MOST_BYTES_OF_POOL: Final = 2**50
_MOST_USERS: Final = 2**20
_POOL: Final = "pool"
"""What ends the room of a server, where it is no option of the engine: how long users are does not matter then."""
_APART: Final = 0.02
"""How far the share in use may lie from the tokens in use: SGLang rounds it to hundredths."""


class Room(Record):
    """How many more users of ``seq`` tokens each fit, and what ends it: the ``pool``, or the engine's option for requests at once.

    They are ``at_most`` so many where the server does not say how large its pool is, or how full.
    """

    seq: int
    users: int
    limit: str
    at_most: bool


class Serving(Record):
    """What a running server states of itself at ``time``.

    ``pools`` is the number of pools that it has, one for each data-parallel replica; ``blocks``, ``tokens``, ``used_tokens``, ``running``,
    ``waiting`` and ``most_running`` are those of all together, and what the server does not state is null. ``used_share`` is how full
    they are, and ``rooms`` how many more users fit: of the planned length first, then as long as those that run are on average.
    ``reconciliation`` compares it with the plan of its own settings, and has notes of its own; it is null where the server cannot be planned,
    and in the readings that follow.
    """

    schema_version: str
    kvplan_version: str
    time: str
    address: str
    engine: str
    engine_version: str | None
    model: str | None
    pools: int
    blocks: int | None
    tokens: int | None
    used_share: float | None
    used_tokens: int | None
    running: int | None
    waiting: int | None
    most_running: int | None
    rooms: tuple[Room, ...]
    reconciliation: Reconciliation | None
    notes: tuple[Note, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document, as plain dicts and lists."""
        document: dict[str, Any] = document_of(self)
        return document


class Server:
    """A running server at ``http://HOST:PORT``, whose engine is known from its first reading on. Only GET is sent, and only to this host.

    ``api_key_env`` names the variable of the environment that has its key. Raises :class:`~hwcalc.errors.UsageError` for a wrong
    address, and every reading :class:`~hwcalc.errors.ServerError` if nothing answers as an engine does.
    """

    def __init__(self, address: str, api_key_env: str | None = None) -> None:
        self._endpoint = Endpoint(address, api_key_env)
        self._asked: tuple[type[Dialect], ...] = tuple(dialect for dialect in DIALECTS if dialect.endpoints)
        self._findings: Findings | None = None
        self.address = self._endpoint.address

    def read(self) -> LogRead:
        """Ask all paths, and read the answers in the dialect that knows most of them."""
        dialects = [dialect() for dialect in self._asked]
        notes = []
        self._endpoint.statuses.clear()
        for path in dict.fromkeys(path for dialect in dialects for path in dialect.endpoints):
            text = self._endpoint.get(path)
            if text is None:
                continue
            try:
                document = json.decode(text) if text.lstrip()[:1] in ("{", "[") else None
            except (DecodeError, RecursionError):
                notes.append(Note(code="not-json", message=f"The answer to {path} is no JSON document, and was not read."))
                continue
            for dialect in dialects:
                if path in dialect.endpoints:
                    _take(dialect, path, text, document)
        dialect = max(dialects, key=lambda dialect: len(dialect.facts))
        if all(fact.name == "version" for fact in dialect.facts.all()):
            raise self._endpoint.refusal or self._unknown()
        self._asked = (type(dialect),)
        answered = sum(status == 200 for status in self._endpoint.statuses.values())
        return LogRead(dialect=dialect, lines=answered, unread=Unread(), notes=tuple(notes))

    @takes(ReconcileOptions)
    def serving(
        self,
        model: ModelLike | None = None,
        *,
        engine: str | None = None,
        tolerance: float | str = TOLERANCE,
        **options: Unpack[ReconcileOptions],
    ) -> Serving:
        """The first reading, compared with the plan of what the server states; all else is as for :func:`hwcalc.reconcile.reconcile`."""
        _, asked = take_options("reconcile", {name: value for name, value in options.items() if value is not None})
        allowed, read, reconciliation = share_of(tolerance), self.read(), None
        notes: list[Note] = []
        try:
            spec, keywords = load_own(read.dialect, asked) if model is None else load_request(model, asked)
            self._findings = findings = findings_of(read, spec, keywords, asked, engine, allowed)
        except KvplanError as error:
            if isinstance(error, UsageError) or (model is not None and not isinstance(error, LogError)):
                raise
            notes += read.notes
            notes.append(Note(code="not-compared", message=f"It is not compared with a plan: {error.message} {error.hint}"))
        else:
            if findings.rows:
                reconciliation = reconciliation_of(read, findings, self.address, allowed, saved=None, verbose=False)
            else:
                notes += findings.notes
        return self._state(read, reconciliation, tuple(notes))

    def again(self) -> Serving:
        """A further reading, with the plan of the first."""
        read = self.read()
        return self._state(read, None, read.notes)

    def _state(self, read: LogRead, reconciliation: Reconciliation | None, notes: tuple[Note, ...]) -> Serving:
        dialect, findings = read.dialect, self._findings
        facts, occupancy = dialect.facts, None if findings is None else findings.occupancy
        size = None if occupancy is None else _pool_bytes(occupancy, facts)
        running, waiting, used = (_sum(facts, name) for name in ("running_requests", "waiting_requests", "used_tokens"))
        pools = max(len(_of_pools(facts, name)) for name in ("tokens", "blocks", "usage_share", "running_requests"))
        tokens = _sum(facts, "tokens")
        if tokens is None and occupancy is not None and size is not None:
            counted = occupancy.pool(size).value.tokens
            tokens = None if counted is None else max(1, pools) * counted
        shares = _of_pools(facts, "usage_share")
        if not shares and used is not None and tokens:
            shares = [min(1.0, used / tokens)]
        share = sum(shares) / len(shares) if shares else None
        if used is None and share is not None and tokens is not None:
            used = round(share * tokens)
        contradiction = _contradiction(facts, occupancy)
        if contradiction is not None:
            notes = (*notes, contradiction)
        stated, name = facts.number(dialect.limit[0]), dialect.limit[1]
        limit = None if stated is None else (int(stated) * max(1, pools), name)
        rooms = []
        if occupancy is not None:
            mean = -(-used // running) if used and running else None
            planned = int(occupancy.tokens)
            lengths = [planned, *([mean] if mean is not None and mean < planned else [])]
            # A pool that does not say how full it is may be empty.
            bounded = occupancy.engine.facts.pooled and not (size and shares)
            full = shares or [0.0] * max(1, pools) * (running is not None)
            free = [] if size is None else [size - round(size * used) for used in full]
            most = limit or occupancy.most_sequences()
            rooms = [_room(occupancy, free, seq, (running, waiting), most, at_most=bounded) for seq in lengths]
        return Serving(
            schema_version=SCHEMA_VERSION,
            kvplan_version=__version__,
            time=datetime.now(tz=UTC).isoformat(timespec="seconds"),
            address=self.address,
            engine=dialect.engine,
            engine_version=facts.word("version"),
            model=facts.word("model"),
            pools=max(1, pools),
            blocks=_sum(facts, "blocks"),
            tokens=tokens,
            used_share=share,
            used_tokens=used,
            running=running,
            waiting=waiting,
            most_running=None if limit is None else limit[0],
            rooms=tuple(room for place, room in enumerate(rooms) if room is not None and (not place or room.limit == _POOL)),
            reconciliation=reconciliation,
            notes=notes,
        )

    def _unknown(self) -> ServerError:
        answers = ", ".join(f"{path} {status}" for path, status in self._endpoint.statuses.items())
        engines = ", ".join(dict.fromkeys(dialect.engine for dialect in DIALECTS if dialect.endpoints))
        return ServerError(
            f"{self.address} answers as no engine that is read ({answers}).",
            hint=f"Read are: {engines}. llama-server has /metrics with --metrics, SGLang with --enable-metrics.",
        )


def _take(dialect: Dialect, path: str, text: str, document: Any) -> None:
    """Let a dialect read an answer: a JSON document, or the lines of ``/metrics``. Its facts stand in no line of a log."""
    facts, dialect.source = dialect.facts, "server"
    facts.line, facts.text = 0, path
    if document is not None:
        dialect.answered(path, document)
        return
    for line in text.splitlines():
        if line.startswith(dialect.metrics) and dialect.metrics:
            dialect.sampled(sample(line[: dialect.longest]))


def _of_pools(facts: Facts, name: str) -> list[float]:
    """The values of a fact, one for each pool. A server that names its pools states the same of them without a name, too."""
    stated = [(fact.rank, float(fact.value)) for fact in facts.ranks(name) if not isinstance(fact.value, str)]
    return [value for rank, value in stated if rank is not None] or [value for _, value in stated]


def _sum(facts: Facts, name: str) -> int | None:
    values = _of_pools(facts, name)
    return round(sum(values)) if values else None


def _contradiction(facts: Facts, occupancy: Occupancy | None) -> Note | None:
    """A note where the share of the pools in use is not that of the tokens in use.

    A model with further pools, of windows or states, has the share of the fullest: that may be more.
    """
    shares, used, tokens = (_of_pools(facts, name) for name in ("usage_share", "used_tokens", "tokens"))
    if not len(shares) == len(used) == len(tokens) or not sum(tokens):
        return None
    pool = None if occupancy is None else occupancy.pool(_MOST_BYTES_OF_POOL).value
    single = pool is not None and pool.swa_tokens is None and pool.state_slots is None
    share, counted = sum(shares) / len(shares), sum(used) / sum(tokens)
    if counted - share <= _APART and not (single and share - counted > _APART):
        return None
    message = (
        f"The server contradicts itself: it says that {share:.1%} are in use, and that {sum(used):,.0f} of {sum(tokens):,.0f} tokens are, "
        f"which is {counted:.1%}. More users are counted by the {share:.1%}."
    )
    return Note(code="contradiction", message=message.replace("%", " %"))


def _pool_bytes(occupancy: Occupancy, facts: Facts) -> int | None:
    """The bytes of the smallest pool, by its blocks or tokens; ``None`` if it states neither, or the engine has no pool."""
    most = occupancy.pool(_MOST_BYTES_OF_POOL).value
    for name in ("blocks", "tokens"):
        count = min(_of_pools(facts, name), default=None)
        if count is not None and getattr(most, name, None) is not None:
            return 1 + last_yes(lambda size: (getattr(occupancy.pool(size).value, name) or 0) < count, _MOST_BYTES_OF_POOL)  # noqa: B023 - called at once
    return None


def _room(
    occupancy: Occupancy,
    free: list[int],
    seq: int,
    requests: tuple[int | None, int | None],
    limit: tuple[int, str] | None,
    *,
    at_most: bool,
) -> Room | None:
    """The number of further users of ``seq`` tokens that fit into the free bytes of each pool; ``None`` if that is not known.

    ``limit`` is how many requests run at once, and the option for it: as the server says, else as the plan does. ``at_most`` says that
    the pools may have fewer bytes free.
    """
    (running, waiting), replicas = requests, occupancy.request.replicas
    ends: list[tuple[int, str]] = []
    if limit is not None and running is not None:
        ends.append((limit[0] - running, limit[1]))
    if free:

        def users_of(size: int) -> int:
            return last_yes(lambda users: occupancy.sized(seq=seq, batch=users * replicas).holds(size), _MOST_USERS)

        ends.append((sum(map(users_of, free)), _POOL))
    if not ends:
        return None
    users, name = min(ends)
    return Room(seq=seq, users=max(0, users - (waiting or 0)), limit=name, at_most=at_most)
