"""The shared layout: what the core exports is what stands in memory, and one writer per word."""

import mmap
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import layout_tables
from local_wheel import LocalWheel
from proofs import sanitize
from shared_words import STEPS, Shared
from wheeld_core import _native, packing, views
from wheeld_core.views import Field, dtype_of, layout

ROOT = Path(__file__).parents[2]
LINE = 128
SIZES = {
    "head": 40, "link": 32, "owner": 8, "state": 8, "slot": 32, "port": 128, "row": 128,
    "completion": 40, "undo": 16, "group": 64, "watch": 256, "watchers": 8,
    "watch_row": 512 + 32768, "keys": 256,
    "key_row": 384, "key_room": 32, "lease_place": 16,
    "size": 128, "word_set": 320, "pools": 256, "pool": 640, "waiters": 8,
    "ledger": 512, "trace": 640,
    "traced": 16, "trace_record": 64, "holder": 4, "block": 4, "chunk": 16, "chunk_front": 6144,
}  # fmt: skip
RECORDS = {
    "shard", "link", "undo", "owner", "state", "slot", "group", "completion", "watchers", "waiters",
    "traced", "trace_record", "holder", "key_room", "word_set", "block", "chunk", "lease_place",
}  # fmt: skip
"""Small records that stand side by side: their lines travel as one, whoever writes."""

WRITERS = {
    "creator", "clock", "worker", "supervisor", "owner", "recorder", "nobody",
    "owner; MOVES: clock",
    "the worker that holds the chunk",
    "the worker that has taken the block",
    "clock; the worker: fire to poll",  # one struct in two segments, each with one writer
}  # fmt: skip
BY_COMPARE_AND_SWAP = {
    ("owner", "owner"), ("state", "state"), ("slot", "deadline"), ("slot", "interval"),
    ("pool", "used"), ("pool", "dry_since"), ("ledger", "made"), ("word_set", "tags"),
    ("word_set", "values"), ("lease_place", "ticket"),
    ("slots", "heap_top"), ("slots", "heap_asked"), ("chunk", "word"), ("chunk_front", "ids"),
}  # fmt: skip
BY_READ_MODIFY_WRITE = {
    ("watchers", "workers"), ("watch_row", "any"), ("watch_row", "dirty"), ("pool", "tickets"),
    ("pool", "dry_ns"), ("waiters", "rows"), ("ledger", "wake"), ("slots", "freed"),
    ("chunk", "freed"), ("key_row", "wake"), ("leases", "tokens"), ("leases", "tickets"),
    ("leases", "waiting"),
}  # fmt: skip
NEEDS_COMPILER = pytest.mark.skipif(
    sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"
)
SHARED = BY_COMPARE_AND_SWAP | BY_READ_MODIFY_WRITE


def all_fields() -> list[tuple[str, Field]]:
    return [(struct, field) for struct, (_, fields) in layout().items() for field in fields]


def size_of(field: Field) -> int:
    return field.itemsize * field[4]  # `count` is also a tuple's method


@pytest.mark.parametrize(("struct", "size"), SIZES.items())
def test_sizes_by_hand(struct: str, size: int) -> None:
    assert layout()[struct][0] == size
    assert dtype_of(struct).itemsize == size


def test_fields_by_hand() -> None:
    fields = {(struct, field.name): field for struct, field in all_fields()}
    wanted = {
        ("head", "magic"): (0, 8), ("head", "layout_version"): (8, 4),
        ("head", "fingerprint"): (32, 8), ("row", "name"): (48, 64),
        ("slot", "deadline"): (0, 8), ("slot", "interval"): (16, 8), ("slot", "cookie"): (24, 8),
        ("completion", "id"): (0, 8), ("completion", "missed"): (32, 4), ("link", "due"): (24, 8),
        ("wheel", "tick_ns"): (128, 8), ("registry", "boot_id"): (152, 40),
        ("watch_row", "tenant"): (256, 8), ("watch_row", "dirty"): (512, 32768),
        ("pool", "name"): (32, 64), ("pool", "used"): (128, 8), ("pool", "reaping"): (512, 8),
        ("ledger", "change"): (0, 8), ("ledger", "made"): (128, 8), ("ledger", "wake"): (256, 4),
        ("trace", "rec_tail"): (256, 8), ("trace", "lost"): (328, 56),
        ("trace", "rec_head"): (512, 8),
        ("trace_record", "id"): (24, 8), ("trace_record", "worker"): (56, 2),
        ("trace_record", "kind"): (62, 1),
    }  # fmt: skip
    for key, (offset, size) in wanted.items():
        assert (fields[key].offset, size_of(fields[key])) == (offset, size), key


