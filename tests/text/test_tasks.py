"""Tasks: about the same size, in order, and a function of the inputs alone."""

from hypothesis import given
from hypothesis import strategies as st

from latemask.text.sources import Source
from latemask.text.tasks import LARGEST_TASK, SMALLEST_TASK, Piece, plan_tasks, task_size


def source(size: int, format: str = "txt", compression: str | None = None, name: str = "a") -> Source:
    return Source(name, f"/{name}", False, format, compression, size, "")


sources = st.lists(
    st.builds(
        source,
        st.integers(0, 40 * SMALLEST_TASK),
        st.sampled_from(["txt", "jsonl", "csv", "parquet"]),
        st.sampled_from([None, "gzip"]),
        st.uuids().map(str),
    ),
    min_size=1,
    max_size=30,
)


@given(sources)
def test_every_byte_is_in_exactly_one_task_in_order(found):
    pieces = [piece for task in plan_tasks(found) for piece in task]
    position: dict[str, int] = {}
    for piece in pieces:
        assert piece.start == position.get(piece.source.path, 0)
        position[piece.source.path] = min(piece.end, piece.source.size)
    assert [piece.source for piece in pieces if piece.start == 0] == found
    assert all(position[source.path] == source.size for source in found)


@given(sources)
def test_tasks_that_can_be_split_are_of_one_size(found):
    limit = task_size(sum(Piece(source).text_size for source in found))
    for task in plan_tasks(found):
        sizes = [piece.text_size for piece in task]
        assert len(task) == 1 or sum(sizes) <= limit
        if not task[0].source.compression and task[0].source.format in ("txt", "jsonl"):
            assert sum(sizes) < 2 * limit


def test_small_files_share_a_task_and_large_ones_are_split():
    assert len(plan_tasks([source(1000, name=str(n)) for n in range(500)])) == 1
    assert len(plan_tasks([source(10 * SMALLEST_TASK)])) == 10
    assert len(plan_tasks([source(10 * SMALLEST_TASK, compression="gzip")])) == 1


def test_the_number_of_tasks_stays_within_reason():
    assert task_size(0) == SMALLEST_TASK
    assert task_size(10**12) == LARGEST_TASK
    assert len(plan_tasks([source(10**11, name=str(n)) for n in range(10)])) < 5000
