"""How good are the predictions? Against published tables.

python benchmarks/prediction/main.py                          all tables
python benchmarks/prediction/main.py --table zero_memory      one of them, row by row
python benchmarks/prediction/main.py --table new.csv          any other: any_table.py has its columns
"""

from pathlib import Path
from typing import Annotated

import any_table
import tables
import typer
from report import Row, Score, markdown

from colonnade.errors import InvalidArgument


def main(
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table, or a file; may be given again.")
    ] = None,
    every_row: Annotated[bool, typer.Option("--rows", help="Print every row.")] = False,
) -> None:
    """Predict, and say how far off it is."""
    rows: list[Row] = []
    for predict in tables.ALL:
        if not table or predict.__name__ in table:
            rows += predict()
    for given in table or ():
        if given.endswith(".csv"):
            try:
                rows += any_table.predicted(Path(given))
            except InvalidArgument as error:
                raise SystemExit(str(error)) from None
    names = list(dict.fromkeys(row.table for row in rows))
    if every_row or table:
        for name in names:
            print(f"\n### {name}\n\n{markdown([row for row in rows if row.table == name])}")
    print("\n| table | rows | median error | worst | rank correlation |\n|---|---|---|---|---|")
    for name in names:
        of_table = [row for row in rows if row.table == name]
        if any(row.counted for row in of_table):
            print(Score.of(name, of_table).line())
    if any(row.counted for row in rows):
        whole = Score.of("**all rows that count**", rows)
        print(f"| {whole.table} | {whole.rows} | {whole.median:.1%} | {whole.worst:.1%} | |")
    timed = [row for row in rows if row.unit not in ("GiB", "GB", "%")]
    if any(row.counted for row in timed) and not table:
        speed = Score.of("**those of them that are times or rates**", timed)
        print(f"| {speed.table} | {speed.rows} | {speed.median:.1%} | {speed.worst:.1%} | |")
    if not table:
        print(f"\njitter fitted to pytorch_ddp_bench: {tables.fitted_jitter():.1%}")


if __name__ == "__main__":
    typer.run(main)
