"""CSV and TSV, plain or compressed, parsed by pyarrow as the bytes come in: text, unless types are given.

A shard is read from its start, as a quoted field may hold line ends; what becomes of a bad row is decided elsewhere.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamio.errors import FormatError
from streamio.formats.base import Bad, Block, CorruptError, Source
from streamio.formats.columns import check_columns
from streamio.formats.compression import uncompressed
from streamio.formats.csv_rows import Run, marked
from streamio.formats.names import basename, with_codecs
from streamio.formats.parquet_footer import first_line
from streamio.formats.pullfile import PullFile
from streamio.formats.rows import one_batch
from streamio.storage.faults import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as pa_csv

_BLOCK = 1 << 20  # bytes that are parsed at once; pyarrow reads up to 32 of them ahead
_LONG_BLOCK = 1 << 24  # the same from the first row on that does not fit
_LONG = "a row is longer than 16 MiB, or has a quote that does not end"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Csv:
    """Comma-separated values (`.csv`, `.tsv`; also compressed), one record a row.

    Values are text, an empty field is `""`, as types guessed from the rows would differ from shard to shard.

    Args:
        columns: Columns to keep, in the file's order. None keeps all.
        types: Arrow types by column (`{"id": "int64", "when": "timestamp[s]"}`); others stay text. In these columns
            what pyarrow takes for null ("", "NA", "null", ...) becomes None.
        delimiter: One character; None is a tab for `.tsv` and a comma for all else.
        column_names: Names of the columns, where the file has no header. None takes its first row.

    Raises:
        FormatError: An option is of a wrong kind.
    """

    columns: tuple[str, ...] | None = None
    types: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str | None = None
    column_names: tuple[str, ...] | None = None

    name = "csv"
    suffixes = with_codecs([".csv", ".tsv"])

    def __post_init__(self) -> None:
        if not isinstance(self.types, Mapping):
            raise FormatError(f"types= takes a dict of Arrow types by column, not {self.types!r}")
        if self.delimiter is not None and not (isinstance(self.delimiter, str) and len(self.delimiter.encode()) == 1):
            raise FormatError(f"delimiter= takes one character, not {self.delimiter!r}")
        if self.column_names is not None:
            names = self.column_names if isinstance(self.column_names, (list, tuple)) else ()
            if not names or not all(isinstance(name, str) for name in names):
                raise FormatError(f"column_names= takes a list of names, not {self.column_names!r}")
            object.__setattr__(self, "column_names", tuple(names))

    def cuttable(self, url: str) -> bool:
        """False: whether a line end ends a row is known from the start only."""
        return False

    def blocks(
        self, source: Source, start: int, stop: int, first: int = 0, begin: int | None = None
    ) -> Iterator[Block]:
        """The rows of a shard; blank lines are none.

        Args:
            source: The shard.
            start: 0.
            stop: Its size.
            first: Rows to pass over; they are read all the same.
            begin: None.

        Returns:
            Blocks of about a megabyte. A row with too few or too many fields, or with a value that is not of its
            type, is `Bad("csv", ...)`. The index is the number of the row.

        Raises:
            CorruptError: The compressed stream is damaged or cut short, or a row is longer than 16 MiB. Rows before
                that have been yielded.
            FormatError: A wanted column is not there, two have one name, or a type is not known.
        """
        return self._parsed(source, _How(), first)

    def _parsed(self, source: Source, how: _How, first: int) -> Iterator[Block]:
        """The rows from a number on, in another way from where this one does not do."""
        done = first
        try:
            for block in self._blocks(source, how, first):
                yield block
                done = int(block.index[-1]) + 1
        except _AgainError as again:
            yield from self._parsed(source, again.how, done)

    def _blocks(self, source: Source, how: _How, first: int) -> Iterator[Block]:
        """The rows from a number on."""
        held: Run | None = None  # as the last one may have been cut by what ended the stream
        failed: CorruptError | None = None
        kinds: dict[str, pa.DataType] = {}
        chunks = uncompressed(source)
        with closing(PullFile(marked(chunks) if how.marked else chunks)) as file:
            head = file.peek(_BLOCK)
            if head.strip():
                header = self.column_names
                names = list(header) if header is not None else _header(head, self._delimiter(source.url))
                self._check(source.url, names)
                kinds = self._kinds(source.url, names)
                try:
                    for run in self._runs(source, file, names, how):
                        if file.error is not None and not isinstance(file.error, CorruptError):
                            break
                        if held is not None:
                            yield from held.blocks(kinds, first)
                        held = run
                except CorruptError as error:
                    failed = error
            if held is not None:
                yield from (held.without_last() if file.error is not None else held).blocks(kinds, first)
            error_ = file.error or failed
            if error_ is not None:
                raise error_

    def _runs(self, source: Source, file: PullFile, names: list[str], how: _How) -> Iterator[Run]:
        """What pyarrow makes of the rows, with the rows that it leaves out."""
        import pyarrow as pa
        from pyarrow import csv as pa_csv

        bad: dict[int, Bad] = {}
        numbered_from = 1 if self.column_names is not None else 2  # the header is row 1

        def leave_out(row: pa_csv.InvalidRow) -> str:
            place = row.number - numbered_from
            text = f"{row.actual_columns} fields where there are {row.expected_columns} columns"
            bad[place] = Bad("csv", text, f"record {place}")
            return "skip"

        wanted = [name for name in names if self.columns is None or name in self.columns]
        parsing = pa_csv.ParseOptions(
            delimiter=self._delimiter(source.url), newlines_in_values=True, invalid_row_handler=leave_out
        )
        converting = pa_csv.ConvertOptions(
            check_utf8=False,  # which would cost the whole block; `ArrowRows` finds the row
            column_types=dict.fromkeys(wanted, pa.string()),
            include_columns=wanted,
        )
        reading = pa_csv.ReadOptions(use_threads=False, block_size=how.size, column_names=self.column_names)
        done = 0
        try:
            with closing(pa_csv.open_csv(pa.PythonFile(file, mode="r"), reading, parsing, converting)) as reader:
                for batch in reader:
                    run = Run.of(batch, done, bad, marked=how.marked)
                    done += run.slots
                    if run.slots:
                        yield run
                if bad:
                    yield Run(one_batch(reader.schema.empty_table()), done, max(bad) + 1 - done, bad)
        except (pa.ArrowException, OSError, ValueError) as error:
            if "straddling" in str(error) and how.size == _BLOCK:
                raise _AgainError(replace(how, size=_LONG_BLOCK)) from error
            if "straddling" in str(error):
                raise CorruptError(_LONG, f"record {done}") from error
            if "Expected" in str(error) and not how.marked:  # `leave_out` can't be told of a row that is not UTF-8
                raise _AgainError(replace(how, marked=True)) from error
            if "Empty CSV" not in str(error):  # a header and no line end
                raise CorruptError(f"can't be parsed: {first_line(error)}", f"record {done}") from error

    def _check(self, url: str, names: list[str]) -> None:
        """Refuse columns that are not there, or there twice."""
        check_columns(url, (*(names if self.columns is None else self.columns), *self.types), names)

    def _kinds(self, url: str, names: list[str]) -> dict[str, pa.DataType]:
        """The types of the columns that do not stay text."""
        import pyarrow as pa

        kinds = {}
        for name in names:
            kind = self.types.get(name)
            if kind is None or (self.columns is not None and name not in self.columns):
                continue
            try:
                kinds[name] = pa.type_for_alias(kind) if isinstance(kind, str) else kind
                pa.array([], pa.string()).cast(kinds[name])
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise FormatError(
                    f"types= has {kind!r} for the column {name!r} of {shown(url)}, which text can't be made"
                    " into: name a type of Arrow, as 'int64', 'float32', 'bool', 'date32' or 'timestamp[s]'"
                ) from error
        return kinds

    def _delimiter(self, url: str) -> str:
        return self.delimiter or ("\t" if ".tsv" in basename(url) else ",")


@dataclass(frozen=True, slots=True)
class _How:
    """How a shard is parsed: by how many bytes at once, and whether what is not UTF-8 in it is marked."""

    size: int = _BLOCK
    marked: bool = False


class _AgainError(Exception):
    """What comes is to be parsed in another way."""

    def __init__(self, how: _How) -> None:
        super().__init__(how)
        self.how = how


def _header(head: bytes, delimiter: str) -> list[str]:
    """The first row, by Python's own reader: pyarrow's would want all rows of `head` to be good."""
    text = io.StringIO(head.removeprefix(_BOM).decode(errors="surrogateescape"), newline="")
    try:
        names = next(filter(None, csv.reader(text, delimiter=delimiter)), [])
        "".join(names).encode()
    except (csv.Error, UnicodeError) as error:
        raise CorruptError(f"its header can't be read: {first_line(error)}") from error
    return names
