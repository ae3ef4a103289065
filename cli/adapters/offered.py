"""Adapters that `symphony up` offers to all users: registered once the deployment is ready."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cli.adapters.hub import FOLDER, PREFIX, adapter_folder, parse_hub
from cli.base.called import hint
from cli.models.catalog import DEFAULT, DEMO
from cli.models.names import served_as
from services.worker.models.demo_model import DEMO_MODEL_ID
from shared.adapters.record import EVERYBODY, check_adapter_name
from shared.bus import Bus
from shared.errors import ConfigError, InvalidRequest, PeerUnavailable, SymphonyError
from shared.ids import HostId, ModelId
from shared.runtime.access import NatsAccess
from shared.wire.messages import AdapterAdd, LoraCard, WorkerReport
from shared.wire.subjects import ADAPTER_ADD, WORKER_REPORT

TRAINED = Path(__file__).parent / "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAdapter:
    """Attributes:
    model: what it is made for, as `--model` takes it.
    base: what that is served as.
    what: for people.
    """

    name: str
    model: str
    base: str
    what: str

    @property
    def is_made(self) -> bool:
        """Whether it is made when it is asked for; else it is in `TRAINED`."""
        return self.model == DEMO


def _demo(name: str, what: str) -> KnownAdapter:
    return KnownAdapter(name=name, model=DEMO, base=DEMO_MODEL_ID, what=what)


def _trained(name: str, what: str) -> KnownAdapter:
    return KnownAdapter(name=name, model=DEFAULT, base=DEFAULT, what=what)


KNOWN = {
    each.name: each
    for each in (
        _trained("pirate", "talks like a pirate"),
        _trained("telegraph", "sends telegrams"),
        _trained("json", "answers with a JSON object"),
        _demo("digits", "says digits only"),
        _demo("capitals", "says capitals only"),
        _demo("vowels", "says vowels only"),
    )
}


CONNECT_S = 5.0
REPORTS_S = 3.0  # workers report twice a second
ADD_TIMEOUT_S = 300.0
OFFERED_AT_ONCE = 4  # while one is copied and checked, others are written to the disk


@dataclass(frozen=True, slots=True)
class Offer:
    """Attributes:
    folder: absolute; of one that is known by name, where it is or will be made; of the hub's,
        until it is fetched, below which it will be.
    base: the model that it is for; None: the only one that takes adapters.
    hub: where to fetch it; empty: it is there.
    """

    name: str
    folder: Path
    base: str | None = None
    hub: str = ""


def parse_offer(text: str, data_dir: Path) -> Offer:
    """``NAME=DIR`` or ``NAME=hub:...`` of the command line, or the name of one that we know.

    Args:
        data_dir: absolute; what is made will be in it.

    Raises:
        ConfigError: it is something else, or there is no such folder.
    """
    name, separator, folder = text.partition("=")
    if not separator:
        if (known := KNOWN.get(name)) is None:
            raise ConfigError(f"--adapter {text}: give NAME=DIR, or one of {', '.join(KNOWN)}")
        place = data_dir / "models" / f"{known.base}-adapters" if known.is_made else TRAINED
        return Offer(name, place / name, known.base)
    try:
        check_adapter_name(name)
    except InvalidRequest as error:
        raise ConfigError(f"--adapter {text}: {error.message}") from None
    if folder.startswith(PREFIX):
        return Offer(name, data_dir / "models" / FOLDER, hub=parse_hub(folder).text)
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"--adapter {text}: no such folder")
    return Offer(name, path.resolve())


def models_for(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Models, as `--model` takes them, that adapters are for which we know by name."""
    return tuple(dict.fromkeys(KNOWN[each.name].model for each in offers if each.base is not None))


def check_offers(offers: Sequence[Offer], served: Sequence[str]) -> None:
    """See that the models are served that adapters are for, as far as these say it.

    Args:
        served: names of the models.

    Raises:
        ConfigError: one is for another model.
    """
    for offer in offers:
        if offer.base is not None and offer.base not in served:
            here = (
                f"this deployment serves {', '.join(served)}"
                if served
                else "no model is loaded here"
            )
            raise ConfigError(
                f"--adapter {offer.name}: it is for --model {KNOWN[offer.name].model}, and {here}"
            )


