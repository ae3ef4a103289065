"""The commands `symphony adapters ...`: arguments in, one call, exit code out."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.base import options
from cli.base.errors import errors_in_a_line
from cli.base.reporting import complain, out
from cli.base.runfile import DEFAULT_DATA_DIR

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="A folder in PEFT's format, or hub:OWNER/REPO[@REVISION].",
        show_default=False,
    ),
]
Base = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Its base; needed if there are several.")
]
Tenant = Annotated[
    str | None, typer.Option(metavar="TENANT", help="Its owner; default: your own tenant.")
]
Shared = Annotated[bool, typer.Option("--shared", help="Of all tenants.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="In place of the one that has the name, if any.")
]

app = typer.Typer(
    name="adapters",
    help="List, add, show, remove and check LoRA adapters.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def add(
    name: NameArgument,
    folder: Folder,
    base: Base = None,
    tenant: Tenant = None,
    shared: Shared = False,
    replace: Replace = False,
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add an adapter, under a name that requests give as the model."""
    from cli.adapters.client import client_of
    from cli.adapters.hub import adapter_folder

    with errors_in_a_line(), client_of(url, api_key, data_dir) as client:
        path = adapter_folder(folder, _kept(data_dir), complain)
        record = client.add(name, path, base=base, tenant=tenant, shared=shared, replace=replace)
        for warning in record["warnings"]:
            out.print(f"symphony: warning: {warning}", markup=False)
        out.print(f"symphony: {name} is there, on {record['parent']}", markup=False)


@app.command("list")
def list_all(
    tenant: Tenant = None,
    url: options.Url = None,
    api_key: options.ApiKey = "",
    as_json: options.AsJson = False,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List your own adapters and those of all tenants."""
    from cli.adapters.client import client_of
    from cli.adapters.showing import table_of

    with errors_in_a_line(), client_of(url, api_key, data_dir) as client:
        adapters = client.all(tenant)
    if as_json:
        print(json.dumps({"adapters": adapters}))
    else:
        out.print(table_of(adapters) if adapters else "symphony: no adapters")


@app.command()
def show(
    name: NameArgument,
    tenant: Tenant = None,
    url: options.Url = None,
    api_key: options.ApiKey = "",
    as_json: options.AsJson = False,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show one adapter."""
    from cli.adapters.client import client_of
    from cli.adapters.showing import lines_of

    with errors_in_a_line(), client_of(url, api_key, data_dir) as client:
        adapter = client.show(name, tenant)
    if as_json:
        print(json.dumps(adapter))
    else:
        print("\n".join(lines_of(adapter)))


@app.command()
def remove(
    name: NameArgument,
    tenant: Tenant = None,
    shared: Shared = False,
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Remove one. Replies that run on it go on to their end."""
    from cli.adapters.client import client_of

    with errors_in_a_line(), client_of(url, api_key, data_dir) as client:
        client.remove(name, tenant, shared=shared)
        out.print(f"symphony: {name} is gone", markup=False)


@app.command()
def check(
    folder: Folder,
    base: Annotated[str, typer.Option(metavar="MODEL", help="As `up --model` takes it.")],
    as_json: options.AsJson = False,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Check whether an adapter can be served on a base. Needs no deployment."""
    with errors_in_a_line():
        from cli.adapters.hub import adapter_folder
        from cli.adapters.offline import check as examine
        from cli.adapters.offline import lines_of
        from cli.models.prepare import check_model, prepare_model

        check_model(base)
        path = adapter_folder(folder, _kept(data_dir), complain)
        source = prepare_model(base, _kept(data_dir), complain)
        checked = examine(path, source)
    if as_json:
        print(json.dumps(checked))
    else:
        print("\n".join(lines_of(checked)))


def _kept(data_dir: Path) -> Path:
    return data_dir.expanduser().resolve() / "models"
