"""``rocketpy consume``: prints the messages of a topic, as a member of a group or without one."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rocketpy.consumer.fetch.subscription import ALL, Expression, Sql
from rocketpy_cli.context import Options, usage_errors
from rocketpy_cli.formats import find_format
from rocketpy_cli.positions import parse_position
from rocketpy_cli.reading import Printer, read_as_member, read_queues

EXAMPLES: Final = """[bold]Examples[/bold]

[cyan]rocketpy consume Orders[/cyan]  (all messages, to the end)

[cyan]rocketpy consume Orders --follow[/cyan]  (new messages, until Ctrl-C)

[cyan]rocketpy consume Orders --from -10[/cyan]  (the last ten of each queue)

[cyan]rocketpy consume Orders --from 2h --tags 'paid || sent'[/cyan]

[cyan]rocketpy consume Orders --group billing --follow[/cyan]  (shares the queues, commits offsets)

[cyan]rocketpy consume Orders --format '{queue_offset} {tags} {body}'[/cyan]

[cyan]rocketpy consume Orders --json | rocketpy send Copy --json-lines[/cyan]"""


def consume(
    options: Options,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Join this group: share queues, commit offsets."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages; otherwise stop at the end.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="begin, end, an offset, -N (the last N of each queue), an age (30s, 10m, 2h, 1d) or a time "
            "(2026-01-31T12:00). Default: begin; with --follow: end. A new group begins at POSITION, except "
            "in a queue that still has its first message: it begins at offset 0 there.",
        ),
    ] = None,
    tags: Annotated[
        str | None, typer.Option("--tags", "-t", metavar="TAGS", help="Only these tags: 'a || b'.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="FILTER", help="Only messages that match an SQL92 expression."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, metavar="N", help="Stop after N messages.")
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="text, json, or a template such as '{tags} {body}'."),
    ] = "text",
) -> None:
    """Print messages as they arrive; the output is flushed after each pull.

    Without --group no offset is committed, so reading does not disturb consumers.
    """
    if tags and sql:
        raise typer.BadParameter("--tags and --sql exclude each other")
    expression: Expression = Sql(sql) if sql else tags or ALL
    with usage_errors():
        position = parse_position(start or ("end" if follow else "begin"))
        if group is not None:
            position.consume_from()
        printer = Printer(find_format("json" if options.as_json and format_ == "text" else format_), count)
    client = options.cluster.client
    if group is None:
        options.run(read_queues(client, topic, expression, position, printer, follow=follow), topic=topic)
    else:
        options.run(
            read_as_member(client, group, topic, expression, position, printer, follow=follow), topic=topic
        )