@pytest.mark.parametrize("struct", layout())
def test_fields_do_not_overlap(struct: str) -> None:
    size, fields = layout()[struct]
    end = 0
    for field in fields:
        assert field.offset >= end, field.name
        assert field.offset % field.itemsize == 0, field.name
        end = field.offset + size_of(field)
        dtype, offset = dtype_of(struct).fields[field.name][:2]  # type: ignore[index]
        assert (offset, dtype.itemsize) == (field.offset, size_of(field))
    assert end <= size


@NEEDS_COMPILER
def test_each_field_has_one_writer() -> None:
    assert list(layout_tables.fields_in_words()) == [
        (struct, field.name) for struct, field in all_fields()
    ]
    for key, words in layout_tables.fields_in_words().items():
        if key in BY_COMPARE_AND_SWAP:
            assert "compare-and-swap" in words.writer
            assert "CAS" in words.order
        elif key in BY_READ_MODIFY_WRITE:
            assert re.search(r"\((or|and|add|exchange)\b", words.writer), words.writer
            assert "RMW" in words.order
        else:
            assert words.writer in WRITERS, f"{key}: {words.writer!r}"
        assert words.meaning
        assert words.readers
        assert (words.writer == "nobody") == (words.readers == "nobody")


@NEEDS_COMPILER
@pytest.mark.parametrize("struct", [name for name in layout() if name not in RECORDS])
def test_writers_do_not_share_a_line(struct: str) -> None:
    size, fields = layout()[struct]
    assert size % LINE == 0 or struct == "head"
    lines: dict[int, set[str]] = {}
    for field in fields:
        for line in range(field.offset // LINE, (field.offset + size_of(field) - 1) // LINE + 1):
            key = (struct, field.name)
            writer = "all" if key in SHARED else layout_tables.fields_in_words()[key].writer
            lines.setdefault(line, set()).update({writer} - {"nobody"})
    assert all(len(writers) <= 1 for writers in lines.values()), lines


def test_arrays_of_different_writers_do_not_share_a_line() -> None:
    for capacity, workers, bits in ((64, 1, 1), (1024, 7, 6), (64 * 33, 63, 3), (2**20, 64, 8)):
        sizes = _native.geometry(
            capacity=capacity, max_workers=workers, tick_ns=1, wheel_bits=bits, payload_bytes=24
        )
        parts = [name for name in sizes if name.endswith("_off") and name not in ("payloads_off",)]
        for name in parts:
            unit = 8 if name in ("summary_off", "occupancy_off") else LINE
            assert sizes[name] % unit == 0, name
        assert sizes["ports_off"] + workers * LINE <= sizes["undo_off"]
        assert sizes["states_off"] + 8 * capacity <= sizes["slots_off"]
        assert sizes["payloads_off"] + 24 * capacity <= sizes["slots_bytes"]


@pytest.mark.parametrize("workers", [1, 63, 64, 65, 4094])
@pytest.mark.parametrize("count", [0, 1, 16])
def test_parts_of_the_shared_segments(workers: int, count: int) -> None:
    """Directory and rows, pools, waiters and ledgers: each begins on a line of its own, behind the
    last one, and fits."""
    watch = mmap.mmap(-1, _native.watch_bytes(workers))
    _native.create_watch(watch, workers, 7)
    header = views.WatchView(watch).header
    words = -(-workers // 64)
    parts = ("directory_off", "rows_off", "sizes_off")
    offsets = [256, *(int(header[name]) for name in parts), len(watch)]
    rows = (512 + 32768) * workers
    assert_apart(offsets, [0, 8 * 65536 * words, rows, 128 * 16 * workers])
    for capacity in (64, 65536):
        size, begin = _native.keys_bytes(workers, capacity)
        keys = mmap.mmap(-1, size)
        _native.create_keys(keys, workers, capacity, 7)
        header = views.DirectoryView(keys).header
        parts = ("rows_off", "sets_off", "rooms_off", "long_off")
        offsets = [256, *(int(header[name]) for name in parts), size]
        sets = 320 * int(header["set_count"])
        assert_apart(offsets, [0, 128 * workers, sets, 32 * capacity, 1024 * capacity])
        assert int(header["sets_off"]) == begin
        assert 16 * int(header["set_count"]) >= 1.5 * capacity + 32768
    pools = mmap.mmap(-1, _native.pools_bytes(workers, count))
    entries = [(f"p{i}", 10 + i, 5, i % 2 == 1) for i in range(count)]
    _native.create_pools(pools, workers, 7, entries)
    header = views.PoolsView(pools).header
    offsets = [int(header[name]) for name in ("pools_off", "waiters_off", "ledgers_off")]
    sizes = [0, 640 * count, 8 * words * count, 512 * count * (workers + 1)]
    assert_apart([256, *offsets, len(pools)], sizes)


def assert_apart(offsets: list[int], sizes: list[int]) -> None:
    assert all(offset % LINE == 0 for offset in offsets)
    for offset, size, after in zip(offsets, sizes, offsets[1:], strict=False):
        assert offset + size <= after


def test_views_of_the_shared_segments() -> None:
    with LocalWheel(
        max_workers=70, pools=(("a", 100, 20, True), ("\u00e9", 50, 50, False))
    ) as wheel:
        wheel.worker(66, "w")
        watch, pools = (
            views.WatchView(wheel.shared("watch")),
            views.PoolsView(wheel.shared("pools")),
        )
        assert np.flatnonzero(watch.rows["tenant"]).tolist() == [66]
        assert [int(row) for row in pools.ledgers["tenant"][:, 66]] == [1, 1]
        assert pools.names() == ["a", "\u00e9"]
        assert pools.pools["size"].tolist() == [100, 50]
        assert pools.pools["largest"].tolist() == [20, 50]
        assert pools.pools["strict"].tolist() == [1, 0]
        assert (pools.used() == 0).all()
        assert not pools.waiting().any()
        assert (pools.depleted_percent(2**62) == 0).all()


def test_watched_buckets_are_counted(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    memory = mmap.mmap(-1, _native.watch_bytes(130))
    _native.create_watch(memory, 130, 7)
    view, expected = views.WatchView(memory), np.zeros(192, int)
    for bucket in rng.integers(0, _native.BUCKETS, 300):
        word = rng.integers(0, 2**64, 3, np.uint64, endpoint=False)
        view.directory[bucket] = word
    for row in range(192):
        bits = view.directory[:, row // 64] >> np.uint64(row % 64) & np.uint64(1)
        expected[row] = int(bits.sum())
    assert view.watched().tolist() == expected.tolist()


def test_bytes_of_a_ledger_are_what_the_core_returns(rng_seed: int) -> None:
    """Workers change two pools at random and stop at a random step: the view says of each what the
    supervisor gives back, and then nothing is out."""
    rng = np.random.default_rng(rng_seed)
    for _ in range(30):
        pools = (("a", 2**30, 2**30, False), ("b", 2**30, 2**30, True))
        with LocalWheel(max_workers=5, pools=pools) as wheel:
            shared = Shared(*map(wheel.shared, ("watch", "pools", "keys")))
            have = np.zeros((2, 5), int)
            for _ in range(int(rng.integers(0, 60))):
                pool, row = int(rng.integers(2)), int(rng.integers(5))
                bytes = int(rng.integers(-have[pool, row], 1000))
                shared.change(row, bytes, pool)
                have[pool, row] += bytes
            for row in range(5):
                shared.change(row, int(rng.integers(1, 99)), 0, STEPS[rng.integers(2)])
            assert shared.pools.out()[:, :-1].tolist() == have.tolist()
            assert shared.used() == have.sum(axis=1).tolist()
            for row in rng.permutation(5).tolist():
                returned = _native.seat_borrower(wheel.shared("pools"), row, 0)
                assert returned == have[:, row].sum()
            assert shared.used() == [0, 0]
            assert (shared.pools.out()[:, :-1] == 0).all()


@NEEDS_COMPILER
def test_orders_name_their_pairs() -> None:
    sources = [
        *(ROOT / "core/include/wheeld").glob("*/*.h"),
        *(ROOT / "core/wheeld_core/native").glob("**/*.[ch]"),
    ]
    code = "\n".join(path.read_text() for path in sources if not path.name.startswith("layout"))
    for key, words in layout_tables.fields_in_words().items():
        if "pairs:" in words.order:
            for tag in words.order.split("pairs:")[1].split(","):
                assert code.count(tag.strip()) >= 2, f"{key}: {tag.strip()}"


def test_views_read_what_the_core_wrote() -> None:
    with LocalWheel(192, 2, payload_bytes=24, tick_ns=777, wheel_bits=3, start_ns=10**6) as wheel:
        header = wheel.view.header
        names = (
            "capacity",
            "max_workers",
            "tick_ns",
            "wheel_bits",
            "payload_bytes",
            "virtual_clock",
        )
        assert [int(header[name]) for name in names] == [192, 2, 777, 3, 24, 1]
        assert int(header["tick"]) == 10**6 // 777
        timers = wheel.worker(1, "somebody")
        id = timers.schedule(1.5, 99, payload=b"hello", interval=0.25, to="somebody")
        slot = id & 0xFFFFFFFF
        assert wheel.slots.armed().tolist() == [slot]
        assert int(wheel.slots.states[slot]) == id >> 32 << 32 | 1
        fields = wheel.slots.slots[slot]
        assert (int(fields["deadline"]), packing.INTERVAL_COUNT.of(int(fields["interval"]))) == (
            10**6 + 1_500_000_000,
            250_000_000,
        )
        assert (int(fields["cookie"]), int(fields["payload_size"])) == (99, 5)
        assert int(fields["target"]) == wheel.incarnations << 12 | 2
        assert wheel.slots.payloads is not None
        assert wheel.slots.payloads[slot, :5].tobytes() == b"hello"
        assert wheel.slots.owner_rows(wheel.view)[slot] == 1
        assert (wheel.slots.owner_rows(wheel.view) >= 0).sum() == 64
        wheel.settle()
        assert int(wheel.view.links["gen"][slot]) == id >> 32
        assert int(wheel.view.links["list"][slot]) != _native.NIL
        assert wheel.counter("linked") == 1
        assert views.RegistryView(wheel.registry_memory).names() == {1: "somebody"}


def test_read_only_memory_gives_read_only_views() -> None:
    with LocalWheel() as wheel:
        frozen = memoryview(bytes(wheel.wheel_memory))
        view = views.record(frozen, "wheel")  # type: ignore[arg-type]
        assert not view.flags.writeable
        assert np.array_equal(view["capacity"], wheel.view.header["capacity"])


@NEEDS_COMPILER
def test_tables_of_the_document_are_up_to_date() -> None:
    command = [sys.executable, "-m", "tools.layout_tables", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_gathered_items_are_copies(rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    words = rng.integers(0, 2**63, (50, 4))
    for array in (words, words[:, 0].copy(), words.view(dtype_of("slot")).reshape(50)):
        index = rng.integers(0, 50, 200)
        copied = views.gathered(array, index)
        assert copied.tobytes() == array[index].tobytes()
        assert views.gathered(array, index[:0]).shape == (0, *array.shape[1:])
        for out_of_range in (-1, 50):
            with pytest.raises(IndexError, match="of 50"):
                views.gathered(array, np.array([out_of_range]))
    with pytest.raises(ValueError, match="whole words"):
        views.gathered(np.zeros(4, np.uint32), np.zeros(1, np.intp))
    with pytest.raises(ValueError, match="16 bytes for 1 items of 8"):
        _native.gather(words, 8, np.zeros(1, np.int64), bytearray(16))