def make_offers(offers: Sequence[Offer], models: Sequence[str]) -> None:
    """Write down those that are made when they are asked for.

    Args:
        models: folders and hub ids of what will be served; `check_offers` has seen them.
    """
    for offer in offers:
        if offer.base is not None and KNOWN[offer.name].is_made:
            from services.worker.models.demo_adapters import make_demo_adapter

            model = next(Path(each) for each in models if served_as(each) == offer.base)
            make_demo_adapter(offer.name, model, offer.folder)


def fetch_offers(
    offers: Sequence[Offer], kept: Path, say: Callable[[str], None]
) -> tuple[Offer, ...]:
    """The same, with those there that the hub has.

    Raises:
        SymphonyError: one cannot be had.
    """
    return tuple(
        replace(each, folder=adapter_folder(each.hub, kept, say), hub="") if each.hub else each
        for each in offers
    )


def offer_all(
    nats_url: str, access: NatsAccess, host_id: HostId, offers: Sequence[Offer]
) -> list[str]:
    """Have the kvstore of this deployment take them, in place of what has their names; what to warn
    of.

    Raises:
        SymphonyError: one cannot be served; names it.
    """
    return asyncio.run(_offer_all(nats_url, access, host_id, offers))


async def _offer_all(
    nats_url: str, access: NatsAccess, host_id: HostId, offers: Sequence[Offer]
) -> list[str]:
    bus = await Bus.connect(nats_url, "cli", access, timeout_s=CONNECT_S)
    try:
        bases = await _bases(bus, host_id)
        places = asyncio.Semaphore(OFFERED_AT_ONCE)

        async def add(offer: Offer) -> list[str]:
            async with places:
                return await _offer(bus, host_id, offer, bases)

        warnings = await asyncio.gather(*map(add, offers))
    finally:
        await bus.drain()
    return [each for found in warnings for each in found]


async def _offer(
    bus: Bus, host_id: HostId, offer: Offer, bases: Mapping[ModelId, LoraCard | None]
) -> list[str]:
    model_id, card = _base_of(offer, bases)
    add = AdapterAdd(
        name=offer.name,
        tenant=EVERYBODY,
        model_id=model_id,
        card=card,
        path=str(offer.folder),
        replace=True,
    )
    try:
        record = await bus.request(ADAPTER_ADD, add, host_id, timeout_s=ADD_TIMEOUT_S)
    except SymphonyError as error:
        raise SymphonyError(f"--adapter {offer.name}: {error.message}") from None
    return [f"{offer.name}: {warning}" for warning in record.warnings]


async def _bases(bus: Bus, host_id: HostId) -> dict[ModelId, LoraCard | None]:
    """The models for text that workers of this deployment serve, and what adapters they take."""
    found: dict[ModelId, LoraCard | None] = {}
    has_heard = asyncio.Event()

    def on_report(report: WorkerReport) -> None:
        if report.host_id == host_id and report.models:
            found.update({card.model_id: card.lora for card in report.models})
            has_heard.set()

    await bus.subscribe(WORKER_REPORT, on_report)
    try:
        await asyncio.wait_for(has_heard.wait(), REPORTS_S)
    except TimeoutError:
        raise PeerUnavailable("--adapter: no worker serves a model for text") from None
    return found


def _base_of(offer: Offer, bases: Mapping[ModelId, LoraCard | None]) -> tuple[ModelId, LoraCard]:
    wanted = [model_id for model_id in bases if offer.base in (None, model_id)]
    taking = [(model_id, card) for model_id in wanted if (card := bases[model_id]) is not None]
    if not taking:
        raise ConfigError(f"--adapter {offer.name}: {', '.join(bases)} takes no adapters")
    if len(taking) > 1:
        names = ", ".join(model_id for model_id, _ in taking)
        raise ConfigError(
            f"--adapter {offer.name}: {names} take adapters: say which with "
            f"`{hint('adapters add --base')}`"
        )
    return taking[0]
