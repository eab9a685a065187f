"""Collectives between real processes, against what a loop over all ranks' inputs would give."""

import pytest
import torch
from support.ranks import run_ranks, try_ranks

from gnn_dist.cluster import LocalExchange, SharedExchange, World, request, share, shared

DTYPES = [
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
]
SHAPES = [(), (3,), (2, 3), (0,)]


def part(source: int, target: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """What ``source`` sends to ``target``: some shares are empty."""
    rows = (source * 7 + target * 3) % 5
    generator = torch.Generator().manual_seed(source * 100 + target)
    return torch.randint(0, 100, (rows, *shape), generator=generator).to(dtype)


def exchange_all(world: World) -> list[str]:
    wrong = []
    ranks = range(world.size)
    for dtype in DTYPES:
        for shape in SHAPES:
            mine = [part(world.rank, r, dtype, shape) for r in ranks]
            wanted = [part(r, world.rank, dtype, shape) for r in ranks]
            got = world.features.all_to_all(mine)
            sizes = [x.shape[0] for x in wanted]
            again = world.features.all_to_all(mine, receive=sizes)
            # Parts that lie one behind the other in one tensor take a path without a copy.
            whole = torch.cat(mine)
            pieces = world.features.all_to_all(whole.split([x.shape[0] for x in mine]))
            strided = [torch.stack([x, x], dim=-1)[..., 0] for x in mine]
            turned = world.features.all_to_all(strided)
            gathered = world.features.all_gather(mine[0])
            ways = {"sizes": got, "known": again, "views": pieces, "strided": turned}
            for way, answer in ways.items():
                for r in ranks:
                    same = answer[r].dtype == dtype and torch.equal(answer[r], wanted[r])
                    if not same:
                        wrong.append(f"{way} {dtype} {shape} from {r}")
            for r in ranks:
                if not torch.equal(gathered[r], part(r, 0, dtype, shape)):
                    wrong.append(f"gather {dtype} {shape} from {r}")
    return wrong


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_to_all_and_all_gather_move_every_dtype_and_shape(size):
    assert run_ranks(exchange_all, size) == [[]] * size


def reduce_all(world: World) -> tuple[torch.Tensor, ...]:
    total = torch.full((3, 2), float(world.rank + 1), dtype=torch.float64)
    empty = torch.empty(0)
    most = torch.tensor([world.rank, -world.rank])
    sent = torch.tensor([world.rank == 1, True])
    answer = world.gradients.all_reduce_sum(total)
    assert answer is total
    assert world.gradients.all_reduce_sum(empty).numel() == 0
    world.gradients.all_reduce_max(most)
    world.control.broadcast(sent, 1)
    world.control.barrier()
    objects = world.control.all_gather_object({"rank": world.rank, "pad": "x" * world.rank})
    assert objects == [{"rank": r, "pad": "x" * r} for r in range(world.size)]
    return total, most, sent


def test_reductions_broadcast_and_objects():
    for total, most, sent in run_ranks(reduce_all, 3):
        assert torch.equal(total, torch.full((3, 2), 6.0, dtype=torch.float64))
        assert most.tolist() == [2, 0]
        assert sent.tolist() == [True, True]


def float_sum(world: World) -> torch.Tensor:
    generator = torch.Generator().manual_seed(world.rank)
    return world.gradients.all_reduce_sum(torch.randn(1001, generator=generator))


def test_every_rank_gets_the_same_bits_of_a_sum():
    first, *others = run_ranks(float_sum, 4)
    for other in others:
        assert torch.equal(first, other)
    assert all(torch.equal(first, again) for again in run_ranks(float_sum, 4))


def count_traffic(world: World) -> tuple[int, ...]:
    rows = [torch.zeros(10 * (r + 1), 4) for r in range(world.size)]
    before = world.features.traffic.copy()
    world.features.all_to_all(rows)
    world.features.all_to_all(rows, receive=[10 * (world.rank + 1)] * world.size)
    moved = world.features.traffic.since(before)
    return moved.rounds, moved.size_rounds, moved.bytes_sent, moved.bytes_received


def test_rounds_and_bytes_to_other_ranks_are_counted():
    row = 4 * 4
    for rank, counted in enumerate(run_ranks(count_traffic, 3)):
        sent = sum(10 * (r + 1) for r in range(3) if r != rank) * row
        received = 10 * (rank + 1) * 2 * row
        assert counted == (2, 1, 2 * sent, 2 * received)


def ask(world: World) -> bool:
    """Each rank owns squares and names of a range of ids; all ask all."""
    ids = [torch.arange(r * 10 + world.rank, r * 10 + 8) for r in range(world.size)]
    before = world.sampling.traffic.copy()
    answers = request(
        world.sampling, ids, lambda _, x: (x * x, torch.stack([x, x + 1], dim=1).float())
    )
    assert world.sampling.traffic.since(before).rounds == 3
    assert world.sampling.traffic.since(before).size_rounds == 1
    return all(
        torch.equal(square, x * x) and torch.equal(pair, torch.stack([x, x + 1], 1).float())
        for x, (square, pair) in zip(ids, answers, strict=True)
    )


def test_requests_are_answered_in_order_with_one_round_a_tensor():
    assert all(run_ranks(ask, 3))


def columns(world: World) -> tuple[int, int, list[int]]:
    grid = [[0, 2], [1, 3]]
    column = world.split("column", grid)
    got = column.all_to_all([torch.tensor([world.rank * 10 + r]) for r in range(2)])
    alone = world.split("alone", [[r] for r in range(world.size)])
    assert alone.all_gather(torch.ones(1))[0].item() == 1
    every = world.exchange("every")
    assert [x.item() for x in every.all_gather(torch.tensor([world.rank]))] == [0, 1, 2, 3]
    return column.rank, column.size, [int(x) for x in got]


def test_a_world_splits_into_columns():
    assert run_ranks(columns, 4) == [
        (0, 2, [0, 20]),
        (0, 2, [10, 30]),
        (1, 2, [1, 21]),
        (1, 2, [11, 31]),
    ]


def overlap(world: World) -> bool:
    """Three threads use three exchanges at once, each in its own order of sizes."""
    import threading

    good = []

    def rounds(exchange, base):
        for i in range(30):
            sent = [torch.full((i % 4, 2), base + world.rank) for _ in range(world.size)]
            got = exchange.all_to_all(sent)
            good.append(all((x == base + r).all() for r, x in enumerate(got)))

    threads = [
        threading.Thread(target=rounds, args=(exchange, base))
        for exchange, base in ((world.sampling, 100), (world.features, 200))
    ]
    for thread in threads:
        thread.start()
    for _ in range(30):
        good.append(world.gradients.all_reduce_sum(torch.ones(3))[0].item() == world.size)
    for thread in threads:
        thread.join()
    return len(good) == 90 and all(good)


def test_exchanges_of_one_world_may_overlap_from_threads():
    assert all(run_ranks(overlap, 2))


def disagree(world: World) -> None:
    dtype = torch.int64 if world.rank else torch.int32
    world.features.all_to_all([torch.zeros(2, dtype=dtype)] * world.size)


def test_ranks_that_disagree_on_the_dtype_are_told():
    outcomes = try_ranks(disagree, 2, timeout=30)
    assert all("another dtype or shape" in str(o.error) for o in outcomes)


def test_a_local_exchange_gives_everything_back():
    exchange = LocalExchange()
    rows = torch.arange(6).view(3, 2)
    assert exchange.all_to_all([rows])[0] is rows
    assert exchange.all_to_all([rows], receive=[3])[0] is rows
    assert exchange.all_gather(rows)[0] is rows
    assert exchange.all_reduce_sum(rows) is rows
    assert exchange.all_reduce_max(rows) is rows
    assert exchange.broadcast(rows) is rows
    assert exchange.all_gather_object("a") == ["a"]
    exchange.barrier()
    assert request(exchange, [torch.tensor([3, 4])], lambda _, x: (x * 2,))[0][0].tolist() == [6, 8]
    assert exchange.traffic.rounds == exchange.traffic.bytes_sent == 0
    with pytest.raises(AssertionError, match="2 parts for 1 ranks"):
        exchange.all_to_all([rows, rows])


def through_memory(world: World, hosts: list[int]) -> list[str]:
    shared = SharedExchange(world.exchange("rows"), hosts)
    wrong, ranks = [], range(world.size)
    for turn in range(12):  # several calls, so that memory is used again, and grows
        for dtype in (torch.float32, torch.float64, torch.int32, torch.bfloat16, torch.bool):
            for shape in SHAPES:
                rows = lambda a, b: (a * 7 + b * 3 + turn) % 5 * (1 + 40 * turn)  # noqa: B023, E731
                value = lambda a, b: float(a * 100 + b * 10 + turn)  # noqa: B023, E731
                mine = [
                    torch.full((rows(world.rank, r), *shape), value(world.rank, r), dtype=dtype)
                    for r in ranks
                ]
                if turn % 3 == 0:  # written where they are sent from
                    room = shared.room(sum(map(len, mine)), mine[0])
                    mine = list(torch.cat(mine, out=room).split([len(part) for part in mine]))
                sizes = [rows(r, world.rank) for r in ranks]
                told = sizes if turn % 2 else None
                for r, got in enumerate(shared.all_to_all(mine, receive=told)):
                    wanted = torch.full((sizes[r], *shape), value(r, world.rank), dtype=dtype)
                    if got.dtype != dtype or not torch.equal(got, wanted):
                        wrong.append(f"turn {turn}, {dtype} {shape} from {r}")
    return wrong


@pytest.mark.parametrize("hosts", [[0, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 2]])
def test_rows_of_one_host_go_through_memory_and_others_by_socket(hosts):
    assert run_ranks(through_memory, len(hosts), (hosts,)) == [[]] * len(hosts)


def kept_and_forgotten(world: World) -> tuple[bool, int, int]:
    """Rows that are kept stay as they came, however many calls follow; memory of forgotten ones is
    used again."""
    shared = SharedExchange(world.exchange("rows"), [0] * world.size)
    other = 1 - world.rank

    def call(number: int) -> torch.Tensor:
        parts = [torch.full((50 + number, 3), 100.0 * world.rank + number)] * world.size
        return shared.all_to_all(parts, receive=[50 + number] * world.size)[other]

    for number in range(100):
        call(number)
    few = len(shared._arenas._all)
    kept = [call(number) for number in range(150)]
    whole = all(
        torch.equal(rows, torch.full((50 + number, 3), 100.0 * other + number))
        for number, rows in enumerate(kept)
    )
    while kept:
        kept.pop()  # the last one first
    world.control.barrier()
    shared._arenas.free(1)
    idle = sum(not arena.readers for arena in shared._arenas._all)
    return whole, few, idle


def test_rows_that_came_through_memory_stay_while_they_are_used():
    for whole, few, idle in run_ranks(kept_and_forgotten, 2):
        assert whole
        assert few <= 3
        assert idle >= 60


def sent_as_another_type(world: World) -> None:
    shared = SharedExchange(world.exchange("rows"), [0, 0])
    dtype = torch.int32 if world.rank else torch.int64
    shared.all_to_all([torch.ones(4, dtype=dtype)] * 2)


def another_number_sent(world: World) -> None:
    shared = SharedExchange(world.exchange("rows"), [0, 0])
    shared.all_to_all([torch.ones(4)] * 2, receive=[4, 4] if world.rank else [5, 5])


def test_rows_through_memory_must_be_what_is_expected():
    for outcome in try_ranks(sent_as_another_type, 2):
        assert "sends rows of another dtype or shape" in str(outcome.error)
    assert "rank 1 sends 4 rows, and 5 were expected" in str(
        try_ranks(another_number_sent, 2)[0].error
    )


def named_alike(world: World) -> list[str]:
    """Two ranks of one host name that do not see each other's processes, and two that do."""
    placement = world.placement(world.size)
    seen = type(share(world.exchange("near"), placement)).__name__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "machine", lambda: f"container {world.rank}")
        unseen = type(share(world.exchange("apart"), placement)).__name__
    return [seen, unseen]


def test_containers_of_one_name_exchange_by_sockets():
    assert run_ranks(named_alike, 2) == [["SharedExchange", "CollectiveExchange"]] * 2
